"""A reverse proxy as people have one: it serves the router under a path, which it takes away before it asks.

    with sub_path(port, "/some/llm") as base_url:

It knows nothing of what passes, streams as it comes, and refuses whatever does not stand below its path.
"""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HEAD_MAX = 1 << 16
HOP = b"connection:"
NOT_BELOW = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextmanager
def sub_path(port: int, prefix: str) -> Iterator[str]:
    """Where the router on this port now is, without a slash at the end."""
    with _Server(port, prefix.encode()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
        finally:
            server.shutdown()
            thread.join()
            server.hang_up()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, prefix: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.prefix = prefix
        self.open: set[socket.socket] = set()

    def hang_up(self) -> None:
        """End what still streams, so that its threads end."""
        for each in list(self.open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(socketserver.BaseRequestHandler):
    """One request a connection: what follows would need the body's end to be known."""

    server: _Server

    def handle(self) -> None:
        head, end, body = self._head().partition(b"\r\n\r\n")
        if not end:
            return
        first, *fields = head.split(b"\r\n")
        method, target, version = first.split(b" ")
        if not target.startswith(self.server.prefix + b"/"):
            self.request.sendall(NOT_BELOW)
            return
        kept = [field for field in fields if not field.lower().startswith(HOP)]
        lines = [b" ".join((method, target.removeprefix(self.server.prefix), version)), *kept, b"Connection: close"]
        with socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            self.server.open |= {upstream, self.request}
            upstream.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            up = threading.Thread(target=_pour, args=(self.request, upstream), daemon=True)
            up.start()
            _pour(upstream, self.request)
            with suppress(OSError):
                self.request.shutdown(socket.SHUT_RDWR)
            up.join()
            self.server.open -= {upstream, self.request}

    def _head(self) -> bytes:
        got = b""
        with suppress(OSError):
            while b"\r\n\r\n" not in got and len(got) < HEAD_MAX:
                piece = self.request.recv(1 << 16)
                if not piece:
                    break
                got += piece
        return got


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
