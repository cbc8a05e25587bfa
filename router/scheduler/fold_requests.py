"""What events mean for requests and wishes, from arrival to outcome. Part of `fold.py`."""

from eventlog import events as e
from router.scheduler import fold_caches, queue, worth
from router.scheduler.fold_models import note_rest
from router.scheduler.fold_timers import drop_timer
from router.scheduler.state import CONVERSATIONS_MAX, SUSPECTS_MAX, Answer, Lost, Model, Refusal, Request, State


def arrived(state: State, event: e.RequestArrived) -> None:
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
            fold_caches.arrived(state, request, event)
        queue.enter(state, request)
        _note_missing_replicas(state, model)


def _note_missing_replicas(state: State, model: Model) -> None:
    settings = state.settings.models.get(model.name)
    if settings is not None and model.phase == "ready" and len(model.replicas) < settings.replicas:
        model.top_up_wanted = True
        note_rest(state, model)


def load_wished(state: State, event: e.LoadWished) -> None:
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


def dispatched(state: State, event: e.RequestDispatched) -> None:
    request = state.requests[event.rid]
    replica = state.replicas[event.replica]
    model = state.models[request.model]
    queue.leave(state, request)
    drop_timer(state, f"grace:{request.rid}")
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
        fold_caches.dispatched(state, request, event.replica)


def finished(state: State, event: e.RequestFinished) -> None:
    request = state.requests.get(event.rid)
    if request is None or request.replica != event.replica:
        return
    if state.settings.keep_caches:
        fold_caches.finished(state, request, event)
    _let_go(state, request)
    end(state, request)
    if event.status < 500:
        state.models[request.model].failures = 0


def cancelled(state: State, event: e.RequestCancelled) -> None:
    request = state.requests.get(event.rid)
    if request is None:
        return
    if request.op:
        cancel_wish(state, request)
        return
    replica = state.replicas.get(request.replica)
    if replica is not None:
        # The slot stays taken until SlotReleased: a real llama-server finishes its batch first.
        replica.releasing[request.rid] = replica.in_flight.pop(request.rid)
    if request.replica:
        _count_out(state, request)
    end(state, request)


def cancel_wish(state: State, wish: Request) -> None:
    state.answers[wish.op] = Answer(outcome="cancelled")


def slot_released(state: State, event: e.SlotReleased) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.load -= replica.releasing.pop(event.rid, 0)
        if replica.alone == event.rid:
            replica.alone = 0


def upstream_lost(state: State, event: e.UpstreamLost) -> None:
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


def requeued(state: State, event: e.RequestRequeued) -> None:
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


def failed(state: State, event: e.RequestFailed) -> None:
    state.lost.pop(event.rid, None)
    request = state.requests[event.rid]
    end(state, request)
    if event.suspect and request.conversation and request.conversation not in state.suspects:
        state.suspects = [*state.suspects, request.conversation][-SUSPECTS_MAX:]


def rejected(state: State, event: e.RequestRejected) -> None:
    del state.refused[event.rid]


def held(state: State, event: e.RequestHeld) -> None:
    request = state.requests[event.rid]
    request.held = (event.why, event.hard, tuple(event.victims), tuple(event.blocked_by))
    if event.head_since_us and request.head_since_us < 0:
        request.head_since_us = event.head_since_us
        worth.begin_waits(state, state.lanes[request.model], event.head_since_us)


def client_detached(state: State, event: e.ClientDetached) -> None:
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


def end(state: State, request: Request) -> None:
    if not request.replica:
        queue.leave(state, request)
    del state.requests[request.rid]
    drop_timer(state, f"grace:{request.rid}")
