"""The engine `group`: members take turns or live together, and a group drives out the others."""

from typing import Any

import pytest

from eventlog import events as e
from eventlog.settings import GroupSettings, MatrixSet, ModelSettings, SchedulerSettings
from tests.scheduler.scenario import Scenario

TOGETHER = (MatrixSet(name="all", combinations=(("A", "B"),)),)


def apart(*names: str) -> dict[str, tuple[int, ...] | ModelSettings]:
    """Models on a GPU each, so that only their groups can bring them together."""
    return {name: (gpu,) for gpu, name in enumerate(names)}


def grouped(*names: str, **groups: GroupSettings) -> Scenario:
    return Scenario(models=apart(*names), cap=0, engine="group", groups=groups)


def evicted(story: Scenario, model: str) -> list[str]:
    """Who leaves once this model is asked for."""
    story.arrives(1000 + story.state.last_rid, model)
    begun = story.last(e.SwapBegun)
    assert begun.target == model
    return sorted(victim.model for victim in begun.victims)


def test_g01_under_groups_without_any_group_one_model_runs_at_a_time() -> None:
    """All models are then in the group of those that are in none, wherever their GPUs are."""
    story = grouped("A", "B", "C")
    story.loaded("A")
    assert evicted(story, "B") == ["A"]
    story.swapped("A", to="B")
    assert [name for name in "ABC" if story.phase(name) == "ready"] == ["B"]


def test_g01_without_a_choice_of_engine_the_cap_per_gpu_holds() -> None:
    assert SchedulerSettings().engine == "residency"
    story = Scenario(models=apart("A", "B"))
    story.loaded("A")
    assert evicted(story, "B") == []


@pytest.mark.parametrize(("engine", "leaves"), [("group", ["A"]), ("matrix", []), ("capacity", ["A"])])
def test_g02_the_settings_of_all_engines_may_stand_together_and_use_selects(engine: Any, leaves: list[str]) -> None:
    models: dict[str, Any] = {
        name: ModelSettings(gpus=(gpu,), capacities={"ram": 6}) for gpu, name in enumerate(("A", "B"))
    }
    story = Scenario(
        models=models,
        cap=0,
        engine=engine,
        groups={"turns": GroupSettings(members=("A", "B"))},
        matrix=TOGETHER,
        pools={"ram": 10},
    )
    story.loaded("A")
    assert evicted(story, "B") == leaves


@pytest.mark.parametrize(("swap", "leaves"), [(True, ["A"]), (False, [])])
def test_g03_members_of_a_group_take_turns_or_live_together(swap: bool, leaves: list[str]) -> None:
    story = grouped("A", "B", main=GroupSettings(members=("A", "B"), swap=swap))
    story.loaded("A")
    assert evicted(story, "B") == leaves


@pytest.mark.parametrize(("exclusive", "leaves"), [(True, ["A", "B"]), (False, [])])
def test_g04_a_member_of_an_exclusive_group_evicts_every_other_group(exclusive: bool, leaves: list[str]) -> None:
    story = grouped(
        "A",
        "B",
        "C",
        one=GroupSettings(members=("A",), exclusive=False),
        two=GroupSettings(members=("B",), exclusive=False),
        main=GroupSettings(members=("C",), exclusive=exclusive),
    )
    story.loaded("A", "B")
    assert evicted(story, "C") == leaves


@pytest.mark.parametrize(("persistent", "leaves"), [(False, ["A"]), (True, [])])
def test_g05_other_groups_do_not_evict_a_persistent_one(persistent: bool, leaves: list[str]) -> None:
    story = grouped("A", "B", for_ever=GroupSettings(members=("A",), exclusive=False, persistent=persistent))
    story.loaded("A")
    assert evicted(story, "B") == leaves


def test_g05_inside_a_persistent_group_members_take_turns_all_the_same() -> None:
    story = grouped("A", "B", for_ever=GroupSettings(members=("A", "B"), exclusive=False, persistent=True))
    story.loaded("A")
    assert evicted(story, "B") == ["A"]


def test_g07_models_in_no_group_are_a_group_that_takes_turns_and_drives_out_the_others() -> None:
    story = grouped("A", "B", "C", small=GroupSettings(members=("C",), swap=False, exclusive=False))
    story.loaded("A", "C")
    assert evicted(story, "B") == ["A", "C"]


def test_g08_loading_from_a_group_that_is_not_exclusive_leaves_a_running_exclusive_group_alone() -> None:
    """And the other way round it is evicted: what is loaded depends on the order."""
    groups = {
        "main": GroupSettings(members=("A",)),
        "small": GroupSettings(members=("E",), swap=False, exclusive=False),
    }
    story = grouped("A", "E", **groups)
    story.loaded("A")
    assert evicted(story, "E") == []
    other = grouped("A", "E", **groups)
    other.loaded("E")
    assert evicted(other, "A") == ["E"]


def test_a_group_of_scope_gpu_only_concerns_models_that_share_a_gpu_with_the_target() -> None:
    models: dict[str, tuple[int, ...] | ModelSettings] = {"A": (0,), "B": (1,), "C": (0, 1), "D": (1,)}
    story = Scenario(models=models, cap=0, engine="group", scope="gpu")
    story.loaded("A", "B")
    assert evicted(story, "D") == ["B"]
    story.swapped("B", to="D")
    assert evicted(story, "C") == ["A", "D"]


def test_loads_of_models_that_would_evict_each_other_do_not_run_at_the_same_time() -> None:
    """On different GPUs, but one group: the second load waits for the first."""
    story = grouped("A", "B", main=GroupSettings(members=("A", "B")))
    story.arrive({1: "A", 2: "B"})
    story.decides("swap to A (idle)", "spawn A/0", "hold 2 (swapping, hard) for A")


def test_loads_of_models_that_may_live_together_run_at_the_same_time() -> None:
    small = GroupSettings(members=("A", "B"), swap=False, exclusive=False)
    story = grouped("A", "B", small=small)
    story.arrive({1: "A", 2: "B"})
    story.decides("swap to A (idle)", "spawn A/0", "swap to B (idle)", "spawn B/0")


def test_the_order_of_arrival_holds_between_rivals_on_different_gpus() -> None:
    """B came first and waits for A to be idle; C may not load before it, although its GPU is free."""
    story = grouped("A", "B", "C", main=GroupSettings(members=("A", "B", "C")))
    story.serving((1, "A"))
    story.arrive({2: "B", 3: "C"})
    story.finishes(1)
    story.swapped("A", to="B")
    story.finishes(2)
    story.swapped("B", to="C")
    assert story.loads() == ["A", "B", "C"]


def test_a_busy_member_is_never_killed_for_another() -> None:
    story = grouped("A", "B", main=GroupSettings(members=("A", "B")))
    story.serving((1, "A"))
    story.arrives(2, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.finishes(1)
    story.decides("stop A/0 (evict)")


def test_a_persistent_model_is_not_evicted_by_its_group_and_the_request_is_told_at_once() -> None:
    models: dict[str, Any] = {"A": ModelSettings(gpus=(0,), persistent=True), "B": (1,)}
    story = Scenario(models=models, cap=0, engine="group")
    story.loaded("A")
    story.arrives(1, "B")
    story.decides("fail 1 (503 no_capacity)")


def test_a_cap_that_is_written_too_is_a_second_rule() -> None:
    """The group lets all live together; the cap of one per GPU still drives out who shares the GPU."""
    models: dict[str, Any] = {"A": (0,), "B": (1,), "C": (0,)}
    free = GroupSettings(members=("A", "B", "C"), swap=False, exclusive=False)
    story = Scenario(models=models, cap=1, engine="group", groups={"free": free})
    story.loaded("A", "B")
    assert evicted(story, "C") == ["A"]


def test_a_reload_that_puts_two_models_into_one_group_unloads_one_of_them() -> None:
    story = grouped("A", "B", free=GroupSettings(members=("A", "B"), swap=False, exclusive=False))
    story.loaded("A")
    story.after(1)
    story.loaded("B")
    story.reconfigures(groups={"turns": GroupSettings(members=("A", "B"))})
    story.decides("unload A (stale)", "stop A/0 (stale)")


def test_the_decision_names_the_engine() -> None:
    story = grouped("A", "B")
    story.loaded("A")
    evicted(story, "B")
    begun = story.last(e.SwapBegun)
    assert (begun.engine, begun.others) == ("group", [])
