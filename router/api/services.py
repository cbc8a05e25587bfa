"""What the HTTP surface needs of the rest of the router, as one value.

The protocols name only what is used here, so that tests can put small fakes in place of the loop, the relay and the
replicas.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from eventlog.events import AdminDone, Event, Fact, Gpu, Observation
from router.api.counters import Counters
from router.api.view import View
from router.config import Config
from router.gpus import Sample
from router.memory.measured import Measured
from router.reload import Outcome
from router.scheduler.state import State
from router.upstream import Endpoint

T = TypeVar("T")

log = logging.getLogger("llama_router.api")


class Clock(Protocol):
    def now_us(self) -> int: ...


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    @property
    def clock(self) -> Clock: ...
    @property
    def state(self) -> State: ...
    @property
    def available(self) -> bool: ...
    def post(self, *facts: Fact) -> None: ...
    def note(self, observation: Observation) -> None: ...
    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]: ...
    def next_rid(self) -> int: ...
    def next_op(self) -> int: ...


class Relay(Protocol):
    """The part of `router.relay.Relay` that is used here."""

    def cancel(self, rid: int, by: Literal["admin"]) -> None: ...
    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None: ...


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is used here."""

    def logs(self, model: str | None = None, *, history: bool = True) -> AsyncIterator[bytes]: ...
    def needs_download(self, model: str) -> bool: ...
    async def ensure_downloaded(self, model: str) -> None: ...


class GpuSamples(Protocol):
    """The part of `router.gpus.Gpus` that is used here."""

    topology: list[Gpu]
    latest: dict[int, Sample]
    problem: str


class Reloading(Protocol):
    """The part of `router.reload.Reloader` that is used here."""

    last: Outcome | None

    async def reload(self, by: str) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Started:
    """How this run began. `at_us` is on the log's clock."""

    at_us: int
    run: int
    version: str
    llama_server: str = ""
    llama_build: str = ""


class Gate:
    """Whether the router takes requests, as `/router/stop` and `/router/start` set it. The relay asks it."""

    def __init__(self) -> None:
        self.is_open = True


@dataclass(slots=True)
class Services:
    """Everything behind the routes. Made once, before the first request: it listens to the log from then on."""

    loop: Loop
    config: Config
    relay: Relay
    replicas: Replicas
    gpus: GpuSamples
    started: Started
    reloader: Reloading
    gate: Gate = field(default_factory=Gate)
    view: View = field(default_factory=View)
    counters: Counters = field(default_factory=Counters)
    measured: Measured = field(default_factory=Measured)
    dashboard: Endpoint | None = None
    """Where the dashboard's process listens, if there is one."""
    _ops: "dict[int, asyncio.Future[AdminDone]]" = field(default_factory=dict)
    _kept: "set[asyncio.Task[Any]]" = field(default_factory=set)

    def __post_init__(self) -> None:
        self.view.names = self.counters.names = frozenset(self.config.models)
        self.loop.subscribe(self.view.take)
        self.loop.subscribe(self.counters.take)
        self.loop.subscribe(self.measured.take)
        self.loop.subscribe(self._settle)

    def ask(self, op: int, *facts: Fact) -> "asyncio.Future[AdminDone]":
        """Post an administrative call; the result is its AdminDone."""
        answer: asyncio.Future[AdminDone] = asyncio.get_running_loop().create_future()
        self._ops[op] = answer
        self.loop.post(*facts)
        return answer

    def keep(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do something that nobody may be waiting for; how it fails is then told in the diary at least."""
        task = asyncio.get_running_loop().create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._kept.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.warning("%s", problem)

    def _settle(self, event: Event) -> None:
        if isinstance(event, AdminDone):
            answer = self._ops.pop(event.op, None)
            if answer is not None and not answer.done():
                answer.set_result(event)
