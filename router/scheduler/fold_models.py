"""What of a model is derived: its GPUs, its phase, whether it needs watching; and its cool-down. Part of `fold.py`.

The other parts call this after they have changed a model's replicas, its swap or its cool-down.
"""

from collections.abc import Iterable

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler.state import EVERYWHERE, Model, State, gpus_of, is_cooling, is_restless, mask_of


def cooled_down(state: State, event: e.ModelCooledDown) -> None:
    model = state.models[event.model]
    model.cooldown_since_us = state.now_us
    model.cooldown_until_us = event.until_us
    model.failures = event.failures
    model.cooldown_reason = event.reason
    model.top_up_after_us = event.until_us
    model.top_up_wanted = False
    model.crashes = []
    note_rest(state, model)


def cooldown_us(state: State, failures: int) -> int:
    """10 s, doubling to 300 s, as configured."""
    doubled: int = state.settings.cooldown_first_us << min(failures - 1, 30)
    return min(doubled, state.settings.cooldown_max_us)


def pin(state: State, model: Model, settings: ModelSettings) -> None:
    model.mask = mask_of(settings.gpus)
    model.gpus = gpus_of(model.mask)
    if len(model.gpus) > 1:
        state.wide[model.name] = True
    else:
        state.wide.pop(model.name, None)


def reside(state: State, model: Model) -> None:
    for gpu in model.gpus:
        if model.name not in state.residents[gpu]:
            state.residents[gpu].append(model.name)


def vacate_if_gone(state: State, model: Model) -> None:
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
            pin(state, model, settings)
            state.touched = EVERYWHERE
    note_rest(state, model)
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


def note_rest(state: State, model: Model) -> None:
    """To be called after any change of a cool-down, or of what `is_restless` looks at."""
    if is_restless(model):
        state.restless[model.name] = True
    else:
        state.restless.pop(model.name, None)
    if is_cooling(state, model):
        state.cooling[model.name] = True
    else:
        state.cooling.pop(model.name, None)


def note_cooling(state: State, may_cool: Iterable[str]) -> None:
    """Time has passed: a cool-down may be over or, where the clock went back, not over any more."""
    state.cooling = {name: True for name in may_cool if is_cooling(state, state.models[name])}
