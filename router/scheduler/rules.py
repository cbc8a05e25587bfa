"""The rules, in order: `decide` says what they want, `next_decision` only the first of it.

They read the state and nothing else: no clock, no randomness, no set is iterated, every tie ends in a name or a number.
The order is the policy. Whoever adds a rule adds it to RULES_BEFORE or RULES_AFTER (the queue), with the reason for its
place.
"""

from collections.abc import Callable, Iterator

from eventlog import events as e
from router.scheduler import caches, engines, swaps
from router.scheduler.queue_pass import serve_the_queue
from router.scheduler.state import (
    CRASHES_MAX,
    Model,
    State,
    busy_mask,
    first_of,
    is_closing,
    is_late,
    next_unforced,
)

Rule = Callable[[State], e.Decision | None]


def decide(state: State) -> Iterator[e.Decision]:
    """All that must be decided now, one by one: whoever takes a decision folds it before asking for the next.

    After each decision all rules are asked anew, but for what the queue's pass knows to concern nobody else. Nobody can
    tell the difference: `next_decision`, taken until there is none, gives the same decisions in the same order.
    """
    while True:
        is_quiet = nothing_is_wrong(state)
        decision = _first(RULES_BEFORE_IN_QUIET if is_quiet else RULES_BEFORE, state)
        if decision is None:
            if (yield from serve_the_queue(state)):
                continue
            is_quiet = is_quiet and not (state.ttls or state.reloaded)
            decision = arm_the_force_timer(state) if is_quiet else _first(RULES_AFTER, state)
            if decision is None:
                return
        yield decision


def next_decision(state: State) -> e.Decision | None:
    """The first decision that any rule wants."""
    return next(decide(state), None)


def nothing_is_wrong(state: State) -> bool:
    """Whether only the swaps, the queue, models that cool down, forcing, `ttl` and reloads can want anything.

    A model cools down for minutes, so that is no reason to ask all rules all that time.
    """
    return not (
        state.refused
        or state.lost
        or state.answers
        or state.admin
        or state.stale_timers
        or state.stalled
        or state.restless
        or state.caches.models
        or state.stopping_at_us
        or len(state.models) != len(state.settings.models)
    )


def _first(rules: tuple[Rule, ...], state: State) -> e.Decision | None:
    for rule in rules:
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
        if not removed and (name not in state.cooling or model.phase in ("ready", "draining") or model.target_of):
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
        if len(model.crashes) >= CRASHES_MAX:
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


RULES_BEFORE: tuple[Rule, ...] = (
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
)

RULES_BEFORE_IN_QUIET: tuple[Rule, ...] = (swaps.advance, fail_what_waits_for_a_failed_model)
"""Those of RULES_BEFORE that may want something where nothing is wrong, in the same order."""

RULES_AFTER: tuple[Rule, ...] = (
    # Housekeeping, only when no request can be helped.
    stop_for_good,
    top_up_lost_replicas,
    unload_stale_models,
    unload_what_is_too_much,
    unload_idle_models,
    arm_the_force_timer,
)

__all__ = ["RULES_AFTER", "RULES_BEFORE", "decide", "next_decision"]
