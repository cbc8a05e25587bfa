"""The queue as indexes: a lane per model, in it sorted lists; and one of who is forced next.

Only the fold calls this. Every operation costs a bisection and a move of pointers, whatever the queue's length.
"""

from bisect import bisect_left, insort

from router.scheduler.state import EVERYWHERE, Lane, Rank, Request, State, lane_key, next_unforced, touch

SKIPPED_MAX = 512
"""Entries kept before the first: cutting them off moves the rest."""


def enter(state: State, request: Request) -> None:
    """Take the place that arrival, priority and force give it."""
    lane = state.lanes.get(request.model)
    if lane is None:
        lane = state.lanes[request.model] = Lane()
    key, rank = lane_key(state, request.key), request.rank
    ranks = lane.by_key.get(key)
    if ranks is None:
        ranks = lane.by_key[key] = []
    insort(ranks, rank)
    lane.length += 1
    if state.settings.head_release == "accrued":
        lane.waits_from_us += max(request.arrived_us, lane.waits_since_us)
        state.touched = EVERYWHERE  # whoever waits changes what a swap costs
    if ranks[0] == rank:
        touch(state, state.models[request.model])
    if not request.forced and state.settings.force_load_us:
        _expect_to_force(state, (request.arrived_us, request.rid))


def leave(state: State, request: Request) -> None:
    """Give up the place: dispatched, ended, or about to take another."""
    lane = state.lanes[request.model]
    key, rank = lane_key(state, request.key), request.rank
    ranks = lane.by_key[key]
    if ranks[0] == rank:
        touch(state, state.models[request.model])
        del ranks[0]
    else:
        _remove(ranks, rank)
    lane.length -= 1
    if state.settings.head_release == "accrued":
        lane.waits_from_us -= max(request.arrived_us, lane.waits_since_us)
        state.touched = EVERYWHERE
    if not ranks:
        del lane.by_key[key]
        if not lane.by_key:
            del state.lanes[request.model]
    first = next_unforced(state)
    if first is not None and first[1] == request.rid:
        _skip_who_left(state, leaving=request.rid)


def _expect_to_force(state: State, entry: tuple[int, int]) -> None:
    """Arrivals come in order, near enough."""
    unforced = state.unforced
    if unforced and entry < unforced[-1]:
        insort(unforced, entry, lo=state.unforced_from)
    else:
        unforced.append(entry)


def _skip_who_left(state: State, leaving: int) -> None:
    """The first who is yet to be forced always waits; whoever leaves from behind it stays there until it is first."""
    unforced, at = state.unforced, state.unforced_from
    while at < len(unforced):
        rid = unforced[at][1]
        request = None if rid == leaving else state.requests.get(rid)
        if request is not None and not request.replica and not request.forced:
            break
        at += 1
    if at > SKIPPED_MAX or at == len(unforced):
        del unforced[:at]
        at = 0
    state.unforced_from = at


def rebuild(state: State) -> None:
    """Other keys have limits now, or forcing begins. The one operation that costs something for each that waits."""
    state.lanes = {}
    state.unforced = []
    state.unforced_from = 0
    for request in state.requests.values():
        if not request.replica:
            enter(state, request)


def promote_overdue(state: State) -> None:
    """Whoever has waited QUEUE_FORCE_LOAD_TIMEOUT goes before every priority."""
    if not state.settings.force_load_us:
        return
    limit_us = state.now_us - state.settings.force_load_us
    while (first := next_unforced(state)) is not None and first[0] <= limit_us:
        request = state.requests[first[1]]
        leave(state, request)
        request.forced = True
        enter(state, request)
        state.touched = EVERYWHERE


def _remove(ordered: list[Rank], item: Rank) -> None:
    at = bisect_left(ordered, item)
    assert ordered[at] == item, f"{item} is not in its lane"
    del ordered[at]
