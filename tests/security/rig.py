"""A router with keys of every kind, and raw bytes to send to it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.config import key_digest
from tests.faults.checks import routed
from tests.standin.client import Call
from tests.standin.fixtures import Model, RouterProcess

OWNER = "lr-owner-3f1d9c5bb1be4a6f"
GUEST = "lr-guest-77ab61e6cc2b4a10"
LIMITED = "lr-limited-0b6c8dd1a5ef4f22"
FILED = "lr-filed-5a61e0e94c5d4d9a"
PAST = "lr-past-5c0f2f9c1d3a4b7e"
SECRETS = (OWNER, GUEST, LIMITED, FILED, PAST)


def keys() -> dict[str, Any]:
    """As config.json has them: a hash, an environment variable, a file, and two in plain text."""
    return {
        "owner": {"key": f"sha256:{key_digest(OWNER)}", "admin": True},
        "guest": {"key": "${env.GUEST_KEY}", "models": ["b"]},
        "limited": {"key": LIMITED, "rpm": 2, "max_parallel": 1},
        "filed": {"key": "${file.filed.key}", "tpm": 30},
        "past": {"key": PAST, "expires": "2020-01-01"},
    }


@contextmanager
def guarded(folder: Path, *, models: list[Model] | None = None, **settings: Any) -> Iterator[RouterProcess]:
    """A router on stand-ins that asks for keys."""
    (folder / "filed.key").write_text(FILED + "\n")
    env = {"GUEST_KEY": GUEST}
    models = models or [Model("a", tokens=3), Model("b", tokens=3)]
    with routed(folder, models, top={"keys": keys()}, env=env, NUM_GPUS=1, **settings) as router:
        yield router


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def code_of(call: Call) -> tuple[int, str]:
    """Status and code of an error."""
    return call.status, call.json()["error"]["code"]


def chat(router: RouterProcess, secret: str, model: str = "a") -> Call:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    return router.call("POST", "/v1/chat/completions", body, **bearer(secret))


@dataclass
class Answer:
    """What a connection was told, raw and taken apart."""

    raw: bytes
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def __post_init__(self) -> None:
        head, _, self.body = self.raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if lines[0].startswith("HTTP/1.1 "):
            self.status = int(lines[0].split()[1])
        pairs = [line.partition(":") for line in lines[1:]]
        self.headers = [(name.lower(), value.strip()) for name, _, value in pairs]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


def tell(router: RouterProcess, data: bytes, timeout_s: float = 15.0) -> Answer:
    """Send bytes as they are; all that comes back until the router closes."""
    with socket.create_connection(router.address, timeout=timeout_s) as connection:
        with suppress(ConnectionError):  # it may have heard enough
            connection.sendall(data)
        received = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            received += piece
        return Answer(received)


def request(method: str, target: str, *lines: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """A request that closes its connection."""
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close", *lines]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
