"""A client that can do what polite ones do not: hang up at any moment, read one frame at a time, notice a cut body.

Blocking, on http.client; for the router over TCP and for a stand-in over its UNIX socket.
"""

import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

Address = str | tuple[str, int]
"""A socket path, or host and port."""


_TOKEN = re.compile(r'"(content|text|delta)": "w\d+ \.*"')


class CutShort(Exception):
    """The body ended without its proper end; `args[0]` is what came of the last frame."""


kept: set["Call"] | None = None
"""Where the tests keep calls that are not closed yet: one that a test drops is closed when the test ends (`close_all`),
not at the collector's next visit, which may be in the middle of another test. None elsewhere."""


def close_all() -> None:
    """Hang up wherever a test has not."""
    for call in list(kept or ()):
        call.close()


class Call:
    """One request: sent at once, read when the test wants to."""

    def __init__(
        self,
        address: Address,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.response: http.client.HTTPResponse | None = None
        self._frames = self._read_frames()
        self.conn = http.client.HTTPConnection("localhost", timeout=timeout_s)
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.sock = socket.socket(family)
        if kept is not None:
            kept.add(self)
        self.sock.settimeout(timeout_s)
        self.sock.connect(address)
        self.conn.sock = self.sock
        sent = {"Content-Type": "application/json"} | dict(headers or {})
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        self.conn.request(method, path, body=data, headers=sent)

    def __del__(self) -> None:
        self.close()

    @property
    def head(self) -> http.client.HTTPResponse:
        """The answer's head, waiting for it. Raises CutShort when the connection ends before."""
        if self.response is None:
            try:
                self.response = self.conn.getresponse()
            except (http.client.HTTPException, ConnectionError) as error:
                raise CutShort(b"") from error
        return self.response

    @property
    def status(self) -> int:
        return self.head.status

    def header(self, name: str) -> str:
        return self.head.getheader(name) or ""

    def read(self) -> bytes:
        """The whole body. Raises CutShort."""
        try:
            return self.head.read()
        except (http.client.IncompleteRead, ConnectionError) as error:
            raise CutShort(getattr(error, "partial", b"")) from error
        finally:
            self.close()

    def json(self) -> Any:
        return json.loads(self.read())

    def frames(self) -> Iterator[str]:
        """Each SSE event as text, and each comment line, as soon as it is there; called again, it goes on.

        Raises CutShort when the stream does not end as it should.
        """
        return self._frames

    def _read_frames(self) -> Iterator[str]:
        rest = b""
        while True:
            try:
                data = self.head.read1()
            except (http.client.IncompleteRead, ConnectionError) as error:
                raise CutShort(rest) from error
            if not data:
                break
            rest += data
            while True:
                rest = rest.lstrip(b"\n")
                end = b"\n" if rest.startswith(b":") else b"\n\n"
                frame, found, after = rest.partition(end)
                if not found:
                    break
                rest = after
                yield frame.decode()
        self.close()
        if rest.strip():
            raise CutShort(rest)

    def frames_to_the_end(self) -> tuple[list[str], bool]:
        """All frames, and whether the end was a proper one."""
        seen: list[str] = []
        try:
            for frame in self.frames():
                seen.append(frame)
        except CutShort:
            return seen, False
        return seen, True

    def chunks(self) -> Iterator[str]:
        """The frames that carry a token's text, in any dialect."""
        return (frame for frame in self.frames() if is_chunk(frame))

    def close(self) -> None:
        """Hangs up in order (FIN)."""
        if kept is not None:
            kept.discard(self)
        if self.response is not None:
            self.response.close()
        self.conn.close()
        self.sock.close()

    def half_close(self) -> None:
        """Ends the client's side only."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Hangs up rudely (RST)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def is_chunk(frame: str) -> bool:
    """Whether a frame is one of the stand-in's tokens (`w1 `, `w2 `, ...)."""
    return bool(_TOKEN.search(frame)) and ".done" not in frame and ".completed" not in frame


def is_comment(frame: str) -> bool:
    return frame.startswith(":")
