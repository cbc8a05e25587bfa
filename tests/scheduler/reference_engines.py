"""The engines once more, naive: sets, every subset tried, from their description and not from their code."""

from __future__ import annotations

from itertools import chain, combinations

from eventlog.settings import GroupSettings, SchedulerSettings
from router.scheduler.state import Model, State

Plan = tuple[str, list[str], list[str]]
"""("now" | "later" | "never", victims in no order, models in the way)"""


def plan(state: State, target: Model) -> Plan:
    there = {name for name in present(state) if name != target.name}
    going = {name for name in there if is_going(state, name)}
    staying = there - going
    keep = {name for name in staying if is_kept(state, name)}
    can_go = {name for name in staying - keep if can_be_asked(state, name)}
    best = cheapest(state, target, staying, can_go)
    if best is None or state.settings.engine != "capacity":
        best = cheapest(state, target, staying, staying - keep)
    if best is None:
        return "never", [], sorted(keep)
    stuck = (best - can_go) | {name for name in going if is_in_the_way(state, target, there - best, name)}
    return "later" if stuck else "now", sorted(best & can_go), sorted(stuck)


def cheapest(state: State, target: Model, staying: set[str], may_go: set[str]) -> set[str] | None:
    """Which of them must leave so that the target may be loaded; None where no choice helps."""
    settings = state.settings
    if settings.engine == "group":
        must = {name for name in staying if meet(state, target.name, name) and drives_out(settings, target.name, name)}
        return must if must <= may_go else None
    if settings.engine == "matrix":
        members = combination(state, target, staying)
        return None if members is None else {name for name in staying - members if meet(state, target.name, name)}
    candidates = sorted(may_go)
    able = [
        (sum(settings.models[name].evict_cost or 0 for name in some if name in settings.models), len(some), some)
        for count in range(len(candidates) + 1)
        for some in combinations(candidates, count)
        if not over(state, {*staying, target.name} - set(some)) & set(takes(state, target.name))
    ]
    return set(min(able)[2]) if able else None


def combination(state: State, target: Model, staying: set[str]) -> set[str] | None:
    """The matrix: whom the cheapest combination lets stay; a combination without one that is kept cannot be had."""
    settings = state.settings
    near = {name for name in staying if meet(state, target.name, name)}
    choices = [set(members) for each in settings.matrix for members in each.combinations if target.name in members]
    able = [
        (sum(matrix_cost(settings, name) for name in near - members), nth, members)
        for nth, members in enumerate(choices or [{target.name}])
        if not any(is_kept(state, name) for name in near - members)
    ]
    return min(able, key=lambda one: one[:2])[2] if able else None


def is_in_the_way(state: State, target: Model, staying: set[str], going: str) -> bool:
    """Whether somebody who leaves already has to be gone first."""
    settings = state.settings
    if settings.engine == "capacity":
        short = over(state, {*staying, target.name}) & set(takes(state, target.name))
        return bool(short & set(takes(state, going)))
    if settings.engine == "group":
        return meet(state, target.name, going) and drives_out(settings, target.name, going)
    there = {name for name in present(state) if name != target.name}
    members = combination(state, target, {name for name in there if not is_going(state, name)})
    return meet(state, target.name, going) and members is not None and going not in members


def legal_with(state: State, target: Model, staying: set[str]) -> bool:
    """Whether the target may be loaded while all of these stay."""
    settings = state.settings
    if settings.engine == "capacity":
        return not over(state, {*staying, target.name}) & set(takes(state, target.name))
    near = {name for name in staying if meet(state, target.name, name)}
    if settings.engine == "matrix":
        return allowed(settings, {target.name, *near})
    return not any(drives_out(settings, target.name, name) for name in near)


def must_leave(state: State, target: Model) -> set[str]:
    """Who is in no set of those that could stay."""
    there = {name for name in present(state) if name != target.name}
    staying = {name for name in there if not is_going(state, name)}
    keep = {name for name in staying if is_kept(state, name)}
    if state.settings.engine == "matrix":
        near = {name for name in staying if meet(state, target.name, name)}
        sets = [set(some) for each in state.settings.matrix for some in each.combinations if target.name in some]
        gone = [near - some for some in sets or [{target.name}] if not (near - some) & keep]
        return set.intersection(*gone) if gone else set()
    if cheapest(state, target, staying, staying - keep) is None:
        return set()
    return {name for name in staying - keep if cheapest(state, target, staying, staying - keep - {name}) is None}


def resources(state: State, name: str) -> set[object]:
    """What a load competes for besides GPUs."""
    settings = state.settings
    if settings.engine == "capacity":
        wanted = settings.models[name].capacities if name in settings.models else {}
        return {pool for pool, amount in wanted.items() if amount}
    if settings.engine == "residency" or settings.scope == "gpu" or name not in settings.models:
        return set()
    return {frozenset((name, other)) for other in settings.models if other != name and rivals(settings, name, other)}


def rivals(settings: SchedulerSettings, one: str, other: str) -> bool:
    if settings.engine == "group":
        return drives_out(settings, one, other) or drives_out(settings, other, one)
    names = {*settings.models, *(name for each in settings.matrix for some in each.combinations for name in some)}
    states = chain.from_iterable(combinations(sorted(names), count) for count in range(len(names) + 1))
    return any(
        allowed(settings, {*some, one})
        and allowed(settings, {*some, other})
        and not allowed(settings, {*some, one, other})
        for some in states
        if allowed(settings, set(some))
    )


def legal(state: State, names: set[str]) -> bool:
    """Whether processes of all of these may stand beside each other (groups: order of loading left out)."""
    settings = state.settings
    if settings.engine == "capacity":
        return not over(state, names)
    if settings.engine == "matrix" and settings.scope != "gpu":
        return allowed(settings, names)
    if settings.engine == "matrix":
        return all(allowed(settings, {a, b}) for a, b in combinations(sorted(names), 2) if meet(state, a, b))
    return not any(
        meet(state, a, b) and drives_out(settings, a, b) and drives_out(settings, b, a)
        for a, b in combinations(sorted(names), 2)
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def present(state: State) -> list[str]:
    return [model.name for model in state.models.values() if model.replicas or model.target_of]


def is_going(state: State, name: str) -> bool:
    model = state.models[name]
    up = any(state.replicas[replica].phase == "ready" for replica in model.replicas)
    return model.victim_of > 0 or (not up and not model.target_of)


def is_kept(state: State, name: str) -> bool:
    return name in state.settings.models and state.settings.models[name].persistent


def can_be_asked(state: State, name: str) -> bool:
    return not state.models[name].target_of and not is_going(state, name) and not is_kept(state, name)


def meet(state: State, one: str, other: str) -> bool:
    return state.settings.scope != "gpu" or bool(set(state.models[one].gpus) & set(state.models[other].gpus))


def drives_out(settings: SchedulerSettings, target: str, other: str) -> bool:
    mine, theirs = group(settings, target), group(settings, other)
    if mine[0] == theirs[0]:
        return mine[1].swap
    return mine[1].exclusive and not theirs[1].persistent


def group(settings: SchedulerSettings, name: str) -> tuple[str, GroupSettings]:
    for title, one in settings.groups.items():
        if name in one.members:
            return title, one
    return "", GroupSettings()


def allowed(settings: SchedulerSettings, names: set[str]) -> bool:
    return len(names) < 2 or any(names <= set(some) for each in settings.matrix for some in each.combinations)


def matrix_cost(settings: SchedulerSettings, name: str) -> int:
    own = settings.models[name].evict_cost if name in settings.models else None
    return settings.matrix_evict_costs.get(name, 1 if own is None else own)


def takes(state: State, name: str) -> dict[str, int]:
    settings = state.settings.models.get(name)
    if settings is None or state.models[name].stale:
        return state.models[name].takes
    return {pool: amount * settings.replicas for pool, amount in settings.capacities.items() if amount}


def over(state: State, names: set[str]) -> set[str]:
    """Pools of which these take more than there is."""
    return {
        pool
        for pool, limit in state.settings.pools.items()
        if sum(takes(state, name).get(pool, 0) for name in names) > limit
    }
