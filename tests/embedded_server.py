"""A real llama.cpp server as a child of the test: the embedded one, on a UNIX socket of its own.

It counts as started when a line of its log says so, not after a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.mortal import mortal

LISTENING = "listening on"
LOADING = "loading model '"

ONE_THREAD = ["--threads", "1"]
"""llama.cpp's threads spin while they wait for each other: on a busy machine two are 15 times slower than one."""

NO_REUSE = {"connection": "close"}
"""llama-server closes a connection after a streamed answer without having announced it."""


@dataclass
class EmbeddedServer:
    process: subprocess.Popen[str]
    client: httpx.Client
    log: list[str] = field(default_factory=list)
    """What it has said on stderr so far."""


@contextmanager
def embedded_server(
    model: Path, socket: Path, *options: str, env: dict[str, str] | None = None, ready: str = LISTENING
) -> Iterator[EmbeddedServer]:
    """Serve `model` on `socket` (*.sock) until the block ends. The block begins when a log line says `ready`."""
    argv = [sys.executable, "-m", "router.embedded", "-m", str(model), "--host", str(socket), *ONE_THREAD, *options]
    environ = {**os.environ, **(env or {})}
    transport = httpx.HTTPTransport(uds=str(socket))
    with (
        subprocess.Popen(
            mortal(argv), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
        ) as process,
        httpx.Client(transport=transport, base_url="http://llama", headers=NO_REUSE, timeout=30) as client,
    ):
        server = EmbeddedServer(process, client)
        try:
            _read_log_until(ready, server)
            reader = threading.Thread(target=_read_log, args=[server])
            reader.start()
            yield server
        finally:
            process.kill()
        reader.join()


def _read_log_until(text: str, server: EmbeddedServer) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.log.append(line)
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}, but: {''.join(server.log)}")


def _read_log(server: EmbeddedServer) -> None:
    """Go on reading: a full pipe would stop the server."""
    assert server.process.stderr is not None
    server.log.extend(server.process.stderr)
