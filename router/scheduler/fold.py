"""fold: the only writer of the state. One small function per event; nothing here decides.

Observations and unknown events change nothing. A fact about something that is gone already (a late report of a
replica that has been replaced, say) changes nothing either.
"""

from collections.abc import Callable
from typing import Any

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler import cache_fold, capacity, queue, worth
from router.scheduler.state import (
    CONVERSATIONS_MAX,
    EVERYWHERE,
    SUSPECTS_MAX,
    AdminCall,
    Answer,
    Lost,
    Model,
    Refusal,
    Replica,
    Request,
    State,
    Swap,
    gpus_of,
    is_restless,
    lane_key,
    mask_of,
)

HOPELESS = ("missing_file", "bad_flag", "bad_model")
"""Load failures that only another configuration can mend."""


def fold(state: State, event: e.Event) -> None:
    """Take one event into the state."""
    is_fact = isinstance(event, e.Fact)
    if is_fact:
        now_us = state.now_us = event.at_us
        state.touched = 0
        for name, due_us in state.timers.items():
            if due_us <= now_us:
                state.touched |= _overdue(state, name)
    kind = type(event)
    apply = _APPLY.get(kind)
    if apply is not None:
        touches = _TOUCHES.get(kind)
        state.touched |= EVERYWHERE if touches is None else touches(state, event)
        apply(state, event)
    if is_fact:
        queue.promote_overdue(state)


# --- where the queue may have something to do after an event; places in the queue see to themselves ------------------


def _overdue(state: State, timer: str) -> int:
    """A grace is over although its timer has not fired yet: the time decides, not the firing."""
    if not timer.startswith("grace:"):
        return 0
    request = state.requests.get(int(timer.removeprefix("grace:")))
    return 0 if request is None else state.models[request.model].mask or EVERYWHERE


def _nowhere(state: State, event: e.Event) -> int:
    return 0


def _where_it_runs(state: State, event: Any) -> int:
    """On the GPUs of a request's model; where a limited key ties GPUs together, everywhere."""
    request = state.requests.get(event.rid)
    if request is None:
        return 0
    if request.op or lane_key(state, request.key):
        return EVERYWHERE
    return state.models[request.model].mask or EVERYWHERE


def _where_it_ran(state: State, event: e.RequestCancelled) -> int:
    request = state.requests.get(event.rid)
    return 0 if request is None or not (request.replica or request.op) else _where_it_runs(state, event)


def _where_the_replica_is(state: State, event: Any) -> int:
    replica = state.replicas.get(event.replica)
    return 0 if replica is None else state.models[replica.model].mask or EVERYWHERE


def _where_its_grace_ends(state: State, event: e.TimerFired) -> int:
    request = state.requests.get(int(event.key)) if event.kind == "grace" else None
    return 0 if request is None else state.models[request.model].mask or EVERYWHERE


def _where_it_swaps(state: State, event: Any) -> int:
    mask = mask_of(event.footprint) if type(event) is e.SwapBegun else state.swaps[event.swap].mask
    return mask or EVERYWHERE


_TOUCHES: dict[type[e.Event], Callable[[State, Any], int]] = {
    e.RequestArrived: _nowhere,
    e.RequestHeld: _nowhere,
    e.RequestRejected: _nowhere,
    e.ReplicaSpawned: _nowhere,
    e.ClientDetached: _nowhere,
    e.TimerSet: _nowhere,
    e.TimerCancelled: _nowhere,
    e.ReplicaSpawnOrdered: _nowhere,
    e.AdminDone: _nowhere,
    e.SlotHolds: _nowhere,
    e.CacheSaveOrdered: _nowhere,
    e.CacheSaved: _nowhere,
    e.CacheSaveFailed: _nowhere,
    e.CacheRestoreOrdered: _nowhere,
    e.CacheFound: _nowhere,
    e.CacheDropped: _nowhere,
    e.CacheGivenUp: _nowhere,
    e.RequestDispatched: _where_it_runs,
    e.RequestFinished: _where_it_runs,
    e.RequestCancelled: _where_it_ran,
    e.UpstreamLost: _where_it_runs,
    e.RequestRequeued: _where_it_runs,
    e.RequestFailed: _where_it_runs,
    e.SlotReleased: _where_the_replica_is,
    e.ReplicaAnswered: _where_the_replica_is,
    e.ReplicaReady: _where_the_replica_is,
    e.ReplicaStopped: _where_the_replica_is,
    e.ReplicaStopOrdered: _where_the_replica_is,
    e.CacheRestored: _where_the_replica_is,
    e.CacheRestoreFailed: _where_the_replica_is,
    e.TimerFired: _where_its_grace_ends,
    e.SwapBegun: _where_it_swaps,
    e.SwapAborted: _where_it_swaps,
    e.SwapFinished: _where_it_swaps,
}
"""Only what is common is told apart; all else touches everything."""


# --- the run --------------------------------------------------------------------------------------------------------


def _router_started(state: State, event: e.RouterStarted) -> None:
    assert event.at_us > 0, "0 means never in several places of the state: a run cannot begin at 0"
    assert "" not in event.config.keys, "a key has a name"
    carried = event.carried
    fresh = State(
        settings=event.config,
        run=event.run,
        policy_version=event.policy_version,
        now_us=event.at_us,
        profile=carried.profile,
        suspects=list(carried.suspects),
        last_rid=carried.next_rid - 1,
        last_op=carried.next_op - 1,
        last_swap=carried.next_swap - 1,
        last_spawn=carried.next_spawn - 1,
    )
    for field in State.__struct_fields__:
        setattr(state, field, getattr(fresh, field))
    state.reloaded = False
    for op in carried.ops:
        state.answers[op] = Answer(outcome="cancelled", reason="the router was ended before this was done")
    _place_models(state)
    for cooldown in carried.cooldowns:
        model = state.models.get(cooldown.model)
        if model is not None:
            hopeless = cooldown.remaining_us < 0
            model.cooldown_since_us = event.at_us
            model.cooldown_until_us = 0 if hopeless else event.at_us + cooldown.remaining_us
            model.failures = cooldown.failures
            model.cooldown_reason = cooldown.reason
            _note_rest(state, model)


def _config_loaded(state: State, event: e.ConfigLoaded) -> None:
    before, keys, forced = state.settings.models, state.settings.keys, state.settings.force_load_us
    shapes = {name: settings.cache_shape for name, settings in before.items()}
    policy = (state.settings.head_release, state.settings.head_grace_from)
    state.reloaded = True
    state.settings = event.config
    if policy != (event.config.head_release, event.config.head_grace_from):
        worth.recount_waits(state)
    if event.config.keys != keys or (event.config.force_load_us and not forced):
        assert "" not in event.config.keys, "a key has a name"
        queue.rebuild(state)
    for model in state.models.values():
        old, new = before.get(model.name), event.config.models.get(model.name)
        if old != new or model.cooldown_until_us < 0:
            # A reload is the owner saying: try again. What can get better by itself keeps its time.
            model.cooldown_until_us = 0
            model.failures = 0
            model.top_up_after_us = 0
        if new is None or old is None or _is_started_otherwise(old, new):
            model.stale = model.stale or bool(model.replicas or model.target_of)
        if new is not None and not model.replicas and not model.target_of:
            _pin(state, model, new)
        _note_rest(state, model)
    _place_models(state)
    cache_fold.configured(state, shapes)


def _is_started_otherwise(old: ModelSettings, new: ModelSettings) -> bool:
    """Whether processes started under the old settings are not those that the new ones ask for."""
    processes = (old.fingerprint, old.gpus, old.mask, old.replica_gpus)
    return processes != (new.fingerprint, new.gpus, new.mask, new.replica_gpus) or new.replicas < old.replicas


def _pin(state: State, model: Model, settings: ModelSettings) -> None:
    model.mask = mask_of(settings.gpus)
    model.gpus = gpus_of(model.mask)
    if len(model.gpus) > 1:
        state.wide[model.name] = True
    else:
        state.wide.pop(model.name, None)


def _place_models(state: State) -> None:
    for name, settings in state.settings.models.items():
        if name not in state.models:
            state.models[name] = Model(name=name, mask=0)
            _pin(state, state.models[name], settings)
    gpus = max([state.settings.gpus, *(model.mask.bit_length() for model in state.models.values())])
    while len(state.residents) < gpus:
        state.residents.append([])
    state.ttls = {name: True for name, settings in state.settings.models.items() if settings.ttl_us}


def _note_rest(state: State, model: Model) -> None:
    """To be called after any change of a cool-down, or of what `is_restless` looks at."""
    if is_restless(model):
        state.restless[model.name] = True
    else:
        state.restless.pop(model.name, None)
    if model.cooldown_until_us:
        state.cooling[model.name] = True
    else:
        state.cooling.pop(model.name, None)


def _profile_changed(state: State, event: e.ProfileChanged) -> None:
    state.profile = event.profile


def _router_stopping(state: State, event: e.RouterStopping) -> None:
    state.stopping_at_us = event.deadline_us


def _router_stopped(state: State, event: e.RouterStopped) -> None:
    state.stopped = True


# --- requests -------------------------------------------------------------------------------------------------------


def _request_arrived(state: State, event: e.RequestArrived) -> None:
    state.last_rid = max(state.last_rid, event.rid)
    model = state.models.get(event.model)
    settings = state.settings.models.get(event.model)
    if state.stopping_at_us:
        state.refused[event.rid] = Refusal(model=event.model, status=503, code="shutting_down")
    elif model is None or settings is None:
        state.refused[event.rid] = Refusal(model=event.model, status=404, code="model_not_found")
    elif model.mask >> state.settings.gpus:
        reason = f"it needs GPUs {list(model.gpus)} of {state.settings.gpus}"
        state.refused[event.rid] = Refusal(model=event.model, status=503, code="no_capacity", reason=reason)
    else:
        request = Request(
            rid=event.rid,
            model=event.model,
            arrived_us=event.arrived_us,
            work=event.work,
            priority=event.priority if event.priority or event.priority_from else settings.priority,
            key=event.key,
            conversation=event.conversation,
            slots_wanted=event.slots_wanted,
            detached=event.detached,
        )
        state.requests[event.rid] = request
        if state.settings.keep_caches:
            cache_fold.arrived(state, request, event)
        queue.enter(state, request)
        _note_missing_replicas(state, model)


def _note_missing_replicas(state: State, model: Model) -> None:
    settings = state.settings.models.get(model.name)
    if settings is not None and model.phase == "ready" and len(model.replicas) < settings.replicas:
        model.top_up_wanted = True
        _note_rest(state, model)


def _load_wished(state: State, event: e.LoadWished) -> None:
    state.last_rid = max(state.last_rid, event.rid)
    state.last_op = max(state.last_op, event.op)
    model = state.models.get(event.model)
    if model is None or event.model not in state.settings.models:
        state.answers[event.op] = Answer(outcome="unknown", code="model_not_found")
    elif state.stopping_at_us:
        state.answers[event.op] = Answer(outcome="cancelled", code="shutting_down")
    elif model.phase == "ready":
        state.answers[event.op] = Answer(outcome="already")
    else:
        wish = Request(rid=event.rid, model=event.model, arrived_us=event.at_us, op=event.op)
        state.requests[event.rid] = wish
        state.wishes[event.op] = event.rid
        queue.enter(state, wish)


def _request_dispatched(state: State, event: e.RequestDispatched) -> None:
    request = state.requests[event.rid]
    replica = state.replicas[event.replica]
    model = state.models[request.model]
    queue.leave(state, request)
    _drop_timer(state, f"grace:{request.rid}")
    request.replica = event.replica
    request.weight = event.weight
    request.held = None
    replica.in_flight[request.rid] = event.weight
    replica.load += event.weight
    if event.rule == "alone":
        replica.alone = request.rid
    state.running[request.key] = state.running.get(request.key, 0) + 1
    model.used_us = state.now_us
    if worth.counts_uses(state):
        worth.count_use(model, state.now_us)
    if request.work == "generation":
        model.in_flight += 1
    if request.conversation and len(model.replicas) > 1:
        model.conversations.pop(request.conversation, None)
        model.conversations[request.conversation] = event.replica
        if len(model.conversations) > CONVERSATIONS_MAX:
            del model.conversations[next(iter(model.conversations))]
    if model.target_of:
        state.swaps[model.target_of].paid_out = True
    if state.settings.keep_caches:
        cache_fold.dispatched(state, request, event.replica)


def _request_finished(state: State, event: e.RequestFinished) -> None:
    request = state.requests.get(event.rid)
    if request is None or request.replica != event.replica:
        return
    if state.settings.keep_caches:
        cache_fold.finished(state, request, event)
    _let_go(state, request)
    _end(state, request)
    if event.status < 500:
        state.models[request.model].failures = 0


def _request_cancelled(state: State, event: e.RequestCancelled) -> None:
    request = state.requests.get(event.rid)
    if request is None:
        return
    if request.op:
        _cancel_wish(state, request)
        return
    replica = state.replicas.get(request.replica)
    if replica is not None:
        # The slot stays taken until SlotReleased: a real llama-server finishes its batch first.
        replica.releasing[request.rid] = replica.in_flight.pop(request.rid)
    if request.replica:
        _count_out(state, request)
    _end(state, request)


def _cancel_wish(state: State, wish: Request) -> None:
    state.answers[wish.op] = Answer(outcome="cancelled")


def _slot_released(state: State, event: e.SlotReleased) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.load -= replica.releasing.pop(event.rid, 0)
        if replica.alone == event.rid:
            replica.alone = 0


def _upstream_lost(state: State, event: e.UpstreamLost) -> None:
    request = state.requests.get(event.rid)
    if request is None or request.replica != event.replica:
        return
    replica = state.replicas.get(event.replica)
    if replica is not None and not replica.stop_why:
        replica.suspect = True
        replica.blamed |= request.attempt > 1
    _let_go(state, request)
    state.lost[event.rid] = Lost(
        replica=event.replica,
        begun=event.begun,
        detail=event.detail,
        stop_why=replica.stop_why if replica is not None else request.stop_why,
        forced_stop=replica.forced_stop if replica is not None else request.forced_stop,
    )


def _request_requeued(state: State, event: e.RequestRequeued) -> None:
    del state.lost[event.rid]
    request = state.requests[event.rid]
    request.replica = ""
    request.weight = 0
    request.stop_why = ""
    request.forced_stop = False
    request.attempt = event.attempt
    request.evicted = request.evicted or event.why == "replica_gone"
    queue.enter(state, request)
    _note_missing_replicas(state, state.models[request.model])


def _request_failed(state: State, event: e.RequestFailed) -> None:
    state.lost.pop(event.rid, None)
    request = state.requests[event.rid]
    _end(state, request)
    if event.suspect and request.conversation and request.conversation not in state.suspects:
        state.suspects = [*state.suspects, request.conversation][-SUSPECTS_MAX:]


def _request_rejected(state: State, event: e.RequestRejected) -> None:
    del state.refused[event.rid]


def _request_held(state: State, event: e.RequestHeld) -> None:
    request = state.requests[event.rid]
    request.held = (event.why, event.hard, tuple(event.victims), tuple(event.blocked_by))
    if event.head_since_us and request.head_since_us < 0:
        request.head_since_us = event.head_since_us
        worth.begin_waits(state, state.lanes[request.model], event.head_since_us)


def _client_detached(state: State, event: e.ClientDetached) -> None:
    request = state.requests.get(event.rid)
    if request is not None:
        request.detached = True


def _let_go(state: State, request: Request) -> None:
    """The replica, if there still is one, no longer works on the request."""
    replica = state.replicas.get(request.replica)
    if replica is not None:
        replica.load -= replica.in_flight.pop(request.rid)
        if replica.alone == request.rid:
            replica.alone = 0
    _count_out(state, request)


def _count_out(state: State, request: Request) -> None:
    model = state.models[request.model]
    if request.work == "generation":
        model.in_flight -= 1
    model.used_us = state.now_us
    running = state.running[request.key] - 1
    if running:
        state.running[request.key] = running
    else:
        del state.running[request.key]


def _end(state: State, request: Request) -> None:
    if not request.replica:
        queue.leave(state, request)
    del state.requests[request.rid]
    _drop_timer(state, f"grace:{request.rid}")


# --- swaps ----------------------------------------------------------------------------------------------------------


def _swap_begun(state: State, event: e.SwapBegun) -> None:
    swap = Swap(
        id=event.swap,
        target=event.target,
        cause_rid=event.cause_rid,
        why=event.why,
        victims=[victim.model for victim in event.victims],
        mask=mask_of(event.footprint),
        op=event.op,
        to_spawn=list(event.replicas),
        begun_us=state.now_us,
    )
    state.last_swap = event.swap
    state.swaps[event.swap] = swap
    for name in swap.victims:
        state.models[name].victim_of = event.swap
        refresh_phase(state, state.models[name])
    if event.target:
        target = state.models[event.target]
        target.target_of = event.swap
        target.top_up_wanted = False
        target.takes = capacity.taken_by(state.settings.models[event.target])
        _note_rest(state, target)
        _reside(state, target)
        refresh_phase(state, target)
        _drop_timer(state, f"grace:{event.cause_rid}")
    if not swap.victims:
        swap.phase = "starting"
        swap.drained_us = swap.spawned_us = state.now_us


def _swap_aborted(state: State, event: e.SwapAborted) -> None:
    swap = state.swaps.pop(event.swap)
    _drop_timer(state, f"drain:{swap.id}")
    _drop_timer(state, f"cache:{swap.id}")
    for name in swap.victims:
        state.models[name].victim_of = 0
        refresh_phase(state, state.models[name])
    _leave_target(state, swap)


def _swap_finished(state: State, event: e.SwapFinished) -> None:
    swap = state.swaps.pop(event.swap)
    for replica in state.models[swap.target].replicas if swap.target else ():
        _drop_timer(state, f"cache:{replica}")
    _leave_target(state, swap)


def _leave_target(state: State, swap: Swap) -> None:
    if not swap.target:
        return
    target = state.models[swap.target]
    target.target_of = 0
    if swap.ready and swap.failed and not swap.cancelled:
        target.failures += 1
        target.top_up_after_us = state.now_us + cooldown_us(state, target.failures)
    _vacate_if_gone(state, target)


def _replica_stop_ordered(state: State, event: e.ReplicaStopOrdered) -> None:
    replica = state.replicas[event.replica]
    replica.phase = "stopping"
    replica.stop_why = event.why
    replica.forced_stop = event.force
    swap = state.swaps.get(event.swap)
    if swap is not None and swap.phase == "draining":
        swap.phase = "stopping"
        swap.drained_us = state.now_us
        if swap.save_from_us:
            swap.save_us = state.now_us - swap.save_from_us
        _drop_timer(state, f"drain:{swap.id}")
        _drop_timer(state, f"cache:{swap.id}")
        for name in swap.victims:
            refresh_phase(state, state.models[name])
    refresh_phase(state, state.models[replica.model])


def _replica_spawn_ordered(state: State, event: e.ReplicaSpawnOrdered) -> None:
    state.last_spawn += 1
    model = state.models[event.model]
    state.replicas[event.replica] = Replica(
        id=event.replica, model=event.model, index=event.index, mask=mask_of(event.gpus)
    )
    model.replicas.append(event.replica)
    model.replicas.sort(key=lambda replica: state.replicas[replica].index)
    swap = state.swaps[event.swap]
    if event.index in swap.to_spawn:
        swap.to_spawn.remove(event.index)
    swap.failed.pop(event.index, None)
    swap.loading.append(event.index)
    swap.attempts[event.index] = event.attempt
    if state.settings.keep_caches:
        cache_fold.spawn_ordered(state, event)
    refresh_phase(state, model)


# --- replicas -------------------------------------------------------------------------------------------------------


def _replica_spawned(state: State, event: e.ReplicaSpawned) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.pid = event.pid
        replica.started_ticks = event.started_ticks


def _replica_ready(state: State, event: e.ReplicaReady) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None or replica.phase != "loading":
        return  # told to stop in the meantime: its end is still to come
    replica.slots = max(1, event.slots)
    replica.phase = "ready"
    model = state.models[replica.model]
    swap = state.swaps[model.target_of]
    swap.loading.remove(replica.index)
    swap.ready += 1
    if worth.measures_loads(state):
        model.load_us = event.load_us or state.now_us - swap.spawned_us
    if model.phase != "ready":
        model.loaded_us = state.now_us
        model.used_us = state.now_us
    refresh_phase(state, model)


def _replica_answered(state: State, event: e.ReplicaAnswered) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.suspect = False
        replica.blamed = False


def _replica_stalled(state: State, event: e.ReplicaStalled) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.stalled = True
        state.stalled[replica.id] = True
        replica.suspect = True


def _replica_load_failed(state: State, event: e.ReplicaLoadFailed) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    _fail_load(state, replica, event.kind, event.reason)
    _remove_replica(state, replica)


def _fail_load(state: State, replica: Replica, kind: str, reason: str = "") -> bool:
    """If it was never ready, its swap has one process less to wait for. Says whether that is so."""
    swap = state.swaps.get(state.models[replica.model].target_of)
    if swap is None or replica.index not in swap.loading:
        return False
    swap.loading.remove(replica.index)
    swap.failed[replica.index] = kind
    swap.reason = reason or kind
    swap.cancelled = swap.cancelled or replica.phase == "stopping"
    return True


def _replica_stopped(state: State, event: e.ReplicaStopped) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    _fail_load(state, replica, "stopped")
    if replica.stalled:
        _count_crash(state, state.models[replica.model], replica)
    _remove_replica(state, replica)


def _replica_crashed(state: State, event: e.ReplicaCrashed) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    is_loading = _fail_load(state, replica, event.cause_of_exit, event.reason)
    if not is_loading and not cache_fold.crashed(state, replica):
        _count_crash(state, state.models[replica.model], replica)
    _remove_replica(state, replica)


def _count_crash(state: State, model: Model, replica: Replica) -> None:
    """A crash in the company of a request that has seen one before is put down to that request."""
    second_time = any(state.requests[rid].attempt > 1 for rid in replica.in_flight)
    if replica.blamed or second_time:
        return
    since_us = state.now_us - state.settings.crash_window_us
    model.crashes = [*(at_us for at_us in model.crashes if at_us > since_us), state.now_us]
    _note_rest(state, model)


def _remove_replica(state: State, replica: Replica) -> None:
    """The process is gone. Requests that were on it end by facts of their own."""
    model = state.models[replica.model]
    model.replicas.remove(replica.id)
    del state.replicas[replica.id]
    _drop_timer(state, f"cache:{replica.id}")
    cache_fold.removed(state, replica.id)
    state.stalled.pop(replica.id, None)
    for rid in replica.in_flight:
        state.requests[rid].stop_why = replica.stop_why
        state.requests[rid].forced_stop = replica.forced_stop
    _vacate_if_gone(state, model)
    for swap in state.swaps.values():
        if swap.phase != "starting" and not swap.victims:
            swap.phase = "starting"
            _drop_timer(state, f"drain:{swap.id}")
            _drop_timer(state, f"cache:{swap.id}")
            swap.drained_us = swap.drained_us or state.now_us
            swap.spawned_us = state.now_us


def _reside(state: State, model: Model) -> None:
    for gpu in model.gpus:
        if model.name not in state.residents[gpu]:
            state.residents[gpu].append(model.name)


def _vacate_if_gone(state: State, model: Model) -> None:
    refresh_phase(state, model)
    if model.replicas or model.target_of:
        return
    for gpu in model.gpus:
        if model.name in state.residents[gpu]:
            state.residents[gpu].remove(model.name)
    if model.victim_of:
        state.swaps[model.victim_of].victims.remove(model.name)
        model.victim_of = 0
    model.top_up_wanted = False
    model.conversations = {}
    refresh_phase(state, model)
    if model.stale:
        model.stale = False
        settings = state.settings.models.get(model.name)
        if settings is not None:
            _pin(state, model, settings)
            state.touched = EVERYWHERE
    _note_rest(state, model)
    for call in state.admin.values():
        if model.name in call.models:
            call.models.remove(model.name)


def refresh_phase(state: State, model: Model) -> None:
    """The one place that derives a model's phase."""
    if model.victim_of:
        swap = state.swaps[model.victim_of]
        model.phase = "draining" if swap.phase == "draining" else "stopping"
        return
    for replica in model.replicas:
        if state.replicas[replica].phase == "ready":
            model.phase = "ready"
            return
    if model.target_of:
        model.phase = "loading"
    else:
        model.phase = "stopping" if model.replicas else "absent"


# --- cool-downs, administration, timers -----------------------------------------------------------------------------


def _model_cooled_down(state: State, event: e.ModelCooledDown) -> None:
    model = state.models[event.model]
    model.cooldown_since_us = state.now_us
    model.cooldown_until_us = event.until_us
    model.failures = event.failures
    model.cooldown_reason = event.reason
    model.top_up_after_us = event.until_us
    model.top_up_wanted = False
    model.crashes = []
    _note_rest(state, model)


def cooldown_us(state: State, failures: int) -> int:
    """10 s, doubling to 300 s, as configured."""
    doubled: int = state.settings.cooldown_first_us << min(failures - 1, 30)
    return min(doubled, state.settings.cooldown_max_us)


def _admin_unload(state: State, event: e.AdminUnload) -> None:
    state.last_op = max(state.last_op, event.op)
    model = state.models.get(event.model)
    if model is None:
        state.answers[event.op] = Answer(outcome="unknown", code="model_not_found")
    elif not model.replicas and not model.target_of:
        state.answers[event.op] = Answer(outcome="already")
    else:
        state.admin[event.op] = AdminCall(op=event.op, why="unload", models=[event.model], force=event.force)


def _admin_drain(state: State, event: e.AdminDrain) -> None:
    state.last_op = max(state.last_op, event.op)
    loaded = [model.name for model in state.models.values() if model.replicas or model.target_of]
    state.admin[event.op] = AdminCall(op=event.op, why="unload", models=loaded)


def _admin_gpu(state: State, event: e.AdminGpu) -> None:
    state.last_op = max(state.last_op, event.op)
    if not 0 <= event.gpu < state.settings.gpus:
        state.answers[event.op] = Answer(outcome="unknown", code="gpu_not_found")
    elif event.action == "in":
        state.gpus_out &= ~(1 << event.gpu)
        state.answers[event.op] = Answer(outcome="done")
    else:
        state.gpus_out |= 1 << event.gpu
        state.admin[event.op] = AdminCall(op=event.op, why="gpu_out", models=list(state.residents[event.gpu]))


def _admin_cancel(state: State, event: e.AdminCancel) -> None:
    state.last_op = max(state.last_op, event.op)
    request = state.requests.get(event.rid)
    if request is None:
        state.answers[event.op] = Answer(outcome="unknown", code="request_not_found")
        return
    state.answers[event.op] = Answer(outcome="done")
    if request.op:
        _cancel_wish(state, request)


def _admin_done(state: State, event: e.AdminDone) -> None:
    state.answers.pop(event.op, None)
    state.admin.pop(event.op, None)
    rid = state.wishes.pop(event.op, 0)
    if rid:
        _end(state, state.requests[rid])


def _timer_set(state: State, event: e.TimerSet) -> None:
    state.timers[f"{event.kind}:{event.key}"] = event.due_us
    if event.kind == "cache":
        cache_fold.timer_set(state, event)


def _timer_fired(state: State, event: e.TimerFired) -> None:
    name = f"{event.kind}:{event.key}"
    state.timers.pop(name, None)
    if name in state.stale_timers:
        state.stale_timers.remove(name)


def _timer_cancelled(state: State, event: e.TimerCancelled) -> None:
    name = f"{event.kind}:{event.key}"
    state.timers.pop(name, None)
    state.stale_timers.remove(name)


def _drop_timer(state: State, name: str) -> None:
    if state.timers and name in state.timers and name not in state.stale_timers:
        state.stale_timers.append(name)


_APPLY: dict[type[e.Event], Callable[[State, Any], None]] = {
    e.RouterStarted: _router_started,
    e.ConfigLoaded: _config_loaded,
    e.ProfileChanged: _profile_changed,
    e.RouterStopping: _router_stopping,
    e.RouterStopped: _router_stopped,
    e.RequestArrived: _request_arrived,
    e.LoadWished: _load_wished,
    e.RequestDispatched: _request_dispatched,
    e.RequestFinished: _request_finished,
    e.RequestCancelled: _request_cancelled,
    e.SlotReleased: _slot_released,
    e.UpstreamLost: _upstream_lost,
    e.RequestRequeued: _request_requeued,
    e.RequestFailed: _request_failed,
    e.RequestRejected: _request_rejected,
    e.RequestHeld: _request_held,
    e.ClientDetached: _client_detached,
    e.SwapBegun: _swap_begun,
    e.SwapAborted: _swap_aborted,
    e.SwapFinished: _swap_finished,
    e.ReplicaStopOrdered: _replica_stop_ordered,
    e.ReplicaSpawnOrdered: _replica_spawn_ordered,
    e.ReplicaSpawned: _replica_spawned,
    e.ReplicaReady: _replica_ready,
    e.ReplicaAnswered: _replica_answered,
    e.ReplicaStalled: _replica_stalled,
    e.ReplicaLoadFailed: _replica_load_failed,
    e.ReplicaStopped: _replica_stopped,
    e.ReplicaCrashed: _replica_crashed,
    e.ModelCooledDown: _model_cooled_down,
    e.AdminUnload: _admin_unload,
    e.AdminDrain: _admin_drain,
    e.AdminGpu: _admin_gpu,
    e.AdminCancel: _admin_cancel,
    e.AdminDone: _admin_done,
    e.SlotHolds: cache_fold.slot_holds,
    e.CacheSaveOrdered: cache_fold.save_ordered,
    e.CacheSaved: cache_fold.saved,
    e.CacheSaveFailed: cache_fold.save_failed,
    e.CacheRestoreOrdered: cache_fold.restore_ordered,
    e.CacheRestored: cache_fold.restored,
    e.CacheRestoreFailed: cache_fold.restore_failed,
    e.CacheFound: cache_fold.found,
    e.CacheDropped: cache_fold.dropped,
    e.CacheGivenUp: cache_fold.given_up,
    e.TimerSet: _timer_set,
    e.TimerFired: _timer_fired,
    e.TimerCancelled: _timer_cancelled,
}
