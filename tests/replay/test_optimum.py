"""The offline optimum is the optimum: against Belady where loads cost the same, and against all ways where not."""

import random
from functools import cache

import msgspec
import pytest

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.costs import Costs, ModelCosts
from replay.optimum import least_load_us, optimum_of
from replay.workload import Workload

MODELS = "abcdefgh"


def belady(order: str, slots: int) -> int:
    """Loads when whoever is needed latest leaves."""
    resident: set[str] = set()
    loads = 0
    for at, model in enumerate(order):
        if model in resident:
            continue
        loads += 1
        if len(resident) == slots:
            resident.remove(max(sorted(resident), key=lambda name: (order + name).index(name, at)))
        resident.add(model)
    return loads


def every_way(order: str, load_us: dict[str, int], slots: int) -> int:
    """The least over all choices of victims."""

    @cache
    def least(at: int, resident: frozenset[str]) -> int:
        if at == len(order):
            return 0
        model = order[at]
        if model in resident:
            return least(at + 1, resident)
        if len(resident) < slots:
            return load_us[model] + least(at + 1, resident | {model})
        return load_us[model] + min(least(at + 1, resident - {victim} | {model}) for victim in resident)

    return least(0, frozenset())


def test_at_unit_cost_it_agrees_with_belady_on_a_thousand_sequences() -> None:
    draw = random.Random(7)
    for _ in range(1000):
        models = MODELS[: draw.randint(2, len(MODELS))]
        order = "".join(draw.choices(models, k=draw.randint(1, 60)))
        slots = draw.randint(1, 5)
        assert least_load_us(order, dict.fromkeys(models, 1), slots) == (belady(order, slots),) * 2, (order, slots)


def test_with_unequal_loads_no_way_is_cheaper() -> None:
    draw = random.Random(8)
    for _ in range(200):
        models = MODELS[: draw.randint(2, 5)]
        load_us = {model: draw.randint(1, 20) for model in models}
        order = "".join(draw.choices(models, k=draw.randint(1, 16)))
        slots = draw.randint(1, 4)
        assert least_load_us(order, load_us, slots)[0] == every_way(order, load_us, slots), (order, load_us, slots)


def test_with_one_slot_every_change_of_model_is_a_load() -> None:
    assert least_load_us("aabbab", {"a": 5, "b": 3}, 1) == (16, 4)


def test_a_heavy_model_stays_while_light_ones_come_and_go() -> None:
    """a costs 10, the others 1: keeping a through b c b is worth more than keeping b."""
    assert least_load_us("abcba", {"a": 10, "b": 1, "c": 1}, 2) == (13, 4)


def test_gpus_are_reckoned_apart_and_models_on_several_left_out() -> None:
    models = {name: ModelSettings(gpus=gpus) for name, gpus in {"a": (0,), "b": (0,), "c": (1,), "d": (2, 3)}.items()}
    workload = Workload(calls=(), settings=SchedulerSettings(models=models, gpus=4))
    costs = Costs(default=ModelCosts(loads_us=(2_000_000,)))
    found = optimum_of("acabdcd", workload, costs)
    assert (found.loads, found.load_s, found.left_out) == (3, 6.0, ("d",))
    crowded = msgspec.structs.replace(models["d"], gpus=(1, 2))
    settings = msgspec.structs.replace(workload.settings, models={**models, "d": crowded})
    assert optimum_of("acab", msgspec.structs.replace(workload, settings=settings), costs).left_out == ("c", "d")


def test_a_gpu_without_room_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="serves nothing"):
        least_load_us("a", {"a": 1}, 0)
