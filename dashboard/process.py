"""The dashboard's process: `python -m dashboard.process --log DIR --db FILE --socket PATH`.

It listens on a UNIX socket that only its owner can open, runs at low priority, and ends at SIGTERM. It never writes to
the log.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from dashboard.app import create_app
from dashboard.history import History
from eventlog.errors import LogError

NICENESS = 10
BROKEN = 1


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; 1 if the tables cannot be kept."""
    parser = argparse.ArgumentParser(prog="llama-router-dashboard", description="The dashboard's own process.")
    parser.add_argument("--log", type=Path, required=True, metavar="DIR", help="directory of the event log")
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the database, made if need be")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="UNIX socket to listen on")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    os.nice(NICENESS)
    try:
        return asyncio.run(serve(args.log, args.db, args.socket))
    except LogError as error:
        print(f"llama-router dashboard: {error}", file=sys.stderr)
        return BROKEN


async def serve(log_dir: Path, db_path: Path, socket_path: Path) -> int:
    """Until a signal, or until the tables cannot be kept."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    exit_code = 0

    def failed(error: BaseException) -> None:
        nonlocal exit_code
        exit_code = BROKEN
        loop.call_soon_threadsafe(over.set)

    history = History(log_dir, db_path, failed)
    history.start()
    try:
        config = uvicorn.Config(create_app(history), log_config=None, access_log=False, lifespan="off", ws="none")
        server = Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        with listening(socket_path) as sock:
            serving = asyncio.ensure_future(server.serve(sockets=[sock]))
            serving.add_done_callback(lambda _: over.set())
            await over.wait()
            server.should_exit = True
            await serving
    finally:
        history.close()
    return exit_code


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


if __name__ == "__main__":
    sys.exit(main())
