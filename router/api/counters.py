"""What `/metrics` counts, taken from the events of the log as they are logged; a scrape only prints.

Counters begin at zero with each run, as Prometheus expects; the log itself is the history. Labels are bounded: a model
that is not configured is counted without its name.
"""

from collections.abc import Callable
from typing import Any

from eventlog import events as e
from router.api.exposition import Family, Histogram

SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LONG_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
US = 1e-6


class Counters:
    """The projection behind `/metrics`; `take` is its only writer."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._models: dict[int, str] = {}
        """Model of each open request."""
        self._replicas: dict[str, str] = {}
        """Model of each process."""
        self._gpus: dict[str, tuple[int, ...]] = {}
        """GPUs of each process."""
        self._swaps: dict[int, e.SwapBegun] = {}
        """Those with a target that are under way."""
        self._totals: dict[type[e.Event], int] = {}
        name = "llama_router_"
        model = ("model",)
        self.requests = Family(
            name + "requests_total",
            "counter",
            "Requests by how they ended. outcome: finished, failed, rejected or cancelled; code: the HTTP status of "
            "the replica's answer, the code of the router's error, or who cancelled.",
            ("model", "outcome", "code"),
        )
        self.arrivals = Family(name + "arrivals_total", "counter", "Requests that arrived.", model)
        self.requeued = Family(
            name + "requeued_total", "counter", "Requests sent back to their place after a lost replica.", model
        )
        self.waits = Histogram(
            name + "queue_wait_seconds", "From the arrival of a request to its first dispatch.", model, SHORT_S
        )
        self.first_token = Histogram(
            name + "first_token_seconds", "From the dispatch of a request to its first token.", model, SHORT_S
        )
        self.service = Histogram(
            name + "service_seconds", "From the dispatch of a request to the end of its answer.", model, SHORT_S
        )
        self.prompt_tokens = Family(
            name + "prompt_tokens_total", "counter", "Tokens of prompts, cached ones too.", model
        )
        self.cached_tokens = Family(
            name + "cached_tokens_total", "counter", "Tokens of prompts that a replica had in its cache.", model
        )
        self.completion_tokens = Family(name + "completion_tokens_total", "counter", "Tokens generated.", model)
        self.frames = Family(name + "stream_frames_total", "counter", "Data frames of streams.", model)
        self.unread_frames = Family(
            name + "unread_frames_total", "counter", "Data frames made for clients that had left.", model
        )
        self.swaps = Family(
            name + "swaps_total", "counter", "Swaps that ended. result: ok, failed or aborted.", ("model", "result")
        )
        self.evictions = Family(name + "evictions_total", "counter", "Models unloaded to make room for another.", model)
        self.swap_seconds = Histogram(
            name + "swap_seconds", "From the decision to swap until the target was ready or had failed.", model, LONG_S
        )
        self.loads = Family(
            name + "loads_total", "counter", "Replicas loaded. result: ok, or the kind of failure.", ("model", "result")
        )
        self.load_seconds = Histogram(
            name + "load_seconds", "From the start of a replica's process until it was ready.", model, LONG_S
        )
        self.stop_seconds = Histogram(
            name + "stop_seconds", "From the order to stop a replica until it was gone.", model, LONG_S
        )
        self.crashes = Family(
            name + "crashes_total", "counter", "Ready replicas that ended by themselves.", ("model", "cause")
        )
        self.stalls = Family(name + "stalls_total", "counter", "Replicas found to hang.", model)
        self.cooldowns = Family(name + "cooldowns_total", "counter", "Times that a model was put on hold.", model)
        gpu = ("gpu",)
        self.gpu_swaps = Family(
            name + "gpu_swaps_total", "counter", "Swaps that ended, by the GPUs of the target.", ("gpu", "result")
        )
        self.gpu_evictions = Family(
            name + "gpu_evictions_total", "counter", "Models unloaded to make room for another, by their GPUs.", gpu
        )
        self.gpu_crashes = Family(
            name + "gpu_crashes_total", "counter", "Ready replicas that ended by themselves, by their GPUs.", gpu
        )
        self.clock_steps = Family(name + "clock_steps_total", "counter", "Jumps of the wall clock.")
        self.clock_steps.set(to=0)
        self.families: tuple[Family | Histogram, ...] = (
            self.requests,
            self.arrivals,
            self.requeued,
            self.waits,
            self.first_token,
            self.service,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.frames,
            self.unread_frames,
            self.swaps,
            self.swap_seconds,
            self.evictions,
            self.loads,
            self.load_seconds,
            self.stop_seconds,
            self.crashes,
            self.stalls,
            self.cooldowns,
            self.gpu_swaps,
            self.gpu_evictions,
            self.gpu_crashes,
            self.clock_steps,
        )

    def take(self, event: e.Event) -> None:
        kind = type(event)
        self._totals[kind] = self._totals.get(kind, 0) + 1
        apply = _APPLY.get(kind)
        if apply is not None:
            apply(self, event)

    def events(self) -> Family:
        """How many events of each type were logged."""
        family = Family("llama_router_log_events_total", "counter", "Events logged.", ("type",))
        for kind, count in self._totals.items():
            family.set(kind.__name__, to=count)
        return family

    def _known(self, model: str) -> str:
        return model if model in self.names else ""

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, event: e.RequestArrived) -> None:
        model = self._models[event.rid] = self._known(event.model)
        self.arrivals.add(model)

    def _dispatched(self, event: e.RequestDispatched) -> None:
        if event.attempt == 1:
            self.waits.observe(self._models.get(event.rid, ""), value=event.waited_us * US)

    def _requeued(self, event: e.RequestRequeued) -> None:
        self.requeued.add(self._models.get(event.rid, ""))

    def _finished(self, event: e.RequestFinished) -> None:
        model = self._models.pop(event.rid, "")
        self.requests.add(model, "finished", str(event.status))
        self.service.observe(model, value=event.took_us * US)
        if event.first_token_us >= 0:
            self.first_token.observe(model, value=event.first_token_us * US)
        if event.prompt_tokens > 0:
            self.prompt_tokens.add(model, by=event.prompt_tokens)
        if event.cached_tokens > 0:
            self.cached_tokens.add(model, by=event.cached_tokens)
        if event.completion_tokens > 0:
            self.completion_tokens.add(model, by=event.completion_tokens)
        if event.frames:
            self.frames.add(model, by=event.frames)

    def _failed(self, event: e.RequestFailed) -> None:
        self.requests.add(self._models.pop(event.rid, ""), "failed", event.code)

    def _rejected(self, event: e.RequestRejected) -> None:
        self.requests.add(self._models.pop(event.rid, ""), "rejected", event.code)

    def _cancelled(self, event: e.RequestCancelled) -> None:
        model = self._models.pop(event.rid, "")
        self.requests.add(model, "cancelled", event.by)
        if event.frames:
            self.frames.add(model, by=event.frames)
        if event.unread_frames:
            self.unread_frames.add(model, by=event.unread_frames)

    # --- swaps and replicas -------------------------------------------------------------------------------------

    def _swap_begun(self, event: e.SwapBegun) -> None:
        if event.target:
            self._swaps[event.swap] = event

    def _swap_finished(self, event: e.SwapFinished) -> None:
        begun = self._swaps.pop(event.swap, None)
        if begun is None:
            return
        self._swap_ended(begun, "ok" if event.ok else "failed")
        self.swap_seconds.observe(self._known(begun.target), value=(event.at_us - begun.at_us) * US)
        for victim in begun.victims:
            self.evictions.add(self._known(victim.model))
            for gpu in victim.gpus:
                self.gpu_evictions.add(str(gpu))

    def _swap_aborted(self, event: e.SwapAborted) -> None:
        begun = self._swaps.pop(event.swap, None)
        if begun is not None:
            self._swap_ended(begun, "aborted")

    def _swap_ended(self, begun: e.SwapBegun, result: str) -> None:
        self.swaps.add(self._known(begun.target), result)
        for gpu in begun.footprint:
            self.gpu_swaps.add(str(gpu), result)

    def _spawn_ordered(self, event: e.ReplicaSpawnOrdered) -> None:
        self._replicas[event.replica] = self._known(event.model)
        self._gpus[event.replica] = event.gpus

    def _ready(self, event: e.ReplicaReady) -> None:
        model = self._replicas.get(event.replica, "")
        self.loads.add(model, "ok")
        self.load_seconds.observe(model, value=event.load_us * US)

    def _load_failed(self, event: e.ReplicaLoadFailed) -> None:
        self._gpus.pop(event.replica, None)
        self.loads.add(self._replicas.pop(event.replica, ""), event.kind)

    def _stopped(self, event: e.ReplicaStopped) -> None:
        self._gpus.pop(event.replica, None)
        self.stop_seconds.observe(self._replicas.pop(event.replica, ""), value=event.took_us * US)

    def _crashed(self, event: e.ReplicaCrashed) -> None:
        for gpu in self._gpus.pop(event.replica, ()):
            self.gpu_crashes.add(str(gpu))
        self.crashes.add(self._replicas.pop(event.replica, ""), event.cause_of_exit)

    def _stalled(self, event: e.ReplicaStalled) -> None:
        self.stalls.add(self._replicas.get(event.replica, ""))

    def _cooled_down(self, event: e.ModelCooledDown) -> None:
        self.cooldowns.add(self._known(event.model))

    def _clock_stepped(self, event: e.ClockStepped) -> None:
        self.clock_steps.add()

    def _config_loaded(self, event: e.ConfigLoaded) -> None:
        self.names = frozenset(event.config.models)


_APPLY: dict[type[e.Event], Callable[[Counters, Any], None]] = {
    e.RequestArrived: Counters._arrived,
    e.RequestDispatched: Counters._dispatched,
    e.RequestRequeued: Counters._requeued,
    e.RequestFinished: Counters._finished,
    e.RequestFailed: Counters._failed,
    e.RequestRejected: Counters._rejected,
    e.RequestCancelled: Counters._cancelled,
    e.SwapBegun: Counters._swap_begun,
    e.SwapFinished: Counters._swap_finished,
    e.SwapAborted: Counters._swap_aborted,
    e.ReplicaSpawnOrdered: Counters._spawn_ordered,
    e.ReplicaReady: Counters._ready,
    e.ReplicaLoadFailed: Counters._load_failed,
    e.ReplicaStopped: Counters._stopped,
    e.ReplicaCrashed: Counters._crashed,
    e.ReplicaStalled: Counters._stalled,
    e.ModelCooledDown: Counters._cooled_down,
    e.ClockStepped: Counters._clock_stepped,
    e.ConfigLoaded: Counters._config_loaded,
}
