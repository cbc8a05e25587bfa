"""A run as it stands in a log: the workload that came, what became of it, and what everything took.

`fit` makes costs of the durations, `simulate` compares its own outcomes with those that were recorded.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from eventlog import events as e
from eventlog.reader import read
from eventlog.settings import SchedulerSettings
from replay.lines import events_segments, first_seq_before
from replay.measures import Measures, Outcome, Tally, measure
from replay.text import count
from replay.workload import Block, Call, Happening, Workload, WorkloadError, renumbered
from router.scheduler import restore


class Service(msgspec.Struct, kw_only=True):
    """One generation, dispatched and finished: when its phases were, and how much work they were."""

    model: str
    replica: str
    begun_us: int
    first_us: int
    """End of the prompt; -1 where nothing tells it from the rest."""
    ended_us: int
    read_tokens: int
    """Of the prompt, those that no cache had; -1 when unknown."""
    made_tokens: int
    weight: int = 1
    whole: bool = True
    """It came to its end; else it was cut off, and only says that it was there."""


class Durations(msgspec.Struct, kw_only=True):
    """What things took."""

    loads_us: dict[str, list[int]] = {}
    stops_us: dict[str, list[int]] = {}
    slots: dict[str, int] = {}
    releases_us: list[int] = []
    metadata_us: list[int] = []
    services: list[Service] = []
    saves: dict[str, list[tuple[int, int, int]]] = {}
    """Of prompt caches, by model: tokens, bytes, microseconds."""
    restores: dict[str, list[tuple[int, int, int]]] = {}


class Recording(msgspec.Struct, kw_only=True):
    """One run of a log."""

    run: int
    workload: Workload
    durations: Durations
    outcomes: list[Outcome]
    tally: Tally

    def measures(self) -> Measures:
        return measure(self.outcomes, self.tally)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time: from `since_us` on, before `until_us`; 0 where it is open."""

    since_us: int = 0
    until_us: int = 0

    def holds(self, at_us: int) -> bool:
        return at_us >= self.since_us and (not self.until_us or at_us < self.until_us)


WHOLE = Span()
COSTS_US = 86_400_000_000
"""So much of the log before a span is read as well: for what loads and tokens take."""


def read_recording(
    path: Path,
    run: int | None = None,
    span: Span = WHOLE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """The run with this number or, of all in the log, the one with most requests. Raises WorkloadError, LogError.

    With a `span` its requests are those that arrived in it, and what is counted happened in it. `progress` hears of the
    segments that were begun, out of how many.
    """
    readers: dict[int, _Reader] = {}
    reader: _Reader | None = None
    first_seq = first_seq_before(path, span.since_us - COSTS_US) if span.since_us else 0
    segments = sum(segment.first_seq >= first_seq for segment in events_segments(path))
    begun = 0
    for event in read(path, stream="events", from_seq=first_seq):
        if isinstance(event, e.SegmentOpened):
            progress(begun, segments)
            begun += 1
            if reader is None and event.state:
                state = restore(event.state)
                reader = readers[state.run] = _Reader(state.run, state.settings, state.now_us, span)
                reader.notes.append("the log begins in the middle of the run: models load anew")
            continue
        if isinstance(event, e.RouterStarted):
            reader = readers[event.run] = _Reader(event.run, event.config, event.at_us, span)
        elif reader is not None and 0 < span.until_us <= event.at_us and not reader.open:
            break
        if reader is not None:
            reader.take(event)
    if run is None and readers:
        run = max(readers, key=lambda number: (len(readers[number].arrivals_in_span()), number))
    if run is None or run not in readers:
        if not readers:
            raise WorkloadError(f"{path} holds no run: neither a checkpoint nor the start of a router")
        raise WorkloadError(f"{path} holds no run {run}; its runs: {', '.join(map(str, readers))}")
    if not readers[run].arrivals_in_span():
        when = "" if span == WHOLE else " in that time"
        raise WorkloadError(f"{path}: run {run} served no request{when}")
    return readers[run].recording(path, more_runs=len(readers) - 1)


class _Reader:
    """Takes the events of one run."""

    def __init__(self, run: int, settings: SchedulerSettings, start_us: int, span: Span) -> None:
        self.run = run
        self.span = span
        self.settings = settings
        self.start_us = start_us
        self.arrivals: dict[int, e.RequestArrived] = {}
        self.open: set[int] = set()
        """Requests of the span that have not ended."""
        self.outcomes: dict[int, Outcome] = {}
        self.finished: dict[int, e.RequestFinished] = {}
        self.cancelled: dict[int, e.RequestCancelled] = {}
        self.services: list[Service] = []
        self.running: dict[int, e.RequestDispatched] = {}
        self.durations = Durations()
        self.tally = Tally()
        self.models: dict[str, str] = {}
        """Replica to model."""
        self.ordered_us: dict[str, int] = {}
        self.stopping_us: dict[str, int] = {}
        self.happenings: list[tuple[int, Happening]] = []
        self.misfortunes = 0
        self.notes: list[str] = []

    def arrivals_in_span(self) -> list[e.RequestArrived]:
        """In order of arrival."""
        found = [arrival for arrival in self.arrivals.values() if self.span.holds(arrival.arrived_us)]
        return sorted(found, key=lambda arrival: (arrival.arrived_us, arrival.rid))

    def take(self, event: e.Event) -> None:
        match event:
            case e.RequestArrived():
                self.arrivals[event.rid] = event
                if self.span.holds(event.arrived_us):
                    self.open.add(event.rid)
                self.outcomes[event.rid] = Outcome(
                    model=event.model,
                    client=event.client,
                    arrived_us=event.arrived_us,
                    prompt_tokens=event.prompt_tokens,
                    is_generation=event.work == "generation",
                )
            case e.RequestDispatched():
                self.running[event.rid] = event
                if self.span.holds(event.at_us):
                    self.tally.overtakes += event.overtook
                outcome = self.outcomes.get(event.rid)
                if outcome is not None and outcome.dispatched_us < 0:
                    outcome.dispatched_us = event.at_us
            case e.RequestFinished():
                self._finished(event)
            case e.RequestCancelled():
                self._cancelled(event)
            case e.UpstreamLost():
                self._lost(event)
            case e.RequestFailed() | e.RequestRejected():
                self.running.pop(event.rid, None)
                self._end(event.rid, "failed", event.at_us)
            case e.SlotReleased():
                self.durations.releases_us.append(event.took_us)
            case e.SwapBegun() if self.span.holds(event.at_us):
                self.tally.evictions += len(event.victims)
                if event.target:
                    self.tally.loads += 1
                    self.tally.forced += event.why == "forced"
            case e.ReplicaSpawnOrdered():
                self.models[event.replica] = event.model
                self.ordered_us[event.replica] = event.at_us
            case e.ReplicaReady():
                self._ready(event)
            case e.ReplicaStopOrdered():
                self.stopping_us[event.replica] = event.at_us
            case e.ReplicaStopped():
                model = self.models.get(event.replica)
                if model is not None and event.replica in self.stopping_us:
                    took_us = event.at_us - self.stopping_us.pop(event.replica)
                    self.durations.stops_us.setdefault(model, []).append(took_us)
            case e.ReplicaCrashed() | e.ReplicaLoadFailed() | e.ReplicaStalled() if self.span.holds(event.at_us):
                self.misfortunes += 1
            case e.CacheSaved() | e.CacheRestored():
                durations = self.durations
                moves = durations.saves if isinstance(event, e.CacheSaved) else durations.restores
                model = self.models.get(event.replica)
                if model is not None and event.tokens > 0:
                    moves.setdefault(model, []).append((event.tokens, event.bytes, event.took_us))
            case e.LoadWished() | e.AdminUnload() | e.AdminDrain() | e.AdminGpu() | e.ConfigLoaded():
                self.happenings.append((event.at_us, event))

    def _ready(self, event: e.ReplicaReady) -> None:
        model = self.models.get(event.replica)
        if model is None:
            return
        took_us = event.at_us - self.ordered_us[event.replica]
        if self.span.holds(event.at_us):
            self.tally.load_us += took_us
        self.durations.loads_us.setdefault(model, []).append(took_us)
        self.durations.slots[model] = event.slots

    def _finished(self, event: e.RequestFinished) -> None:
        order = self.running.pop(event.rid, None)
        outcome = self.outcomes.get(event.rid)
        self._end(event.rid, "finished", event.at_us)
        if order is None or outcome is None or order.replica != event.replica:
            return
        self.finished[event.rid] = event
        if not outcome.is_generation:
            self.durations.metadata_us.append(event.at_us - order.at_us)
            return
        prompt, made = prompt_tokens_of(self.arrivals[event.rid], event), made_tokens_of(event)
        timing = event.timing
        first_us = -1
        if timing.predicted_us >= 0:
            first_us = max(order.at_us, event.at_us - timing.predicted_us)
        elif event.first_token_us >= 0 and self.arrivals[event.rid].stream:
            first_us = min(order.at_us + event.first_token_us, event.at_us)
        outcome.prompt_tokens = prompt
        outcome.output_tokens = made
        outcome.cached_tokens = max(0, timing.cache_n, event.cached_tokens)
        outcome.first_us = event.at_us if first_us < 0 else first_us
        if event.status < 400:
            read_tokens = timing.prompt_n if timing.prompt_n >= 0 else prompt - outcome.cached_tokens
            self._serviced(order, outcome, first_us, event.at_us, read_tokens, made, whole=True)

    def _lost(self, event: e.UpstreamLost) -> None:
        """From here on it is in nobody's way, until it is sent again."""
        order = self.running.get(event.rid)
        outcome = self.outcomes.get(event.rid)
        if order is None or order.replica != event.replica:
            return
        del self.running[event.rid]
        if outcome is not None and outcome.is_generation:
            first_us = -1 if event.begun else event.at_us
            self._serviced(order, outcome, first_us, event.at_us, -1, -1, whole=False)

    def _cancelled(self, event: e.RequestCancelled) -> None:
        order = self.running.pop(event.rid, None)
        outcome = self.outcomes.get(event.rid)
        if outcome is None:
            return
        self.cancelled[event.rid] = event
        self._end(event.rid, "cancelled", event.at_us)
        if order is not None and outcome.is_generation:
            first_us = event.at_us if not event.frames else -1
            self._serviced(order, outcome, first_us, event.at_us, -1, -1, whole=False)

    def _serviced(
        self,
        order: e.RequestDispatched,
        outcome: Outcome,
        first_us: int,
        ended_us: int,
        read_tokens: int,
        made_tokens: int,
        *,
        whole: bool,
    ) -> None:
        self.durations.services.append(
            Service(
                model=outcome.model,
                replica=order.replica,
                begun_us=order.at_us,
                first_us=first_us,
                ended_us=ended_us,
                read_tokens=read_tokens,
                made_tokens=made_tokens,
                weight=max(1, order.weight),
                whole=whole,
            )
        )

    def _end(self, rid: int, end: str, at_us: int) -> None:
        self.open.discard(rid)
        outcome = self.outcomes.get(rid)
        if outcome is not None:
            outcome.end = end
            outcome.ended_us = at_us

    # --- the workload ---

    def recording(self, path: Path, more_runs: int) -> Recording:
        ordered = self.arrivals_in_span()
        made = _typical([made_tokens_of(finished) for finished in self.finished.values()])
        start_us = min(max(self.start_us, self.span.since_us), ordered[0].arrived_us)
        calls = renumbered((self._call(arrival, made) for arrival in ordered), start_us)
        notes = [f"run {self.run} of the log", *self.notes]
        if self.span != WHOLE:
            notes.append(f"only what arrived in a part of it: {count(len(ordered), 'request')}")
        if self.span.since_us > self.start_us and not self.notes:
            notes.append("what was loaded when that part began has to load anew")
        if more_runs:
            notes.append(f"{more_runs} other runs left out")
        if self.misfortunes:
            notes.append(f"{self.misfortunes} crashes, failed loads and stalls of the recording do not happen again")
        outcomes = [self.outcomes[arrival.rid] for arrival in ordered]
        open_calls = sum(not outcome.end for outcome in outcomes)
        if open_calls:
            notes.append(f"{open_calls} requests without an end in the log are taken to be like the others")
        workload = Workload(
            calls=calls,
            settings=self.settings,
            happenings=tuple(
                (max(0, at_us - start_us), what) for at_us, what in self.happenings if self.span.holds(at_us)
            ),
            source=str(path),
            notes=tuple(notes),
        )
        return Recording(
            run=self.run,
            workload=workload,
            durations=self.durations,
            outcomes=outcomes,
            tally=self.tally,
        )

    def _call(self, arrival: e.RequestArrived, typical_tokens: int) -> Call:
        finished = self.finished.get(arrival.rid)
        prompt_tokens, output_tokens = arrival.prompt_tokens, arrival.max_tokens or typical_tokens
        if finished is not None:
            prompt_tokens, output_tokens = prompt_tokens_of(arrival, finished), made_tokens_of(finished)
        leaves_after_us, leaves_after_tokens = -1, -1
        cancelled = self.cancelled.get(arrival.rid)
        if cancelled is not None and cancelled.frames:
            leaves_after_tokens = cancelled.frames
            output_tokens = max(output_tokens, cancelled.frames + 1)
        elif cancelled is not None:
            leaves_after_us = max(0, cancelled.at_us - arrival.arrived_us)
        after, think_us = 0, 0
        before = self.outcomes.get(arrival.after_rid)
        if before is not None and 0 <= before.ended_us <= arrival.arrived_us:
            after, think_us = arrival.after_rid, arrival.arrived_us - before.ended_us
        return Call(
            number=arrival.rid,
            at_us=arrival.arrived_us,
            model=arrival.model,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prefix=_in_tokens(arrival.prefix, arrival.prompt_bytes, prompt_tokens),
            after=after,
            think_us=think_us,
            body_us=max(0, arrival.at_us - arrival.arrived_us),
            leaves_after_us=leaves_after_us,
            leaves_after_tokens=leaves_after_tokens,
            work=arrival.work,
            slots_wanted=arrival.slots_wanted,
            priority=arrival.priority,
            priority_from=arrival.priority_from,
            key=arrival.key,
            client=arrival.client,
            conversation=arrival.conversation,
        )


def prompt_tokens_of(arrival: e.RequestArrived, finished: e.RequestFinished) -> int:
    if finished.timing.prompt_n >= 0 and finished.timing.cache_n >= 0:
        return finished.timing.prompt_n + finished.timing.cache_n
    return finished.prompt_tokens if finished.prompt_tokens >= 0 else arrival.prompt_tokens


def made_tokens_of(finished: e.RequestFinished) -> int:
    for made in (finished.timing.predicted_n, finished.completion_tokens, finished.frames):
        if made >= 0:
            return made
    return 0


def _in_tokens(prefix: Iterable[e.PrefixBlock], prompt_bytes: int, prompt_tokens: int) -> tuple[Block, ...]:
    """The log counts a prefix in bytes; tokens are taken to be spread evenly over them."""
    blocks = list(prefix)
    whole = max(prompt_bytes, blocks[-1].bytes if blocks else 0)
    return tuple((block.hash, block.bytes * prompt_tokens // whole) for block in blocks if whole)


def _typical(counts: list[int]) -> int:
    ordered = sorted(counts)
    return ordered[len(ordered) // 2] if ordered else 0
