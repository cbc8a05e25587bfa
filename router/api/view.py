"""What the pages and tables show and the scheduler has no use for: a small projection of the log, in memory.

Progress of loads, how long things took lately, what went wrong last, who is in flight and since when. It is fed every
event once it is logged, and at the start the end of the log. It holds one small record per open request and a bounded
history per model; it is lost with the process, and whatever must survive is in the log.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from eventlog import events as e

HISTORY = 32
"""Loads and requests per model that estimates are made from."""


@dataclass(slots=True)
class Open:
    """A request between its arrival and its outcome."""

    rid: int
    model: str
    asked: str
    route: str
    arrived_us: int
    stream: bool
    detached: bool
    priority: int
    key: str
    body_bytes: int
    prompt_tokens: int
    max_tokens: int
    replica: str = ""
    attempt: int = 0
    dispatched_us: int = -1
    first_byte_us: int = -1
    """Since the dispatch."""
    frames: int = 0
    prompt_processed: int = -1
    prompt_total: int = -1
    held: e.RequestHeld | None = None


@dataclass(slots=True)
class Failure:
    """How a process of a model ended last, when nobody had asked it to."""

    replica: str
    kind: str
    reason: str
    exit_code: int | None
    signal: int | None
    at_us: int
    seq: int
    """Number of the event in the log."""


@dataclass(slots=True)
class ModelView:
    """What is remembered of one model, loaded or not."""

    load_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    stop_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    service_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """From dispatch to end, of generations that ended well."""
    first_us: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """From dispatch to the first token, of streams."""
    token_us: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Per token, mean of one answer each."""
    limit_used: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Tokens of an answer as a share of its limit, where there was one."""
    failure: Failure | None = None
    """Cleared when the model is ready again."""
    slot_ctx: int = 0
    """Tokens per request, as the child said; 0 before it ever did."""
    slots: int = 0
    model_path: str = ""
    build: str = ""
    downloading: bool = False
    download: float = -1.0


@dataclass(slots=True)
class ReplicaView:
    """What is remembered of one process while it lives."""

    model: str
    spawned_us: int
    ready_us: int = -1
    stage: str = ""
    progress: float = -1.0
    """From 0 to 1; -1 when unknown."""
    pid: int = 0
    vram: list[e.Memory] = field(default_factory=list)
    slots: e.SlotsSampled | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class View:
    """The projection; `take` is its only writer."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.seq = 0
        """The last event seen."""
        self.requests: dict[int, Open] = {}
        self.models: dict[str, ModelView] = {}
        self.replicas: dict[str, ReplicaView] = {}

    def model(self, name: str) -> ModelView:
        """What is known of a model; empty when nothing is."""
        return self.models.get(name) or self.models.setdefault(name, ModelView())

    def remember(self, past: Iterable[e.Event]) -> None:
        """Learn from earlier runs how long things take, so that the first estimates of this one are not empty.

        Nothing else is kept: what was open or alive then is gone, and a context may be another one now.
        """
        for event in past:
            self.take(event)
        self.requests.clear()
        self.replicas.clear()
        self.models = {
            name: ModelView(
                load_us=model.load_us,
                stop_us=model.stop_us,
                service_us=model.service_us,
                first_us=model.first_us,
                token_us=model.token_us,
                limit_used=model.limit_used,
            )
            for name, model in self.models.items()
        }

    def take(self, event: e.Event) -> None:
        self.seq = max(self.seq, event.seq)
        apply = _APPLY.get(type(event))
        if apply is not None:
            apply(self, event)

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, event: e.RequestArrived) -> None:
        self.requests[event.rid] = Open(
            rid=event.rid,
            model=event.model,
            asked=event.asked,
            route=event.route,
            arrived_us=event.arrived_us,
            stream=event.stream,
            detached=event.detached,
            priority=event.priority,
            key=event.key,
            body_bytes=event.body_bytes,
            prompt_tokens=event.prompt_tokens,
            max_tokens=event.max_tokens,
        )

    def _held(self, event: e.RequestHeld) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.held = event

    def _dispatched(self, event: e.RequestDispatched) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.replica = event.replica
            request.attempt = event.attempt
            request.dispatched_us = event.at_us
            request.held = None

    def _requeued(self, event: e.RequestRequeued) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.replica = ""
            request.dispatched_us = request.first_byte_us = -1
            request.frames = 0

    def _first_byte(self, event: e.FirstByte) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.first_byte_us = event.after_us

    def _tokens(self, event: e.TokensStreamed) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.frames += len(event.gaps_us)

    def _prompt(self, event: e.PromptProgress) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.prompt_processed, request.prompt_total = event.processed, event.total

    def _detached(self, event: e.ClientDetached) -> None:
        request = self.requests.get(event.rid)
        if request is not None:
            request.detached = True

    def _finished(self, event: e.RequestFinished) -> None:
        request = self.requests.pop(event.rid, None)
        if request is not None and event.status < 300 and event.completion_tokens != 0:
            model = self.model(request.model)
            model.service_us.append(event.took_us)
            if event.timing.predicted_n > 1 and event.timing.predicted_us > 0:
                model.token_us.append(event.timing.predicted_us / event.timing.predicted_n)
            elif event.completion_tokens > 1:
                # Of an answer in one piece nobody saw when its prompt had been read.
                before_us = max(0, event.first_token_us) if request.stream else 0
                model.token_us.append((event.took_us - before_us) / event.completion_tokens)
            if request.stream and event.first_token_us >= 0:
                model.first_us.append(event.first_token_us)
            made = max(event.timing.predicted_n, event.completion_tokens)
            if request.max_tokens > 0 and made > 0:
                model.limit_used.append(min(1.0, made / request.max_tokens))

    def _gone(self, event: e.RequestCancelled | e.RequestFailed | e.RequestRejected | e.RequestLost) -> None:
        self.requests.pop(event.rid, None)

    # --- replicas -----------------------------------------------------------------------------------------------

    def _spawn_ordered(self, event: e.ReplicaSpawnOrdered) -> None:
        self.replicas[event.replica] = ReplicaView(model=event.model, spawned_us=event.at_us)
        self.model(event.model).downloading = False

    def _spawned(self, event: e.ReplicaSpawned) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            replica.pid = event.pid

    def _loading(self, event: e.ReplicaLoading) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            replica.stage, replica.progress = event.stage, event.value
        elif event.model in self.names:
            # A download comes before there is a process.
            model = self.model(event.model)
            model.downloading, model.download = event.value < 1, event.value

    def _ready(self, event: e.ReplicaReady) -> None:
        replica = self.replicas.get(event.replica)
        if replica is None:
            return
        replica.ready_us = event.at_us
        replica.stage, replica.progress = "", 1.0
        replica.vram = event.vram
        model = self.model(replica.model)
        model.load_us.append(event.load_us or event.at_us - replica.spawned_us)
        model.failure = None
        model.slots = event.slots
        model.slot_ctx = event.slot_ctx or model.slot_ctx
        model.model_path = event.model_path or model.model_path
        model.build = event.build or model.build

    def _stopped(self, event: e.ReplicaStopped) -> None:
        replica = self.replicas.pop(event.replica, None)
        if replica is not None:
            self.model(replica.model).stop_us.append(event.took_us)

    def _load_failed(self, event: e.ReplicaLoadFailed) -> None:
        self._ended_badly(event.replica, event.kind, event)

    def _crashed(self, event: e.ReplicaCrashed) -> None:
        self._ended_badly(event.replica, event.cause_of_exit, event)

    def _ended_badly(self, name: str, kind: str, event: e.ReplicaLoadFailed | e.ReplicaCrashed) -> None:
        replica = self.replicas.pop(name, None)
        if replica is not None:
            self.model(replica.model).failure = Failure(
                name, kind, event.reason, event.exit_code, event.signal, event.at_us, event.seq
            )

    def _slots(self, event: e.SlotsSampled) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            replica.slots = event

    def _metrics(self, event: e.MetricsSampled) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            replica.metrics = event.values

    def _config_loaded(self, event: e.ConfigLoaded) -> None:
        self.names = frozenset(event.config.models)


_APPLY: dict[type[e.Event], Callable[[View, Any], None]] = {
    e.RequestArrived: View._arrived,
    e.RequestHeld: View._held,
    e.RequestDispatched: View._dispatched,
    e.RequestRequeued: View._requeued,
    e.FirstByte: View._first_byte,
    e.TokensStreamed: View._tokens,
    e.PromptProgress: View._prompt,
    e.ClientDetached: View._detached,
    e.RequestFinished: View._finished,
    e.RequestCancelled: View._gone,
    e.RequestFailed: View._gone,
    e.RequestRejected: View._gone,
    e.RequestLost: View._gone,
    e.ReplicaSpawnOrdered: View._spawn_ordered,
    e.ReplicaSpawned: View._spawned,
    e.ReplicaLoading: View._loading,
    e.ReplicaReady: View._ready,
    e.ReplicaStopped: View._stopped,
    e.ReplicaLoadFailed: View._load_failed,
    e.ReplicaCrashed: View._crashed,
    e.SlotsSampled: View._slots,
    e.MetricsSampled: View._metrics,
    e.ConfigLoaded: View._config_loaded,
}
