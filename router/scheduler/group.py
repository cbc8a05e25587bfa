"""The engine `group`: named groups of models. Members take turns or live together, and a group drives out the others.

Models in no group are one group more, whose members take turns and which drives out the others. Its counterpart is
`router.routing`, which has checked that a model is in one group only.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from eventlog.settings import GroupSettings, SchedulerSettings
from router.scheduler.residency import Plan, is_evictable, is_leaving, is_pinned, meet, resident, victim_key
from router.scheduler.state import Model, Request, State

_UNGROUPED = GroupSettings()
"""Of those that are in none."""


def plan(state: State, target: Model, request: Request) -> Plan:
    """Everybody whom the groups do not let stay beside the target."""
    outcome: Literal["ok", "wait", "never"] = "ok"
    victims: list[str] = []
    in_the_way: list[str] = []
    for model in resident(state, target):
        if not meet(state, target, model) or not evicts(state.settings, target.name, model.name):
            continue
        if is_evictable(state, model.name):
            victims.append(model.name)
            continue
        in_the_way.append(model.name)
        if is_pinned(state, model.name) and not is_leaving(model):
            outcome = "never"
        elif outcome == "ok":
            outcome = "wait"
    victims.sort(key=lambda name: victim_key(state, name, forced=request.forced))
    return Plan(outcome=outcome, victims=tuple(victims), in_the_way=tuple(in_the_way), others=())


def fits(state: State, target: Model, staying: Sequence[str]) -> bool:
    """Whether the target may be loaded while these stay."""
    return not any(
        meet(state, target, state.models[name]) and evicts(state.settings, target.name, name) for name in staying
    )


def surplus(state: State) -> list[str]:
    """Models of which one must leave: each of two would evict the other, so only a reload can have left both."""
    here = [model for model in state.models.values() if (model.replicas or model.target_of) and not is_leaving(model)]
    found: list[str] = []
    for one, other in combinations(here, 2):
        if meet(state, one, other) and compete(state.settings, one.name, other.name):
            found += [model.name for model in (one, other) if is_evictable(state, model.name)]
    return found


def evicts(settings: SchedulerSettings, target: str, other: str) -> bool:
    """Whether loading the target means that the other leaves."""
    groups = _groups(settings)
    mine, theirs = groups.get(target, _UNGROUPED), groups.get(other, _UNGROUPED)
    return mine.swap if mine is theirs else mine.exclusive and not theirs.persistent


def compete(settings: SchedulerSettings, one: str, other: str) -> bool:
    """Whether each of them would evict the other."""
    return evicts(settings, one, other) and evicts(settings, other, one)


def is_contested(settings: SchedulerSettings, one: str, other: str) -> bool:
    """Whether one of them would evict the other: their loads are not each other's business otherwise."""
    return evicts(settings, one, other) or evicts(settings, other, one)


_last: tuple[SchedulerSettings, dict[str, GroupSettings]] = (SchedulerSettings(), {})


def _groups(settings: SchedulerSettings) -> dict[str, GroupSettings]:
    """By model. Made once for each settings: they are frozen, so this is the same for the same ones, whoever asks."""
    global _last
    if _last[0] is not settings:
        _last = (settings, {member: group for group in settings.groups.values() for member in group.members})
    return _last[1]
