"""The rules, in order: `next_decision` returns the first decision that any of them wants, or None.

They read the state and nothing else: no clock, no randomness, no set is iterated, every tie ends in a name or a number.
The order is the policy. Whoever adds a rule adds it to RULES with the reason for its place.
"""

from collections.abc import Callable
from typing import Literal

from eventlog import events as e
from router.scheduler import caches, engines, swaps
from router.scheduler.dispatch import choose, dispatch, needs_swap
from router.scheduler.residency import Plan
from router.scheduler.state import (
    EVERYWHERE,
    Model,
    Request,
    State,
    busy_mask,
    first_of,
    gpus_of,
    head_of,
    is_closing,
    is_cooling,
    is_late,
    next_unforced,
    wanted_by,
)
from router.scheduler.worth import adds_up_waits, released_us

Rule = Callable[[State], e.Decision | list[e.Decision] | None]
"""A rule may return several decisions where none of them touches what the others are made from. If the last of them is
no more than a word to whoever waits, the rule has nothing else to say, and no rule before it has either."""


_WORDS = (e.RequestHeld, e.TimerSet)


def next_decisions(state: State, first_rule: int = 0) -> tuple[list[e.Decision], int]:
    """What must be decided next, and the rule to go on with once that is folded; past the last one, all is settled."""
    for number in range(first_rule, len(RULES)):
        decided = RULES[number](state)
        if decided:
            if not isinstance(decided, list):
                return [decided], 0
            return decided, number + 1 if isinstance(decided[-1], _WORDS) else 0
    return [], len(RULES)


def next_decision(state: State) -> e.Decision | None:
    """The first of them. Taken one by one, they come in the same order."""
    decisions, _ = next_decisions(state)
    return decisions[0] if decisions else None


# --- requests whose end is already clear ----------------------------------------------------------------------------


def reject_what_cannot_enter(state: State) -> e.Decision | None:
    for rid, refusal in state.refused.items():
        return e.RequestRejected(
            rid=rid, status=refusal.status, code=refusal.code, reason=refusal.reason, model=refusal.model
        )
    return None


def settle_lost_connections(state: State) -> e.Decision | None:
    """Back to its place if the client has seen nothing and it is the first time; else it ends here."""
    for rid, lost in state.lost.items():
        request = state.requests[rid]
        if lost.forced_stop and lost.stop_why in ("unload", "stopping"):
            code = "model_unloaded" if lost.stop_why == "unload" else "shutting_down"
            return e.RequestFailed(rid=rid, status=503, code=code, model=request.model, begun=lost.begun)
        if lost.stop_why not in ("", "stalled"):  # metadata: it does not keep its replica for long
            if lost.begun or request.evicted:
                code = "model_unloaded"
                return e.RequestFailed(rid=rid, status=503, code=code, model=request.model, begun=lost.begun)
            return e.RequestRequeued(rid=rid, replica=lost.replica, attempt=request.attempt, why="replica_gone")
        if not lost.begun and request.attempt <= state.settings.crash_retries:
            return e.RequestRequeued(rid=rid, replica=lost.replica, attempt=request.attempt + 1)
        return e.RequestFailed(
            rid=rid,
            status=502,
            code="upstream_stalled" if lost.stop_why == "stalled" else "upstream_crashed",
            reason=lost.detail,
            model=request.model,
            begun=lost.begun,
            suspect=request.attempt > 1,
        )
    return None


def fail_what_waits_for_a_failed_model(state: State) -> e.Decision | None:
    """Everybody in the queue of a model that is cooling down and serves from no replica, or is not configured."""
    if not state.cooling and len(state.models) == len(state.settings.models):
        return None
    for name, lane in state.lanes.items():
        model = state.models[name]
        removed = name not in state.settings.models
        if not removed and (not is_cooling(state, model) or model.phase in ("ready", "draining") or model.target_of):
            continue
        request = state.requests[first_of(lane)[2]]
        status, code, reason = 502, "model_load_failed", model.cooldown_reason
        if removed:
            status, code, reason = 404, "model_not_found", "it was taken out of the configuration"
        elif model.cooldown_until_us > 0 and request.arrived_us > model.cooldown_since_us:
            status, code = 503, "model_cooling_down"
        if request.op:
            return e.AdminDone(op=request.op, outcome="failed", code=code, reason=reason)
        retry_after_us = 0 if removed else max(0, model.cooldown_until_us - state.now_us)
        return e.RequestFailed(
            rid=request.rid, status=status, code=code, reason=reason, model=name, retry_after_us=retry_after_us
        )
    return None


# --- the queue ------------------------------------------------------------------------------------------------------


def serve_the_queue(state: State) -> list[e.Decision]:
    """One pass over the queue in order: the first request that can do something does it.

    Requests of one model keep their order, so only the first of each lane can act. What earlier ones claim and
    protect goes along: `claimed` GPUs (no later swap may touch them), `blocked` models (no later dispatch to them),
    `earlier` models (no later swap may evict them). Whoever is told to wait on the way changes nothing for the others.

    Only where something was touched: requests on GPUs that no model ties together never wait for each other.
    """
    models = state.models
    if not state.touched or not state.lanes:
        return []
    within = EVERYWHERE if engines.looks_beyond_gpus(state.settings) else _connected(state, state.touched)
    heads = []
    for name, lane in state.lanes.items():
        if within & (models[name].mask or EVERYWHERE):
            head = head_of(state, lane)
            if head is not None:
                heads.append((head, name))
    heads.sort()
    ahead = _Ahead(busy=busy_mask(state) | engines.busy_contest(state))
    decisions: list[e.Decision] = []
    for rank, name in heads:
        model = models[name]
        request = state.requests[rank[2]]
        decision: e.Decision | None = None
        if needs_swap(model):
            decision = _ask_for_a_swap(state, model, request, ahead, decisions)
        else:
            if model.phase == "ready" and name not in ahead.blocked:
                decision = _serve(state, model, request)
            ahead.earlier.append(name)
        if decision is not None:
            decisions.append(decision)
            break
    return decisions


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

    __slots__ = ("blocked", "busy", "claimed", "claims", "earlier", "plans")

    def __init__(self, busy: int) -> None:
        self.busy = busy
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
    state: State, model: Model, request: Request, ahead: _Ahead, decisions: list[e.Decision]
) -> e.Decision | None:
    """Begin it, or fail: returned. Or be held: claim its GPUs and, out of its grace, block what must leave."""
    if state.gpus_out & model.mask:
        # Nobody knows for how long: it claims nothing, blocks nobody, and its grace does not begin.
        _hold(request, Plan(outcome="wait", mask=model.mask), "gpu_out", False, (), -1, decisions)
        return None
    needed = ahead.plan(state, model, request)
    if needed.outcome == "never":
        return _refuse(state, model, request, needed)
    mask = needed.mask | engines.contest(state, model)
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
    _hold(request, needed, why, hard, by, head_since_us, decisions)
    if why == "grace" and not _is_timed(state, request, due_us):
        decisions.append(e.TimerSet(kind="grace", key=str(request.rid), due_us=due_us))
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
    decisions: list[e.Decision],
) -> None:
    """Said once per change."""
    if request.held == (why, hard, needed.victims, by):
        return
    decisions.append(
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


# --- models and time ------------------------------------------------------------------------------------------------


def restless(state: State) -> list[Model]:
    """Models that may want a decision of their own, as they are configured."""
    if len(state.restless) <= 1:
        return [state.models[name] for name in state.restless]
    return [model for name, model in state.models.items() if name in state.restless]


def stop_stalled_replicas(state: State) -> e.Decision | None:
    for name in state.stalled:
        if state.replicas[name].phase != "stopping":
            return e.ReplicaStopOrdered(replica=name, why="stalled", force=True)
    return None


def cool_down_crashing_models(state: State) -> e.Decision | None:
    """Twice within the window, not counting crashes that are put down to one request."""
    for model in restless(state):
        if len(model.crashes) >= 2:
            return swaps.cool_down(state, model, why="crashes", reason="its process crashed twice in a short time")
    return None


def top_up_lost_replicas(state: State) -> e.Decision | None:
    """A model that serves with fewer replicas than it should gets them back on its next request, evicting nobody."""
    for model in restless(state):
        if not model.top_up_wanted or model.phase != "ready" or model.target_of:
            continue
        if state.now_us < model.top_up_after_us or model.top_up_after_us < 0:
            continue
        if state.stopping_at_us or model.stale:
            continue
        if model.mask & (busy_mask(state) | state.gpus_out):
            continue
        return swaps.begin_top_up(state, model)
    return None


def unload_stale_models(state: State) -> e.Decision | None:
    for model in restless(state):
        if model.stale and model.phase == "ready" and not model.target_of:
            return swaps.begin_unload(state, model, why="stale")
    return None


def unload_what_is_too_much(state: State) -> e.Decision | None:
    """A reload allows fewer models, or others together: the first in the order of eviction leave."""
    if not state.reloaded:
        return None
    name = engines.surplus(state)
    return swaps.begin_unload(state, state.models[name], why="stale") if name else None


def unload_idle_models(state: State) -> e.Decision | None:
    """`ttl` counts from the end of the last request, and never during one or during a load.

    The timer is not moved with every request: it fires early, and is set again.
    """
    for name in state.ttls:
        settings = state.settings.models[name]
        model = state.models[name]
        timer = f"ttl:{name}"
        idle = model.phase == "ready" and not model.target_of and not model.in_flight and name not in state.lanes
        due_us = model.used_us + settings.ttl_us
        if idle and state.now_us >= due_us:
            return swaps.begin_unload(state, model, why="ttl")
        if idle and not 0 < state.timers.get(timer, 0) <= due_us:
            return e.TimerSet(kind="ttl", key=name, due_us=due_us)
    return None


def end_the_queue(state: State) -> e.Decision | None:
    """The time to stop is over: nobody who waits is served any more."""
    if not is_late(state):
        return None
    for name, lane in state.lanes.items():
        request = state.requests[first_of(lane)[2]]
        if request.op:
            return e.AdminDone(op=request.op, outcome="cancelled", code="shutting_down")
        return e.RequestFailed(rid=request.rid, status=503, code="shutting_down", model=name)
    return None


def stop_for_good(state: State) -> e.Decision | None:
    """While the router stops: once nothing is left to do, or when the time is over, every process ends."""
    if is_closing(state):
        waits, decision = caches.save_at_end(state)
        if waits:
            return decision
        for replica in state.replicas.values():
            if replica.phase != "stopping":
                return e.ReplicaStopOrdered(replica=replica.id, why="stopping", force=is_late(state))
    elif state.stopping_at_us and state.timers.get("drain:router") != state.stopping_at_us:
        return e.TimerSet(kind="drain", key="router", due_us=state.stopping_at_us)
    return None


def cancel_stale_timers(state: State) -> e.Decision | None:
    for name in state.stale_timers:
        kind, key = name.split(":", 1)
        return e.TimerCancelled(kind=kind, key=key)  # type: ignore[arg-type]
    return None


def arm_the_force_timer(state: State) -> e.Decision | None:
    """One timer for the request that will be forced first; it is set again when it fires."""
    first = next_unforced(state)
    if first is None or not state.settings.force_load_us:
        return None
    due_us = first[0] + state.settings.force_load_us
    if 0 < state.timers.get("force:queue", 0) <= due_us:
        return None
    return e.TimerSet(kind="force", key="queue", due_us=due_us)


def answer_operations(state: State) -> e.Decision | None:
    for op, answer in state.answers.items():
        return e.AdminDone(op=op, outcome=answer.outcome, code=answer.code, reason=answer.reason)
    return None


RULES: tuple[Rule, ...] = (
    # Ends that are already clear come first: they free places and change what the queue looks like.
    reject_what_cannot_enter,
    settle_lost_connections,
    end_the_queue,
    answer_operations,
    cancel_stale_timers,
    # What a crash or a stall demands, before anything new goes to that model.
    stop_stalled_replicas,
    cool_down_crashing_models,
    caches.give_up_useless_caches,
    # Commitments before new plans: a load pays out before anybody else is served.
    swaps.advance,
    swaps.serve_admin_calls,
    fail_what_waits_for_a_failed_model,
    serve_the_queue,
    # Housekeeping, only when no request can be helped.
    stop_for_good,
    top_up_lost_replicas,
    unload_stale_models,
    unload_what_is_too_much,
    unload_idle_models,
    arm_the_force_timer,
)

__all__ = ["RULES", "next_decision", "next_decisions"]
