"""The pass over the queue: who is served next, who waits for what, and for whom a swap begins.

`rules` asks for it between what has to come before and what comes after; a plan for a swap comes from `engines`.
"""

from bisect import insort
from collections.abc import Generator
from typing import Literal

from eventlog import events as e
from router.scheduler import engines, swaps
from router.scheduler.dispatch import choose, dispatch, needs_swap
from router.scheduler.residency import Plan
from router.scheduler.state import (
    EVERYWHERE,
    Model,
    Request,
    State,
    busy_mask,
    gpus_of,
    head_of,
    lane_key,
    wanted_by,
)
from router.scheduler.worth import adds_up_waits, counts_uses, released_us


def serve_the_queue(state: State) -> Generator[e.Decision, None, bool]:
    """One pass over the queue in order: the first request that can do something does it.

    Requests of one model keep their order, so only the first of each lane can act. What earlier ones claim and
    protect goes along: `claimed` GPUs (no later swap may touch them), `blocked` models (no later dispatch to them),
    `earlier` models (no later swap may evict them). Whoever is told to wait on the way changes nothing for the others,
    and hardly ever does a dispatch (`_concerns_nobody_else`). After anything else the pass is over, and all rules have
    to be asked anew: True.

    Only where something was touched: requests on GPUs that no model ties together never wait for each other.
    """
    if not state.touched or not state.lanes:
        return False
    models = state.models
    within = EVERYWHERE if engines.looks_beyond_gpus(state.settings) else _connected(state, state.touched)
    heads = [
        (head, name)
        for name, lane in state.lanes.items()
        if within & (models[name].mask or EVERYWHERE) and (head := head_of(state, lane)) is not None
    ]
    heads.sort()
    ahead = _Ahead(state)
    words: list[e.Decision] = []
    place = 0
    while place < len(heads):
        rank, name = heads[place]
        place += 1
        model = models[name]
        request = state.requests[rank[2]]
        if needs_swap(model):
            decision = _ask_for_a_swap(state, model, request, ahead, words)
            if words:
                yield from words
                words.clear()
            if decision is not None:
                yield decision
                return True
            continue
        decision = _serve(state, model, request) if model.phase == "ready" and name not in ahead.blocked else None
        if decision is None:
            ahead.earlier.append(name)
            continue
        goes_on = _concerns_nobody_else(state, model, request, ahead, within)
        yield decision
        if not goes_on or state.stale_timers:
            return True
        left = state.lanes.get(name)
        head = None if left is None else head_of(state, left)
        if head is not None:
            insort(heads, (head, name), place)  # the next of this lane, among those who are still to come
    return False


def _concerns_nobody_else(state: State, model: Model, request: Request, ahead: "_Ahead", within: int) -> bool:
    """Whether all who were passed would hear the same again once this request is dispatched.

    They look at a ready model only as at somebody who may have to leave: whether it is wanted, whether it is busy, and
    how old it is. Either nothing of that changes, or nobody before asked for anything on its GPUs.
    """
    settings = state.settings
    if request.op or model.target_of or settings.keep_caches or counts_uses(state) or adds_up_waits(state):
        return False
    if lane_key(state, request.key) or not model.mask or model.mask & ~within:
        return False
    if model.used_us == state.now_us and model.in_flight and wanted_by(state, model.name) > 1:
        return True
    return not ahead.claimed & model.mask and not engines.looks_beyond_gpus(settings)


def _connected(state: State, mask: int) -> int:
    """These GPUs, and all that models wanted or loaded tie to them."""
    if mask == EVERYWHERE or not state.wide:
        return mask
    wide = [state.models[name] for name in state.wide]
    spans = [model.mask for model in wide if model.name in state.lanes or model.phase != "absent"]
    while further := [span for span in spans if span & mask and span & ~mask]:
        for span in further:
            mask |= span
    return mask


class _Ahead:
    """What stands in a request's way: swaps under way, and what the requests before it want."""

    __slots__ = ("beyond", "blocked", "busy", "claimed", "claims", "earlier", "plans")

    def __init__(self, state: State) -> None:
        self.beyond = engines.looks_beyond_gpus(state.settings)
        self.busy = busy_mask(state) | engines.busy_contest(state)
        self.claimed = 0
        self.claims: list[tuple[int, int]] = []
        """GPUs, what else is competed for, and rid of each claim."""
        self.blocked: list[str] = []
        self.earlier: list[str] = []
        self.plans: dict[tuple[int, bool], Plan] = {}
        """Under the cap, models that are nowhere need the same room wherever they have the same GPUs."""

    def plan(self, state: State, model: Model, request: Request) -> Plan:
        if model.phase != "absent" or state.settings.engine != "residency":
            return engines.plan(state, model, request)
        key = (model.mask, request.forced)
        known = self.plans.get(key)
        if known is None:
            known = self.plans[key] = engines.plan(state, model, request)
        return known

    def claim(self, request: Request, mask: int, needed: Plan, hard: bool) -> None:
        self.claimed |= mask
        self.claims.append((mask, request.rid))
        if hard:
            self.blocked += needed.victims
            self.blocked += needed.in_the_way

    def first_claim(self, mask: int) -> str:
        for gpus, rid in self.claims:
            if gpus & mask:
                return f"rid:{rid}"
        raise AssertionError(f"nobody claims any of GPUs {gpus_of(mask)}")


def _serve(state: State, model: Model, request: Request) -> e.Decision | None:
    if request.op:
        return e.AdminDone(op=request.op, outcome="done")
    choice = choose(state, model, request)
    return None if choice is None else dispatch(state, request, choice)


Waits = Literal["grace", "claimed", "swapping", "protected", "evicting", "gpu_out"]


def _ask_for_a_swap(
    state: State, model: Model, request: Request, ahead: _Ahead, words: list[e.Decision]
) -> e.Decision | None:
    """Begin it, or fail: returned. Or be held: claim its GPUs and, out of its grace, block what must leave."""
    if state.gpus_out & model.mask:
        # Nobody knows for how long: it claims nothing, blocks nobody, and its grace does not begin.
        _hold(request, Plan(outcome="wait", mask=model.mask), "gpu_out", False, (), -1, words)
        return None
    needed = ahead.plan(state, model, request)
    if needed.outcome == "never":
        return _refuse(state, model, request, needed)
    mask = needed.mask | engines.contest(state, model) if ahead.beyond else needed.mask
    is_claimed = mask & ahead.claimed != 0
    head_since_us = request.head_since_us
    if head_since_us < 0 and not is_claimed:
        head_since_us = state.now_us
    due_us = _grace_ends(state, request, head_since_us)
    if adds_up_waits(state):
        paid_us = released_us(state, model, state.lanes[model.name], request, needed.victims)
        due_us = min(paid_us, due_us) if state.settings.head_grace_us else paid_us
    hard = request.forced or request.op != 0 or state.now_us >= due_us
    why: Waits
    by: tuple[str, ...]
    if mask & ahead.busy:
        why = "swapping"
        by = tuple([swap.target or ", ".join(swap.victims) for swap in engines.swaps_on(state, mask)])
    elif is_claimed:
        why = "claimed"
        by = (ahead.first_claim(mask),)
    elif needed.outcome == "wait" or model.replicas:
        why = "evicting"
        by = (*needed.in_the_way, model.name) if model.replicas else needed.in_the_way
    elif by := tuple([name for name in needed.victims if name in ahead.earlier]):
        why = "protected"
    else:
        why = "grace"
        by = tuple([name for name in needed.victims if state.models[name].in_flight or wanted_by(state, name)])
        if hard or not by:
            return swaps.begin_load(state, model, request, needed, contested=bool(by))
    ahead.claim(request, mask, needed, hard)
    _hold(request, needed, why, hard, by, head_since_us, words)
    if why == "grace" and not _is_timed(state, request, due_us):
        words.append(e.TimerSet(kind="grace", key=str(request.rid), due_us=due_us))
    return None


def _grace_ends(state: State, request: Request, head_since_us: int) -> int:
    from_us = head_since_us
    if state.settings.head_grace_from == "arrival":
        from_us = request.arrived_us
    elif head_since_us < 0:
        from_us = state.now_us  # its grace has not begun
    return from_us + state.settings.head_grace_us


def _is_timed(state: State, request: Request, due_us: int) -> bool:
    """Whether its grace has a timer that is early enough: a grace does not get shorter, accrued waiting does."""
    timer_us = state.timers.get(f"grace:{request.rid}", 0)
    return timer_us > 0 and (timer_us <= due_us or not adds_up_waits(state))


def _hold(
    request: Request,
    needed: Plan,
    why: Waits,
    hard: bool,
    by: tuple[str, ...],
    head_since_us: int,
    words: list[e.Decision],
) -> None:
    """Said once per change."""
    if request.held == (why, hard, needed.victims, by):
        return
    words.append(
        e.RequestHeld(
            rid=request.rid,
            model=request.model,
            why=why,
            head_since_us=max(head_since_us, 0),
            hard=hard,
            victims=list(needed.victims),
            footprint=gpus_of(needed.mask),
            blocked_by=list(by),
        )
    )


def _refuse(state: State, model: Model, request: Request, needed: Plan) -> e.Decision:
    """It can never be loaded: said at once, and nobody is evicted for it."""
    if needed.reason:
        reason = needed.reason
    elif needed.in_the_way:
        reason = f"{', '.join(needed.in_the_way)} may not be evicted for it"
    else:
        reason = f"it needs GPUs {list(model.gpus)} of {state.settings.gpus}"
    if request.op:
        return e.AdminDone(op=request.op, outcome="failed", code="no_capacity", reason=reason)
    return e.RequestFailed(rid=request.rid, status=503, code="no_capacity", reason=reason, model=model.name)
