"""Who must leave so that a model fits: at most `max_models_per_gpu` models per GPU.

`plan` is pure, and the rules know nothing else of placement: the other engines (`group`, `matrix`, `capacity`) stand
beside this file with the same shape, and `engines` picks one. What they all need to know of a model is here as well.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from router.scheduler.state import Model, Request, State, wanted_by
from router.scheduler.worth import counts_uses, worth_of


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """What it takes to load a model.

    outcome: ok: the victims can leave. wait: a model in the way cannot be asked to leave yet. never: one in the way
    never leaves, or a GPU does not exist.
    """

    outcome: Literal["ok", "wait", "never"]
    victims: tuple[str, ...] = ()
    mask: int = 0
    """GPUs of the target and of every victim: what the swap touches."""
    in_the_way: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None
    """Who could have left instead, in the order of choice; None: whoever else is on those GPUs."""
    reason: str = ""
    """Why never, where no model that is in the way says it."""
    set_name: str = ""
    """matrix: the set whose combination is kept."""
    cost: int = 0
    """matrix, capacity: what the victims cost together."""
    nodes: int = 0
    """capacity: partial plans that were looked at."""
    search_limited: bool = False
    """capacity: there were too many of them, and another plan may be cheaper."""


def plan(state: State, target: Model, request: Request, leaving: Sequence[str] | None = None) -> Plan:
    """The fewest victims, in the order of `victim_key`, that leave room on every GPU of the target.

    `leaving` are victims that another rule has chosen already; they stand first, and whoever gave them sees to it that
    nobody leaves without need.
    """
    if target.mask >> state.settings.gpus:
        return Plan(outcome="never", mask=target.mask)
    room = state.settings.max_models_per_gpu - 1
    outcome: Literal["ok", "wait", "never"] = "ok"
    chosen = list(leaving or ())
    in_the_way: list[str] = []
    for gpu in target.gpus:
        there = state.residents[gpu]
        if len(there) <= room:
            continue
        staying = [name for name in there if name != target.name and name not in chosen]
        over = len(staying) - room
        if over <= 0:
            continue
        candidates = [name for name in staying if is_evictable(state, name)]
        if len(candidates) < over:
            stuck = [name for name in staying if name not in candidates]
            in_the_way += [name for name in stuck if name not in in_the_way]
            may_leave_later = sum(not is_pinned(state, name) for name in stuck)
            outcome = "wait" if outcome != "never" and len(candidates) + may_leave_later >= over else "never"
            over = len(candidates)
        if len(candidates) > 1:
            candidates.sort(key=lambda name: victim_key(state, name, forced=request.forced))
        chosen += candidates[:over]
    if len(chosen) > 1 and len(target.gpus) > 1 and leaving is None:
        chosen = _needed(state, target, chosen, room)
    mask = target.mask
    for name in chosen:
        mask |= state.models[name].mask
    return Plan(outcome=outcome, victims=tuple(chosen), mask=mask, in_the_way=tuple(in_the_way))


def has_room(state: State, target: Model) -> bool:
    """Whether its processes may be started now: a plan is frozen, but a reload may allow fewer models since."""
    cap = state.settings.max_models_per_gpu
    return bool(target.replicas) or all(
        sum(bool(state.models[name].replicas) for name in state.residents[gpu]) < cap for gpu in target.gpus
    )


def fits(state: State, target: Model, staying: Sequence[str]) -> bool:
    """Whether there is room for it on each of its GPUs while these stay."""
    cap = state.settings.max_models_per_gpu
    return all(sum(gpu in state.models[name].gpus for name in staying) < cap for gpu in target.gpus)


# --- what every engine asks of a model ------------------------------------------------------------------------------


def resident(state: State, target: Model) -> list[Model]:
    """All other models that have a process or are about to have one, wherever they are."""
    return [model for model in state.models.values() if (model.replicas or model.target_of) and model is not target]


def meet(state: State, one: Model, other: Model) -> bool:
    """Whether rules about who lives with whom concern these two: everywhere or, by `scope`, on a GPU of both."""
    return state.settings.scope != "gpu" or one.mask & other.mask != 0


def is_leaving(model: Model) -> bool:
    """Nothing keeps it: its processes end, or will once they are idle."""
    return model.phase in ("draining", "stopping")


def is_evictable(state: State, name: str) -> bool:
    """Ready, in no swap, and allowed to leave."""
    model = state.models[name]
    if model.phase != "ready" or model.target_of or model.victim_of:
        return False
    return not is_pinned(state, name)


def victim_key(state: State, name: str, *, forced: bool) -> tuple[bool, bool, int, str]:
    """Who leaves first: unwanted before wanted, idle before busy, then by age or worth, then by name.

    A forced request does not look at who else is wanted.
    """
    model = state.models[name]
    wanted = not forced and wanted_by(state, name) > 0
    busy = state.settings.prefer_idle and model.in_flight > 0
    last = worth_of(state, model) if counts_uses(state) else age_stamp(state, model)
    return (wanted, busy, last, name)


def age_stamp(state: State, model: Model) -> int:
    """The moment that the eviction policy counts a model's age from."""
    return model.loaded_us if state.settings.eviction == "fifo" else model.used_us


def is_pinned(state: State, name: str) -> bool:
    """Never evicted for another model."""
    settings = state.settings.models.get(name)
    return settings is not None and settings.persistent


def _needed(state: State, target: Model, chosen: list[str], room: int) -> list[str]:
    """Drop a victim whose place a later choice on another GPU already made free."""
    needed = list(chosen)
    for name in chosen:
        rest = [other for other in needed if other != name]
        shared = state.models[name].mask & target.mask
        if all(_staying(state, target, gpu, rest) <= room for gpu in target.gpus if shared >> gpu & 1):
            needed = rest
    return needed


def _staying(state: State, target: Model, gpu: int, leaving: list[str]) -> int:
    return sum(1 for name in state.residents[gpu] if name != target.name and name not in leaving)
