"""A relay that really serves: uvicorn in front, the real loop and scheduler behind, scripted replicas at the end.

`Rig` is everything between a client's socket and a replica's; `Upstream` is a replica that does what a test says. The
log is a list. Clients are raw sockets where the test is about bytes, or `ask` where it is about answers.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvicorn
import uvloop

from eventlog.events import (
    Event,
    ReplicaAnswered,
    ReplicaCrashed,
    ReplicaReady,
    ReplicaSpawned,
    ReplicaSpawnOrdered,
    ReplicaStopOrdered,
    ReplicaStopped,
    RouterStarted,
)
from eventlog.settings import ModelSettings, SchedulerSettings
from router.client import ClientProtocol
from router.clock import RunClock
from router.config import Config, Limits, LogConfig, ModelConfig, Timings
from router.loop import Loop
from router.relay import Relay
from router.scheduler import State
from router.upstream import Endpoint

T = TypeVar("T")
E = TypeVar("E", bound=Event)
DEADLINE_S = 10.0


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test on the event loop that production uses, with a deadline."""

    async def within() -> T:
        async with asyncio.timeout(60):
            return await main()

    return uvloop.run(within())


async def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of `condition`; looks every few milliseconds."""
    async with asyncio.timeout(deadline_s):
        while not (value := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        return value


async def at_rest(value: Callable[[], T]) -> T:
    """The value once it has stopped changing: the same at ten looks in a row."""
    last = value()
    same = 0
    async with asyncio.timeout(DEADLINE_S):
        while same < 10:
            await asyncio.sleep(0.002)
            now = value()
            same = same + 1 if now == last else 0
            last = now
    return last


# --- replicas -------------------------------------------------------------------------------------------------------


@dataclass
class Got:
    """One request as a replica saw it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the router closed the connection."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError("the router hung up")
        self.writer.write(data)
        await self.writer.drain()

    async def reply(
        self, status: int = 200, body: bytes = b"{}", headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{key}: {value}" for key, value in {"Content-Type": "application/json", **(headers or {})}.items()]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def begin_stream(self, headers: dict[str, str] | None = None) -> None:
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def stream(self, *frames: bytes) -> None:
        await self.begin_stream()
        for frame in frames:
            await self.chunk(frame)
        await self.end_stream()

    def die(self) -> None:
        """Break the connection as a killed process does."""
        self.writer.transport.abort()


Handler = Callable[[Got], Awaitable[None]]


async def flood(got: Got) -> None:
    """A stream without end, as fast as it is taken."""
    await got.begin_stream()
    while not got.gone.is_set():
        await got.chunk(b"data: " + b"x" * 60_000 + b"\n\n")


async def answer_ok(got: Got) -> None:
    await got.reply(body=b'{"ok":true}')


class Upstream:
    """A replica. `/slots` is answered by `busy`; everything else by `handler`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler: Handler = answer_ok
        self.got: list[Got] = []
        self.busy = 0
        self.slots_asked = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=1 << 20)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve_one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = [(line.split(": ", 1)[0], line.split(": ", 1)[1]) for line in head[1:] if line]
        length = next((int(value) for key, value in headers if key.lower() == "content-length"), 0)
        body = await reader.readexactly(length)
        got = Got(method, target, headers, body, writer, reader)
        if target == "/slots" and method == "GET":
            self.slots_asked += 1
            await got.reply(body=json.dumps([{"is_processing": index < self.busy} for index in range(4)]).encode())
            return
        self.got.append(got)

        async def watch() -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read(1)
            got.gone.set()

        watching = asyncio.create_task(watch())
        try:
            await self.handler(got)
        except ConnectionError:
            got.gone.set()  # it was writing when the router hung up
        finally:
            if not got.gone.is_set() and not writer.is_closing():
                writer.write_eof()
                async with asyncio.timeout(DEADLINE_S):
                    await watching
            watching.cancel()


# --- the router -----------------------------------------------------------------------------------------------------


class ListLog:
    """The log as a list."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.events: list[Event] = []
        self.observations: list[Event] = []

    def append(self, events: Sequence[Event]) -> None:
        self.events += events

    def append_observations(self, observations: Sequence[Event]) -> None:
        self.observations += observations

    def roll_if_due(self) -> bool:
        return False

    def reopen(self, pending: Sequence[Event]) -> None:
        self.append(pending)


class Replicas:
    """Instead of processes: one scripted upstream per spawn, ready when the test lets it."""

    def __init__(self, loop: Loop, rig: "Rig") -> None:
        self._loop = loop
        self._rig = rig
        self.endpoints: dict[str, Endpoint] = {}
        self.missing: dict[str, asyncio.Future[None]] = {}
        """Models that have to be fetched; done when they are here, an exception when they could not be."""
        self.downloads_awaited = 0
        """By how many at this moment."""
        self.suspected: list[str] = []
        loop.on(ReplicaSpawnOrdered, self._spawn)
        loop.on(ReplicaStopOrdered, self._stop)

    def endpoint(self, replica: str) -> Endpoint:
        return self.endpoints[replica]

    def suspect(self, replica: str) -> None:
        self.suspected.append(replica)
        if replica in self.endpoints:
            self._loop.post(ReplicaAnswered(replica=replica))

    def needs_download(self, model: str) -> bool:
        return model in self.missing and not self.missing[model].done()

    async def ensure_downloaded(self, model: str) -> None:
        self.downloads_awaited += 1
        try:
            await asyncio.shield(self.missing[model])
        finally:
            self.downloads_awaited -= 1

    def crash(self, replica: str) -> None:
        del self.endpoints[replica]
        self._loop.post(ReplicaCrashed(replica=replica))

    def _spawn(self, order: ReplicaSpawnOrdered) -> None:
        self._loop.post(ReplicaSpawned(replica=order.replica, pid=1))
        if self._rig.loads:
            self.ready(order.replica)
        else:
            self._rig.held.append(order.replica)

    def ready(self, replica: str) -> None:
        self.endpoints[replica] = Endpoint(path=str(self._rig.upstream.path), key="child-key")
        self._loop.post(ReplicaReady(replica=replica, slots=self._rig.slots))

    def _stop(self, order: ReplicaStopOrdered) -> None:
        self.endpoints.pop(order.replica, None)
        self._loop.post(ReplicaStopped(replica=order.replica))


class OpenGate:
    is_open = True


class Rig:
    """`async with Rig() as rig`: a router on `rig.port` with models `m` (GPU 0) and `other` (GPU 0)."""

    def __init__(
        self,
        *,
        slots: int = 4,
        replicas: int = 1,
        comment_s: float = 15.0,
        limits: Limits | None = None,
        models: tuple[str, ...] = ("m", "other"),
        default_model: str = "",
        grace_us: int = 0,
    ) -> None:
        self.slots = slots
        self.loads = True
        """Whether replicas become ready by themselves; else they are in `held`."""
        self.held: list[str] = []
        self.gate = OpenGate()
        self._stack = contextlib.AsyncExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rig-")))
        self.upstream = Upstream(directory / "up.sock")
        scheduler = SchedulerSettings(
            models={name: ModelSettings(gpus=(0,), replicas=replicas) for name in models}, head_grace_us=grace_us
        )
        self.config = Config(
            host="127.0.0.1",
            port=0,
            models={name: ModelConfig(name=name) for name in models},
            scheduler=scheduler,
            llama_server=("llama-server",),
            llama_server_from="path",
            child_transport="unix",
            log_dir=directory,
            log=LogConfig(),
            run_dir=directory,
            state_dir=directory,
            history_db=directory / "h",
            default_model=default_model,
            names={**{name: name for name in models}, **({"alias-of-m": "m"} if "m" in models else {})},
            limits=limits or Limits(),
            timings=Timings(queue_comment_s=comment_s, connect_s=1.0),
        )
        self.directory = directory

    async def __aenter__(self) -> "Rig":
        self.log = ListLog()
        self.broken = False
        clock = RunClock()
        self.loop = Loop(clock, self.log, State(), 1, self._broke)
        self.replicas = Replicas(self.loop, self)
        self.relay = Relay(self.loop, self.replicas, self.config, b"salt" * 8, gate=self.gate)
        self.loop.post(RouterStarted(config=self.config.scheduler))
        await self.upstream.start()
        self._stack.push_async_callback(self.upstream.stop)
        config = uvicorn.Config(
            self._app,
            http=ClientProtocol,
            log_config=None,
            lifespan="off",
            server_header=False,
            access_log=False,
            interface="asgi3",
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[])
        listening = await asyncio.get_running_loop().create_server(
            lambda: ClientProtocol(config, self._server.server_state, {}), "127.0.0.1", 0
        )
        self._stack.callback(listening.close)
        self.port: int = listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in list(self._server.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            transport.abort()
        await until(lambda: not self._server.server_state.tasks)
        self.relay.close()
        await self._stack.aclose()
        assert not self.broken, "the scheduler broke"

    def _broke(self) -> None:
        self.broken = True

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.relay(scope, receive, send)

    def events(self, kind: type[E]) -> list[E]:
        return [event for event in self.log.events if isinstance(event, kind)]

    def observed(self, kind: type[E]) -> list[E]:
        self.loop.flush_observations()
        return [event for event in self.log.observations if isinstance(event, kind)]

    async def logged(self, kind: type[E], count: int = 1) -> E:
        """The `count`-th event of this type, once it is there."""
        await until(lambda: len(self.events(kind)) >= count)
        return self.events(kind)[count - 1]

    async def dispatched(self, count: int = 1) -> Got:
        """The `count`-th request that reached the replica."""
        await until(lambda: len(self.upstream.got) >= count)
        return self.upstream.got[count - 1]

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator["Wire"]:
        wire = await self.wire()
        try:
            yield wire
        finally:
            wire.abort()

    async def wire(self) -> "Wire":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        return Wire(reader, writer)

    async def ask(
        self,
        body: bytes | dict[str, Any],
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> "Answer":
        """One request over a connection of its own; the whole answer."""
        async with self.connect() as wire:
            await wire.send(body, path, method, headers)
            return await wire.answer()


# --- clients --------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a client got; `complete` False when the connection ended before the answer did."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(
        self,
        body: bytes | dict[str, Any],
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        version: str = "1.1",
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "Host: here"]
        if data or method == "POST":
            lines.append(f"Content-Length: {len(data)}")
        lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await self.writer.drain()

    async def head(self) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(line.split(": ", 1)[0].lower(), line.split(": ", 1)[1]) for line in lines[1:] if line]
        return Answer(int(lines[0].split(" ")[1]), headers, b"", True)

    async def chunk(self) -> bytes:
        """One HTTP chunk; b"" for the last one."""
        size = int(await self.reader.readuntil(b"\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self) -> Answer:
        answer = await self.head()
        length = answer.header("content-length")
        if length is not None:
            try:
                answer.body = await self.reader.readexactly(int(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                answer.complete = False
        elif answer.header("transfer-encoding") == "chunked":
            answer.body, answer.complete = await self.chunks()
        elif answer.status != 204:
            answer.body = await self.reader.read()
        return answer

    async def chunks(self) -> tuple[bytes, bool]:
        """What is left of a chunked body, and whether it had its end."""
        body = b""
        try:
            while data := await self.chunk():
                body += data
        except (asyncio.IncompleteReadError, ConnectionError):
            return body, False
        return body, True

    def fin(self) -> None:
        """Half-close: nothing more to say, still listening."""
        self.writer.write_eof()

    def abort(self) -> None:
        """Leave: RST where data is unread, FIN otherwise."""
        self.writer.transport.abort()

    def rst(self) -> None:
        import socket
        import struct

        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
