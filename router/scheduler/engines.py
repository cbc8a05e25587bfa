"""Which engine says who may be loaded together: the one place that picks it. The rules ask here and nowhere else.

`residency` is the cap per GPU. `group`, `matrix` and `capacity` take its place; where the owner wrote a cap as well,
it is a second rule beside theirs.
"""

from collections.abc import Sequence
from types import ModuleType

import msgspec

from eventlog.settings import SchedulerSettings
from router.scheduler import capacity, group, matrix, residency
from router.scheduler.residency import Plan, is_evictable, resident, victim_key
from router.scheduler.state import GPUS_MAX, Model, Request, State, Swap, busy_mask

BESIDE: dict[str, ModuleType] = {"group": group, "matrix": matrix, "capacity": capacity}
"""The engines that take the place of the cap. Each has plan, fits, surplus and is_contested."""

COMPETE_MAX = 128
"""With more models than this, all loads of an engine that looks beyond GPUs exclude each other."""


def plan(state: State, target: Model, request: Request) -> Plan:
    """What it takes to load a model."""
    settings = state.settings
    engine = BESIDE.get(settings.engine)
    if engine is None or target.mask >> settings.gpus:
        return residency.plan(state, target, request)
    chosen: Plan = engine.plan(state, target, request)
    if settings.max_models_per_gpu:
        chosen = _with_the_cap(state, target, request, chosen, engine)
    return _spanning(state, target, chosen)


def _with_the_cap(state: State, target: Model, request: Request, chosen: Plan, engine: ModuleType) -> Plan:
    """The engine's victims, then what the cap still asks for; whom neither needs after all may stay."""
    capped = residency.plan(state, target, request, leaving=chosen.victims)
    victims = list(capped.victims)
    in_the_way = tuple(dict.fromkeys((*chosen.in_the_way, *capped.in_the_way)))
    for name in capped.victims:
        rest = [other for other in victims if other != name]
        staying = [model.name for model in resident(state, target) if model.name not in (*rest, *in_the_way)]
        if residency.fits(state, target, staying) and engine.fits(state, target, staying):
            victims = rest
    return msgspec.structs.replace(
        chosen,
        outcome=max(chosen.outcome, capped.outcome, key=("ok", "wait", "never").index),
        victims=tuple(victims),
        in_the_way=in_the_way,
    )


def _spanning(state: State, target: Model, chosen: Plan) -> Plan:
    mask = target.mask
    for name in chosen.victims:
        mask |= state.models[name].mask
    return msgspec.structs.replace(chosen, mask=mask)


def has_room(state: State, target: Model) -> bool:
    """Whether its processes may be started now: a plan is frozen, but a reload may allow less since."""
    settings = state.settings
    engine = BESIDE.get(settings.engine)
    if engine is None:
        return residency.has_room(state, target)
    if target.replicas:
        return True
    staying = [model.name for model in resident(state, target) if model.replicas]
    fits: bool = engine.fits(state, target, staying)
    return fits and (not settings.max_models_per_gpu or residency.has_room(state, target))


def surplus(state: State) -> str:
    """The first in the order of eviction of those of which one must leave, since a reload allows less; "" for none."""
    settings = state.settings
    engine = BESIDE.get(settings.engine)
    if engine is not None and (found := engine.surplus(state)):
        return _first_to_leave(state, found)
    if settings.max_models_per_gpu:
        for gpu, names in enumerate(state.residents):
            if len(names) <= settings.max_models_per_gpu or busy_mask(state) >> gpu & 1:
                continue
            leaving = [name for name in names if is_evictable(state, name)]
            if leaving:
                return _first_to_leave(state, leaving)
    return ""


def _first_to_leave(state: State, names: Sequence[str]) -> str:
    return min(names, key=lambda name: victim_key(state, name, forced=False))


def evict_cost(settings: SchedulerSettings, name: str) -> int:
    """What evicting the model costs, for the engines that choose by that; else 0."""
    if settings.engine == "matrix":
        return matrix.evict_cost(settings, name)
    return capacity.evict_cost(settings, name) if settings.engine == "capacity" else 0


# --- what loads compete for besides GPUs ----------------------------------------------------------------------------


def looks_beyond_gpus(settings: SchedulerSettings) -> bool:
    """Whether loads on different GPUs may be each other's business."""
    return settings.engine == "capacity" or (settings.engine in ("group", "matrix") and settings.scope != "gpu")


def contest(state: State, model: Model) -> int:
    """Bits above all GPUs, one for each pair of models that compete: two loads with a bit in common exclude each other.

    Never stored in the state: a reload may change who competes.
    """
    if not looks_beyond_gpus(state.settings):
        return 0
    return _contests(state.settings).get(model.name, 0)


def swaps_on(state: State, mask: int) -> list[Swap]:
    """Swaps under way that touch these GPUs, or compete for the same."""
    if not looks_beyond_gpus(state.settings):
        return [swap for swap in state.swaps.values() if swap.mask & mask]
    return [swap for swap in state.swaps.values() if (swap.mask | _swap_contest(state, swap)) & mask]


def busy_contest(state: State) -> int:
    """Those bits for the loads under way."""
    if not looks_beyond_gpus(state.settings):
        return 0
    mask = 0
    for swap in state.swaps.values():
        mask |= _swap_contest(state, swap)
    return mask


def _swap_contest(state: State, swap: Swap) -> int:
    return contest(state, state.models[swap.target]) if swap.target else 0


_last: tuple[SchedulerSettings, dict[str, int]] = (SchedulerSettings(), {})


def _contests(settings: SchedulerSettings) -> dict[str, int]:
    """Made once for each settings: they are frozen, so this is the same for the same ones, whoever asks."""
    global _last
    if _last[0] is not settings:
        _last = (settings, _contested(settings))
    return _last[1]


def _contested(settings: SchedulerSettings) -> dict[str, int]:
    names = list(settings.models)
    if len(names) > COMPETE_MAX:
        return dict.fromkeys(names, 1 << GPUS_MAX)
    bits = dict.fromkeys(names, 0)
    is_contested = BESIDE[settings.engine].is_contested
    bit = 1 << GPUS_MAX
    for nth, one in enumerate(names):
        for other in names[nth + 1 :]:
            if is_contested(settings, one, other):
                bits[one] |= bit
                bits[other] |= bit
                bit <<= 1
    return bits
