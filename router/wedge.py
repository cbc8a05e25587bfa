"""Replicas that look healthy and do nothing: found by the silence of their data frames.

`/health` of a llama-server whose GPU hangs still says ok, and its streams still get pings. So what counts is data: of
all requests that a replica works on, when did the last one get any? How long is too long depends on the work:

* a stream that has begun: 60 s, or ten times its own mean gap if that is more;
* before the first frame, and for answers that do not stream: its prompt's tokens times the measured time per token
  times ten, at least 120 s;
* a cancelled request that keeps its slot: 120 s.

The replica is as patient as the most patient of its requests. And before the finding is made, `/slots` is asked twice:
what moves there (tokens of a prompt, tokens of an answer that does not stream) is no silence.

`Silences` decides and is pure; `WedgeWatch` feeds it and asks. The finding is a fact, ReplicaStalled; what to do about
it is the scheduler's.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from eventlog.events import (
    Event,
    ReplicaCrashed,
    ReplicaSpawnOrdered,
    ReplicaStopped,
    RequestCancelled,
    RequestFinished,
    SlotReleased,
)
from router import probe
from router.upstream import Endpoint

TICKS = 12
"""Looks per shortest patience."""
ASK_TIMEOUT_S = 10.0
KNOWN_FROM_TOKENS = 32
"""A prompt shorter than this tells more about the start of a batch than about the time per token."""


class Flight(Protocol):
    """A request that a replica works on; `router.flight.Progress` is one. Times are on the run's clock."""

    @property
    def rid(self) -> int: ...
    @property
    def replica(self) -> str: ...
    @property
    def dispatched_us(self) -> int: ...
    @property
    def last_frame_us(self) -> int:
        """0 before the first data frame, and for an answer that does not stream."""

    @property
    def frames(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def stream(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a silence may last, in microseconds."""

    stream_us: int = 60_000_000
    first_us: int = 120_000_000
    times: int = 10
    """As often the norm."""
    prompt_token_us: int = 20_000
    """For a model of which nothing has been measured: a slow CPU."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A replica that has made no data for `silent_us`, and how long that may last."""

    replica: str
    silent_us: int
    allowed_us: int
    rids: tuple[int, ...]


@dataclass(slots=True)
class Silences:
    """Who is silent for how long. Fed with what is known, asked with what is in flight; reads no clock."""

    patience: Patience = field(default_factory=Patience)
    _busy_since_us: dict[str, int] = field(default_factory=dict)
    _heard_us: dict[str, int] = field(default_factory=dict)
    _releasing: dict[int, tuple[str, int]] = field(default_factory=dict)
    _models: dict[str, str] = field(default_factory=dict)
    _prompt_token_us: dict[str, int] = field(default_factory=dict)

    def learn(self, event: Event) -> None:
        """Take what an event of the log says about work that was done, or is being let go."""
        match event:
            case ReplicaSpawnOrdered():
                self._models[event.replica] = event.model
            case RequestFinished():
                self.heard(event.replica, event.at_us)
                timing = event.timing
                if timing.prompt_n >= KNOWN_FROM_TOKENS and timing.prompt_us > 0:
                    self._prompt_token_us[self._model(event.replica)] = timing.prompt_us // timing.prompt_n
            case RequestCancelled() if event.replica:
                self._releasing[event.rid] = (event.replica, event.at_us)
            case SlotReleased():
                self._releasing.pop(event.rid, None)
                self.heard(event.replica, event.at_us)
            case ReplicaStopped() | ReplicaCrashed():
                for known in (self._models, self._heard_us, self._busy_since_us):
                    known.pop(event.replica, None)
                self._releasing = {rid: one for rid, one in self._releasing.items() if one[0] != event.replica}

    def heard(self, replica: str, at_us: int) -> None:
        """It has shown at this time that it works."""
        self._heard_us[replica] = max(at_us, self._heard_us.get(replica, 0))

    def look(self, now_us: int, flights: Iterable[Flight]) -> list[Silence]:
        """The silence of every replica that has work, in the order of their names."""
        since: dict[str, list[int]] = {}
        allowed: dict[str, list[int]] = {}
        rids: dict[str, list[int]] = {}
        for flight in flights:
            since.setdefault(flight.replica, []).append(flight.dispatched_us)
            allowed.setdefault(flight.replica, []).append(self._allowed_us(flight))
            rids.setdefault(flight.replica, []).append(flight.rid)
            self.heard(flight.replica, flight.last_frame_us)
        for rid, (replica, cancelled_us) in self._releasing.items():
            since.setdefault(replica, []).append(cancelled_us)
            allowed.setdefault(replica, []).append(self.patience.first_us)
            rids.setdefault(replica, []).append(rid)
        # New work on a replica that was busy already is no sign of life: its clients may only be trying again.
        self._busy_since_us = {name: self._busy_since_us.get(name, min(times)) for name, times in since.items()}
        return [
            Silence(
                replica=name,
                silent_us=now_us - max(self._busy_since_us[name], self._heard_us.get(name, 0)),
                allowed_us=max(allowed[name]),
                rids=tuple(sorted(rids[name])),
            )
            for name in sorted(since)
        ]

    def _allowed_us(self, flight: Flight) -> int:
        patience = self.patience
        if flight.stream and flight.last_frame_us:
            gap_us = (flight.last_frame_us - flight.dispatched_us) // max(flight.frames, 1)
            return max(patience.stream_us, patience.times * gap_us)
        token_us = self._prompt_token_us.get(self._model(flight.replica), patience.prompt_token_us)
        return max(patience.first_us, patience.times * flight.prompt_tokens * token_us)

    def _model(self, replica: str) -> str:
        return self._models.get(replica, replica)


class Loop(Protocol):
    """The part of `router.loop.Loop` that is needed here."""

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]: ...


class Clock(Protocol):
    """The part of `router.clock.RunClock` that is needed here."""

    def now_us(self) -> int: ...


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is needed here."""

    def endpoint(self, replica: str) -> Endpoint: ...
    def stalled(self, replica: str, silent_us: int, norm_us: int, rids: list[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """What /slots said during a silence."""

    at_us: int
    work: tuple[probe.Work, ...] | None


class WedgeWatch:
    """Looks every few seconds; does next to nothing while nothing is in flight."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        replicas: Replicas,
        flights: Callable[[], Iterable[Flight]],
        *,
        patience: Patience | None = None,
    ) -> None:
        """`flights()` yields every request that a replica works on at this moment."""
        self._clock = clock
        self._replicas = replicas
        self._flights = flights
        self._silences = Silences(patience or Patience())
        self._seen: dict[str, _Seen] = {}
        loop.subscribe(self._silences.learn)

    def reconfigure(self, patience: Patience) -> None:
        """For silences that are looked at from now on."""
        self._silences.patience = patience

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._silences.patience.stream_us / 1e6 / TICKS)
            silences = self._silences.look(self._clock.now_us(), self._flights())
            doubtful = [silence for silence in silences if silence.silent_us * 2 > silence.allowed_us]
            self._seen = {one.replica: seen for one in doubtful if (seen := self._seen.get(one.replica))}
            await asyncio.gather(*map(self._ask, doubtful))

    async def _ask(self, silence: Silence) -> None:
        """Half way to the end of patience /slots is asked for the first time, and at its end once more."""
        name = silence.replica
        before = self._seen.get(name)
        now_us = self._clock.now_us()
        if before is not None:
            # A machine that slept has patience left: its children slept too.
            rested = now_us - before.at_us >= silence.allowed_us // 4
            if silence.silent_us <= silence.allowed_us or not rested:
                return
        try:
            work = await probe.work(self._replicas.endpoint(name), ASK_TIMEOUT_S)
        except KeyError:  # it is gone: that says more than any silence
            return
        if before is None:
            self._seen[name] = _Seen(now_us, work)
        elif probe.has_moved(before.work, work):
            self._silences.heard(name, self._clock.now_us())
            del self._seen[name]
        else:
            self._replicas.stalled(name, silence.silent_us, silence.allowed_us, list(silence.rids))
