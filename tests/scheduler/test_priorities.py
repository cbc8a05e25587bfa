"""Who is served first: forced requests, then the higher priority, then the order of arrival."""

from typing import Any

import pytest

from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario


def models(**priorities: int) -> dict[str, tuple[int, ...] | ModelSettings]:
    """On one GPU, of these priorities."""
    return {name: ModelSettings(gpus=(0,), priority=priority) for name, priority in priorities.items()}


def loading(story: Scenario, model: str) -> None:
    """Request 1 is being loaded for, so that nothing else can begin yet."""
    story.arrives(1, model)


def order_after(story: Scenario, *served: int) -> list[int]:
    """The model of request 1 comes up; these end, in order, each after whatever has to be swapped for the next."""
    for model in [model.name for model in story.state.models.values() if model.phase == "loading"]:
        story.ready(model)
    for rid in served:
        story.finishes(rid)
        for swap in list(story.state.swaps.values()):
            story.swapped(*swap.victims, to=swap.target)
    return story.order()


def test_g50_of_two_that_wait_the_model_of_priority_10_goes_first() -> None:
    story = Scenario(models=models(busy=0, low=1, high=10))
    loading(story, "busy")
    story.arrive({2: "low", 3: "high"})
    assert order_after(story, 1, 3) == [1, 3, 2]


def test_g50_of_equal_priority_the_order_of_arrival_counts() -> None:
    story = Scenario(models=models(busy=0, b=10, a=10))
    loading(story, "busy")
    story.arrive({2: "b", 3: "a"})
    assert order_after(story, 1, 2) == [1, 2, 3]


def test_a_priority_of_the_request_wins_over_that_of_its_model() -> None:
    story = Scenario(models=models(busy=0, low=0, high=10))
    loading(story, "busy")
    story.arrives(2, "high")
    story.arrives(3, "low", priority=11, priority_from="header")
    assert order_after(story, 1, 3) == [1, 3, 2]


@pytest.mark.parametrize(("said", "order"), [("header", [1, 3, 2]), ("", [1, 2, 3])])
def test_a_priority_of_0_counts_where_it_was_said(said: str, order: list[int]) -> None:
    """A client lowers its own request below the priority of the model: only if it really said so."""
    story = Scenario(models=models(busy=0, high=10, middle=5))
    loading(story, "busy")
    story.arrives(2, "high", priority=0, priority_from=said)
    story.arrives(3, "middle")
    assert order_after(story, 1, order[1]) == order


def test_within_one_model_priorities_count_as_well() -> None:
    story = Scenario(models=models(a=0))
    loading(story, "a")
    story.arrives(2, "a")
    story.arrives(3, "a", priority=1, priority_from="key")
    assert order_after(story, 1, 3) == [1, 3, 2]


def test_a_forced_request_goes_before_every_priority() -> None:
    """It has waited 20 s; a stream of priority 100 comes all the time, and none of it for so long."""
    story = Scenario(models=models(a=0), force_s=20)
    loading(story, "a")
    story.arrives(2, "a")
    for second in range(1, 21):
        story.at(second)
        story.arrives(100 + second, "a", priority=100)
    assert order_after(story, 1, 2)[:3] == [1, 2, 101]


@pytest.mark.parametrize("engine", ["residency", "group", "matrix", "capacity"])
def test_a_low_priority_does_not_starve_under_any_engine(engine: Any) -> None:
    """Requests of priority 100 for one model come before each end; the other model is loaded after the timeout."""
    named: dict[str, tuple[int, ...] | ModelSettings] = {
        name: ModelSettings(gpus=(0,), capacities={"ram": 6}) for name in ("high", "low")
    }
    cap = 1 if engine == "residency" else 0
    story = Scenario(models=named, cap=cap, force_s=30, engine=engine, pools={"ram": 10})
    story.serving((1, "high"))
    story.arrives(2, "low")
    running = 1
    for second in range(1, 40):
        story.at(second)
        if story.state.requests.get(running) and story.state.requests[running].replica:
            story.arrives(100 + second, "high", priority=100)
            story.finishes(running)
            running = 100 + second
    assert story.loads() == ["high", "low"]
    story.swapped("high", to="low")
    assert 2 in story.order()


def test_a_load_that_has_begun_serves_whoever_asked_for_it_first() -> None:
    """A higher priority that comes while it loads does not take it away."""
    story = Scenario(models=models(a=0, b=0))
    story.arrives(1, "a")
    story.arrives(2, "b", priority=100)
    story.ready("a")
    assert story.order() == [1]
