"""The rules, in order: `next_decision` returns the first decision that any of them wants, or None.

They read the state and nothing else: no clock, no randomness, no set is iterated, every tie ends in a name or a number.
The order is the policy. Whoever adds a rule adds it to RULES with the reason for its place.
"""

from collections.abc import Callable
from typing import Literal

from eventlog import events as e
from router.scheduler import swaps
from router.scheduler.dispatch import choose, dispatch
from router.scheduler.fold import held_as
from router.scheduler.residency import Plan, plan
from router.scheduler.state import (
    Model,
    Request,
    State,
    busy_mask,
    gpus_of,
    head_of,
    is_cooling,
    wanted_by,
)

Rule = Callable[[State], e.Decision | None]


def next_decision(state: State) -> e.Decision | None:
    """What must be decided next, or None when all is settled until the next fact."""
    for rule in RULES:
        decision = rule(state)
        if decision is not None:
            return decision
    return None


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
        if lost.stop_why not in ("", "stalled") and not lost.begun:
            return e.RequestRequeued(rid=rid, replica=lost.replica, attempt=request.attempt, why="replica_gone")
        if lost.begun or request.attempt > state.settings.crash_retries:
            return e.RequestFailed(
                rid=rid,
                status=502,
                code="upstream_crashed",
                reason=lost.detail,
                model=request.model,
                begun=lost.begun,
                suspect=request.attempt > state.settings.crash_retries,
            )
        return e.RequestRequeued(rid=rid, replica=lost.replica, attempt=request.attempt + 1)
    return None


def fail_what_waits_for_a_failed_model(state: State) -> e.Decision | None:
    """Everybody in the queue of a model that is cooling down and serves from no replica."""
    for name, lane in state.lanes.items():
        model = state.models[name]
        removed = name not in state.settings.models
        if not removed and (not is_cooling(state, model) or model.phase in ("ready", "draining") or model.target_of):
            continue
        request = state.requests[min(ranks[0] for ranks in lane.by_key.values())[2]]
        code, status = ("model_not_found", 404) if removed else ("model_load_failed", 502)
        if request.op:
            return e.AdminDone(op=request.op, outcome="failed", code=code, reason=model.cooldown_reason)
        return e.RequestFailed(
            rid=request.rid,
            status=status,
            code=code,
            reason=model.cooldown_reason,
            model=name,
            retry_after_us=max(0, model.cooldown_until_us - state.now_us),
        )
    return None


# --- the queue ------------------------------------------------------------------------------------------------------


def serve_the_queue(state: State) -> e.Decision | None:
    """One pass over the queue in order: the first request that can do something does it.

    Requests of one model keep their order, so only the first of each lane can act. What earlier ones claim and
    protect goes along: `claimed` GPUs (no later swap may touch them), `blocked` models (no later dispatch to them),
    `earlier` models (no later swap may evict them).
    """
    if not state.lanes:
        return None
    heads = []
    for name, lane in state.lanes.items():
        head = head_of(state, lane)
        if head is not None:
            heads.append((head, name))
    heads.sort()
    busy = busy_mask(state)
    claimed = 0
    blocked: list[str] = []
    earlier: list[str] = []
    waiting: list[tuple[Request, int]] = []
    for rank, name in heads:
        model = state.models[name]
        request = state.requests[rank[2]]
        if model.phase == "ready" and name not in blocked:
            if request.op:
                return e.AdminDone(op=request.op, outcome="done")
            choice = choose(state, model, request)
            if choice is not None:
                return dispatch(state, request, choice, waiting)
            earlier.append(name)
            waiting.append((request, model.mask))
            continue
        if model.phase in ("ready", "loading"):
            earlier.append(name)
            waiting.append((request, model.mask))
            continue
        needed = plan(state, model, request)
        verdict = _judge(state, model, request, needed, busy, claimed, earlier)
        if isinstance(verdict, e.Decision):
            return verdict
        if verdict:
            blocked += needed.victims
        claimed |= needed.mask
        waiting.append((request, needed.mask))
    return None


def _judge(
    state: State, model: Model, request: Request, needed: Plan, busy: int, claimed: int, earlier: list[str]
) -> e.Decision | bool:
    """What a request that needs a swap does: begin it, be held, fail; or wait on, blocking its victims if True.

    A forced or out-of-grace request that cannot swap yet still blocks later requests for its would-be victims.
    """
    if needed.outcome == "never":
        reason = f"{', '.join(needed.in_the_way)} may not be evicted for it"
        if request.op:
            return e.AdminDone(op=request.op, outcome="failed", code="no_capacity", reason=reason)
        return e.RequestFailed(rid=request.rid, status=503, code="no_capacity", reason=reason, model=model.name)
    is_claimed = bool(needed.mask & claimed)
    from_us = request.arrived_us if state.settings.head_grace_from == "arrival" else request.head_since_us
    if from_us < 0:
        from_us = state.now_us
    due_us = from_us + state.settings.head_grace_us
    hard = request.forced or request.op != 0 or state.now_us >= due_us
    protected = [name for name in needed.victims if name in earlier]
    contested = [name for name in needed.victims if state.models[name].in_flight or wanted_by(state, name)]
    why: Literal["grace", "claimed", "swapping", "protected", "evicting", "gpu_out"]
    blocked_by: list[str] = []
    if model.mask & state.gpus_out:
        why = "gpu_out"
        hard = False
    elif needed.mask & busy:
        why = "swapping"
        blocked_by = [swap.target or swap.victims[0] for swap in state.swaps.values() if swap.mask & needed.mask]
    elif is_claimed:
        why = "claimed"
    elif needed.outcome == "wait" or model.replicas:
        why = "evicting"
        blocked_by = [*needed.in_the_way, *([model.name] if model.replicas else [])]
    elif protected:
        why = "protected"
        blocked_by = protected
    elif contested and not hard:
        why = "grace"
        blocked_by = contested
    elif state.stopping_at_us and state.now_us >= state.stopping_at_us:
        return hard
    else:
        return swaps.begin_load(state, model, request, needed, contested=bool(contested))
    held = e.RequestHeld(
        rid=request.rid,
        model=model.name,
        why=why,
        head_since_us=0 if is_claimed and request.head_since_us < 0 else max(request.head_since_us, 0) or state.now_us,
        hard=hard,
        victims=list(needed.victims),
        footprint=gpus_of(needed.mask),
        blocked_by=blocked_by,
    )
    if request.held != held_as(held):
        return held
    if why == "grace" and f"grace:{request.rid}" not in state.timers:
        return e.TimerSet(kind="grace", key=str(request.rid), due_us=due_us)
    return hard


# --- models and time ------------------------------------------------------------------------------------------------


def stop_stalled_replicas(state: State) -> e.Decision | None:
    for replica in state.replicas.values():
        if replica.stalled and replica.phase != "stopping":
            return e.ReplicaStopOrdered(replica=replica.id, why="stalled", force=True)
    return None


def cool_down_crashing_models(state: State) -> e.Decision | None:
    """Twice within the window, not counting crashes that are put down to one request."""
    for model in state.models.values():
        if len(model.crashes) >= 2:
            return swaps.cool_down(state, model, why="crashes", reason="its process crashed twice in a short time")
    return None


def top_up_lost_replicas(state: State) -> e.Decision | None:
    """A model that serves with fewer replicas than it should gets them back on its next request, evicting nobody."""
    for model in state.models.values():
        if not model.top_up_wanted or model.phase != "ready" or model.target_of:
            continue
        if state.now_us < model.top_up_after_us or model.top_up_after_us < 0 or state.stopping_at_us:
            continue
        if model.mask & (busy_mask(state) | state.gpus_out):
            continue
        return swaps.begin_top_up(state, model)
    return None


def unload_stale_models(state: State) -> e.Decision | None:
    for model in state.models.values():
        if model.stale and model.phase == "ready" and not model.target_of:
            return swaps.begin_unload(state, model, why="stale")
    return None


def unload_idle_models(state: State) -> e.Decision | None:
    """`ttl` counts from the end of the last request, and never during one or during a load."""
    for name, settings in state.settings.models.items():
        if not settings.ttl_us:
            continue
        model = state.models[name]
        timer = f"ttl:{name}"
        idle = model.phase == "ready" and not model.target_of and not model.in_flight and name not in state.lanes
        due_us = model.used_us + settings.ttl_us
        if idle and state.now_us >= due_us:
            return swaps.begin_unload(state, model, why="ttl")
        if idle and timer not in state.timers:
            return e.TimerSet(kind="ttl", key=name, due_us=due_us)
    return None


def stop_for_good(state: State) -> e.Decision | None:
    """While the router stops: once nothing is left to do, or at the deadline, every process ends."""
    if not state.stopping_at_us:
        return None
    late = state.now_us >= state.stopping_at_us
    if not late and "drain:router" not in state.timers:
        return e.TimerSet(kind="drain", key="router", due_us=state.stopping_at_us)
    if late:
        for lane in state.lanes.values():
            request = state.requests[min(ranks[0] for ranks in lane.by_key.values())[2]]
            if request.op:
                return e.AdminDone(op=request.op, outcome="cancelled", code="shutting_down")
            return e.RequestFailed(rid=request.rid, status=503, code="shutting_down", model=request.model)
    if late or not state.requests:
        for replica in state.replicas.values():
            if replica.phase != "stopping":
                return e.ReplicaStopOrdered(replica=replica.id, why="stopping", force=True)
    return None


def cancel_stale_timers(state: State) -> e.Decision | None:
    for name in state.stale_timers:
        kind, key = name.split(":", 1)
        assert kind == "grace"
        return e.TimerCancelled(kind="grace", key=key)
    return None


def arm_the_force_timer(state: State) -> e.Decision | None:
    """One timer for the request that will be forced first; it is set again when it fires."""
    if not state.unforced or not state.settings.force_load_us or "force:queue" in state.timers:
        return None
    return e.TimerSet(kind="force", key="queue", due_us=state.unforced[0][0] + state.settings.force_load_us)


def answer_operations(state: State) -> e.Decision | None:
    for op, answer in state.answers.items():
        return e.AdminDone(op=op, outcome=answer.outcome, code=answer.code, reason=answer.reason)
    return None


RULES: tuple[Rule, ...] = (
    # Ends that are already clear come first: they free places and change what the queue looks like.
    reject_what_cannot_enter,
    settle_lost_connections,
    answer_operations,
    cancel_stale_timers,
    # What a crash or a stall demands, before anything new goes to that model.
    stop_stalled_replicas,
    cool_down_crashing_models,
    # Commitments before new plans: a load pays out before anybody else is served.
    swaps.advance,
    swaps.serve_admin_calls,
    fail_what_waits_for_a_failed_model,
    serve_the_queue,
    # Housekeeping, only when no request can be helped.
    top_up_lost_replicas,
    unload_stale_models,
    unload_idle_models,
    stop_for_good,
    arm_the_force_timer,
)

__all__ = ["RULES", "next_decision"]
