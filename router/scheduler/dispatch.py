"""Which replica takes a request: the least busy one with room; ties go to the conversation's last replica."""

from bisect import bisect_left
from typing import Literal

import msgspec

from eventlog import events as e
from router.scheduler.state import Model, Replica, Request, State

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
    last = model.conversations.get(request.conversation, "") if state.settings.affinity else ""
    best: Choice | None = None
    best_key: tuple[int, bool, int] | None = None
    tied = False
    for replica_id in model.replicas:
        replica = state.replicas[replica_id]
        weight = weight_on(replica, request)
        if not has_room(state, replica, weight, alone=alone):
            continue
        key = (replica.load, replica_id != last, replica.index)
        tied = tied or (best_key is not None and best_key[0] == key[0])
        if best_key is None or key < best_key:
            why: Why = "alone" if alone else ("affinity" if replica_id == last else "least_busy")
            best, best_key = Choice(replica, weight, why), key
    if best is not None and best.why == "affinity" and not tied:
        return Choice(best.replica, best.weight, "least_busy")
    return best


def weight_on(replica: Replica, request: Request) -> int:
    """Slots that a request takes: what it wants, at most all; metadata takes none."""
    if request.work == "metadata":
        return 0
    return max(1, min(request.slots_wanted, replica.slots))


def has_room(state: State, replica: Replica, weight: int, *, alone: bool) -> bool:
    if replica.phase != "ready" or replica.suspect or replica.alone:
        return False
    if alone:
        return not replica.in_flight and not replica.releasing
    overcommit = state.settings.overcommit
    return overcommit < 0 or weight == 0 or replica.load + weight <= replica.slots + overcommit


def dispatch(
    state: State, request: Request, choice: Choice, waiting: list[tuple[Request, int]], *, pay_out: bool = False
) -> e.RequestDispatched:
    """`waiting`: the heads before it in the order, each with the GPUs that its model or its swap touches."""
    mask = choice.replica.mask
    passed = [head for head, touched in waiting if touched & mask]
    return e.RequestDispatched(
        rid=request.rid,
        replica=choice.replica.id,
        attempt=request.attempt,
        waited_us=max(0, state.now_us - request.arrived_us),
        rule="pay_out" if pay_out and choice.why != "alone" else choice.why,
        in_flight=choice.replica.load,
        weight=choice.weight,
        overtook=sum(_ahead_of(state, head.model, request) for head in passed),
        overtook_first=[head.rid for head in passed[:OVERTOOK_SHOWN]],
    )


def _ahead_of(state: State, model: str, request: Request) -> int:
    return sum(bisect_left(ranks, request.rank) for ranks in state.lanes[model].by_key.values())


__all__ = ["Choice", "choose", "dispatch", "has_room", "weight_on"]
