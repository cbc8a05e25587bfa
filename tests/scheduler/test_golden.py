"""Golden scenarios: whole stories whose order, loads and seconds are known beforehand."""

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners, World

ON_ONE_GPU = {name: ModelSettings(gpus=(0,)) for name in "ABCD"}
NEVER_S = 10_000


def world(grace_s: float, *, slots: int = 1, force_s: float = 300, **settings: object) -> World:
    """Four models on one GPU; loads take 6 s, requests 1 s."""
    return World(
        SchedulerSettings(
            models=ON_ONE_GPU,
            head_grace_us=round(grace_s * SECOND),
            force_load_us=round(force_s * SECOND),
            **settings,  # type: ignore[arg-type]
        ),
        manners=Manners(slots=(slots, slots)),
    )


def test_g1_a_free_slot_does_not_tempt_a_later_request_past_an_earlier_one() -> None:
    """A, B, A with two slots and no grace: the second A has a free slot beside the first, and still waits for B."""
    w = world(0, slots=2)
    for model in "ABA":
        w.arrives(0, model, service_s=5)
    w.run()
    assert w.order() == [1, 2, 3]
    assert [target for _, target, _ in w.loads()] == ["A", "B", "A"]


def test_g2_at_no_grace_alternating_models_pay_one_swap_each() -> None:
    w = world(0)
    for model in "ABABAB":
        w.arrives(0, model)
    w.run()
    assert w.order() == [1, 2, 3, 4, 5, 6]
    assert len(w.loads()) == 6


def test_g2_a_grace_of_30_s_batches_them_into_two_loads() -> None:
    """Order 0 2 4 1 3 5, counted from 0."""
    w = world(30)
    for model in "ABABAB":
        w.arrives(0, model)
    w.run()
    assert [rid - 1 for rid in w.order()] == [0, 2, 4, 1, 3, 5]
    assert [target for _, target, _ in w.loads()] == ["A", "B"]


def test_g3_a_hold_on_one_gpu_does_not_delay_another() -> None:
    """B holds GPU 0 while A drains there; C on GPU 2 is served at once, on arrival."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (2,)}, slots=2)
    story.loaded("C")
    story.serving((10, "A"))
    story.arrives(11, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.arrives(12, "A")
    story.decides("hold 12 (swapping, hard) for B")
    story.arrives(13, "C")
    story.decides("dispatch 13 to C/0 (least_busy)")


def test_g4_a_swap_evicts_on_the_gpus_it_needs_and_nowhere_else() -> None:
    """A and B on GPUs 0 and 1, C and D on GPU 2: B takes exactly A's place, then D exactly C's."""
    story = Scenario(models={"A": (0, 1), "B": (0, 1), "C": (2,), "D": (2,)})
    story.loaded("A", "C")
    c = story.replica("C")
    story.arrives(10, "B")
    story.decides("swap to B (idle) evicting A", "stop A/0 (evict)")
    story.swapped("A", to="B")
    story.decides("spawn B/0", "dispatch 10 to B/0 (pay_out)", "finished swap to B")
    assert story.replica("C") == c
    story.arrives(11, "D")
    story.decides("swap to D (idle) evicting C", "stop C/0 (evict)")
    assert story.last(e.SwapBegun).footprint == (2,)
    assert story.phase("B") == "ready"


def test_g5_force_is_the_last_resort_behind_an_endless_grace() -> None:
    """Steady traffic for A, two at a time. B arrives at 8.0 s with 20 s of patience: its swap begins at 28.0 s."""
    w = world(NEVER_S, slots=2, force_s=20)
    for second in range(60):
        if second == 8:
            b = w.arrives(8.0, "B")
        w.arrives(second, "A", service_s=1.5)
    w.run()
    assert w.loads()[:2] == [(0.0, "A", "idle"), (28.0, "B", "forced")]
    assert len(w.outcomes) == 61
    sent = next(event for event in w.record if isinstance(event, e.RequestDispatched) and event.rid == b)
    assert sent.waited_us >= 26 * SECOND
    w.assert_nothing_is_left()


def test_g6_a_swap_that_nobody_wants_any_more_is_called_off_while_it_drains() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)}, slots=2)
    story.serving((10, "A"))
    story.arrives(11, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.leaves(11)
    story.decides("abort swap to B (unwanted)")
    story.arrives(12, "A")
    story.decides("dispatch 12 to A/0 (least_busy)")
    assert story.loads() == ["A", "B"]
    assert not any(isinstance(decision, e.ReplicaStopOrdered) for decision in story.log)


def test_g7_a_model_on_two_gpus_gets_its_place_among_traffic_on_each() -> None:
    """W needs both GPUs, each busy with its own model: later requests for those wait behind W, and W is third."""
    story = Scenario(models={"A": (0,), "B": (1,), "W": (0, 1)})
    story.serving((10, "A"), (11, "B"))
    story.arrive({12: "W", 13: "A", 14: "B"})
    story.finishes(10)
    story.finishes(11)
    story.stopped("A")
    story.stopped("B")
    story.ready("W")
    story.finishes(12)
    assert story.order() == [10, 11, 12]
    story.stopped("W")
    story.ready("A")
    story.ready("B")
    assert story.order() == [10, 11, 12, 13, 14]


def test_g8_earlier_requests_that_wait_for_a_slot_protect_their_model() -> None:
    """A's only slot is taken and a second A waits for it; B comes third and may not evict A under the second."""
    story = Scenario(models={"A": (0,), "B": (0,)})
    story.serving((10, "A"))
    story.arrive({11: "A", 12: "B", 13: "A"})
    story.decides("hold 12 (protected, hard) for A")
    story.finishes(10)
    story.decides(
        "dispatch 11 to A/0 (least_busy)",
        "swap to B (grace_over) evicting A",
        "hold 13 (swapping, hard) for B",
    )
    story.finishes(11)
    story.swapped("A", to="B")
    assert story.order() == [10, 11, 12]


def test_g9_priorities_sort_the_queue_but_a_load_under_way_pays_out() -> None:
    """C is more urgent than B, but arrives while B is being loaded: B's request is served, then C's turn comes."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)})
    story.serving((10, "A"))
    story.arrives(11, "B", priority=0)
    story.arrives(12, "C", priority=5)
    story.arrives(13, "B", priority=9)
    story.finishes(10)
    story.stopped("A")
    story.untold()
    story.ready("B")
    story.decides(
        "dispatch 11 to B/0 (pay_out, overtaking 1)",
        "finished swap to B",
        "hold 12 (protected, hard) for B",
    )
    story.finishes(11)
    story.decides("dispatch 13 to B/0 (least_busy)", "swap to C (grace_over) evicting B")


def test_g10_a_failed_load_fails_its_queue_and_frees_the_gpu_for_others() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)})
    story.arrive({1: "A", 2: "A", 3: "B"})
    story.untold()
    story.load_fails("A", kind="missing_file")
    story.decides(
        "cool down A (missing_file)",
        "failed swap to A",
        "fail 1 (502 model_load_failed)",
        "fail 2 (502 model_load_failed)",
        "swap to B (idle)",
        "spawn B/0",
    )


def test_g11_a_request_that_met_a_crash_unsent_is_tried_once_more_in_its_place() -> None:
    story = Scenario(models={"A": (0,)})
    story.serving((10, "A"))
    story.arrives(11, "A")
    story.crashes("A")
    story.decides("requeue 10 (upstream_lost), attempt 2", "swap to A (idle)", "spawn A/0")
    story.ready("A")
    story.decides("dispatch 10 to A/0 (alone, attempt 2)", "finished swap to A")
    story.finishes(10)
    story.decides("dispatch 11 to A/0 (least_busy)")


def test_g12_swaps_on_different_gpus_run_at_the_same_time() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (1,), "D": (1,)})
    story.loaded("A", "C")
    story.arrive({10: "B", 11: "D"})
    story.decides(
        "swap to B (idle) evicting A",
        "stop A/0 (evict)",
        "swap to D (idle) evicting C",
        "stop C/0 (evict)",
    )
    story.stopped("C")
    story.decides("spawn D/0")
    story.stopped("A")
    story.decides("spawn B/0")


def test_g16_a_detached_stream_keeps_its_model_until_it_ends() -> None:
    """The reader of a resumable stream hangs up: the generation goes on, and B waits for its end."""
    story = Scenario(models={"A": (0,), "B": (0,)})
    story.loaded("A")
    story.arrives(10, "A", detached=True)
    story.happens(e.ClientDetached(rid=10))
    story.arrives(11, "B")
    story.after(100)
    story.decides("dispatch 10 to A/0 (least_busy)", "swap to B (grace_over) evicting A")
    story.finishes(10)
    story.decides("stop A/0 (evict)")


@pytest.mark.parametrize("late_s", [0.0, 0.5, 30.0])
def test_g17_a_late_timer_changes_nothing(late_s: float) -> None:
    """Grace is over at 5 s. A fact that comes later decides at once, and the timer that comes after it does nothing."""
    story = Scenario(models={"A": (0,), "B": (0,)}, slots=2, grace_s=5)
    story.serving((10, "A"))
    story.arrives(11, "B")
    story.decides("hold 11 (grace) for A", "set grace:11 to 5 s", timers=True)
    story.now_us += round((5 + late_s) * SECOND)
    story.arrives(12, "A")
    story.decides("swap to B (grace_over) evicting A", "hold 12 (swapping) for B")
    digest = story.digest()
    for _ in range(2):
        story.happens(e.TimerFired(kind="grace", key="11", due_us=0))
        story.decides(timers=True)
        assert story.digest() == digest
