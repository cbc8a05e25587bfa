"""Behind nginx as Debian ships it: buffering on, HTTP/1.0 to the router, and its patience with a silent upstream."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.checks import routed
from tests.mortal import mortal
from tests.standin.client import Call
from tests.standin.fixtures import Model, RouterProcess, body_for, free_port
from tests.standin.ledger import polls

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
CHAT = "/v1/chat/completions"
READ_TIMEOUT_S = 2
"""Debian's default is 60 s, the router's comments come every 15 s: here both are so much shorter."""
COMMENT_S = 0.5

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@contextmanager
def nginx_before(router: RouterProcess, folder: Path) -> Iterator[tuple[str, int]]:
    """Its address. Nothing is set that concerns buffering."""
    port = free_port()
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; {paths}"
        f"server {{ listen 127.0.0.1:{port}; proxy_read_timeout {READ_TIMEOUT_S}s;\n"
        f"location / {{ proxy_pass http://127.0.0.1:{router.port}; }} }} }}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen(mortal([NGINX, "-c", str(config), "-e", f"{folder}/nginx.log"]))
    try:
        for _ in polls(10, every_s=0.02):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                continue
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Model "a" answers as long as one likes; three others cannot be loaded."""
    models = [Model("a", tokens=10_000, gap_s=0.05), *(Model(name, fail="missing") for name in "bcd")]
    with routed(tmp_path_factory.mktemp("nginx"), models, QUEUE_COMMENT_INTERVAL=COMMENT_S) as router:
        yield router


@pytest.fixture(scope="module")
def nginx(router: RouterProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with nginx_before(router, tmp_path_factory.mktemp("before")) as address:
        yield address


def ask(address: tuple[str, int], model: str, path: str = CHAT, tokens: int = 10_000) -> Call:
    return Call(address, "POST", path, {**body_for(path, model), "stream": True, "standin": {"tokens": tokens}})


def test_the_first_token_is_not_kept_back(nginx: tuple[str, int]) -> None:
    """It is there while minutes of the answer are to come: the answer itself tells nginx not to collect it."""
    call = ask(nginx, "a")
    next(call.chunks())
    call.close()


def test_a_whole_answer_passes(nginx: tuple[str, int]) -> None:
    frames, complete = ask(nginx, "a", tokens=5).frames_to_the_end()
    assert complete
    assert frames[-1] == "data: [DONE]"


def test_a_wait_longer_than_nginx_s_patience_is_survived(router: RouterProcess, nginx: tuple[str, int]) -> None:
    """Comments come while the request is queued, so nginx sees a living upstream; then the answer comes as ever."""
    first = router.chat("a", stream=True)
    next(first.chunks())
    begun = time.monotonic()
    frames = ask(nginx, "a", tokens=2).frames()
    while time.monotonic() - begun < 2 * READ_TIMEOUT_S:
        assert next(frames).startswith(": queued position=")
    first.close()
    assert [frame for frame in frames if not frame.startswith(":")][-1] == "data: [DONE]"


@pytest.mark.parametrize(("path", "model"), [(CHAT, "b"), ("/v1/messages", "c"), ("/v1/responses", "d")])
def test_an_error_after_an_early_200_arrives_as_an_event(
    router: RouterProcess, nginx: tuple[str, int], path: str, model: str
) -> None:
    """The queue's comments have begun the answer, so its status is 200 whatever comes: an event says what came."""
    first = router.chat("a", stream=True)
    next(first.chunks())
    call = ask(nginx, model, path)
    assert next(call.frames()).startswith(": queued")
    assert call.status == 200
    first.close()
    frames, _ = call.frames_to_the_end()
    assert "model_load_failed" in frames[-1]
    assert "[DONE]" not in "".join(frames)
