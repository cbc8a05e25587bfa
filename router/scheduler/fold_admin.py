"""What calls of the owner mean. Part of `fold.py`."""

from eventlog import events as e
from router.scheduler import fold_requests
from router.scheduler.state import AdminCall, Answer, State


def unload(state: State, event: e.AdminUnload) -> None:
    state.last_op = max(state.last_op, event.op)
    model = state.models.get(event.model)
    if model is None:
        state.answers[event.op] = Answer(outcome="unknown", code="model_not_found")
    elif not model.replicas and not model.target_of:
        state.answers[event.op] = Answer(outcome="already")
    else:
        state.admin[event.op] = AdminCall(op=event.op, why="unload", models=[event.model], force=event.force)


def drain(state: State, event: e.AdminDrain) -> None:
    state.last_op = max(state.last_op, event.op)
    loaded = [model.name for model in state.models.values() if model.replicas or model.target_of]
    state.admin[event.op] = AdminCall(op=event.op, why="unload", models=loaded, force=event.force)


def gpu(state: State, event: e.AdminGpu) -> None:
    state.last_op = max(state.last_op, event.op)
    if not 0 <= event.gpu < state.settings.gpus:
        state.answers[event.op] = Answer(outcome="unknown", code="gpu_not_found")
    elif event.action == "in":
        state.gpus_out &= ~(1 << event.gpu)
        state.answers[event.op] = Answer(outcome="done")
    else:
        state.gpus_out |= 1 << event.gpu
        state.admin[event.op] = AdminCall(op=event.op, why="gpu_out", models=list(state.residents[event.gpu]))


def cancel(state: State, event: e.AdminCancel) -> None:
    state.last_op = max(state.last_op, event.op)
    request = state.requests.get(event.rid)
    if request is None:
        state.answers[event.op] = Answer(outcome="unknown", code="request_not_found")
        return
    state.answers[event.op] = Answer(outcome="done")
    if request.op:
        fold_requests.cancel_wish(state, request)


def done(state: State, event: e.AdminDone) -> None:
    state.answers.pop(event.op, None)
    state.admin.pop(event.op, None)
    rid = state.wishes.pop(event.op, 0)
    if rid:
        fold_requests.end(state, state.requests[rid])
