"""The engine `capacity`: pools with limits, and what each model takes of them. Whatever fits may be loaded together.

Who leaves: the set that costs least; of equally dear ones the smallest; of those the first by its sorted names. The
search for it counts the partial plans that it looks at, and stops at `search_nodes` with the best that it has: that
number and not a time, so that the same state gives the same plan everywhere. Nothing is measured: what a model takes is
what its owner says.
"""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import msgspec

from eventlog.settings import ModelSettings, SchedulerSettings
from router.scheduler.residency import Plan, is_evictable, is_leaving, is_pinned, resident
from router.scheduler.state import Model, Request, State

DEFAULT_COST = 0


def taken_by(settings: ModelSettings) -> dict[str, int]:
    """What all replicas of a model take together, by pool."""
    return {pool: amount * settings.replicas for pool, amount in settings.capacities.items() if amount}


def plan(state: State, target: Model, request: Request) -> Plan:
    """The cheapest models that must leave so that the target fits into every pool."""
    wanted = _takes(state, target)
    there = resident(state, target)
    staying = [model for model in there if not is_leaving(model)]
    need = _short(state, wanted, wanted, staying)
    may_go = [model.name for model in staying if is_evictable(state, model.name)]
    if not _suffices(state, may_go, need):
        may_go = [model.name for model in staying if not is_pinned(state, model.name)]
        if not _suffices(state, may_go, need):
            return _never(state, wanted, staying)
    candidates = _candidates(state, may_go, need)
    found = cheapest(candidates, tuple(need.values()), state.settings.search_nodes) if need else NOBODY
    victims = [name for name in found.chosen if is_evictable(state, name)]
    in_the_way = [name for name in found.chosen if name not in victims]
    still = _short(state, wanted, wanted, [model for model in there if model.name not in found.chosen])
    in_the_way += [model.name for model in there if is_leaving(model) and _takes(state, model).keys() & still.keys()]
    others = [name for name, _, _ in candidates if name not in found.chosen]
    others.sort(key=lambda name: (evict_cost(state.settings, name), name))
    outcome: Literal["ok", "wait"] = "wait" if in_the_way else "ok"
    return Plan(
        outcome=outcome,
        victims=tuple(victims),
        in_the_way=tuple(in_the_way),
        others=tuple(others),
        cost=sum(evict_cost(state.settings, name) for name in found.chosen),
        nodes=found.nodes,
        search_limited=found.limited,
    )


def _never(state: State, wanted: dict[str, int], staying: Sequence[Model]) -> Plan:
    """With all gone that may go, it still does not fit."""
    pinned = [model for model in staying if is_pinned(state, model.name)]
    over = _short(state, wanted, wanted, pinned)
    keep = tuple(model.name for model in pinned if _takes(state, model).keys() & over.keys())
    reason = "; ".join(f"it takes {wanted[pool]} of {pool}, {more} more than there are" for pool, more in over.items())
    return Plan(outcome="never", in_the_way=keep, others=(), reason=reason)


def fits(state: State, target: Model, staying: Sequence[str]) -> bool:
    """Whether the target may be loaded while these stay."""
    wanted = _takes(state, target)
    return not _short(state, wanted, wanted, [state.models[name] for name in staying])


def surplus(state: State) -> list[str]:
    """Models of which one must leave, since a pool holds more than its limit: only a reload brings that."""
    here = [model for model in state.models.values() if (model.replicas or model.target_of) and not is_leaving(model)]
    over = _short(state, {}, state.settings.pools, here)
    if not over:
        return []
    may_go = [model.name for model in here if is_evictable(state, model.name)]
    candidates = _candidates(state, may_go, over)
    if not _suffices(state, may_go, over):
        return [name for name, _, _ in candidates]
    return list(cheapest(candidates, tuple(over.values()), state.settings.search_nodes).chosen)


def is_contested(settings: SchedulerSettings, one: str, other: str) -> bool:
    """Whether both take something of the same pool."""
    mine, theirs = taken_by(settings.models[one]), taken_by(settings.models[other])
    return any(pool in theirs for pool in mine)


def evict_cost(settings: SchedulerSettings, name: str) -> int:
    """What the owner says, else 0."""
    cost = settings.models[name].evict_cost if name in settings.models else None
    return DEFAULT_COST if cost is None else cost


def _takes(state: State, model: Model) -> dict[str, int]:
    """As now configured or, where that is another process than the one that runs, as it was started."""
    if model.stale:
        return model.takes
    known = _all_taken(state.settings).get(model.name)
    return model.takes if known is None else known


_last: tuple[SchedulerSettings, dict[str, dict[str, int]]] = (SchedulerSettings(), {})


def _all_taken(settings: SchedulerSettings) -> dict[str, dict[str, int]]:
    """By model. Made once for each settings: they are frozen, so this is the same for the same ones, whoever asks."""
    global _last
    if _last[0] is not settings:
        _last = (settings, {name: taken_by(model) for name, model in settings.models.items()})
    return _last[1]


def _short(state: State, wanted: dict[str, int], pools: dict[str, int], staying: Sequence[Model]) -> dict[str, int]:
    """Which of the pools are over their limit with all of these, and by how much; in the configuration's order."""
    used = dict(wanted)
    for model in staying:
        for pool, amount in _takes(state, model).items():
            used[pool] = used.get(pool, 0) + amount
    return {
        pool: used[pool] - limit
        for pool, limit in state.settings.pools.items()
        if pool in pools and used.get(pool, 0) > limit
    }


def _suffices(state: State, names: Sequence[str], need: dict[str, int]) -> bool:
    """Whether enough is free once all of these are gone."""
    return all(sum(_takes(state, state.models[name]).get(pool, 0) for name in names) >= need[pool] for pool in need)


Candidate = tuple[str, int, tuple[int, ...]]
"""Name, cost, and what it frees of each pool that is short."""


def _candidates(state: State, names: Sequence[str], need: dict[str, int]) -> tuple[Candidate, ...]:
    """Those that free something, by name."""
    found = []
    for name in sorted(names):
        takes = _takes(state, state.models[name])
        frees = tuple([takes.get(pool, 0) for pool in need])
        if any(frees):
            found.append((name, evict_cost(state.settings, name), frees))
    return tuple(found)


# --- the search -----------------------------------------------------------------------------------------------------


class Found(msgspec.Struct, frozen=True):
    """The best set of victims that the search came by."""

    chosen: tuple[str, ...]
    nodes: int
    limited: bool
    """It was not searched to the end."""


NOBODY = Found((), 0, False)


@lru_cache(maxsize=64)
def cheapest(candidates: tuple[Candidate, ...], need: tuple[int, ...], nodes_max: int) -> Found:
    """The set that frees `need` of each pool: least cost, then fewest, then first by sorted names.

    Branch and bound. `candidates` come by name, and together suffice. Cost and count are one weight, so that one bound
    serves both: whoever still has to be found costs at least what fractions of the best remaining ones would. Each
    candidate is first taken, then left, so of equal sets the first by name is found first, and those no better are cut.
    """
    count = len(candidates)
    weights = [cost * (count + 1) + 1 for _, cost, _ in candidates]
    frees = [amounts for _, _, amounts in candidates]
    bounds = _Bounds(weights, frees)
    fallback = _without_needless(range(count), weights, frees, need)
    best, chosen = sum(weights[nth] for nth in fallback) + 1, None
    nodes = 0
    # What is still to look at: next candidate, weight so far, what is still needed, who was taken (as a linked list).
    stack: list[tuple[int, int, tuple[int, ...], tuple[int, object] | None]] = [(0, 0, need, None)]
    while stack and nodes < nodes_max:
        nth, weight, missing, taken = stack.pop()
        nodes += 1
        if max(missing) <= 0:
            if weight < best:
                best, chosen = weight, taken
            continue
        if nth == count:
            continue
        amounts, helps = frees[nth], False
        sums = bounds.sums[nth] or bounds.sums_from(nth)
        for (freed, weighs), short, amount in zip(sums, missing, amounts, strict=True):
            if short <= 0:
                continue
            helps = helps or amount > 0
            at = bisect_left(freed, short)
            if at == len(freed):
                break
            if weight + weighs[at] >= best:
                # Of the last one only a part is needed; rounded up, for weights are whole.
                part = (weighs[at] - weighs[at - 1]) * (freed[at - 1] - short) // (freed[at] - freed[at - 1])
                if weight + weighs[at - 1] - part >= best:
                    break
        else:
            stack.append((nth + 1, weight, missing, taken))
            if helps:
                rest = tuple([short - amount for short, amount in zip(missing, amounts, strict=True)])
                stack.append((nth + 1, weight + weights[nth], rest, (nth, taken)))
    limited = bool(stack)
    indexes = fallback if chosen is None else _listed(chosen)
    if limited:
        indexes = _without_needless(indexes, weights, frees, need)
    return Found(tuple([candidates[nth][0] for nth in sorted(indexes)]), nodes, limited)


def _listed(taken: object) -> list[int]:
    found = []
    while taken is not None:
        assert isinstance(taken, tuple)
        nth, taken = taken
        found.append(nth)
    return found


def _without_needless(
    chosen: Sequence[int], weights: Sequence[int], frees: Sequence[tuple[int, ...]], need: tuple[int, ...]
) -> list[int]:
    """Whoever is not needed stays; the dearest are looked at first, of equal ones the last by name."""
    spare = [sum(frees[nth][pool] for nth in chosen) - short for pool, short in enumerate(need)]
    kept = []
    for nth in sorted(chosen, key=lambda nth: (-weights[nth], -nth)):
        amounts = frees[nth]
        if all(amount <= left for amount, left in zip(amounts, spare, strict=True)):
            spare = [left - amount for left, amount in zip(spare, amounts, strict=True)]
        else:
            kept.append(nth)
    return kept


class _Bounds:
    """What freeing an amount costs at least, by whom the search may still choose: pool by pool, in fractions."""

    __slots__ = ("by_density", "count", "frees", "sums", "weights")

    def __init__(self, weights: Sequence[int], frees: Sequence[tuple[int, ...]]) -> None:
        self.weights, self.frees = weights, frees
        self.count = len(weights)
        self.by_density = [
            sorted(
                (nth for nth in range(self.count) if frees[nth][pool]),
                key=lambda nth, pool=pool: (Fraction(weights[nth], frees[nth][pool]), nth),  # type: ignore[misc]
            )
            for pool in range(len(frees[0]))
        ]
        self.sums: list[list[tuple[list[int], list[int]]] | None] = [None] * self.count

    def sums_from(self, nth: int) -> list[tuple[list[int], list[int]]]:
        """Of the candidates from `nth` on, by pool: running sums of what is freed and of what it weighs."""
        sums = self.sums[nth] = [self._sums(nth, pool) for pool in range(len(self.by_density))]
        return sums

    def _sums(self, first: int, pool: int) -> tuple[list[int], list[int]]:
        freed, weighs = [0], [0]
        for nth in self.by_density[pool]:
            if nth >= first:
                freed.append(freed[-1] + self.frees[nth][pool])
                weighs.append(weighs[-1] + self.weights[nth])
        return freed, weighs
