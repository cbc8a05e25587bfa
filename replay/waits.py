"""What a queued request waits for at this moment, read off a settled state. Pure.

The words are those of `RequestHeld.why`, and more where a request waits although nobody holds it: for its body, a slot,
its key's limit, a load, a model that leaves, a prompt cache.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

from router.scheduler.caches import is_restoring
from router.scheduler.dispatch import choose, needs_swap
from router.scheduler.state import Model, Request, State, Swap, head_of, key_is_full
from router.scheduler.worth import adds_up_waits

What = Literal[
    "body",
    "grace",
    "accrue",
    "claimed",
    "swapping",
    "protected",
    "evicting",
    "gpu_out",
    "cooling",
    "drain",
    "save",
    "stop",
    "load",
    "restore",
    "slots",
    "alone",
    "company",
    "suspect",
    "key",
    "leaving",
    "unload",
    "yield",
    "turn",
]

MEANING: dict[What, str] = {
    "body": "its body was still coming",
    "grace": "others might go first until its grace was over",
    "accrue": "others might go first until the requests for its model had waited long enough together",
    "claimed": "an earlier request had the room that it needs",
    "swapping": "a swap had the room that it needs",
    "protected": "an earlier request wanted the model that must leave",
    "evicting": "a model in its way could not leave yet",
    "gpu_out": "a GPU that it needs was out of service",
    "cooling": "its model cooled down after failures",
    "drain": "the models that had to leave finished their work",
    "save": "prompt caches of the models that had to leave were being saved",
    "stop": "the processes that had to leave were being ended",
    "load": "its model was being loaded",
    "restore": "saved prompt caches of its model were being restored",
    "slots": "every slot of its model was taken",
    "alone": "it was there when a process crashed and runs alone now: others had to finish before",
    "company": "its model served nobody else beside one that was there when a process crashed",
    "suspect": "a replica of its model did not answer",
    "key": "its key had as many requests running as it may",
    "leaving": "its model was on its way out for another",
    "unload": "its model was being unloaded",
    "yield": "its model had to leave for an earlier request",
    "turn": "earlier requests came first",
}


@dataclass(frozen=True)
class Waiting:
    """What for, and whom by: models, or requests as `rid:N`."""

    what: What
    by: tuple[str, ...] = ()
    swap: int = 0
    ahead: int = 0
    """Earlier requests for the same model."""


def waiting_for(state: State, request: Request) -> Waiting:
    """Why a queued request is not being served. `state` is settled: no decision is left in it."""
    model = state.models[request.model]
    ahead = _ahead_of(state, request)
    if key_is_full(state, request.key):
        holders = [each.rid for each in state.requests.values() if each.replica and each.key == request.key]
        return Waiting("key", _rids(holders), ahead=ahead)
    if model.victim_of:
        swap = state.swaps[model.victim_of]
        if not swap.target:
            return Waiting("unload", (), swap.id, ahead)
        return Waiting("leaving", (swap.target,), swap.id, ahead)
    head = _head_for(state, request)
    if model.phase == "ready":
        what, by = _in_spite_of_a_replica(state, model, head, request)
        return Waiting(what, by, ahead=ahead)
    if model.target_of:
        swap = state.swaps[model.target_of]
        what, by = _for_its_swap(state, swap)
        return Waiting(what, by, swap.id, ahead)
    if head.held is not None and needs_swap(model):
        if head.held[0] == "grace" and adds_up_waits(state):
            return Waiting("accrue", head.held[3], ahead=ahead)
        return Waiting(head.held[0], head.held[3], ahead=ahead)  # type: ignore[arg-type]
    return Waiting("turn", ahead=ahead)


def _in_spite_of_a_replica(state: State, model: Model, head: Request, request: Request) -> tuple[What, tuple[str, ...]]:
    if choose(state, model, head) is not None:
        # There is room, and still nobody goes: somebody earlier, out of grace, needs this model gone.
        claims = [
            each.rid
            for each in state.requests.values()
            if each.held is not None and each.held[1] and model.name in (*each.held[2], *each.held[3])
        ]
        return "yield", _rids(claims)
    replicas = [state.replicas[replica] for replica in model.replicas]
    if all(replica.suspect for replica in replicas):
        return "suspect", tuple(replica.id for replica in replicas)
    ready = [replica for replica in replicas if replica.phase == "ready" and not replica.suspect]
    works_on = _rids([rid for replica in ready for rid in (*replica.in_flight, *replica.releasing)])
    if ready and all(is_restoring(state, replica.id) for replica in ready):
        return "restore", tuple(replica.id for replica in ready)
    if head.attempt > 1 and works_on:
        return ("alone", works_on) if head is request else ("company", _rids([head.rid]))
    if ready and all(replica.alone for replica in ready):
        return "company", works_on
    return "slots", works_on


def _for_its_swap(state: State, swap: Swap) -> tuple[What, tuple[str, ...]]:
    if swap.save_from_us and swap.phase == "draining":
        return "save", tuple(swap.victims)
    if swap.phase == "draining":
        replicas = [state.replicas[replica] for name in swap.victims for replica in state.models[name].replicas]
        return "drain", (*swap.victims, *_rids([rid for replica in replicas for rid in replica.in_flight]))
    if swap.phase == "stopping":
        return "stop", tuple(swap.victims)
    return "load", (swap.target,)


def _head_for(state: State, request: Request) -> Request:
    """The first request of the same model that its key allows to run."""
    head = head_of(state, state.lanes[request.model])
    return request if head is None else state.requests[head[2]]


def _ahead_of(state: State, request: Request) -> int:
    return sum(bisect_left(ranks, request.rank) for ranks in state.lanes[request.model].by_key.values())


def _rids(rids: list[int]) -> tuple[str, ...]:
    return tuple(f"rid:{rid}" for rid in sorted(rids))
