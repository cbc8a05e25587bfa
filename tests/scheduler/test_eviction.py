"""Who leaves so that another model fits: only what is needed, only where it is needed, in a known order."""

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario


def victims(story: Scenario) -> list[str]:
    return [victim.model for victim in story.last(e.SwapBegun).victims]


@pytest.mark.parametrize(("policy", "leaves"), [("lru", "A"), ("fifo", "B")])
def test_lru_evicts_what_was_used_longest_ago_and_fifo_what_was_loaded_first(policy: str, leaves: str) -> None:
    """B was loaded first and used last."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2, eviction=policy)
    for second, (rid, model) in enumerate([(10, "B"), (11, "A"), (12, "B")]):
        story.at(second)
        story.serving((rid, model))
        story.finishes(rid)
    story.at(10)
    story.arrives(13, "C")
    assert victims(story) == [leaves]


def test_a_load_counts_as_a_use() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.serving((10, "B"))
    story.finishes(10)
    story.after(1)
    story.loaded("A")
    story.after(1)
    story.arrives(11, "C")
    assert victims(story) == ["B"]


def test_the_end_of_a_request_counts_as_a_use_too() -> None:
    """A's request began before B's and ended after it."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.serving((10, "A"))
    story.after(1)
    story.serving((11, "B"))
    story.after(1)
    story.finishes(11)
    story.after(1)
    story.finishes(10)
    story.arrives(12, "C")
    assert victims(story) == ["B"]


def test_a_model_that_nobody_waits_for_leaves_before_one_that_is_wanted() -> None:
    """Both are busy; A is older, but a request waits for it."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2, grace_s=100)
    story.serving((10, "A"), (11, "B"))
    story.arrives(12, "A")
    story.arrives(13, "C", priority=1)
    assert story.last(e.RequestHeld).victims == ["B"]
    story.finishes(11)
    assert victims(story) == ["B"]


def test_when_all_are_wanted_the_oldest_leaves() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.serving((10, "A"))
    story.after(1)
    story.serving((11, "B"))
    story.arrives(12, "C", priority=1)
    story.untold()
    story.arrive({13: "A", 14: "B"})
    assert victims(story) == ["A"]


@pytest.mark.parametrize(("prefer_idle", "leaves"), [(True, "B"), (False, "A")])
def test_an_idle_model_leaves_before_a_busy_one_unless_told_otherwise(prefer_idle: bool, leaves: str) -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2, prefer_idle=prefer_idle)
    story.serving((10, "A"))
    story.after(1)
    story.loaded("B")
    story.after(1)
    story.arrives(11, "C")
    assert victims(story) == [leaves]


def test_equal_candidates_leave_by_name() -> None:
    story = Scenario(models={"B": (0,), "A": (0,), "C": (0,)}, cap=2)
    story.loaded("B", "A")
    story.arrives(10, "C")
    assert victims(story) == ["A"]


def test_the_choice_is_logged_with_the_figures_it_was_made_by_and_with_who_else_could_have_left() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.serving((10, "A"))
    story.after(2)
    story.loaded("B")
    story.after(3)
    story.arrives(11, "C")
    begun = story.last(e.SwapBegun)
    assert begun.victims == [e.Victim(model="B", age_us=3_000_000, gpus=(0,))]
    assert begun.others == [e.Victim(model="A", in_flight=1, age_us=5_000_000, gpus=(0,))]


def test_there_is_room_for_as_many_models_per_gpu_as_configured() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.loaded("A")
    story.arrives(10, "B")
    story.decides("swap to B (idle)", "spawn B/0")


def test_a_model_that_loads_counts_and_cannot_be_evicted_for_another() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.loaded("A")
    story.arrives(10, "B")
    story.untold()
    story.arrives(11, "C")
    story.decides("hold 11 (swapping, hard) for B")


def test_a_cap_of_two_on_two_gpus_evicts_one_model_per_full_gpu() -> None:
    """GPU 0 holds A and B, GPU 1 only C: W, on both, takes one place on GPU 0 and finds one on GPU 1."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (1,), "W": (0, 1)}, cap=2)
    story.loaded("A", "B", "C")
    story.arrives(10, "W")
    assert victims(story) == ["A"]


def test_a_model_on_all_gpus_evicts_on_all_of_them() -> None:
    story = Scenario(models={"A": (0,), "B": (1,), "C": (2,), "all": (0, 1, 2)})
    story.loaded("A", "B", "C")
    story.arrives(10, "all")
    assert victims(story) == ["A", "B", "C"]
    assert story.last(e.SwapBegun).footprint == (0, 1, 2)


def test_an_evicted_model_stops_counting_on_every_gpu_it_spanned() -> None:
    """A, on 0 and 1, leaves for B on 0. Then C loads on 1 and evicts nobody."""
    story = Scenario(models={"A": (0, 1), "B": (0,), "C": (1,)})
    story.loaded("A")
    story.arrives(10, "B")
    story.swapped("A", to="B")
    story.untold()
    story.arrives(11, "C")
    story.decides("swap to C (idle)", "spawn C/0")


def test_a_victim_that_a_later_choice_makes_needless_stays() -> None:
    """GPU 0's oldest is A; GPU 1's only one is W, which is on GPU 0 too: when W leaves, A may stay."""
    story = Scenario(models={"A": (0,), "W": (0, 1), "X": (0, 1), "V": (1,)}, cap=2)
    story.loaded("A")
    story.after(1)
    story.loaded("W")
    story.after(1)
    story.loaded("V")
    story.arrives(10, "X")
    assert victims(story) == ["W"]


def test_a_persistent_model_is_passed_over() -> None:
    models = {"A": ModelSettings(persistent=True), "B": ModelSettings(), "C": ModelSettings()}
    story = Scenario(models=models, cap=2)
    story.loaded("A", "B")
    story.after(1)
    story.serving((9, "B"))
    story.arrives(10, "C")
    assert victims(story) == ["B"]


def test_a_model_that_can_never_fit_is_refused_at_once_and_nobody_is_evicted_for_it() -> None:
    """W needs GPUs 0 and 1; A on 0 may leave, P on 1 never does."""
    models = {
        "A": ModelSettings(gpus=(0,)),
        "P": ModelSettings(gpus=(1,), persistent=True),
        "W": ModelSettings(gpus=(0, 1)),
    }
    story = Scenario(models=models)
    story.loaded("A", "P")
    story.arrives(10, "W")
    story.decides("fail 10 (503 no_capacity)")
    assert story.last(e.RequestFailed).reason == "P may not be evicted for it"
    story.wished(7, 11, "W")
    story.decides("done 7 (failed no_capacity)")


def test_a_model_pinned_to_a_gpu_that_does_not_exist_is_refused() -> None:
    story = Scenario(models={"A": (0,), "far": (0, 5)}, gpus=2)
    story.loaded("A")
    story.arrives(10, "far")
    story.decides("reject 10 (503 no_capacity)")
    story.wished(7, 11, "far")
    story.decides("done 7 (failed no_capacity)")


def test_a_model_whose_second_replica_still_loads_is_waited_for() -> None:
    """A serves from its first replica. B is due (no grace), so A gets nothing new, and leaves when it has settled."""
    story = Scenario(models={"A": ModelSettings(replicas=2), "B": ModelSettings()}, slots=2)
    story.arrives(10, "A")
    story.ready("A", 0)
    story.untold()
    story.arrives(11, "B")
    story.arrives(12, "A")
    story.decides("hold 11 (swapping, hard) for A")
    story.finishes(10)
    story.ready("A", 1)
    story.decides(
        "finished swap to A",
        "swap to B (grace_over) evicting A",
        "stop A/0 (evict)",
        "stop A/1 (evict)",
        "hold 12 (swapping, hard) for B",
    )
