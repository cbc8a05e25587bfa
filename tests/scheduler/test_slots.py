"""Which replica, and how much of it: slots, weights, the least busy one, ties."""

import pytest

from eventlog.settings import ModelSettings
from router.scheduler.state import CONVERSATIONS_MAX
from tests.scheduler.scenario import Scenario

TWO = {"A": ModelSettings(gpus=(0,), replicas=2)}


def test_a_replica_gets_as_many_generations_as_it_has_slots_and_the_rest_wait_here() -> None:
    story = Scenario(models={"A": (0,)}, slots=2)
    story.loaded("A")
    story.arrive({10: "A", 11: "A", 12: "A"})
    story.decides("dispatch 10 to A/0 (least_busy)", "dispatch 11 to A/0 (least_busy)")
    story.finishes(11)
    story.decides("dispatch 12 to A/0 (least_busy)")


def test_a_request_for_several_generations_waits_for_as_many_slots_and_nobody_passes_it() -> None:
    """n=3 on four slots, two of them taken: a single request behind it does not slip into the gap."""
    story = Scenario(models={"A": (0,)}, slots=4)
    story.loaded("A")
    story.arrive({10: "A", 11: "A"})
    story.arrives(12, "A", slots_wanted=3)
    story.arrives(13, "A")
    story.untold()
    story.finishes(10)
    story.decides("dispatch 12 to A/0 (least_busy)")
    assert story.state.replicas[story.replica("A")].load == 4
    story.finishes(12)
    story.decides("dispatch 13 to A/0 (least_busy)")


def test_a_request_that_wants_more_than_there_is_takes_the_whole_replica() -> None:
    story = Scenario(models={"A": (0,)}, slots=2)
    story.loaded("A")
    story.arrives(10, "A")
    story.arrives(11, "A", slots_wanted=100)
    story.decides("dispatch 10 to A/0 (least_busy)")
    story.finishes(10)
    story.decides("dispatch 11 to A/0 (least_busy)")


@pytest.mark.parametrize(("overcommit", "sent"), [(0, 1), (1, 2), (-1, 3)])
def test_overcommit_sends_more_than_there_are_slots(overcommit: int, sent: int) -> None:
    story = Scenario(models={"A": (0,)}, overcommit=overcommit)
    story.loaded("A")
    story.arrive({10: "A", 11: "A", 12: "A"})
    assert len(story.order()) == sent


def test_the_least_busy_replica_takes_the_next_request_and_ties_go_to_the_lowest_index() -> None:
    """Four requests on two replicas make two and two; where one ends, the next one goes."""
    story = Scenario(models=TWO, slots=3)
    story.loaded("A")
    story.arrive({10: "A", 11: "A", 12: "A", 13: "A"})
    story.decides(
        "dispatch 10 to A/0 (least_busy)",
        "dispatch 11 to A/1 (least_busy)",
        "dispatch 12 to A/0 (least_busy)",
        "dispatch 13 to A/1 (least_busy)",
    )
    story.finishes(13)
    story.arrives(14, "A")
    story.decides("dispatch 14 to A/1 (least_busy)")


def test_a_tie_goes_to_the_replica_that_served_the_conversation_last() -> None:
    story = Scenario(models=TWO, slots=2)
    story.loaded("A")
    story.arrives(10, "A")
    story.arrives(11, "A", conversation="x")
    story.finishes(10)
    story.finishes(11)
    story.untold()
    story.arrives(12, "A", conversation="x")
    story.decides("dispatch 12 to A/1 (affinity)")


def test_a_conversation_does_not_queue_up_behind_its_own_replica_while_another_is_less_busy() -> None:
    story = Scenario(models=TWO, slots=3)
    story.loaded("A")
    story.arrives(10, "A", conversation="x")
    story.arrives(11, "A", conversation="x")
    story.decides("dispatch 10 to A/0 (least_busy)", "dispatch 11 to A/1 (least_busy)")


def test_conversations_are_remembered_up_to_a_number_and_the_oldest_is_forgotten_first() -> None:
    story = Scenario(models=TWO, slots=2)
    story.strict = False
    story.loaded("A")
    for rid in range(10, 10 + CONVERSATIONS_MAX + 5):
        story.arrives(rid, "A", conversation=f"c{rid}")
        story.finishes(rid)
    remembered = list(story.state.models["A"].conversations)
    assert len(remembered) == CONVERSATIONS_MAX
    assert remembered[0] == "c15"


def test_a_model_with_one_replica_remembers_no_conversation() -> None:
    story = Scenario(models={"A": (0,)})
    story.loaded("A")
    story.arrives(10, "A", conversation="x")
    assert story.state.models["A"].conversations == {}


def test_affinity_can_be_switched_off() -> None:
    story = Scenario(models=TWO, slots=2, affinity=False)
    story.loaded("A")
    story.arrives(10, "A")
    story.arrives(11, "A", conversation="x")
    story.finishes(10)
    story.finishes(11)
    story.untold()
    story.arrives(12, "A", conversation="x")
    story.decides("dispatch 12 to A/0 (least_busy)")


def test_being_the_only_candidate_is_not_called_affinity() -> None:
    story = Scenario(models=TWO, slots=1)
    story.loaded("A")
    story.arrives(10, "A", conversation="x")
    story.arrives(11, "A")
    story.finishes(10)
    story.untold()
    story.arrives(12, "A", conversation="x")
    story.decides("dispatch 12 to A/0 (least_busy)")


def test_the_slots_are_those_that_each_replica_reported() -> None:
    story = Scenario(models=TWO)
    story.arrive(dict.fromkeys(range(1, 6), "A"))
    story.ready("A", 0, slots=1)
    story.ready("A", 1, slots=3)
    story.untold()
    assert story.order() == [1, 2, 3, 4]


def test_a_replica_that_reports_no_slot_is_taken_to_have_one() -> None:
    """Otherwise its model would be loaded and serve nobody for ever."""
    story = Scenario(models={"A": (0,)})
    story.arrives(1, "A")
    replica = story.replica("A")
    story.ready("A")
    story.finishes(1)
    story.stopped("A")
    story.arrives(2, "A")
    story.slots = 0
    assert story.replica("A") != replica
    story.ready("A")
    assert story.order() == [1, 2]


def test_a_model_serves_from_its_first_replica_while_the_second_still_loads() -> None:
    story = Scenario(models=TWO)
    story.arrive({1: "A", 2: "A"})
    story.untold()
    story.ready("A", 1)
    story.decides("dispatch 1 to A/1 (pay_out)")
    story.ready("A", 0)
    story.decides("finished swap to A", "dispatch 2 to A/0 (least_busy)")


def test_each_replica_gets_its_own_gpus_and_the_model_counts_on_all_of_them() -> None:
    """gpus [[0], [1]]: one process on each; another model on either has to wait for both to leave."""
    spread = ModelSettings(gpus=(0, 1), replica_gpus=((0,), (1,)), replicas=2)
    story = Scenario(models={"A": spread, "B": (1,)})
    story.loaded("A")
    orders = [decision for decision in story.log if hasattr(decision, "index")]
    assert [(order.index, order.gpus) for order in orders] == [(0, (0,)), (1, (1,))]
    story.arrives(10, "B")
    story.decides("swap to B (idle) evicting A", "stop A/0 (evict)", "stop A/1 (evict)")


def test_the_order_of_the_mask_is_the_owners() -> None:
    story = Scenario(models={"A": ModelSettings(gpus=(0, 2), mask=(2, 0))})
    story.arrives(1, "A")
    assert next(decision.gpus for decision in story.log if hasattr(decision, "gpus")) == (2, 0)
