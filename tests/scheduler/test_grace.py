"""QUEUE_HEAD_GRACE: how long later requests may pass a head whose model is not loaded. Tolerance, not delay."""

from eventlog import events as e
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND, START_US

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (0,)}


def test_within_its_grace_a_head_is_passed_by_requests_for_the_loaded_model() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=5)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.after(4)
    story.arrives(11, "A")
    story.decides("hold 10 (grace) for A", "dispatch 11 to A/0 (least_busy, overtaking 1)")


def test_when_the_grace_is_over_the_victim_takes_no_more_and_leaves_once_idle() -> None:
    """The swap begins by the timer, at 5 s sharp; what runs on A ends in peace."""
    story = Scenario(models=MODELS, slots=2, grace_s=5)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.decides("hold 10 (grace) for A", "set grace:10 to 5 s", timers=True)
    story.at(6)
    story.decides("swap to B (grace_over) evicting A")
    assert story.last(e.SwapBegun).head_since_us == START_US
    assert story.last(e.SwapBegun).waited_us == 5 * SECOND
    story.arrives(11, "A")
    story.decides("hold 11 (swapping) for B")
    story.finishes(9)
    story.decides("stop A/0 (evict)")


def test_grace_is_no_delay_when_the_victims_are_idle_and_nobody_wants_them() -> None:
    story = Scenario(models=MODELS, grace_s=1000)
    story.loaded("A")
    story.arrives(10, "B")
    story.decides("swap to B (idle) evicting A", "stop A/0 (evict)")


def test_the_swap_begins_as_soon_as_the_victims_become_idle_within_the_grace() -> None:
    story = Scenario(models=MODELS, grace_s=1000)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.after(3)
    story.untold()
    story.finishes(9)
    story.decides("swap to B (idle) evicting A", "cancel grace:10", "stop A/0 (evict)", timers=True)


def test_the_clock_starts_when_the_request_becomes_the_blocked_head() -> None:
    """C stands behind B from the first second. Its grace does not begin before B is out of its way."""
    story = Scenario(models=MODELS, slots=2, grace_s=10)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.arrives(11, "C")
    assert story.state.requests[11].head_since_us == -1
    story.at(8)
    story.leaves(10)
    assert story.state.requests[11].head_since_us == START_US + 8 * SECOND
    story.at(17.9)
    assert story.loads() == ["A"]
    story.at(18)
    assert story.loads() == ["A", "C"]


def test_counted_from_arrival_a_head_that_is_older_than_the_grace_has_none() -> None:
    """The other reading: C arrived 8 s before it became the head, so its 10 s of grace end after two more."""
    story = Scenario(models=MODELS, slots=2, grace_s=10, head_grace_from="arrival")
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.arrives(11, "C")
    story.at(8)
    story.leaves(10)
    story.at(9.9)
    assert story.loads() == ["A"]
    story.at(10)
    assert story.loads() == ["A", "C"]


def test_counted_from_arrival_the_time_of_the_headers_counts() -> None:
    story = Scenario(models=MODELS, grace_s=10, head_grace_from="arrival")
    story.serving((9, "A"))
    story.arrives(10, "B", arrived_us=START_US - 10 * SECOND)
    story.decides("swap to B (grace_over) evicting A")


def test_a_grace_counted_from_the_head_is_not_begun_anew_by_a_priority_that_jumps_ahead() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.at(6)
    story.arrives(11, "C", priority=5)
    story.at(9)
    story.leaves(11)
    story.at(10)
    assert story.loads() == ["A", "B"]


def test_a_wish_has_no_grace_to_give() -> None:
    """Somebody asked for the model itself: traffic for its victim does not hold it up."""
    story = Scenario(models=MODELS, slots=2, grace_s=1000)
    story.serving((9, "A"))
    story.wished(1, 10, "B")
    story.decides("swap to B (wish) evicting A")


def test_a_hold_is_told_once_per_change() -> None:
    story = Scenario(models=MODELS, slots=3, grace_s=5)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.decides("hold 10 (grace) for A")
    for rid in (11, 12):
        story.arrives(rid, "A")
    story.arrives(13, "A")
    story.decides(
        "dispatch 11 to A/0 (least_busy, overtaking 1)",
        "dispatch 12 to A/0 (least_busy, overtaking 1)",
    )


def test_out_of_its_grace_a_head_that_cannot_swap_yet_still_blocks_later_requests_for_its_victim() -> None:
    """B waits behind an earlier A that has no slot. When a slot is free, the earlier A gets it, and the later none."""
    story = Scenario(models=MODELS, slots=1)
    story.serving((9, "A"))
    story.arrive({10: "A", 11: "B", 12: "A"})
    story.finishes(9)
    story.finishes(10)
    assert story.order() == [9, 10]
    assert story.phase("A") == "stopping"


def test_the_time_ends_a_grace_and_not_the_firing_of_its_timer() -> None:
    """Two graces end in the same moment on different GPUs; the first timer that fires finds both over."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (1,), "D": (1,)}, grace_s=5)
    story.serving((1, "A"), (2, "C"))
    story.arrives(11, "B")
    story.arrives(12, "D")
    story.untold()
    story.now_us += 5 * SECOND

    story.happens(e.TimerFired(kind="grace", key="12", due_us=story.now_us))

    assert story.loads()[-2:] == ["B", "D"]
