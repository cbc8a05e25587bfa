"""What timers mean: which are set, and which nobody waits for any more. Part of `fold.py`."""

from eventlog import events as e
from router.scheduler import fold_caches
from router.scheduler.state import State


def timer_set(state: State, event: e.TimerSet) -> None:
    state.timers[f"{event.kind}:{event.key}"] = event.due_us
    if event.kind == "cache":
        fold_caches.timer_set(state, event)


def timer_fired(state: State, event: e.TimerFired) -> None:
    name = f"{event.kind}:{event.key}"
    state.timers.pop(name, None)
    if name in state.stale_timers:
        state.stale_timers.remove(name)


def timer_cancelled(state: State, event: e.TimerCancelled) -> None:
    name = f"{event.kind}:{event.key}"
    state.timers.pop(name, None)
    state.stale_timers.remove(name)


def drop_timer(state: State, name: str) -> None:
    if state.timers and name in state.timers and name not in state.stale_timers:
        state.stale_timers.append(name)
