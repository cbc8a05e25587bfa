"""The engine `matrix`: a list of combinations of models that may be loaded together, and what evicting each one costs.

For a model that is not loaded, every combination that holds it would do; the cheapest is kept, and whoever is not in it
leaves. A part of a combination is allowed as well, and a model in none of them runs alone. Its counterpart is
`router.scheduler.matrix_language`, which makes combinations of what the owner wrote.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from eventlog.settings import SchedulerSettings
from router.scheduler.residency import Plan, is_evictable, is_leaving, is_pinned, meet, resident, victim_key
from router.scheduler.state import Model, Request, State

DEFAULT_COST = 1


class _Program:
    """The combinations as bit masks over the models, by the models that they hold."""

    __slots__ = ("bits", "by_model", "masks", "settings")

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.bits: dict[str, int] = {}
        """Of every model that is in a combination."""
        self.by_model: dict[str, list[tuple[int, str]]] = {}
        """Mask and name of the set, in the order of definition."""
        self.masks: list[int] = []
        for each in settings.matrix:
            for combination in each.combinations:
                mask = 0
                for name in combination:
                    mask |= self.bits.setdefault(name, 1 << len(self.bits))
                self.masks.append(mask)
                for name in combination:
                    self.by_model.setdefault(name, []).append((mask, each.name))

    def mask_of(self, names: Sequence[str]) -> int:
        mask = 0
        for name in names:
            mask |= self.bits.get(name, 0)
        return mask


_last = _Program(SchedulerSettings())


def _program(settings: SchedulerSettings) -> _Program:
    """Made once for each settings: they are frozen, so this is the same for the same ones, whoever asks."""
    global _last
    program = _last
    if program.settings is not settings:
        program = _last = _Program(settings)
    return program


def plan(state: State, target: Model, request: Request) -> Plan:
    """The combination that is cheapest to come to; ties go to the first in the order of definition."""
    there = [model for model in resident(state, target) if meet(state, target, model)]
    running = [model.name for model in there if not is_leaving(model)]
    pinned = [name for name in running if is_pinned(state, name)]
    chosen = _cheapest(state.settings, target.name, running, pinned)
    if chosen is None:
        return Plan(outcome="never", in_the_way=tuple(pinned), others=())
    kept, set_name, cost = chosen
    bits = _program(state.settings).bits
    outside = [model for model in there if not bits.get(model.name, 0) & kept]
    victims = [model.name for model in outside if is_evictable(state, model.name)]
    in_the_way = tuple([model.name for model in outside if model.name not in victims])
    victims.sort(key=lambda name: victim_key(state, name, forced=request.forced))
    outcome: Literal["ok", "wait"] = "wait" if in_the_way else "ok"
    return Plan(outcome=outcome, victims=tuple(victims), in_the_way=in_the_way, others=(), set_name=set_name, cost=cost)


def _cheapest(
    settings: SchedulerSettings, target: str, running: Sequence[str], pinned: Sequence[str]
) -> tuple[int, str, int] | None:
    """(mask of the combination, name of its set, cost of those outside it) or None: some may not leave."""
    program = _program(settings)
    combinations = program.by_model.get(target)
    costs = {name: evict_cost(settings, name) for name in running}
    total = sum(costs.values())
    if combinations is None:
        return None if pinned else (0, "", total)
    mask, keep = program.mask_of(running), program.mask_of(pinned)
    if any(name not in program.bits for name in pinned):
        return None
    weighed = _planes({program.bits[name]: cost for name, cost in costs.items() if name in program.bits})
    best: tuple[int, str, int] | None = None
    most = -1
    for combination, set_name in combinations:
        if keep & ~combination:
            continue
        kept = combination & mask
        saved = 0
        for weight, plane in weighed:
            saved += weight * (kept & plane).bit_count()
        if saved > most:
            most = saved
            best = (combination, set_name, total - saved)
    return best


def _planes(costs: dict[int, int]) -> list[tuple[int, int]]:
    """By power of two, the models whose cost has it: a sum over many models is then a few counts of bits."""
    planes = []
    for power in range(max(costs.values(), default=0).bit_length()):
        plane = sum(bit for bit, cost in costs.items() if cost >> power & 1)
        if plane:
            planes.append((1 << power, plane))
    return planes


def fits(state: State, target: Model, staying: Sequence[str]) -> bool:
    """Whether the target may be loaded while these stay."""
    near = [name for name in staying if meet(state, target, state.models[name])]
    return not near or are_together(state.settings, [target.name, *near])


def are_together(settings: SchedulerSettings, names: Sequence[str]) -> bool:
    """Whether a combination holds all of them."""
    program = _program(settings)
    if any(name not in program.bits for name in names):
        return False
    mask = program.mask_of(names)
    return any(combination & mask == mask for combination, _ in program.by_model.get(names[0], ()))


def surplus(state: State) -> list[str]:
    """Models of which one must leave, since no combination holds all that are loaded: only a reload brings that."""
    here = [model for model in state.models.values() if (model.replicas or model.target_of) and not is_leaving(model)]
    if state.settings.scope == "gpu":
        apart = [
            model.name
            for pair in combinations(here, 2)
            if meet(state, *pair) and not are_together(state.settings, [each.name for each in pair])
            for model in pair
        ]
        return [name for name in apart if is_evictable(state, name)]
    names = [model.name for model in here]
    if len(names) < 2 or are_together(state.settings, names):
        return []
    # As if the dearest of those that can stay had been asked for.
    best: tuple[int, int, list[str]] | None = None
    for nth, name in enumerate(names):
        others = [other for other in names if other != name]
        chosen = _cheapest(state.settings, name, others, [])
        assert chosen is not None
        bits = _program(state.settings).bits
        leaving = [other for other in others if not bits.get(other, 0) & chosen[0]]
        if best is None or (chosen[2], nth) < best[:2]:
            best = (chosen[2], nth, leaving)
    assert best is not None
    return [name for name in best[2] if is_evictable(state, name)]


def evict_cost(settings: SchedulerSettings, name: str) -> int:
    """What the owner says for the matrix, else for the model, else 1."""
    cost = settings.matrix_evict_costs.get(name)
    if cost is None and name in settings.models:
        cost = settings.models[name].evict_cost
    return DEFAULT_COST if cost is None else cost


def is_contested(settings: SchedulerSettings, one: str, other: str) -> bool:
    """Whether loading one can depend on the other: not where whoever may be beside each may be beside both."""
    program = _program(settings)
    if len(program.masks) > INDEPENDENCE_MAX or one not in program.bits or other not in program.bits:
        return True
    both = program.bits[one] | program.bits[other]
    for mine, _ in program.by_model[one]:
        for theirs, _ in program.by_model[other]:
            together = mine & theirs | both
            if not any(mask & together == together for mask in program.masks):
                return True
    return False


INDEPENDENCE_MAX = 64
"""With more combinations than this, all loads are taken to depend on each other."""
