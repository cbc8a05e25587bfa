"""For each queued request: what it waits for, and an estimate of when its turn comes.

Pure: the scheduler's state and the view in, one `Wait` per request out. What holds the head of a queue is in its
RequestHeld; what holds the others follows from the state. The estimate is made of medians of what the log said lately:
how long loads, stops and requests of that model took. Where one of them has not been seen yet there is none.
"""

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from router.api.view import View
from router.scheduler import engines
from router.scheduler.state import Model, Request, State, is_cooling, key_is_full


@dataclass(frozen=True, slots=True)
class Wait:
    """One queued request. `eta_us` counts from now; None when nothing is known to estimate from."""

    position: int
    request: Request
    why: str
    """A RequestHeld's reason, or: order, slots, loading, leaving, key_limit, suspect, alone."""
    by: list[str]
    """Models, replicas, keys, or requests as `rid:N`."""
    eta_us: int | None


def queue_of(state: State) -> list[Request]:
    """All that wait, wishes included, in the order of the queue."""
    waiting = [request for request in state.requests.values() if not request.replica]
    waiting.sort(key=lambda request: request.rank)
    return waiting


def waits(state: State, view: View, now_us: int) -> list[Wait]:
    """Every queued request in order, with what it waits for."""
    result: list[Wait] = []
    ahead_in_lane: dict[str, int] = {}
    first_of_lane: dict[str, int] = {}
    estimate = Estimate(state, view, now_us)
    for position, request in enumerate(queue_of(state), start=1):
        ahead = ahead_in_lane.get(request.model, 0)
        why, by = _reason(state, view, request, first_of_lane.get(request.model, 0))
        result.append(Wait(position, request, why, by, estimate.turn_of(request, ahead)))
        ahead_in_lane[request.model] = ahead + 1
        first_of_lane.setdefault(request.model, request.rid)
    return result


def _reason(state: State, view: View, request: Request, first_of_lane: int) -> tuple[str, list[str]]:
    if key_is_full(state, request.key):
        return "key_limit", [request.key]
    model = state.models[request.model]
    if model.phase == "loading":
        return "loading", [model.name]
    if model.phase == "ready":
        replicas = [state.replicas[replica] for replica in model.replicas]
        suspects = [replica.id for replica in replicas if replica.suspect]
        if suspects and len(suspects) == len(replicas):
            return "suspect", suspects
        if first_of_lane and any(replica.load < replica.slots for replica in replicas):
            return "order", [f"rid:{first_of_lane}"]
        if request.attempt > 1:
            return "alone", [replica.id for replica in replicas]
        return "slots", [replica.id for replica in replicas]
    seen = view.requests.get(request.rid)
    if request.held and seen is not None and seen.held is not None:
        return seen.held.why, list(seen.held.blocked_by)
    if first_of_lane:
        return "order", [f"rid:{first_of_lane}"]
    if model.phase in ("draining", "stopping"):
        return "leaving", [model.name]
    if is_cooling(state, model):
        return "cooling", [model.name]
    return "order", []


class Estimate:
    """When a request's turn comes, by what was seen lately. Kept simple: it is shown, never used to decide."""

    def __init__(self, state: State, view: View, now_us: int) -> None:
        self._state = state
        self._view = view
        self._now_us = now_us
        self._swap_ends: dict[int, int | None] = {}
        """Per GPU: when the swaps that must come first will have ended, from now; None when nobody can say."""
        self._ready: dict[str, int | None] = {}

    def turn_of(self, request: Request, ahead: int) -> int | None:
        """`ahead`: how many of the same model stand before it. Called in the order of the queue."""
        model = self._state.models[request.model]
        if model.name not in self._ready:
            self._ready[model.name] = self._ready_in(model)
        ready_us = self._ready[model.name]
        if ready_us is None:
            return None
        slots, busy = self._slots(model)
        if ready_us > 0:
            busy = 0
        if busy + ahead < slots:
            return ready_us
        service_us = self.service_us(model.name)
        if service_us is None:
            return None
        # With all slots taken, one of them falls free every service_us / slots on average.
        return ready_us + service_us * (busy + ahead - slots + 1) // slots

    def service_us(self, name: str) -> int | None:
        return _median(self._view.model(name).service_us)

    def load_us(self, name: str) -> int | None:
        return _median(self._view.model(name).load_us)

    def load_left_us(self, name: str) -> int | None:
        """Of a model whose processes are starting: by its progress where it tells, else by how long loads take."""
        left: int | None = 0
        for replica in self._state.models[name].replicas:
            seen = self._view.replicas.get(replica)
            if seen is None or seen.ready_us >= 0:
                continue
            so_far = self._now_us - seen.spawned_us
            usual = self.load_us(name)
            if usual is None and seen.progress > 0.05:
                usual = int(so_far / seen.progress)
            if usual is None:
                return None
            left = max(left or 0, usual - so_far)
        return left

    def _slots(self, model: Model) -> tuple[int, int]:
        replicas = [self._state.replicas[replica] for replica in model.replicas]
        slots = sum(replica.slots for replica in replicas if replica.phase == "ready")
        busy = sum(replica.load for replica in replicas)
        return slots or max(1, self._view.model(model.name).slots), busy

    def _ready_in(self, model: Model) -> int | None:
        if model.phase == "ready":
            return 0
        if model.phase == "loading":
            swap = self._state.swaps.get(model.target_of)
            leave_us: int | None = 0
            if swap is not None and swap.phase != "starting":
                leave_us = self._leave_us(swap.victims)
                load_us = self.load_us(model.name)
            else:
                load_us = self.load_left_us(model.name)
            return _sum(leave_us, load_us)
        mask = model.mask
        before_us: int | None = 0
        for gpu, end_us in self._swap_ends.items():
            if mask >> gpu & 1:
                before_us = None if end_us is None or before_us is None else max(before_us, end_us)
        residents = self._residents(model)
        end_us = _sum(before_us, self._leave_us(residents), self.load_us(model.name))
        for gpu in range(mask.bit_length()):
            if mask >> gpu & 1:
                self._swap_ends[gpu] = end_us
        return end_us

    def _residents(self, model: Model) -> list[str]:
        settings = self._state.settings
        if settings.engine != "residency":
            needed = engines.plan(self._state, model, Request(rid=0, model=model.name, arrived_us=self._state.now_us))
            return [*needed.victims, *needed.in_the_way]
        cap = settings.max_models_per_gpu
        found: list[str] = []
        for gpu, names in enumerate(self._state.residents):
            if model.mask >> gpu & 1 and len(names) >= cap:
                found += [name for name in names if name not in found and name != model.name]
        return found

    def _leave_us(self, names: list[str]) -> int | None:
        """Until these are gone: the longest drain, then a stop."""
        longest: int | None = 0
        for name in names:
            model = self._state.models[name]
            stop_us = _median(self._view.model(name).stop_us) or 0
            drain_us: int | None = 0
            if model.in_flight:
                usual = self.service_us(name)
                drain_us = None if usual is None else usual // 2
            longest = None if longest is None or drain_us is None else max(longest, drain_us + stop_us)
        return longest


def _median(values: Collection[int]) -> int | None:
    return int(median(values)) if values else None


def _sum(*parts: int | None) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
