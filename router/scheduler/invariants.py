"""What must hold of every state and of every decision. Used by the tests, the simulation and, cheaply, in production.

An AssertionError from here names what is broken; it is a bug in the rules or in `fold`, never bad input.
"""

from eventlog import events as e
from router.scheduler.state import Model, State, gpus_of


def check(state: State) -> None:
    """Invariants of a state that has no decision left. Raises AssertionError."""
    _check_residents(state)
    _check_replicas(state)
    _check_queue(state)
    _check_requests(state)
    _check_swaps(state)


def check_decision(before: State, fact: e.Fact, decisions: list[e.Decision]) -> None:
    """Invariants of the decisions that followed a fact; `before` is the state in front of it. Raises AssertionError."""
    for decision in decisions:
        if isinstance(decision, e.ReplicaStopOrdered) and not decision.force:
            replica = before.replicas.get(decision.replica)
            live = [rid for rid in replica.in_flight if _works_in(before, rid)] if replica is not None else []
            ended = getattr(fact, "rid", 0)
            assert not [rid for rid in live if rid != ended], f"{decision.replica} is stopped while it serves {live}"
        if isinstance(decision, e.SwapBegun):
            assert len(decision.victims) == len({victim.model for victim in decision.victims})
            assert all(victim.model != decision.target for victim in decision.victims)


def _works_in(state: State, rid: int) -> bool:
    request = state.requests.get(rid)
    return request is not None and request.work == "generation"


def _check_residents(state: State) -> None:
    cap = state.settings.max_models_per_gpu
    for gpu, names in enumerate(state.residents):
        assert len(names) == len(set(names)), f"GPU {gpu} counts a model twice: {names}"
        with_process = [name for name in names if state.models[name].replicas]
        assert len(with_process) <= cap, f"GPU {gpu} has processes of {with_process}, more than {cap}"
    for model in state.models.values():
        here = bool(model.replicas or model.target_of)
        for gpu in gpus_of(model.mask):
            assert (model.name in state.residents[gpu]) == here, f"{model.name} is miscounted on GPU {gpu}"
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
        if state.settings.overcommit >= 0:
            limit = replica.slots + state.settings.overcommit
            assert weight <= limit or not replica.slots, f"{replica.id} has {weight} in {limit} slots"
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
                assert (request.model, request.key, request.rank) == (name, key, rank)
                found += 1
    assert found == len(queued), f"{len(queued)} are queued, {found} stand in lanes"
    unforced = sorted((request.arrived_us, request.rid) for request in queued.values() if not request.forced)
    assert state.unforced == unforced


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
    for key, limits in state.settings.keys.items():
        assert not limits.max_parallel or running.get(key, 0) <= limits.max_parallel, f"key {key} is over its limit"


def _check_swaps(state: State) -> None:
    taken = 0
    for swap in state.swaps.values():
        assert not taken & swap.mask, f"two swaps touch a GPU: {state.swaps}"
        taken |= swap.mask
        for name in swap.victims:
            assert state.models[name].victim_of == swap.id or not state.models[name].replicas
        if swap.target:
            assert state.models[swap.target].target_of == swap.id
