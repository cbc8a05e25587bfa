"""What events mean for replicas: orders to them, and what they report until they are gone. Part of `fold.py`."""

from eventlog import events as e
from router.scheduler import fold_caches, worth
from router.scheduler.fold_models import note_rest, refresh_phase, vacate_if_gone
from router.scheduler.fold_timers import drop_timer
from router.scheduler.state import Model, Replica, State, mask_of


def stop_ordered(state: State, event: e.ReplicaStopOrdered) -> None:
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
        drop_timer(state, f"drain:{swap.id}")
        drop_timer(state, f"cache:{swap.id}")
        for name in swap.victims:
            refresh_phase(state, state.models[name])
    refresh_phase(state, state.models[replica.model])


def spawn_ordered(state: State, event: e.ReplicaSpawnOrdered) -> None:
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
        fold_caches.spawn_ordered(state, event)
    refresh_phase(state, model)


def spawned(state: State, event: e.ReplicaSpawned) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.pid = event.pid
        replica.started_ticks = event.started_ticks


def ready(state: State, event: e.ReplicaReady) -> None:
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


def answered(state: State, event: e.ReplicaAnswered) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.suspect = False
        replica.blamed = False


def stalled(state: State, event: e.ReplicaStalled) -> None:
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.stalled = True
        state.stalled[replica.id] = True
        replica.suspect = True


def load_failed(state: State, event: e.ReplicaLoadFailed) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    _fail_load(state, replica, event.kind, event.reason)
    _remove(state, replica)


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


def stopped(state: State, event: e.ReplicaStopped) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    _fail_load(state, replica, "stopped")
    if replica.stalled:
        _count_crash(state, state.models[replica.model], replica)
    _remove(state, replica)


def crashed(state: State, event: e.ReplicaCrashed) -> None:
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    is_loading = _fail_load(state, replica, event.cause_of_exit, event.reason)
    if not is_loading and not fold_caches.crashed(state, replica):
        _count_crash(state, state.models[replica.model], replica)
    _remove(state, replica)


def _count_crash(state: State, model: Model, replica: Replica) -> None:
    """A crash in the company of a request that has seen one before is put down to that request."""
    second_time = any(state.requests[rid].attempt > 1 for rid in replica.in_flight)
    if replica.blamed or second_time:
        return
    since_us = state.now_us - state.settings.crash_window_us
    model.crashes = [*(at_us for at_us in model.crashes if at_us > since_us), state.now_us]
    note_rest(state, model)


def _remove(state: State, replica: Replica) -> None:
    """The process is gone. Requests that were on it end by facts of their own."""
    model = state.models[replica.model]
    model.replicas.remove(replica.id)
    del state.replicas[replica.id]
    drop_timer(state, f"cache:{replica.id}")
    fold_caches.removed(state, replica.id)
    state.stalled.pop(replica.id, None)
    for rid in replica.in_flight:
        state.requests[rid].stop_why = replica.stop_why
        state.requests[rid].forced_stop = replica.forced_stop
    vacate_if_gone(state, model)
    for swap in state.swaps.values():
        if swap.phase != "starting" and not swap.victims:
            swap.phase = "starting"
            drop_timer(state, f"drain:{swap.id}")
            drop_timer(state, f"cache:{swap.id}")
            swap.drained_us = swap.drained_us or state.now_us
            swap.spawned_us = state.now_us
