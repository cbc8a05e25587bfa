"""What must hold of every state and of every decision. The tests and the simulation ask for both; `step` asks for
that of decisions everywhere, for it costs next to nothing.

An AssertionError from here names what is broken; it is a bug in the rules or in `fold`, never bad input.
"""

from collections.abc import Callable
from typing import Any

from eventlog import events as e
from router.scheduler import engines
from router.scheduler.cache_state import Caches
from router.scheduler.state import Model, State, gpus_of, is_cooling, is_restless, lane_key, next_unforced


def check(state: State) -> None:
    """Invariants of a state that has no decision left. Raises AssertionError."""
    _check_residents(state)
    _check_replicas(state)
    _check_queue(state)
    _check_requests(state)
    _check_swaps(state)
    _check_caches(state)


def check_decision(state: State, decision: e.Decision) -> None:
    """Invariants of a decision; `state` is the one that it was made from. Raises AssertionError."""
    look = _CHECKS.get(type(decision))
    if look is not None:
        look(state, decision)


def _check_answer(state: State, decision: e.AdminDone) -> None:
    known = decision.op in state.wishes or decision.op in state.admin or decision.op in state.answers
    assert known, f"operation {decision.op} is answered, but nobody waits for that"


def _check_stop(state: State, decision: e.ReplicaStopOrdered) -> None:
    replica = state.replicas[decision.replica]
    assert replica.phase != "stopping", f"{replica.id} is stopped twice"
    serving = [rid for rid in replica.in_flight if _works_in(state, rid)]
    swap = state.swaps.get(decision.swap)
    if swap is not None and swap.save_from_us and not swap.save_us:
        held_us = state.now_us - swap.save_from_us
        saving = state.caches.replicas[replica.id].saving if replica.id in state.caches.replicas else {}
        assert not saving or held_us >= state.settings.keep_hold_us or decision.force, f"{replica.id} saves {saving}"
    assert decision.force or not serving, f"{replica.id} is stopped while it serves {serving}"


def _check_spawn(state: State, decision: e.ReplicaSpawnOrdered) -> None:
    """The cap is kept by never starting a process too many; a process that stops still counts."""
    cap = state.settings.max_models_per_gpu
    if state.models[decision.model].replicas:
        return  # it counts already
    for gpu in state.models[decision.model].gpus if cap else ():
        others = [name for name in state.residents[gpu] if name != decision.model and state.models[name].replicas]
        assert len(others) < cap, f"{decision.model} is started on GPU {gpu} beside {others}, more than {cap}"
    room = engines.has_room(state, state.models[decision.model])
    assert room, f"{decision.model} is started beside models that {state.settings.engine} keeps apart from it"


def _check_save(state: State, decision: e.CacheSaveOrdered) -> None:
    replica, caches = state.replicas[decision.replica], state.caches.replicas[decision.replica]
    assert state.settings.keep_caches, "prompt caches are not kept"
    assert replica.phase == "ready", f"{replica.id} is to save a cache, but is {replica.phase}"
    assert not caches.saving, f"{replica.id} saves already: {caches.saving}"
    holding = caches.slots[decision.slot]
    assert holding.conversation == decision.conversation, f"slot {decision.slot} holds {holding}"
    assert holding.rid not in replica.in_flight, f"slot {decision.slot} of {replica.id} is at work"


def _check_restore(state: State, decision: e.CacheRestoreOrdered) -> None:
    replica, caches = state.replicas[decision.replica], state.caches.replicas[decision.replica]
    assert replica.phase == "ready", f"{replica.id} is to restore a cache, but is {replica.phase}"
    assert not replica.in_flight, f"{replica.id} is to restore a cache, but works on {replica.in_flight}"
    assert not caches.restoring, f"{replica.id} restores already: {caches.restoring}"
    assert decision.slot < replica.slots, f"{replica.id} has no slot {decision.slot}"
    assert decision.slot not in caches.slots, f"slot {decision.slot} of {replica.id} is taken"
    file = state.caches.models[replica.model].files[decision.conversation]
    assert file.shape == caches.shape, f"the cache of {decision.conversation} is of another shape"


def _check_dispatch(state: State, decision: e.RequestDispatched) -> None:
    request, replica = state.requests[decision.rid], state.replicas[decision.replica]
    assert not request.replica, f"{request.rid} is dispatched twice"
    assert replica.phase == "ready", f"{request.rid} goes to {replica.id}, which is {replica.phase}"
    assert not replica.suspect, f"{request.rid} goes to {replica.id}, which may be dead"
    assert not replica.alone, f"{request.rid} joins {replica.alone}, which must be alone"
    caches = state.caches.replicas.get(replica.id)
    is_restoring = caches is not None and caches.restoring and state.now_us < caches.restore_until_us
    assert not is_restoring, f"{request.rid} goes to {replica.id}, which restores"
    phase = state.models[request.model].phase
    assert phase == "ready", f"{request.rid} goes to {request.model}, which is {phase}"
    if decision.weight and state.settings.overcommit >= 0:
        limit = replica.slots + state.settings.overcommit
        load = replica.load + decision.weight
        assert load <= limit, f"{request.rid} makes a load of {load} on {limit} slots of {replica.id}"
    limits = state.settings.keys.get(request.key)
    if limits is not None and limits.max_parallel:
        assert state.running.get(request.key, 0) < limits.max_parallel, f"key {request.key} is over its limit"


def _check_swap(state: State, decision: e.SwapBegun) -> None:
    names = [victim.model for victim in decision.victims]
    assert len(names) == len(dict.fromkeys(names)), f"a victim is named twice: {names}"
    assert decision.target not in names, f"{decision.target} would evict itself"
    assert decision.target or len(names) == 1, f"an unload takes one model, not {names}"
    if decision.cause_rid:
        contest = engines.contest(state, state.models[decision.target])
        assert not contest & engines.busy_contest(state), f"{decision.target} competes with a load under way"
    for name in names:
        model = state.models[name]
        assert model.phase == "ready", f"{name} is to leave, but is {model.phase}"
        assert not model.victim_of, f"{name} leaves already"
        assert not model.target_of, f"{name} is being loaded"
        persistent = name in state.settings.models and state.settings.models[name].persistent
        assert not decision.target or not persistent, f"{name} may not be evicted"


_CHECKS: dict[type[e.Decision], Callable[[State, Any], None]] = {
    e.ReplicaStopOrdered: _check_stop,
    e.ReplicaSpawnOrdered: _check_spawn,
    e.RequestDispatched: _check_dispatch,
    e.SwapBegun: _check_swap,
    e.CacheSaveOrdered: _check_save,
    e.CacheRestoreOrdered: _check_restore,
    e.AdminDone: _check_answer,
}


# --- states -----------------------------------------------------------------------------------------------------------


def _works_in(state: State, rid: int) -> bool:
    request = state.requests.get(rid)
    return request is not None and request.work == "generation"


def _check_residents(state: State) -> None:
    for gpu, names in enumerate(state.residents):
        assert len(names) == len(set(names)), f"GPU {gpu} counts a model twice: {names}"
    for model in state.models.values():
        here = bool(model.replicas or model.target_of)
        assert model.gpus == gpus_of(model.mask)
        for gpu, names in enumerate(state.residents):
            counts = model.name in names
            assert counts == (here and gpu in model.gpus), f"{model.name} is miscounted on GPU {gpu}"
        assert model.phase == _phase(state, model), f"{model.name} is {model.phase}, should be {_phase(state, model)}"
        in_flight = sum(
            _works_in(state, rid) for replica in model.replicas for rid in state.replicas[replica].in_flight
        )
        gone = sum(
            request.model == model.name
            and request.work == "generation"
            and request.replica not in ("", *model.replicas)
            and request.rid not in state.lost
            for request in state.requests.values()
        )
        assert model.in_flight == in_flight + gone, f"{model.name} counts {model.in_flight} in flight, not {in_flight}"


def _phase(state: State, model: Model) -> str:
    if model.victim_of:
        return "draining" if state.swaps[model.victim_of].phase == "draining" else "stopping"
    if any(state.replicas[replica].phase == "ready" for replica in model.replicas):
        return "ready"
    if model.target_of:
        return "loading"
    return "stopping" if model.replicas else "absent"


def _check_replicas(state: State) -> None:
    for replica in state.replicas.values():
        weight = sum(replica.in_flight.values()) + sum(replica.releasing.values())
        assert replica.load == weight, f"{replica.id} counts a load of {replica.load}, has {weight}"
        assert replica.id in state.models[replica.model].replicas
        if replica.alone:
            assert list(replica.in_flight) + list(replica.releasing) == [replica.alone], f"{replica.id}: not alone"


def _check_queue(state: State) -> None:
    queued = {request.rid: request for request in state.requests.values() if not request.replica}
    found = 0
    for name, lane in state.lanes.items():
        assert lane.length == sum(len(ranks) for ranks in lane.by_key.values()) > 0, f"lane of {name} is miscounted"
        for key, ranks in lane.by_key.items():
            assert ranks == sorted(ranks), f"lane of {name} is out of order"
            for rank in ranks:
                request = queued[rank[2]]
                assert (request.model, lane_key(state, request.key), request.rank) == (name, key, rank)
                found += 1
    assert found == len(queued), f"{len(queued)} are queued, {found} stand in lanes"
    if state.settings.force_load_us:
        unforced = sorted((request.arrived_us, request.rid) for request in queued.values() if not request.forced)
        first = next_unforced(state)
        assert first == (unforced[0] if unforced else None), f"{first} is not who is forced next: {unforced[:1]}"
        listed = state.unforced[state.unforced_from :]
        assert set(unforced) <= set(listed), "somebody will never be forced"
        assert listed == sorted(listed), "those to be forced are out of order"
    assert {name for name, model in state.models.items() if is_restless(model)} == set(state.restless)
    assert {name for name, model in state.models.items() if is_cooling(state, model)} == set(state.cooling)
    assert {name for name, model in state.models.items() if len(model.gpus) > 1} == set(state.wide)
    assert {replica.id for replica in state.replicas.values() if replica.stalled} == set(state.stalled)


def _check_requests(state: State) -> None:
    assert not state.refused
    assert not state.lost
    assert not state.answers
    assert not state.stale_timers
    running: dict[str, int] = {}
    for request in state.requests.values():
        if request.replica:
            running[request.key] = running.get(request.key, 0) + 1
            replica = state.replicas.get(request.replica)
            assert replica is None or request.rid in replica.in_flight, f"{request.rid} is not on {request.replica}"
    assert state.running == running


def _check_caches(state: State) -> None:
    if not state.settings.keep_caches:
        assert state.caches == Caches(), f"prompt caches are not kept, but known: {state.caches}"
    for name, caches in state.caches.replicas.items():
        assert name in state.replicas or caches.saving or caches.restoring, f"{name} is gone, its caches are not"
    for name in state.timers:
        kind, _, key = name.partition(":")
        known = key == "router" or key in state.replicas or (key.isdigit() and int(key) in state.swaps)
        assert kind != "cache" or known, f"timer {name} is for nobody"


def _check_swaps(state: State) -> None:
    """Loads exclude each other on a GPU; an unload may run beside one, for it asks for no room."""
    taken = 0
    for swap in state.swaps.values():
        for name in swap.victims:
            assert state.models[name].victim_of == swap.id
        if swap.target:
            assert not taken & swap.mask, f"two loads touch a GPU: {state.swaps}"
            taken |= swap.mask
            assert state.models[swap.target].target_of == swap.id
