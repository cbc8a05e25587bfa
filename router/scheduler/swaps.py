"""The life of a swap: victims drain, stop, are gone; the target is spawned, ready, paid out, settled.

Also whatever starts one without a request: unloads, top-ups, administration.
"""

from typing import Literal

from eventlog import events as e
from router.scheduler import caches
from router.scheduler.dispatch import choose, dispatch
from router.scheduler.engines import evict_cost, has_room
from router.scheduler.fold_models import cooldown_us
from router.scheduler.residency import Plan, age_stamp, is_evictable, victim_key
from router.scheduler.state import (
    Model,
    Request,
    State,
    Swap,
    first_of,
    gpus_of,
    head_of,
    is_closing,
    is_cooling,
    key_is_full,
    wanted_by,
)
from router.scheduler.worth import counts_uses, worth_of

UnloadWhy = Literal["unload", "ttl", "gpu_out", "stale"]

_STOP_WHY: dict[str, UnloadWhy] = {"unload": "unload", "ttl": "ttl", "gpu_out": "gpu_out", "stale": "stale"}
"""Why a victim stops, by why its swap began; for a load it is evicted."""

HOPELESS = ("missing_file", "bad_flag", "bad_model")
"""Load failures that only another configuration can mend."""

METADATA_US = 5_000_000
"""Metadata requests take no slot and are over in no time; a model that leaves gives them this long."""

# --- begin ----------------------------------------------------------------------------------------------------------


def begin_load(state: State, model: Model, request: Request, needed: Plan, *, contested: bool) -> e.SwapBegun:
    """Commit: the plan is frozen from here on."""
    why: Literal["idle", "grace_over", "forced", "wish"]
    if request.op:
        why = "wish"
    elif not contested:
        why = "idle"
    else:
        why = "forced" if request.forced else "grace_over"
    others = needed.others
    if others is None:
        others = _others_on(state, model, request, needed)
    return e.SwapBegun(
        swap=state.last_swap + 1,
        target=model.name,
        cause_rid=request.rid,
        why=why,
        victims=[_as_victim(state, name) for name in needed.victims],
        others=[_as_victim(state, name) for name in others],
        footprint=gpus_of(needed.mask),
        replicas=_missing(state, model),
        waited_us=max(0, state.now_us - request.arrived_us),
        head_since_us=request.head_since_us if request.head_since_us >= 0 else state.now_us,
        engine=state.settings.engine,
        set_name=needed.set_name,
        cost=needed.cost,
        nodes=needed.nodes,
        search_limited=needed.search_limited,
        op=request.op,
    )


def _others_on(state: State, model: Model, request: Request, needed: Plan) -> tuple[str, ...]:
    """Who else could have left its GPUs, in the order of choice."""
    others = [
        name
        for gpu in model.gpus
        for name in state.residents[gpu]
        if name not in needed.victims and name != model.name and is_evictable(state, name)
    ]
    return tuple(sorted(dict.fromkeys(others), key=lambda name: victim_key(state, name, forced=request.forced)))


def begin_top_up(state: State, model: Model) -> e.SwapBegun:
    return e.SwapBegun(
        swap=state.last_swap + 1,
        target=model.name,
        why="top_up",
        footprint=model.gpus,
        replicas=_missing(state, model),
    )


def begin_unload(state: State, model: Model, why: UnloadWhy, op: int = 0) -> e.SwapBegun:
    return e.SwapBegun(
        swap=state.last_swap + 1,
        why=why,
        victims=[_as_victim(state, model.name)],
        footprint=model.gpus,
        op=op,
    )


def _as_victim(state: State, name: str) -> e.Victim:
    model = state.models[name]
    return e.Victim(
        model=name,
        wanted=wanted_by(state, name),
        in_flight=model.in_flight,
        age_us=state.now_us - age_stamp(state, model),
        gpus=model.gpus,
        cost=evict_cost(state.settings, name),
        worth=worth_of(state, model) if counts_uses(state) else 0,
    )


def _missing(state: State, model: Model) -> list[int]:
    there = [state.replicas[replica].index for replica in model.replicas]
    return [index for index in range(state.settings.models[model.name].replicas) if index not in there]


# --- advance --------------------------------------------------------------------------------------------------------


def advance(state: State) -> e.Decision | None:
    """The next move of the first swap that has one, by age."""
    for swap in state.swaps.values():
        if swap.phase == "draining":
            decision = _drain(state, swap)
        elif swap.phase == "stopping":
            decision = _stop_next(state, swap)
        else:
            decision = _start(state, swap)
        if decision is not None:
            return decision
    return None


def _drain(state: State, swap: Swap) -> e.Decision | None:
    if swap.target:
        why = "unwanted" if swap.target not in state.lanes else _obstacle(state, swap)
        if why:
            return e.SwapAborted(swap=swap.id, target=swap.target, why=why)
    if not _is_forced(state, swap):
        for name in swap.victims:
            if state.models[name].in_flight:
                return caches.save_early(state, swap)
        due_us = swap.begun_us + METADATA_US
        if state.now_us < due_us and any(_serves_anything(state, name) for name in swap.victims):
            if f"drain:{swap.id}" in state.timers:
                return None
            return e.TimerSet(kind="drain", key=str(swap.id), due_us=due_us)
        waits, decision = caches.save(state, swap)
        if waits:
            return decision
    return _stop_next(state, swap)


def _serves_anything(state: State, name: str) -> bool:
    return any(state.replicas[replica].in_flight for replica in state.models[name].replicas)


def _obstacle(state: State, swap: Swap) -> Literal["", "stopping", "stale", "gpu_out"]:
    """Why no process may be started for a swap although it has begun; empty while all is well."""
    target = state.models[swap.target]
    if state.stopping_at_us and is_closing(state):
        return "stopping"
    if target.stale:
        return "stale"
    return "gpu_out" if target.mask & state.gpus_out else ""


def _is_forced(state: State, swap: Swap) -> bool:
    call = state.admin.get(swap.op) if swap.op else None
    return call is not None and call.force


def _stop_next(state: State, swap: Swap) -> e.Decision | None:
    force = _is_forced(state, swap)
    for name in swap.victims:
        for replica in state.models[name].replicas:
            if state.replicas[replica].phase != "stopping":
                return e.ReplicaStopOrdered(
                    replica=replica, why=_STOP_WHY.get(swap.why, "evict"), swap=swap.id, force=force
                )
    return None


def _start(state: State, swap: Swap) -> e.Decision | None:
    if not swap.target:
        return _finished(state, swap)
    if swap.loading and not (swap.to_spawn or swap.failed or swap.ready):
        return None  # its processes start
    model = state.models[swap.target]
    is_open = bool(swap.to_spawn or swap.failed) and not _is_given_up(state, swap, model)
    if swap.to_spawn and is_open:
        return _spawn(state, swap, swap.to_spawn[0], attempt=1)
    restore = caches.restore(state, swap, model)
    if restore is not None:
        return restore
    paid = _pay_out(state, swap, model)
    if paid is not None:
        return paid
    if is_open:
        for index, kind in swap.failed.items():
            if kind not in HOPELESS and swap.attempts[index] <= state.settings.load_retries:
                return _spawn(state, swap, index, attempt=swap.attempts[index] + 1, after=kind)
    if swap.loading or caches.holds_up(state, model):
        return None
    if not swap.ready and swap.failed and is_open and not is_cooling(state, model):
        hopeless = any(kind in HOPELESS for kind in swap.failed.values())
        why = next(iter(swap.failed.values()))
        return cool_down(state, model, why=why, reason=swap.reason, hopeless=hopeless)
    return _finished(state, swap)


def _is_given_up(state: State, swap: Swap, model: Model) -> bool:
    """No process is started for it any more."""
    return swap.cancelled or _is_cut(state, swap.target) or not has_room(state, model) or _obstacle(state, swap) != ""


def _spawn(state: State, swap: Swap, index: int, *, attempt: int, after: str = "") -> e.ReplicaSpawnOrdered:
    settings = state.settings.models[swap.target]
    gpus = settings.mask or settings.gpus
    if settings.replica_gpus:
        gpus = settings.replica_gpus[index]
    return e.ReplicaSpawnOrdered(
        replica=f"{swap.target}#{index}.{state.last_spawn + 1}",
        model=swap.target,
        index=index,
        gpus=gpus,
        swap=swap.id,
        attempt=attempt,
        after=after,
    )


def _pay_out(state: State, swap: Swap, model: Model) -> e.Decision | None:
    """A load pays out: whoever caused it is served first or, if that one is gone, who waits for the model first."""
    if not swap.cause_rid or swap.paid_out or model.phase != "ready":
        return None
    request = state.requests.get(swap.cause_rid)
    if request is None or request.replica or key_is_full(state, request.key):
        lane = state.lanes.get(model.name)
        head = None if lane is None else head_of(state, lane)
        if head is None:
            return None
        request = state.requests[head[2]]
    if request.op:
        return e.AdminDone(op=request.op, outcome="done")
    choice = choose(state, model, request)
    return None if choice is None else dispatch(state, request, choice, pay_out=True)


def _finished(state: State, swap: Swap) -> e.SwapFinished:
    return e.SwapFinished(
        swap=swap.id,
        target=swap.target,
        ok=not swap.target or swap.ready > 0,
        drain_us=swap.drained_us - swap.begun_us,
        stop_us=swap.spawned_us - swap.drained_us,
        load_us=state.now_us - swap.spawned_us if swap.target else 0,
        ready=swap.ready,
        save_us=swap.save_us,
    )


def cool_down(state: State, model: Model, *, why: str, reason: str, hopeless: bool = False) -> e.ModelCooledDown:
    failures = model.failures + 1
    return e.ModelCooledDown(
        model=model.name,
        until_us=-1 if hopeless else state.now_us + cooldown_us(state, failures),
        failures=failures,
        why=why,
        reason=reason,
    )


# --- administration -------------------------------------------------------------------------------------------------


def serve_admin_calls(state: State) -> e.Decision | None:
    """Each call unloads its models one by one as they become free for it, then gets its answer."""
    for call in state.admin.values():
        for name in call.models:
            model = state.models[name]
            if call.force:
                decision = _cut(state, model)
                if decision is not None:
                    return decision
            if model.phase == "ready" and not model.target_of and not model.victim_of:
                return begin_unload(state, model, why=call.why, op=call.op)
        if not call.models:
            return e.AdminDone(op=call.op, outcome="done")
    return None


def _is_cut(state: State, name: str) -> bool:
    """Somebody unloads the model by force."""
    return any(call.force and name in call.models for call in state.admin.values())


def _cut(state: State, model: Model) -> e.Decision | None:
    """By force: the queue of the model fails; if a swap loads it or drains it already, its processes end now."""
    lane = state.lanes.get(model.name)
    if lane is not None:
        request = state.requests[first_of(lane)[2]]
        if request.op:
            return e.AdminDone(op=request.op, outcome="cancelled", code="model_unloaded")
        return e.RequestFailed(rid=request.rid, status=503, code="model_unloaded", model=model.name)
    if model.target_of or model.victim_of:
        for replica in model.replicas:
            if state.replicas[replica].phase != "stopping":
                return e.ReplicaStopOrdered(replica=replica, why="unload", force=True)
    return None
