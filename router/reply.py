"""The answer to one client, in whatever state it is: not begun, kept alive by comments, begun, or ended.

Its counterpart is `Connection`, the answer of the child. What a client is told when something fails depends on how far
its answer is: JSON with a status before the first byte; afterwards a last frame of the stream in the dialect of its
API, or nothing, and a connection that closes without the end of a body, so that no client takes it for a success.

A stream that waits is kept alive by comments. They end with one newline, not with the empty line that ends an event:
for some clients an empty line after nothing but a comment is an event without data. The one empty line before the first
event makes that event start afresh for clients which split at empty lines.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router import errors
from router.client import Client
from router.headers import Fields, to_client
from router.routes import Dialect

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODYLESS = (204, 304)
"""Statuses of answers that have no body, whatever length they announce."""
COLLECT_MAX = 1 << 20
"""Of an answer that is no stream but has to be told on one, so many bytes are kept."""


class Reply:
    """One answer on its way to one client. Methods do nothing once the client is gone."""

    __slots__ = (
        "_client",
        "_collected",
        "_dialect",
        "_held",
        "_last",
        "_own",
        "_send",
        "_sse",
        "_until_close",
        "begun",
        "kept_alive",
    )

    def __init__(self, client: Client, send: Send, http_version: str, dialect: Dialect, own: Fields) -> None:
        """`own`: headers that every answer gets."""
        self.begun = False
        """Bytes of the child's answer have been sent."""
        self.kept_alive = False
        """The status and comments have been sent, before the child answered."""
        self._client = client
        self._send = send
        self._dialect = dialect
        self._own = own
        self._until_close = http_version == "1.0"
        self._sse = False
        self._held = b""
        self._last = b"\n\n"
        self._collected: bytearray | None = None

    def add(self, name: bytes, value: bytes) -> None:
        """A header of our own, before anything is sent."""
        self._own = [*self._own, (name, value)]

    @property
    def started(self) -> bool:
        """The client has a status."""
        return self.begun or self.kept_alive

    async def comment(self, text: str) -> None:
        """Keep a stream that waits alive; the first comment answers with status 200."""
        if not self.started:
            self.kept_alive = True
            fields = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            await self._start(200, to_client(fields, sse=True, own=self._own))
        self._client.write(f": {text}\n".encode())

    async def begin(self, status: int, headers: Fields, *, sse: bool) -> None:
        """The child has answered: pass status and headers on or, where the client has a status, only what follows."""
        self.begun = True
        self._sse = sse and (status < 400 or not self.kept_alive)
        if not self.kept_alive:
            await self._start(status, to_client(headers, sse=sse, own=self._own))
        elif self._sse:
            self._client.write(b"\n")
        else:
            self._collected = bytearray()

    def write(self, data: bytes) -> bool:
        """Pass a piece of the child's answer on. Of a stream, a line that is not complete waits for its end.

        False: the client lags behind; there should be no more until `on_drain` calls back.
        """
        if self._sse:
            if self._held or not data.endswith(b"\n"):
                data = self._held + data
                end = data.rfind(b"\n") + 1
                self._held = data[end:]
                data = data[:end]
                if not data:
                    return True
            self._last = data
        elif self._collected is not None:
            self._collected += data[: COLLECT_MAX - len(self._collected)]
            return True
        return self._client.write(data)

    def flush(self) -> None:
        """Send the head of an answer whose body may be long in coming."""
        self._client.write(b"")

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._client.on_drain(callback)

    async def end(self, status: int) -> None:
        """The child's answer, with this status, is complete."""
        if self._collected is not None:
            self._client.write(b"\n" + _as_frames(bytes(self._collected), self._dialect, status))
            if status >= 400:
                self._client.break_off()
                return
        self._client.write(self._held)
        if self._until_close:
            self._client.break_off()
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: errors.RouterError) -> None:
        """Tell the client in the way that is still possible, and never let it look like success."""
        if self._client.gone:
            return
        if not self.started:
            dialect: errors.Dialect = "anthropic" if self._dialect == "anthropic" else "openai"
            body = errors.body(error, dialect)
            fields = [*errors.headers(error), (b"content-length", b"%d" % len(body)), *self._own]
            await self._send({"type": "http.response.start", "status": error.status, "headers": fields})
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        if self._sse or not self.begun or self._collected is not None:
            self._client.write(self._fresh_line() + error_frame(error, self._dialect))
        self._client.break_off()

    def _fresh_line(self) -> bytes:
        """What ends an event that was passed on without its end."""
        if not self.begun or self._collected is not None:
            return b"\n"
        return b"" if self._last.endswith(b"\n\n") else b"\n"

    async def _start(self, status: int, fields: Fields) -> None:
        if not 200 <= status < 600:
            status = 502  # no client knows what to make of it
        if status in BODYLESS:
            fields = [field for field in fields if field[0] != b"content-length"]
        if self._until_close:
            if any(name == b"content-length" for name, _ in fields):
                self._until_close = False
            else:
                self._client.end_with_connection()
        self._client.hold_head()
        await self._send({"type": "http.response.start", "status": status, "headers": fields})


def error_frame(error: errors.RouterError, dialect: Dialect) -> bytes:
    """The last frame of a stream that fails."""
    if dialect != "responses":
        return errors.sse_frame(error, dialect)
    event = {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return b"event: error\ndata: " + body + b"\n\n"


def _as_frames(body: bytes, dialect: Dialect, status: int) -> bytes:
    """A whole answer, an error mostly, as the one frame of a stream."""
    name = b"event: error\n" if status >= 400 and dialect != "openai" else b""
    lines = body.replace(b"\r\n", b"\n").strip(b"\n").split(b"\n")
    return name + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
