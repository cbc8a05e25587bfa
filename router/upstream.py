"""An HTTP/1.1 client connection to one llama-server, thin enough for the data path.

It is httptools (uvicorn's own parser) on an asyncio transport over a UNIX socket or TCP, one exchange at a time.
`close()` drops the connection at once; `leave()` cancels a generation and waits until the child lets go. After a
complete exchange a `Pool` may keep it for the next one: that halves the cost of small requests (25 us against 55,
measured over a UNIX socket), but llama-server holds a thread for every open connection, so they are few and kept for
a moment only.

`relay.py` streams over `Connection`; everybody else asks small questions with `fetch`.

It knows nothing of models, queues or the log, and sets no time limit of its own except where `fetch` is told one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

Headers = Iterable[tuple[bytes, bytes]]
Payload = bytes | bytearray | AsyncIterator[bytes]

BUFFER_HIGH = 256 * 1024
"""Bytes of an answer that may wait for their consumer before reading from the socket pauses."""
SMALL = 64 * 1024
"""A body below this many bytes is sent in one piece with its headers."""
FETCH_LIMIT = 64 * 1024 * 1024
"""Largest answer that `fetch` takes, in bytes."""
IDLE_S = 1.0
"""How long a connection rests; llama-server itself closes it after 5 s."""
LEAVE_S = 5.0
"""How long a child that is told that nobody listens may go on; then the connection is cut."""
CONNECT_PAUSE_S = 0.005
"""Between tries while the queue of a socket file is full: llama-server takes connections one at a time."""


class UpstreamError(Exception):
    """The replica could not be reached, or broke off before its answer was complete."""


class ConnectFailed(UpstreamError):
    """No connection came about: nothing was sent."""


class Broken(UpstreamError):
    """The connection ended, or spoke something else than HTTP, before the answer was complete."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a llama-server listens: a UNIX socket at `path` or else TCP; `key` is the API key that it asks for."""

    path: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    key: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


def is_sse(headers: Headers) -> bool:
    """Whether these headers, named in lower case, announce server-sent events."""
    return any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)


class Tap(Protocol):
    """Sees an answer as it arrives, also while its consumer is behind. Must be quick, and must not raise."""

    def began(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def ended(self) -> None:
        """The answer is complete; what it fed may still be unread."""


def request_head(method: bytes, target: bytes, headers: Headers) -> bytes:
    """Request line and headers. Names and values must come from a parser or from us: they are not checked here."""
    lines = [method, b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


class Connection(asyncio.Protocol):
    """One exchange: `send`, then `start` for status and headers, then `read` until it returns b"", or `pour`.

    All of them raise `UpstreamError` when the connection breaks. Chunks that arrive together are read together; no byte
    is changed. Without `start`, the first `read` implies it.
    """

    __slots__ = (
        "_all_sent",
        "_bodyless",
        "_buffered",
        "_chunks",
        "_complete",
        "_cutting",
        "_drained",
        "_error",
        "_keeps_alive",
        "_loop",
        "_nudged",
        "_on_left",
        "_parser",
        "_paused",
        "_sink",
        "_started",
        "_tap",
        "_told",
        "_transport",
        "_until_close",
        "_waiter",
        "headers",
        "is_reused",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, tap: Tap | None, bodyless: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_reused = False
        """It carried an exchange before: that it breaks before it answers may only mean that it was too old."""
        self._loop = loop
        self._tap = tap
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._bodyless = bodyless
        self._until_close = False
        self._all_sent = False
        self._keeps_alive = False
        self._started = False
        self._complete = False
        self._told = False
        self._paused = False
        self._nudged = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._on_left: Callable[[], None] | None = None
        self._cutting: asyncio.TimerHandle | None = None

    # --- what the consumer calls ---

    @classmethod
    async def open(
        cls, endpoint: Endpoint, *, tap: Tap | None = None, bodyless: bool = False, timeout_s: float = 5.0
    ) -> "Connection":
        """Connect, within `timeout_s` seconds. `bodyless`: the request is a HEAD, whose answer has no body."""
        loop = asyncio.get_running_loop()
        connection = cls(loop, tap, bodyless)
        deadline = loop.time() + timeout_s
        while True:
            try:
                if endpoint.path is not None:
                    await loop.create_unix_connection(lambda: connection, endpoint.path)
                else:
                    async with asyncio.timeout(timeout_s):
                        await loop.create_connection(lambda: connection, endpoint.host, endpoint.port)
            except BlockingIOError as error:
                if loop.time() >= deadline:
                    raise ConnectFailed(f"{endpoint} takes no connection: its queue is full") from error
                await asyncio.sleep(CONNECT_PAUSE_S)
            except TimeoutError as error:
                raise ConnectFailed(f"{endpoint} took no connection within {timeout_s:g} s") from error
            except OSError as error:
                raise ConnectFailed(f"cannot connect to {endpoint}: {error.strerror or error}") from error
            else:
                return connection

    async def send(self, head: bytes, body: Payload = b"") -> None:
        """Write the request. Returns early when the answer starts before all of the body is sent: it is then due."""
        transport = self._transport
        if transport is None:
            assert self._error is not None
            raise self._error
        if isinstance(body, (bytes, bytearray)):
            if len(body) < SMALL:
                transport.write(head + body)
            else:
                transport.write(head)
                transport.write(body)
            self._all_sent = True
            await self._drain()
            return
        transport.write(head)
        async for piece in body:
            await self._drain()
            if self._started or self._error is not None:
                break
            transport.write(piece)
        else:
            self._all_sent = True
        await self._drain()

    async def start(self) -> None:
        """Wait for status and headers."""
        while not self._started:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes | None:
        """The next bytes of the body, as soon as there are any; b"" when it is complete; None after a `nudge`."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            if self._nudged:
                self._nudged = False
                return None
            await self._wait()
        if len(self._chunks) == 1:
            data = self._chunks.popleft()
        else:
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._buffered = 0
        self.resume()
        return data

    async def pour(self, sink: Callable[[bytes], bool]) -> None:
        """Give the rest of the body to `sink` as it arrives, without a task switch in between; return at its end.

        `sink` must not raise. When it returns False, nothing more is read from the socket until `resume` is called.
        """
        self._buffered = 0
        full = False
        while self._chunks:
            full = not sink(self._chunks.popleft())
        self._sink = sink
        if full:
            self._pause()
        else:
            self.resume()
        while not self._complete:
            if self._error is not None:
                raise self._error
            await self._wait()

    @property
    def paused(self) -> bool:
        """Whether it is the consumer that holds the answer up."""
        return self._paused

    def resume(self) -> None:
        """Read on, if reading was paused."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def is_sse(self) -> bool:
        """Whether the answer is a stream of server-sent events."""
        return is_sse(self.headers)

    def nudge(self) -> None:
        """Let a `read` that waits return None, so that its caller can do something else for a moment."""
        self._nudged = True
        self._wake()

    @property
    def has_begun(self) -> bool:
        """Whether status and headers have come."""
        return self._started

    @property
    def can_carry_another(self) -> bool:
        """Whether this exchange is complete and the child will take another one on this connection."""
        return (
            self._complete
            and self._all_sent
            and self._keeps_alive
            and self._error is None
            and self._transport is not None
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def rest(self) -> None:
        """Nobody uses it for now. What comes in meanwhile ends it."""
        self._tap = self._sink = None
        self.resume()

    def renew(self, tap: Tap | None) -> None:
        """Begin the next exchange."""
        self.status = 0
        self.headers = []
        self.is_reused = True
        self._tap = tap
        self._buffered = 0
        self._all_sent = self._keeps_alive = self._started = self._complete = self._told = self._nudged = False

    def leave(self, on_left: Callable[[], None]) -> None:
        """Want no more of the answer, and be called back, once, when the child is done with the request.

        The child reads the end of what we say, by which llama-server knows that its client is gone, and closes its side
        when it has given up. Nothing else tells that it is not still about to begin: a request that waits unread in a
        socket, or whose prompt is being split into tokens, shows in no slot. One that was not sent completely is never
        begun. A child that has not closed after `LEAVE_S` seconds is cut off. A wait in progress ends with `Broken`.
        """
        transport = self._transport
        if (
            transport is None
            or transport.is_closing()
            or self._complete
            or not self._all_sent
            or transport.get_write_buffer_size()
        ):
            self.close()
            on_left()
            return
        self._tap = None
        self._on_left = on_left
        self._cutting = self._loop.call_later(LEAVE_S, transport.abort)
        self._end(Broken("closed by us"))
        self.resume()  # the end of its side is only seen by reading
        transport.write_eof()

    def close(self) -> None:
        """Drop the connection now, whatever is in flight. A wait in progress ends with `Broken`."""
        if self._on_left is not None:
            return  # the child is about to
        self._tap = None
        if self._transport is not None:
            self._transport.abort()
        self._end(Broken("closed by us"))

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self._complete:
            self._abandon("it said more than its answer")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._abandon(f"not an HTTP/1.1 answer: {error}")
                return
            self._keeps_alive = False  # it said more than its answer
        if self._buffered > BUFFER_HIGH:
            self._pause()
        if self._complete:
            self._wake()
            self._tell_end()
        elif self._sink is None:
            self._wake()

    def eof_received(self) -> None:
        """Nothing more comes; without a length, that is the end of the body."""
        if self._started and self._until_close:
            self._complete = True
        self._wake()
        if self._complete:
            self._tell_end()

    def connection_lost(self, exc: Exception | None) -> None:
        stage = "before its answer was complete" if self._started else "before it answered"
        self._end(Broken(f"connection {'broke' if exc else 'ended'} {stage}" + (f": {exc}" if exc else "")))
        self._transport = None
        on_left, self._on_left = self._on_left, None
        if on_left is not None and self._cutting is not None:
            self._cutting.cancel()
            on_left()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        if self._complete:
            raise Broken("it said more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._started:  # what follows the body is no header
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.headers.clear()  # an interim answer: the real one follows
            return
        if status == 101:
            raise Broken("it switched to a protocol that nobody asked for")
        self.status = status
        self._started = True
        if self._tap is not None:
            self._tap.began(status, self.headers)
        framed = any(name == b"content-length" or name == b"transfer-encoding" for name, _ in self.headers)
        self._until_close = not framed and not self._bodyless
        self.resume_writing()  # who answers early may not read the rest of the body
        if self._bodyless:
            self._complete = True

    def on_body(self, body: bytes) -> None:
        if self._complete:
            return
        if self._sink is None:
            self._chunks.append(body)
            self._buffered += len(body)
        elif not self._sink(body):
            self._pause()
        if self._tap is not None:
            self._tap.feed(body)

    def on_message_complete(self) -> None:
        if self._started:
            self._complete = True
            if self._parser is not None:  # the only moment at which it can tell
                self._keeps_alive = self._parser.should_keep_alive()

    # --- inside ---

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _abandon(self, detail: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(Broken(detail))

    def _end(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self._parser = self._sink = None  # both refer to us
        self.resume_writing()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _tell_end(self) -> None:
        if self._tap is not None and not self._told:
            self._told = True
            self._tap.ended()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    async def _drain(self) -> None:
        if self._drained is not None:
            await asyncio.shield(self._drained)
        if self._error is not None and not self._started:
            raise self._error


class Pool:
    """Connections that rest between two exchanges, for `IDLE_S`.

    There are never more than were in use at once, so a child whose requests are limited to its slots, for each of which
    it has a thread, never lacks one because of those that rest.
    """

    def __init__(self) -> None:
        self._idle: dict[Endpoint, list[tuple[float, Connection]]] = {}
        self._is_sweeping = False

    async def open(
        self, endpoint: Endpoint, *, tap: Tap | None = None, fresh: bool = False, timeout_s: float = 5.0
    ) -> Connection:
        """A connection for one exchange; `fresh`: not one that has been used. Raises `ConnectFailed`."""
        idle = self._idle.get(endpoint)
        while idle and not fresh:
            _, connection = idle.pop()
            if connection.can_carry_another:
                connection.renew(tap)
                return connection
            connection.close()
        return await Connection.open(endpoint, tap=tap, timeout_s=timeout_s)

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """The exchange is over, or given up: keep the connection or close it."""
        if not connection.can_carry_another:
            connection.close()
            return
        connection.rest()
        loop = asyncio.get_running_loop()
        self._idle.setdefault(endpoint, []).append((loop.time(), connection))
        if not self._is_sweeping:
            self._is_sweeping = True
            loop.call_later(IDLE_S, self._sweep)

    def close(self) -> None:
        """Close all that rest."""
        for idle in self._idle.values():
            for _, connection in idle:
                connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_S
        for endpoint, idle in list(self._idle.items()):
            for _, connection in (entry for entry in idle if entry[0] <= oldest):
                connection.close()
            self._idle[endpoint] = [entry for entry in idle if entry[0] > oldest]
            if not self._idle[endpoint]:
                del self._idle[endpoint]
        self._is_sweeping = bool(self._idle)
        if self._is_sweeping:
            loop.call_later(IDLE_S / 2, self._sweep)


async def fetch(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    headers: Headers = (),
    body: bytes = b"",
    timeout_s: float,
) -> Response:
    """Ask one question and take the whole answer. The endpoint's key is sent along.

    `path` is a request target, percent-encoded, with its query. Raises `UpstreamError`, or TimeoutError after
    `timeout_s` seconds.
    """
    async with asyncio.timeout(timeout_s):
        connection = await Connection.open(endpoint, bodyless=method == "HEAD")
        try:
            lines = [(b"Host", b"localhost"), (b"Connection", b"close"), *headers]
            if endpoint.key:
                lines.append((b"Authorization", b"Bearer " + endpoint.key.encode()))
            if body or method not in ("GET", "HEAD", "DELETE"):
                lines.append((b"Content-Length", str(len(body)).encode()))
            await connection.send(request_head(method.encode(), path.encode("ascii"), lines), body)
            await connection.start()
            pieces: list[bytes] = []
            total = 0
            while data := await connection.read():
                pieces.append(data)
                total += len(data)
                if total > FETCH_LIMIT:
                    raise Broken(f"answer of {method} {path} is larger than {FETCH_LIMIT} bytes")
            return Response(connection.status, connection.headers, b"".join(pieces))
        finally:
            connection.close()
