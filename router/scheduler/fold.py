"""fold: the only writer of the state. One small function per event; nothing here decides.

What an event means is in the file of its subject: `fold_requests.py`, `fold_swaps.py` and so on. The table at the
end says which. Observations and unknown events change nothing. A fact about something that is gone already (a late
report of a replica that has been replaced, say) changes nothing either.
"""

from collections.abc import Callable
from typing import Any

from eventlog import events as e
from router.scheduler import (
    fold_admin,
    fold_caches,
    fold_models,
    fold_replicas,
    fold_requests,
    fold_run,
    fold_swaps,
    fold_timers,
    queue,
)
from router.scheduler.state import EVERYWHERE, State, lane_key, mask_of


def fold(state: State, event: e.Event) -> None:
    """Take one event into the state."""
    is_fact = isinstance(event, e.Fact)
    if is_fact:
        before_us, now_us = state.now_us, event.at_us
        state.now_us = now_us
        state.touched = 0
        if state.cooling or now_us < before_us:
            fold_models.note_cooling(state, state.cooling if now_us >= before_us else state.models)
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


# --- what it means --------------------------------------------------------------------------------------------------

_APPLY: dict[type[e.Event], Callable[[State, Any], None]] = {
    e.RouterStarted: fold_run.started,
    e.ConfigLoaded: fold_run.config_loaded,
    e.ProfileChanged: fold_run.profile_changed,
    e.RouterStopping: fold_run.stopping,
    e.RouterStopped: fold_run.stopped,
    e.RequestArrived: fold_requests.arrived,
    e.LoadWished: fold_requests.load_wished,
    e.RequestDispatched: fold_requests.dispatched,
    e.RequestFinished: fold_requests.finished,
    e.RequestCancelled: fold_requests.cancelled,
    e.SlotReleased: fold_requests.slot_released,
    e.UpstreamLost: fold_requests.upstream_lost,
    e.RequestRequeued: fold_requests.requeued,
    e.RequestFailed: fold_requests.failed,
    e.RequestRejected: fold_requests.rejected,
    e.RequestHeld: fold_requests.held,
    e.ClientDetached: fold_requests.client_detached,
    e.SwapBegun: fold_swaps.begun,
    e.SwapAborted: fold_swaps.aborted,
    e.SwapFinished: fold_swaps.finished,
    e.ReplicaStopOrdered: fold_replicas.stop_ordered,
    e.ReplicaSpawnOrdered: fold_replicas.spawn_ordered,
    e.ReplicaSpawned: fold_replicas.spawned,
    e.ReplicaReady: fold_replicas.ready,
    e.ReplicaAnswered: fold_replicas.answered,
    e.ReplicaStalled: fold_replicas.stalled,
    e.ReplicaLoadFailed: fold_replicas.load_failed,
    e.ReplicaStopped: fold_replicas.stopped,
    e.ReplicaCrashed: fold_replicas.crashed,
    e.ModelCooledDown: fold_models.cooled_down,
    e.AdminUnload: fold_admin.unload,
    e.AdminDrain: fold_admin.drain,
    e.AdminGpu: fold_admin.gpu,
    e.AdminCancel: fold_admin.cancel,
    e.AdminDone: fold_admin.done,
    e.SlotHolds: fold_caches.slot_holds,
    e.CacheSaveOrdered: fold_caches.save_ordered,
    e.CacheSaved: fold_caches.saved,
    e.CacheSaveFailed: fold_caches.save_failed,
    e.CacheRestoreOrdered: fold_caches.restore_ordered,
    e.CacheRestored: fold_caches.restored,
    e.CacheRestoreFailed: fold_caches.restore_failed,
    e.CacheFound: fold_caches.found,
    e.CacheDropped: fold_caches.dropped,
    e.CacheGivenUp: fold_caches.given_up,
    e.TimerSet: fold_timers.timer_set,
    e.TimerFired: fold_timers.timer_fired,
    e.TimerCancelled: fold_timers.timer_cancelled,
}
