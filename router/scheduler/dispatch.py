"""Which replica takes a request: the least busy one with room; ties go to the conversation's last replica."""

from bisect import bisect_left
from typing import Literal

import msgspec

from eventlog import events as e
from router.scheduler.caches import is_restoring
from router.scheduler.state import Lane, Model, Rank, Replica, Request, State, key_is_full

OVERTOOK_SHOWN = 8

Why = Literal["least_busy", "affinity", "pay_out", "alone"]


class Choice(msgspec.Struct, frozen=True):
    """A replica with room, and the weight that the request takes there."""

    replica: Replica
    weight: int
    why: Why


def choose(state: State, model: Model, request: Request) -> Choice | None:
    """The replica for a request, or None while none has room.

    A request that was in flight during a crash runs alone the second time: if it kills again, it was the one.
    """
    alone = request.attempt > 1
    open_to_it = [
        replica
        for replica in [state.replicas[replica] for replica in model.replicas]
        if has_room(state, replica, weight_on(replica, request), alone=alone)
    ]
    if not open_to_it:
        return None
    chosen = open_to_it[0]  # replicas stand by index
    why: Why = "least_busy"
    if len(open_to_it) > 1:
        least = min([replica.load for replica in open_to_it])
        tied = [replica for replica in open_to_it if replica.load == least]
        chosen = tied[0]
        if len(tied) > 1 and state.settings.affinity and request.conversation in model.conversations:
            last = model.conversations[request.conversation]
            for replica in tied:
                if replica.id == last:
                    chosen, why = replica, "affinity"
    return Choice(chosen, weight_on(chosen, request), "alone" if alone else why)


def weight_on(replica: Replica, request: Request) -> int:
    """Slots that a request takes: what it wants, at most all; metadata takes none."""
    if request.work == "metadata":
        return 0
    return max(1, min(request.slots_wanted, replica.slots))


def has_room(state: State, replica: Replica, weight: int, *, alone: bool) -> bool:
    if replica.phase != "ready" or replica.suspect or replica.alone or is_restoring(state, replica.id):
        return False
    if alone:
        return not replica.in_flight and not replica.releasing
    overcommit = state.settings.overcommit
    return overcommit < 0 or weight == 0 or replica.load + weight <= replica.slots + overcommit


def dispatch(state: State, request: Request, choice: Choice, *, pay_out: bool = False) -> e.RequestDispatched:
    """Says also whom the request passes: earlier ones that need a swap on its GPUs."""
    rank, mask = request.rank, choice.replica.mask
    overtook = 0
    passed: list[Rank] = []
    for name, lane in state.lanes.items():
        model = state.models[name]
        if model.mask & mask and not model.mask & state.gpus_out and needs_swap(model):
            ahead, first = _ahead_of(state, lane, rank)
            if ahead:
                overtook += ahead
                passed.append(first)
    return e.RequestDispatched(
        rid=request.rid,
        replica=choice.replica.id,
        attempt=request.attempt,
        waited_us=max(0, state.now_us - request.arrived_us),
        rule="pay_out" if pay_out and choice.why != "alone" else choice.why,
        in_flight=choice.replica.load,
        weight=choice.weight,
        overtook=overtook,
        overtook_first=[first[2] for first in sorted(passed)[:OVERTOOK_SHOWN]],
    )


def _ahead_of(state: State, lane: Lane, rank: Rank) -> tuple[int, Rank]:
    """How many of a lane stand before this rank, and the first of them; their keys at a limit left out."""
    ahead, first = 0, rank
    for key, ranks in lane.by_key.items():
        if ranks[0] < rank and not (key and key_is_full(state, key)):
            ahead += bisect_left(ranks, rank)
            first = min(first, ranks[0])
    return ahead, first


def needs_swap(model: Model) -> bool:
    """Nothing of it serves, and nothing of it is on the way."""
    return model.phase not in ("ready", "loading")


__all__ = ["Choice", "choose", "dispatch", "has_room", "needs_swap", "weight_on"]
