"""HTTP/1.1 as the stand-in speaks it: one blocking socket, one thread, requests one after the other.

Knows nothing of routes. A peer that is gone shows as `Gone`, whoever notices it first: a read, a write or a wait.
"""

import hashlib
import json
import os
import select
import socket
import struct
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class Gone(Exception):
    """The peer closed its side or the whole connection."""


class Request:
    """One request with its whole body."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.headers = headers
        self.body = body
        split = urlsplit(target)
        self.path = unquote(split.path)
        self.query = dict(parse_qsl(split.query, keep_blank_values=True))
        self.sha256 = hashlib.sha256(body).hexdigest()


class Connection:
    """Reads requests, writes answers, notices that the peer is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.chunked = False
        self.sent_at = time.monotonic()
        self.hangup = select.poll()
        self.hangup.register(sock, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    # --- reading

    def read_request(self) -> Request:
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers: dict[str, str] = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        else:
            body = self._exactly(int(headers.get("content-length", "0")))
        return Request(method, target, headers, body)

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass  # trailers
        return bytes(body)

    def _until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            self._receive()
        found = bytes(self.buffer[:end])
        del self.buffer[: end + len(mark)]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._receive()
        found = bytes(self.buffer[:size])
        del self.buffer[:size]
        return found

    def _receive(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except OSError as error:
            raise Gone from error
        if not data:
            raise Gone
        self.buffer += data

    # --- writing

    def answer(self, status: int, body: bytes, content_type: str, headers: dict[str, str]) -> bool:
        """A whole answer; false when the connection ends with it, as llama-server's does after an error."""
        self._head(status, {"Content-Type": content_type, "Content-Length": str(len(body)), **headers})
        self._send(body)
        return status < 400

    def answer_json(self, status: int, value: Any, headers: dict[str, str]) -> bool:
        return self.answer(status, json.dumps(value).encode(), "application/json; charset=utf-8", headers)

    def answer_half(self, headers: dict[str, str]) -> None:
        """The head of an answer and half of the body that it promises."""
        self._head(200, {"Content-Type": "application/json", "Content-Length": "4000", **headers})
        self._send(b" " * 2000)

    def open_stream(self, headers: dict[str, str]) -> None:
        self.chunked = True
        stream = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Transfer-Encoding": "chunked"}
        self._head(200, {**stream, **headers})

    def send_chunk(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.chunked = False
        self._send(b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str]) -> None:
        keep = {"Connection": "close"} if status >= 400 else {"Keep-Alive": "timeout=5, max=100"}
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", "Server: llama.cpp"]
        lines += [f"{name}: {value}" for name, value in (headers | keep).items()]
        self._send("\r\n".join(lines).encode() + b"\r\n\r\n")

    def _send(self, data: bytes) -> None:
        self.sent_at = time.monotonic()
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Gone from error

    # --- waiting

    def gone(self, wait_s: float = 0.0) -> bool:
        """Whether the peer has closed, waiting for that up to `wait_s`."""
        return bool(self.hangup.poll(max(0.0, wait_s) * 1000))

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Closes with RST on TCP; a UNIX socket's peer reads the end of the stream."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a path that ends in .sock, or on an address. Raises OSError as bind does."""
    if host.endswith(".sock"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(host)
    else:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    os.set_inheritable(listener.fileno(), False)
    listener.listen(512)
    return listener
