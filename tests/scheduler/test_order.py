"""The order of the queue: arrival, priority, keys; and what earlier requests keep later ones from."""

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario

ONE_GPU: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (0,)}


def test_a_place_in_the_queue_is_that_of_the_headers_not_of_the_body() -> None:
    """Request 10 sent its headers first and a long body; it still stands before 11."""
    story = Scenario(models=ONE_GPU)
    story.serving((9, "A"))
    story.arrives(11, "A")
    story.arrives(10, "A")
    story.finishes(9)
    story.finishes(10)
    assert story.order() == [9, 10, 11]


def test_higher_priorities_stand_first_and_equals_by_arrival() -> None:
    story = Scenario(models=ONE_GPU)
    story.serving((9, "A"))
    for rid, priority in {10: 0, 11: 5, 12: -1, 13: 5}.items():
        story.arrives(rid, "A", priority=priority)
    for rid in (9, 11, 13, 10):
        story.finishes(rid)
    assert story.order() == [9, 11, 13, 10, 12]


def test_the_key_s_priority_goes_before_the_model_s() -> None:
    models = {"A": ModelSettings(priority=3), "B": ModelSettings(priority=1)}
    story = Scenario(models=models)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.arrives(11, "A")
    story.arrives(12, "B", priority=9)
    assert [story.state.requests[rid].priority for rid in (10, 11, 12)] == [1, 3, 9]


def test_at_no_grace_a_later_request_does_not_take_the_free_slot_of_a_model_that_must_leave() -> None:
    """A has a free slot; B, which must evict A, came before the second A."""
    story = Scenario(models=ONE_GPU, slots=2)
    story.serving((9, "A"))
    story.arrives(10, "A", priority=0)
    story.arrives(11, "B")
    story.arrives(12, "A")
    story.finishes(9)
    story.finishes(10)
    assert story.order() == [9, 10]
    story.swapped("A", to="B")
    assert story.order() == [9, 10, 11]


def test_two_waiting_models_get_the_gpu_in_the_order_of_their_first_requests() -> None:
    """C's swap may not begin before B's, although neither can begin yet."""
    story = Scenario(models=ONE_GPU)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.arrives(11, "C")
    story.decides("hold 11 (swapping, hard) for B")
    story.finishes(9)
    story.untold()
    story.swapped("A", to="B")
    story.finishes(10)
    story.decides(
        "spawn B/0",
        "dispatch 10 to B/0 (pay_out)",
        "finished swap to B",
        "swap to C (grace_over) evicting B",
        "stop B/0 (evict)",
    )


def test_a_claim_covers_the_whole_span_of_the_victims() -> None:
    """B waits for W, which is on GPUs 0 and 1. C, later, could have GPU 1 after W too; D on GPU 2 is none of that."""
    story = Scenario(models={"W": (0, 1), "B": (0,), "C": (1,), "D": (2,)}, grace_s=60)
    story.serving((9, "W"))
    story.arrive({10: "B", 11: "C", 12: "D"})
    story.decides(
        "hold 10 (grace) for W",
        "hold 11 (claimed) for rid:10",
        "swap to D (idle)",
        "spawn D/0",
    )


def test_an_overtaking_is_counted_and_the_first_of_those_passed_are_named() -> None:
    story = Scenario(models=ONE_GPU, slots=2, grace_s=60)
    story.serving((9, "A"))
    story.arrive({10: "B", 11: "B", 12: "C", 13: "A"})
    sent = story.last(e.RequestDispatched)
    assert (sent.rid, sent.overtook, sent.overtook_first) == (13, 3, [10, 12])


def test_a_key_at_its_limit_is_skipped_and_protects_nothing() -> None:
    """K may run one at a time. Its second request for A does not keep B from evicting A, though it came first."""
    story = Scenario(models=ONE_GPU, slots=2, parallel={"K": 1})
    story.loaded("A", "A")
    story.arrives(10, "A", key="K")
    story.arrives(11, "A", key="K")
    story.untold()
    story.arrives(12, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.finishes(10)
    story.untold()
    story.swapped("A", to="B")
    story.decides(
        "spawn B/0",
        "dispatch 12 to B/0 (pay_out, overtaking 1)",
        "finished swap to B",
        "swap to A (grace_over) evicting B",
    )


def test_a_key_at_its_limit_claims_nothing_and_others_of_its_model_go_first() -> None:
    story = Scenario(models=ONE_GPU, slots=3, parallel={"K": 1})
    story.loaded("A")
    story.arrives(10, "A", key="K")
    story.arrives(11, "B", key="K")
    story.arrives(12, "A", key="K")
    story.arrives(13, "A", key="other")
    assert story.order() == [10, 13]
    assert story.loads() == ["A"]
    story.finishes(10)
    assert story.loads() == ["A", "B"]


def test_a_key_at_its_limit_is_not_forced_meanwhile() -> None:
    """Forced, it would stand before everybody; skipped, it does not stand anywhere. Its turn comes with its key's."""
    story = Scenario(models=ONE_GPU, slots=2, force_s=20, parallel={"K": 1})
    story.loaded("A")
    story.arrives(10, "A", key="K")
    story.arrives(11, "B", key="K")
    story.after(100)
    story.arrives(12, "A")
    assert story.order() == [10, 12]
    story.finishes(10)
    assert story.loads() == ["A", "B"]


@pytest.mark.parametrize("how", ["finishes", "leaves", "crash"])
def test_a_key_s_place_is_free_again_however_its_request_ends(how: str) -> None:
    story = Scenario(models={"A": (0,), "B": (1,)}, parallel={"K": 1})
    story.loaded("A", "B")
    story.arrives(10, "A", key="K")
    story.arrives(11, "B", key="K")
    if how == "finishes":
        story.finishes(10)
    elif how == "leaves":
        story.leaves(10)
    else:
        story.crashes("A", begun=(10,))
    assert story.order() == [10, 11]


def test_a_model_on_the_cpu_waits_for_nobody() -> None:
    story = Scenario(models={"A": (0,), "cpu": ()})
    story.serving((9, "A"))
    story.arrives(10, "cpu")
    story.decides("swap to cpu (idle)", "spawn cpu/0")
    story.ready("cpu")
    assert story.order() == [9, 10]


def test_an_unknown_model_is_refused_and_never_enters_the_queue() -> None:
    story = Scenario(models=ONE_GPU)
    story.arrives(1, "nope")
    story.decides("reject 1 (404 model_not_found)")
