"""QUEUE_FORCE_LOAD_TIMEOUT: the last resort. From arrival, over every priority, and never at the cost of work."""

from eventlog import events as e
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND, START_US

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (0,)}


def test_a_forced_request_stands_before_every_priority() -> None:
    story = Scenario(models=MODELS, force_s=20)
    story.serving((9, "A"))
    story.arrives(10, "A", priority=-5)
    story.at(10)
    story.arrives(11, "A", priority=9)
    story.at(20)
    story.finishes(9)
    story.decides("dispatch 10 to A/0 (least_busy)")


def test_force_counts_from_arrival_and_ends_an_endless_grace() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10_000, force_s=20)
    story.serving((9, "A"))
    story.arrives(10, "B", arrived_us=START_US - 5 * SECOND)
    story.at(14.9)
    assert story.loads() == ["A"]
    story.at(15)
    story.decides("hold 10 (grace) for A", "swap to B (forced) evicting A")
    assert story.last(e.SwapBegun).waited_us == 20 * SECOND


def test_force_never_cuts_work_in_flight() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10_000, force_s=20)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.at(500)
    story.decides("hold 10 (grace) for A", "swap to B (forced) evicting A")
    story.finishes(9)
    story.decides("stop A/0 (evict)")


def test_a_forced_request_does_not_look_at_who_else_is_wanted() -> None:
    """Cap 2: X is older but wanted, Y is younger and not. Unforced, Y would leave; forced, the older one leaves."""
    story = Scenario(models={"X": (0,), "Y": (0,), "B": (0,)}, cap=2, grace_s=10_000, force_s=20)
    story.serving((8, "X"), (9, "Y"))
    story.arrives(10, "B")
    story.at(5)
    story.arrives(11, "X")
    story.untold()
    story.at(20)
    story.decides("swap to B (forced) evicting X", "hold 11 (swapping) for B")


def test_a_low_priority_for_a_loaded_model_does_not_starve_either() -> None:
    story = Scenario(models=MODELS, force_s=20)
    story.serving((9, "A"))
    story.arrives(10, "A", priority=-5)
    for second in range(1, 25):
        story.at(second)
        story.arrives(10 + second, "A", priority=5)
        running = [rid for rid, request in story.state.requests.items() if request.replica]
        story.finishes(running[0])
    assert 10 in story.order()
    assert story.order().index(10) <= 21


def test_the_last_resort_can_be_switched_off() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10_000, force_s=0)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.at(9_999)
    assert story.loads() == ["A"]
    assert not [timer for timer in story.timers if timer[0] == "force"]


def test_a_shorter_timeout_after_a_reload_moves_the_timer() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10_000, force_s=300)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.at(10)
    story.reconfigures(force_load_us=20 * SECOND)
    assert story.timers["force", "queue"] == START_US + 20 * SECOND
    story.at(20)
    assert story.loads() == ["A", "B"]


def test_one_timer_serves_the_whole_queue() -> None:
    """It is set for the one that will be forced first, and again for the next when it fires."""
    story = Scenario(models=MODELS, slots=1, force_s=20)
    story.serving((9, "A"))
    story.at(1)
    for rid in range(10, 20):
        story.arrives(rid, "A")
        story.after(1)
    assert [timer for timer in story.timers if timer[0] == "force"] == [("force", "queue")]
    story.at(30)
    assert sum(request.forced for request in story.state.requests.values()) == 10
