"""The client's side of the data path: uvicorn's HTTP protocol, and what the relay needs beside ASGI.

* It says that a client is gone the moment that its FIN or RST comes, in every phase, without a task that waits for it.
* It takes the body of an answer as plain calls, which costs a third of ASGI's messages, and says when it has enough.
* It can break an answer off: what was written is flushed, the end of the answer is not.
* It can answer HTTP/1.0 clients, which do not know chunks, with a body that ends with the connection.
* It ignores the wish for another protocol (Java's client wishes for h2c with every request) and reads on as HTTP/1.1.
* It refuses what is no HTTP, and headers without an end, in the one shape of errors.
* It gives up on who sends too slowly: headers, or a body that stops coming. Who waits for an answer is never hurried.

The relay finds a `Client` in `scope["extensions"][EXTENSION]`. Serve with `uvicorn.Config(http=ClientProtocol)`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router import errors

EXTENSION = "llama_router.client"
LINGER_S = 30.0
"""How long a client may take to read the end of an answer that is broken off."""
PIPELINE_LIMIT = 16
"""Requests that may be read ahead on one connection; reading goes on, since a FIN is only seen by reading."""
ENDLESS = 1 << 62
"""A length that no body reaches."""


class _HeadTooLarge(Exception):
    """Raised through the parser, whose error then has it as its context."""


class Client:
    """Who sent one request, as long as that request lasts."""

    __slots__ = ("_held", "_on_drain", "_on_gone", "_protocol", "gone")

    def __init__(self, protocol: "ClientProtocol") -> None:
        self.gone = False
        self._protocol = protocol
        self._held: _Held | None = None
        self._on_drain: Callable[[], None] | None = None
        self._on_gone: Callable[[], None] | None = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back, once, when the client is gone. Of one that is gone already, only `gone` tells."""
        self._on_gone = callback

    def hold_head(self) -> None:
        """Before an answer is started: its head goes out with the first `write`, in one packet."""
        cycle = self._protocol.active
        if cycle is not None and not self.gone:
            self._held = _Held()
            transport: Any = self._held
            cycle.transport = transport

    def write(self, data: bytes) -> bool:
        """Send bytes of the body, after the answer was started. False: it lags behind, wait for `on_drain`."""
        protocol = self._protocol
        cycle = protocol.active
        if self.gone or cycle is None:
            return True
        if not cycle.chunked_encoding:
            cycle.expected_content_length -= len(data)
        elif data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held is not None:
            data = self._held.head + data
            self._held = None
            cycle.transport = protocol.transport
        protocol.transport.write(data)
        return not protocol.flow.write_paused

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back whenever what `write` left behind has been sent."""
        self._on_drain = callback

    def forget(self) -> None:
        """Call nobody back any more."""
        self._on_gone = self._on_drain = None

    def break_off(self) -> None:
        """Flush what was written and close without ending the answer: a chunked body stays visibly incomplete."""
        self._leave()
        transport = self._protocol.transport
        transport.close()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def end_with_connection(self) -> None:
        """Before an answer without a length is started: it is not chunked, and `break_off` is its end."""
        cycle = self._protocol.active
        if cycle is not None:
            cycle.chunked_encoding = False
            cycle.expected_content_length = ENDLESS

    def _leave(self) -> None:
        self.forget()
        self.gone = True
        cycle = self._protocol.active
        if cycle is not None and client_of(cycle.scope) is self:
            cycle.disconnected = True

    def _tell(self) -> None:
        if not self.gone:
            self.gone = True
            callback, self._on_gone = self._on_gone, None
            if callback is not None:
                callback()


class _Held:
    """Stands in for the transport while the head of an answer is written."""

    def __init__(self) -> None:
        self.head = b""

    def write(self, data: bytes) -> None:
        self.head += data


@dataclass(frozen=True, slots=True)
class Patience:
    """What one client may take of the router's time and memory before it has asked for anything."""

    head_bytes: int = 1 << 20
    """Of a request before its body."""
    head_s: float = 30.0
    """For those bytes, from the connection or from the first of them."""
    body_s: float = 60.0
    """Without a byte of a body that is to come."""


class ClientProtocol(HttpToolsProtocol):
    """One connection of a client."""

    patience = Patience()
    active: RequestResponseCycle | None = None
    """The request that is being answered; later ones of the same connection wait in `pipeline`."""
    _in_head = True
    _head_bytes = 0
    """Read of it since the piece that it began in."""
    _first_bytes = 0
    """Size of that piece, which may hold the end of another request."""
    _piece_bytes = 0
    _got_on = False
    """What was read last ended a head, or held a piece of a body."""
    _trailer_bytes = 0
    """Read since then, of a request that has not ended: what stands between chunks and after the last one."""
    _heard_s = 0.0
    """On the event loop's clock: when the connection was made, a head began, or a piece of a body came."""
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_patience(cls, patience: Patience) -> "type[ClientProtocol]":
        """The protocol for a server that is as patient as that."""
        return type(cls.__name__, (cls,), {"patience": patience})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_s = self.loop.time()
        self._timer = self.loop.call_later(self.patience.head_s, self._look_for_delay)

    def _look_for_delay(self) -> None:
        """Refuse who lets us wait. One timer per connection that finds out when it rings costs nothing per request."""
        limit_s, what = self._may_wait()
        silent_s = self.loop.time() - self._heard_s
        if not what or silent_s < limit_s:
            self._timer = self.loop.call_later(limit_s - silent_s if what else limit_s, self._look_for_delay)
            return
        self._timer = None
        if self.scope is None:  # not a byte of a request
            self.transport.close()
        else:
            self._refuse(errors.error("request_timeout", f"nothing more came of {what} for {limit_s:g} s"))

    def _may_wait(self) -> tuple[float, str]:
        """How long the client may let us wait for what is due now; nothing is due while it is our turn."""
        patience = self.patience
        active, last = self.active, self.cycle
        answering = active is not None and not active.response_complete
        if self._in_head and not answering:
            return patience.head_s, "its headers"
        if answering and last is active and last.more_body and not self.flow.read_paused:
            return patience.body_s, "its body"
        return min(patience.head_s, patience.body_s), ""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if not self._in_head or not self._head_bytes:
            self._heard_s = self.loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        self._piece_bytes, self._got_on = len(data), False
        while data:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as stopped:
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(errors.error("invalid_http", "the router is no proxy: CONNECT is not known"))
                    return
                data = self._head_without_upgrade() + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError as error:
                if isinstance(error.__context__, _HeadTooLarge):
                    self._refuse(self._too_large("the headers have"))
                else:
                    self._refuse(errors.error("invalid_http", "this is no HTTP/1.1 request"))
                return
        is_due = not self._in_head and self.cycle is not None and self.cycle.more_body
        self._trailer_bytes = self._trailer_bytes + self._piece_bytes if is_due and not self._got_on else 0
        if self._in_head and self._head_bytes > self.patience.head_bytes:
            self._refuse(self._too_large("the headers have"))
        elif self._trailer_bytes > self.patience.head_bytes:
            self._refuse(self._too_large("what follows the body has"))

    def _too_large(self, what: str) -> errors.RouterError:
        return errors.error("headers_too_large", f"{what} more than {self.patience.head_bytes} bytes")

    def _is_head_too_large(self) -> bool:
        """Added up only where so much was read that it could be."""
        limit = self.patience.head_bytes
        if self._first_bytes + self._head_bytes <= limit:
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limit

    def _head_without_upgrade(self) -> bytes:
        """The request that wishes for another protocol, as one that does not; the parser would leave out its body."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _refuse(self, problem: errors.RouterError) -> None:
        """Nothing more is read. An answer that has begun could not be told from this one: it is broken off."""
        begun = self.active is not None and self.active.response_started
        if self._client_left() and begun:
            self.transport.abort()
            return
        body = errors.openai_body(problem)
        head = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(f"{head}\r\n{fields}\r\n\r\n".encode() + body)
        self.transport.close()

    def shutdown(self) -> None:
        """A request whose body is not in does not hold up the end."""
        if self.active is not None and self.active.more_body and not self.active.response_started:
            self._refuse(errors.error("shutting_down", "the router is stopping"))
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: Any = self.scope
        scope["extensions"] = {EXTENSION: Client(self)}
        self._in_head = True
        self._head_bytes = 0
        self._first_bytes = self._piece_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """What comes after a chunked body is no header: it would count as one that was there from the start."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_headers_complete(self) -> None:
        if self._is_head_too_large():
            raise _HeadTooLarge
        self._in_head = False
        self._got_on = True
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) <= PIPELINE_LIMIT:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if not self.pipeline:
                # Paused while a large body came in; a FIN is only seen by reading.
                self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.active = cycle
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> None:
        """A FIN: by our rule, who asks nothing more does not wait for an answer either."""
        if self._client_left():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._client_left()
        super().connection_lost(exc)
        self.active = None

    def resume_writing(self) -> None:
        super().resume_writing()
        client = client_of(self.active.scope) if self.active is not None else None
        if client is not None and client._on_drain is not None:
            client._on_drain()

    def _client_left(self) -> bool:
        """Tell the request that is being answered, if there is one."""
        active = self.active
        if active is None or active.response_complete:
            return False
        active.disconnected = True
        active.message_event.set()
        client = client_of(active.scope)
        if client is not None:
            client._tell()
        return True


def client_of(scope: Any) -> Client | None:
    """The client of a request that came in over a `ClientProtocol`."""
    found = scope.get("extensions", {}).get(EXTENSION)
    return found if isinstance(found, Client) else None
