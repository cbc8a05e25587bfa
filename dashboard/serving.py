"""The tables and the application on a socket, from the start of the process to its end. Counterpart: `process.py`."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from dashboard.app import create_app
from dashboard.history import History
from dashboard.news import News

LINGER_S = 2
"""How long answers may take to end once the process is told to."""


async def serve(log_dir: Path, db_path: Path, socket_path: Path, *, memory_mib: int, threads: int) -> bool:
    """Until a signal, or until the tables cannot be kept: then True. Raises LogError."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    has_failed = False

    def failed(error: BaseException) -> None:
        nonlocal has_failed
        has_failed = True
        loop.call_soon_threadsafe(over.set)

    news = News()

    def changed(tables: frozenset[str], seq: int) -> None:
        loop.call_soon_threadsafe(news.changed, tables, seq)

    history = History(log_dir, db_path, failed, changed, memory_mib=memory_mib, threads=threads)
    history.start()
    try:
        config = uvicorn.Config(
            create_app(history, news),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=LINGER_S,
        )
        server = Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        with listening(socket_path) as sock:
            serving = asyncio.ensure_future(server.serve(sockets=[sock]))
            serving.add_done_callback(lambda _: over.set())
            await over.wait()
            news.close()
            server.should_exit = True
            await serving
    finally:
        history.close()
    return has_failed


class Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at this path, in the place of one that an earlier process left; gone afterwards."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(64)
        yield sock
    path.unlink(missing_ok=True)
