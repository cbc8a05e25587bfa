"""The loop: the one owner of the state. Facts come in; they are folded, decided on, logged, and only then acted on.

Its counterparts are the relay, the replicas and the API, which post facts and are handed the decisions. Nothing here
awaits, so a slow load can stall nobody. A batch of facts that came at once is written with one call to the system.

While the log cannot be written, `available` is False: facts wait, nothing is decided, streams that run run on, and a
new segment is tried every second.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from eventlog.errors import LogUnavailable
from eventlog.events import (
    Decision,
    Event,
    Fact,
    Observation,
    RequestCancelled,
    RequestFinished,
    TimerCancelled,
    TimerFired,
    TimerSet,
)
from router.clock import RunClock
from router.scheduler import State, step

OBSERVATIONS_EVERY_S = 0.25
OBSERVATIONS_MAX = 512
"""More observations than this are written at once."""
REOPEN_EVERY_S = 1.0

log = logging.getLogger("llama_router.loop")
D = TypeVar("D", bound=Decision)


class Log(Protocol):
    """What the loop needs of the log's writer."""

    next_seq: int

    def append(self, events: Sequence[Event]) -> None: ...
    def append_observations(self, observations: Sequence[Event]) -> None: ...
    def roll_if_due(self) -> bool: ...
    def reopen(self, pending: Sequence[Event]) -> None: ...


class Loop:
    """Owns the state. All methods belong to the event loop's thread."""

    def __init__(self, clock: RunClock, writer: Log, state: State, run: int, on_broken: Callable[[], None]) -> None:
        """`on_broken` is called once if a rule of the scheduler breaks an invariant: the router must stop then."""
        self.clock = clock
        self.state = state
        self.run = run
        self.available = True
        self._writer = writer
        self._on_broken = on_broken
        self._broken = False
        self._closed = False
        self._last_rid = state.last_rid
        self._last_op = state.last_op
        self._last_us = 0
        self._inbox: deque[Fact] = deque()
        self._scheduled = False
        self._unlogged: list[Event] = []
        self._handlers: dict[type[Decision], list[Callable[[Any], None]]] = {}
        self._subscribers: list[Callable[[Event], None]] = []
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._observations: list[Observation] = []
        self._flush: asyncio.TimerHandle | None = None
        self.on(TimerSet, self._arm)
        self.on(TimerCancelled, self._disarm)

    # --- what others call ---

    def next_rid(self) -> int:
        """The number of a request or wish: its place in the order of arrival."""
        self._last_rid += 1
        return self._last_rid

    def next_op(self) -> int:
        """The number of an administrative call; its AdminDone bears it."""
        self._last_op += 1
        return self._last_op

    def on(self, kind: type[D], handler: Callable[[D], None]) -> None:
        """Have a kind of decision carried out. The handler must not block; the decision is in the log already."""
        self._handlers.setdefault(kind, []).append(handler)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Be told of every event once it is in the log; call the result to end it."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def close(self) -> None:
        """The run is over: what is reported from now on has no log to go to, and nobody to decide on it."""
        self.available = False
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def post(self, *facts: Fact) -> None:
        """Report what happened. It is folded and decided on in the next turn of the event loop."""
        self._inbox.extend(facts)
        if not self._scheduled and self.available:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.turn)

    def note(self, observation: Observation) -> None:
        """Keep something that no decision depends on; dropped if the log does not take it."""
        self._observations.append(msgspec.structs.replace(observation, at_us=self.clock.now_us(), run=self.run))
        if len(self._observations) >= OBSERVATIONS_MAX:
            self.flush_observations()
        elif self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(OBSERVATIONS_EVERY_S, self.flush_observations)

    def flush_observations(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if not self._observations or not self.available:
            self._observations.clear()
            return
        stamped = [msgspec.structs.replace(note, seq=self._next_seq()) for note in self._observations]
        self._observations.clear()
        self._writer.append_observations(stamped)
        for note in stamped:
            self._tell(note)

    # --- the turn ---

    def turn(self) -> None:
        """Fold, decide, log and hand out all that was posted. While serving, `post` sees to it."""
        self._scheduled = False
        if self._broken or not self.available:
            return
        batch: list[Event] = []
        broken: Exception | None = None
        while self._inbox and broken is None:
            fact = self._inbox.popleft()
            if self._is_second_outcome(fact):
                continue
            fact = self._stamp_fact(fact)
            batch.append(fact)
            try:
                decisions = step(self.state, fact)
            except Exception as error:
                broken = error
                break
            for decision in decisions:
                batch.append(
                    msgspec.structs.replace(
                        decision, seq=self._next_seq(), at_us=fact.at_us, run=self.run, cause=fact.seq
                    )
                )
        if broken is not None:
            self._break(batch, broken)
            return
        if not batch:
            return
        try:
            self._writer.append(batch)
        except LogUnavailable as error:
            self._wait_for_the_log(batch, error)
            return
        except Exception as error:  # an event that no line can hold: the state is ahead of a log that never gets it
            self._break(batch, error)
            return
        self._hand_out(batch)
        try:
            self._writer.roll_if_due()
        except LogUnavailable as error:
            self._wait_for_the_log([], error)

    def _is_second_outcome(self, fact: Fact) -> bool:
        """A client can leave in the very turn in which its request fails: it has its outcome by then."""
        return isinstance(fact, (RequestCancelled, RequestFinished)) and fact.rid not in self.state.requests

    def _stamp_fact(self, fact: Fact) -> Fact:
        self._last_us = max(self._last_us, self.clock.now_us())
        return msgspec.structs.replace(fact, seq=self._next_seq(), at_us=self._last_us, run=self.run, cause=0)

    def _next_seq(self) -> int:
        seq = self._writer.next_seq
        self._writer.next_seq = seq + 1
        return seq

    def _hand_out(self, batch: list[Event]) -> None:
        for event in batch:
            for handler in self._handlers.get(type(event), ()):  # type: ignore[arg-type]
                try:
                    handler(event)
                except Exception:
                    log.exception("an effect of %s failed to start", type(event).__name__)
            self._tell(event)

    def _tell(self, event: Event) -> None:
        for callback in list(self._subscribers):
            try:
                callback(event)
            except Exception:
                log.exception("a subscriber failed on %s", type(event).__name__)

    # --- when the log or the rules fail ---

    def log_failed(self) -> None:
        """The log says by itself that it cannot be written: a sync in the background failed."""
        if self.available:
            self._wait_for_the_log([], LogUnavailable("a sync failed"))

    def _wait_for_the_log(self, batch: list[Event], error: LogUnavailable) -> None:
        """The state is ahead of the log by this batch: nothing more is decided until it is written."""
        log.error("the event log cannot be written, new requests get 503 until it can: %s", error)
        self.available = False
        self._unlogged = batch
        asyncio.get_running_loop().call_later(REOPEN_EVERY_S, self._try_again)

    def _try_again(self) -> None:
        if self._closed:
            return
        try:
            self._writer.reopen(self._unlogged)
        except LogUnavailable as error:
            log.warning("the event log still cannot be written: %s", error)
            asyncio.get_running_loop().call_later(REOPEN_EVERY_S, self._try_again)
            return
        log.warning("the event log is written again")
        batch, self._unlogged = self._unlogged, []
        self.available = True
        self._hand_out(batch)
        self.post()

    def _break(self, batch: list[Event], error: Exception) -> None:
        """A bug: keep the fact that shows it, and stop rather than go on with a state that is wrong."""
        log.critical("the router broke on %r: stopping; the log holds what led to it", batch[-1], exc_info=error)
        self._broken = True
        self.available = False
        try:
            self._writer.append([event for event in batch if isinstance(event, Fact)][-1:])
        except Exception:
            log.critical("and the log could not take the fact")
        self._on_broken()

    # --- timers ---

    def _arm(self, timer: TimerSet) -> None:
        self._disarm(timer)
        delay_s = max(0, timer.due_us - self.clock.now_us()) / 1e6
        self._timers[timer.kind, timer.key] = asyncio.get_running_loop().call_later(delay_s, self._fire, timer)

    def _disarm(self, timer: TimerSet | TimerCancelled) -> None:
        handle = self._timers.pop((timer.kind, timer.key), None)
        if handle is not None:
            handle.cancel()

    def _fire(self, timer: TimerSet) -> None:
        """The event loop's clock and the run's may differ a little: never early by the run's."""
        if self.clock.now_us() < timer.due_us:
            self._arm(timer)
            return
        self._timers.pop((timer.kind, timer.key), None)
        self.post(TimerFired(kind=timer.kind, key=timer.key, due_us=timer.due_us))
