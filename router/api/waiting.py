"""For each queued request: what it waits for, and an estimate of when its turn comes.

Pure: the scheduler's state and the view in, one `Wait` per request out. What holds the head of a queue is in its
RequestHeld; what holds the others follows from the state. The estimate is made of medians of what the log said lately:
how long loads, stops, requests and tokens of that model took, and how much of a limit of tokens its answers use: all of
it, until some have ended. Where one of them has not been seen yet there is none.
"""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from router.api.view import ModelView, Open, View
from router.scheduler import engines
from router.scheduler.state import Model, Request, State, Swap, gpus_of, is_cooling, key_is_full

PROGRESS_MIN = 0.05
"""A load that has come so far tells how long all of it takes."""
FRAMES_MIN = 16
"""So many tokens of a stream tell how fast it is."""


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


def waits(state: State, view: View, now_us: int, first: int | None = None) -> list[Wait]:
    """Every queued request in order, or the `first` few of them, with what it waits for."""
    result: list[Wait] = []
    first_of_lane: dict[str, int] = {}
    estimate = Estimate(state, view, now_us)
    for position, request in enumerate(queue_of(state)[:first], start=1):
        why, by = _reason(state, view, request, first_of_lane.get(request.model, 0))
        result.append(Wait(position, request, why, by, estimate.turn_of(request)))
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


@dataclass(slots=True)
class _Lane:
    """A model's slots while it is loaded, now or later: times from now, `inf` where nobody can say."""

    free_us: list[float]
    """A heap: when each slot is free for the next request."""
    closes_us: float = math.inf
    """When the swap begins that takes the model away; nobody is dispatched from then on."""


class Estimate:
    """When each request's turn comes, by what was seen lately: the queue is played through, in order.

    Kept simple: it is shown, never used to decide. Where two futures are possible it says nothing.
    """

    def __init__(self, state: State, view: View, now_us: int) -> None:
        self._state = state
        self._view = view
        self._now_us = now_us
        self._lanes: dict[str, _Lane] = {}
        self._ends: dict[int, float] = {}
        """Per GPU: when the swaps that come first have ended."""
        self._there: dict[int, list[str]] = {}
        """Per GPU on which a swap comes first: the models that are there after it."""
        for swap in state.swaps.values():
            self._swap_first(swap)

    def turn_of(self, request: Request) -> int | None:
        """Microseconds from now. Called once for each, in the order of the queue."""
        if key_is_full(self._state, request.key):
            return None
        turn_us = self._turn(self._state.models[request.model], request)
        return None if turn_us == math.inf else round(turn_us)

    def _turn(self, model: Model, request: Request) -> float:
        lane = self._lanes.get(model.name)
        if lane is None:
            is_there = model.phase in ("ready", "loading")
            lane = self._there_now(model.name) if is_there else self._load(model, request)
            self._lanes[model.name] = lane
        weight = 0 if request.op or request.work != "generation" else min(request.slots_wanted, len(lane.free_us))
        if lane.closes_us < math.inf and self._free(lane, weight) >= lane.closes_us:
            lane = self._lanes[model.name] = self._load(model, request)
        turn_us = self._free(lane, weight)
        for _ in range(weight):
            heapq.heapreplace(lane.free_us, turn_us + self._service_us(request))
        return turn_us

    def _free(self, lane: _Lane, weight: int) -> float:
        return lane.free_us[0] if weight <= 1 else heapq.nsmallest(weight, lane.free_us)[-1]

    # --- models -------------------------------------------------------------------------------------------------

    def _slots(self, model: Model) -> list[float]:
        """A heap: when the slots of its processes are free."""
        free_us: list[float] = []
        for name in model.replicas:
            replica = self._state.replicas[name]
            taken: list[float] = []
            for rid, weight in replica.in_flight.items():
                taken += [self._left_us(self._state.requests[rid])] * weight
            # What was cancelled is let go of soon.
            slots = replica.slots if replica.phase == "ready" else 0
            free_us += taken + [0.0] * max(0, slots - len(taken))
        heapq.heapify(free_us)
        return free_us or [math.inf]

    def _loaded(self, model: Model, ready_us: float) -> _Lane:
        return _Lane([ready_us] * max(1, self._view.model(model.name).slots))

    def _load(self, model: Model, request: Request) -> _Lane:
        """The swap that must come for it, after all that come first on its GPUs; who leaves for it is closed."""
        if self._state.gpus_out & model.mask:
            return self._loaded(model, math.inf)
        gpus = gpus_of(model.mask)
        before_us = max((self._ends.get(gpu, 0.0) for gpu in gpus), default=0.0)
        leaving = self._leaving(model, request, gpus)
        if leaving is None:
            there = [name for gpu in gpus for name in self._after(gpu)]
            self._close([name for name in there if name != model.name], before_us)
            begin_us = end_us = math.inf
        else:
            idle_us = max((max(self._there_now(name).free_us) for name in leaving), default=0.0)
            begin_us = max(before_us, self._cooldown_us(model), min(idle_us, self._grace_us(request, before_us)))
            stop_us = max((_median(self._view.model(name).stop_us) or 0.0 for name in leaving), default=0.0)
            end_us = max(begin_us, idle_us) + stop_us + self._load_us(model.name)
            self._close(leaving, begin_us)
        for gpu in gpus:
            there = self._after(gpu)
            self._there[gpu] = [*(name for name in there if name not in (leaving or ())), model.name]
            self._ends[gpu] = end_us
        return self._loaded(model, end_us)

    def _after(self, gpu: int) -> list[str]:
        """Who is there after the swaps that come first."""
        there = self._there.get(gpu)
        if there is not None:
            return there
        return self._state.residents[gpu] if gpu < len(self._state.residents) else []

    def _close(self, names: Sequence[str], at_us: float) -> None:
        for name in names:
            lane = self._there_now(name)
            lane.closes_us = min(lane.closes_us, at_us)

    def _there_now(self, name: str) -> _Lane:
        """The lane of a model that is there, or is being loaded."""
        lane = self._lanes.get(name)
        if lane is None:
            model = self._state.models[name]
            if model.phase == "loading":
                swap = self._state.swaps.get(model.target_of)
                lane = self._loaded(model, self._load_left_us(name) if swap is None else self._swap_ends(swap))
            else:
                lane = _Lane(self._slots(model))
            self._lanes[name] = lane
        return lane

    def _leaving(self, model: Model, request: Request, gpus: Sequence[int]) -> list[str] | None:
        """Who has to go first; None where that cannot be foretold."""
        settings = self._state.settings
        if not any(gpu in self._there for gpu in gpus):
            needed = engines.plan(self._state, model, request)
            return None if needed.outcome == "never" else [*needed.victims, *needed.in_the_way]
        found: list[str] = []
        for gpu in gpus:
            there = [name for name in self._after(gpu) if name != model.name]
            if settings.engine == "residency" and len(there) < settings.max_models_per_gpu:
                continue
            if settings.engine != "residency" or settings.max_models_per_gpu != 1:
                return None
            found += [name for name in there if name not in found]
        return found

    def _grace_us(self, request: Request, before_us: float) -> float:
        """Until its swap may begin although what must leave is in use."""
        settings = self._state.settings
        if request.forced or request.op or (request.held is not None and request.held[1]):
            return 0.0
        due_us = self._state.timers.get(f"grace:{request.rid}")
        if due_us is not None:
            return due_us - self._now_us
        if settings.head_grace_from == "arrival":
            return request.arrived_us + settings.head_grace_us - self._now_us
        return before_us + settings.head_grace_us

    def _cooldown_us(self, model: Model) -> float:
        if not is_cooling(self._state, model):
            return 0.0
        return math.inf if model.cooldown_until_us < 0 else model.cooldown_until_us - self._now_us

    # --- swaps under way ----------------------------------------------------------------------------------------

    def _swap_first(self, swap: Swap) -> None:
        end_us = self._swap_ends(swap)
        for gpu in gpus_of(swap.mask):
            there = [name for name in self._after(gpu) if name not in swap.victims]
            if swap.target and swap.target not in there and self._state.models[swap.target].mask >> gpu & 1:
                there.append(swap.target)
            self._ends[gpu] = max(self._ends.get(gpu, 0.0), end_us)
            self._there[gpu] = there

    def _swap_ends(self, swap: Swap) -> float:
        if swap.phase == "starting":
            return self._load_left_us(swap.target) if swap.target else 0.0
        gone_us = 0.0
        for name in swap.victims:
            model = self._state.models[name]
            drain_us = max(self._slots(model)) if model.in_flight else 0.0
            gone_us = max(gone_us, drain_us + (_median(self._view.model(name).stop_us) or 0.0))
        return gone_us + (self._load_us(swap.target) if swap.target else 0.0)

    def _load_us(self, name: str) -> float:
        usual_us = _median(self._view.model(name).load_us)
        return math.inf if usual_us is None else usual_us

    def _load_left_us(self, name: str) -> float:
        """Of a model whose processes are starting: by how long loads take, else by its progress where it tells."""
        left_us = 0.0
        for replica in self._state.models[name].replicas:
            seen = self._view.replicas.get(replica)
            if seen is None or seen.ready_us >= 0:
                continue
            so_far_us = self._now_us - seen.spawned_us
            whole_us = self._load_us(name)
            if not so_far_us < whole_us < math.inf:
                whole_us = so_far_us / seen.progress if seen.progress > PROGRESS_MIN else math.inf
            left_us = max(left_us, whole_us - so_far_us)
        return left_us

    # --- requests -----------------------------------------------------------------------------------------------

    def _service_us(self, request: Request) -> float:
        """Of one that still waits: by its limit of tokens where it has one, else as long as others took."""
        seen = self._view.requests.get(request.rid)
        model = self._view.model(request.model)
        token_us = _median(model.token_us)
        if seen is not None and seen.max_tokens > 0 and token_us is not None:
            return (_median(model.first_us) or 0.0) + _expected_tokens(model, seen) * token_us
        usual_us = _median(model.service_us)
        return math.inf if usual_us is None else usual_us

    def _left_us(self, request: Request) -> float:
        """Of one that runs: `inf` where it takes longer than anything that was seen."""
        seen = self._view.requests.get(request.rid)
        if seen is None or seen.dispatched_us < 0:
            return math.inf
        model = self._view.model(request.model)
        so_far_us = self._now_us - seen.dispatched_us
        if seen.max_tokens > 0:
            token_us = _median(model.token_us)
            if seen.frames >= FRAMES_MIN:
                token_us = (so_far_us - max(0, seen.first_byte_us)) / seen.frames
            if token_us is not None:
                if seen.frames:
                    return max(0, _expected_tokens(model, seen) - seen.frames) * token_us
                left_us = (_median(model.first_us) or 0.0) + _expected_tokens(model, seen) * token_us - so_far_us
                return left_us if left_us > 0 else math.inf
        # Those that ended sooner say nothing about it any more.
        usual_us = _median([took_us for took_us in model.service_us if took_us > so_far_us])
        return math.inf if usual_us is None else usual_us - so_far_us


def _expected_tokens(model: ModelView, seen: Open) -> float:
    """Of an answer with a limit: as much of it as others used, or all of it once that is exceeded."""
    expected = seen.max_tokens * (_median(model.limit_used) or 1.0)
    return expected if seen.frames < expected else seen.max_tokens


def _median(values: Collection[float]) -> float | None:
    return median(values) if values else None
