"""What events mean for swaps: begun, called off, over. Part of `fold.py`.

The moves in between are orders to replicas and what becomes of them: `fold_replicas.py`.
"""

from eventlog import events as e
from router.scheduler import capacity
from router.scheduler.fold_models import cooldown_us, note_rest, refresh_phase, reside, vacate_if_gone
from router.scheduler.fold_timers import drop_timer
from router.scheduler.state import State, Swap, mask_of


def begun(state: State, event: e.SwapBegun) -> None:
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
        note_rest(state, target)
        reside(state, target)
        refresh_phase(state, target)
        drop_timer(state, f"grace:{event.cause_rid}")
    if not swap.victims:
        swap.phase = "starting"
        swap.drained_us = swap.spawned_us = state.now_us


def aborted(state: State, event: e.SwapAborted) -> None:
    swap = state.swaps.pop(event.swap)
    drop_timer(state, f"drain:{swap.id}")
    drop_timer(state, f"cache:{swap.id}")
    for name in swap.victims:
        state.models[name].victim_of = 0
        refresh_phase(state, state.models[name])
    _leave_target(state, swap)


def finished(state: State, event: e.SwapFinished) -> None:
    swap = state.swaps.pop(event.swap)
    for replica in state.models[swap.target].replicas if swap.target else ():
        drop_timer(state, f"cache:{replica}")
    _leave_target(state, swap)


def _leave_target(state: State, swap: Swap) -> None:
    if not swap.target:
        return
    target = state.models[swap.target]
    target.target_of = 0
    if swap.ready and swap.failed and not swap.cancelled:
        target.failures += 1
        target.top_up_after_us = state.now_us + cooldown_us(state, target.failures)
    vacate_if_gone(state, target)
