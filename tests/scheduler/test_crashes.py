"""Ready replicas that die, hang, or lose a connection: who is tried again, who is blamed, who cools down."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (1,)}
TWO = {"A": ModelSettings(gpus=(0,), replicas=2)}


def test_a_request_whose_answer_had_begun_ends_with_the_crash() -> None:
    story = Scenario(models=MODELS, slots=2)
    story.serving((10, "A"), (11, "A"))
    story.crashes("A", begun=(10,))
    story.decides(
        "fail 10 (502 upstream_crashed)",
        "requeue 11 (upstream_lost), attempt 2",
        "swap to A (idle)",
        "spawn A/0",
    )
    failed = story.last(e.RequestFailed)
    assert (failed.begun, failed.suspect) == (True, False)


def test_no_dispatch_goes_to_a_replica_that_may_be_dead() -> None:
    story = Scenario(models=MODELS, slots=2)
    story.serving((10, "A"))
    story.loses(10)
    story.untold()
    story.arrives(11, "A")
    story.decides()


def test_a_replica_that_answers_a_probe_is_trusted_again_and_the_request_runs_alone() -> None:
    story = Scenario(models=MODELS, slots=2)
    story.serving((10, "A"))
    story.loses(10)
    story.arrives(11, "A")
    story.untold()
    story.answers("A")
    story.decides("dispatch 10 to A/0 (alone, attempt 2)")
    story.finishes(10)
    story.decides("dispatch 11 to A/0 (least_busy)")


def test_a_request_keeps_its_place_through_a_crash() -> None:
    story = Scenario(models=MODELS)
    story.serving((10, "A"))
    story.arrives(11, "A")
    story.crashes("A")
    story.ready("A")
    assert story.order() == [10, 10]


def test_a_request_that_kills_replicas_twice_is_named_and_its_neighbours_survive() -> None:
    """Four in flight when the replica dies. Each runs alone the second time; the poison is among them."""
    story = Scenario(models=MODELS, slots=4)
    story.loaded("A")
    for rid in (10, 11, 12, 13):
        story.arrives(rid, "A", conversation=f"c{rid}")
    story.crashes("A")
    story.ready("A")
    story.finishes(10)
    story.untold()
    story.crashes("A")
    story.decides(
        "fail 11 (502 upstream_crashed, suspect)",
        "swap to A (idle)",
        "spawn A/0",
    )
    story.ready("A")
    story.finishes(12)
    story.finishes(13)
    assert {rid: story.outcomes[rid] for rid in (10, 11, 12, 13)} == {
        10: "finished",
        11: "502 upstream_crashed",
        12: "finished",
        13: "finished",
    }
    assert story.state.suspects == ["c11"]
    assert not any(isinstance(decision, e.ModelCooledDown) for decision in story.log)


def test_nobody_joins_a_request_that_runs_alone() -> None:
    story = Scenario(models=MODELS, slots=4)
    story.serving((10, "A"))
    story.crashes("A")
    story.ready("A")
    story.untold()
    story.arrives(11, "A")
    story.arrives(12, "A", work="metadata")
    story.decides()
    story.finishes(10)
    story.decides("dispatch 11 to A/0 (least_busy)", "dispatch 12 to A/0 (least_busy)")


def test_a_request_that_must_run_alone_waits_for_an_empty_replica() -> None:
    """Of two replicas, the other one serves. It takes nobody new while the one that must be alone waits."""
    story = Scenario(models=TWO, slots=2)
    story.loaded("A")
    story.arrive({10: "A", 11: "A"})
    story.crashes("A", 0)
    story.arrives(12, "A")
    story.untold()
    story.finishes(11)
    story.decides("dispatch 10 to A/1 (alone, attempt 2)")


def test_a_model_that_crashes_twice_within_a_minute_cools_down_and_its_queue_fails() -> None:
    """Idle crashes: nobody is to blame but the model."""
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.crashes("A")
    story.after(30)
    story.loaded("A")
    story.crashes("A")
    story.decides("cool down A (crashes)")
    story.after(1)
    story.arrives(10, "A")
    story.decides("fail 10 (503 model_cooling_down)")
    story.after(9)
    story.arrives(11, "A")
    story.decides("swap to A (idle)", "spawn A/0")


def test_a_model_that_crashes_under_one_fresh_request_after_another_cools_down_too() -> None:
    """Each met its first crash: none of them is to blame."""
    story = Scenario(models=MODELS)
    story.serving((10, "A"))
    story.crashes("A", begun=(10,))
    story.serving((11, "A"))
    story.crashes("A", begun=(11,))
    story.decides("fail 11 (502 upstream_crashed)", "cool down A (crashes)")


def test_two_crashes_further_apart_than_a_minute_are_none_of_that() -> None:
    story = Scenario(models=MODELS)
    for _ in range(3):
        story.loaded("A")
        story.crashes("A")
        story.after(61)
    story.decides()


def test_a_crash_under_a_request_that_had_met_one_before_is_not_put_down_to_the_model() -> None:
    story = Scenario(models=MODELS)
    story.serving((10, "A"))
    story.crashes("A")
    story.ready("A")
    story.untold()
    story.crashes("A")
    story.decides("fail 10 (502 upstream_crashed, suspect)")


def test_the_same_holds_when_the_crash_is_known_before_the_broken_connection() -> None:
    story = Scenario(models=MODELS)
    story.serving((10, "A"))
    story.crashes("A")
    story.ready("A")
    story.untold()
    replica = story.replica("A")
    story.happens(e.ReplicaCrashed(replica=replica))
    story.happens(e.UpstreamLost(rid=10, replica=replica))
    story.decides("fail 10 (502 upstream_crashed, suspect)")


def test_a_replica_that_turned_out_to_live_does_not_keep_the_blame_for_a_later_crash() -> None:
    """10 lost its connection twice and the replica lived: the crashes after that are the model's own."""
    story = Scenario(models=MODELS)
    story.serving((10, "A"))
    story.loses(10)
    story.answers("A")
    story.loses(10, begun=True)
    story.answers("A")
    story.crashes("A")
    story.loaded("A")
    story.crashes("A")
    story.decides("cool down A (crashes)")


def test_without_retries_nobody_is_called_a_suspect_at_the_first_crash() -> None:
    story = Scenario(models=MODELS, crash_retries=0)
    story.serving((10, "A"))
    story.crashes("A")
    story.decides("fail 10 (502 upstream_crashed)")


def test_a_crash_of_one_replica_leaves_the_other_serving_and_the_next_request_brings_it_back() -> None:
    story = Scenario(models=TWO)
    story.loaded("A")
    story.crashes("A", 0)
    story.decides()
    story.arrives(10, "A")
    story.decides("dispatch 10 to A/1 (least_busy)", "swap to A (top_up)", "spawn A/0")
    story.ready("A", 0)
    story.decides("finished swap to A")


def test_a_replica_is_brought_back_without_evicting_anybody() -> None:
    """A top-up asks for no room: A counts on its GPU already."""
    story = Scenario(models={"A": ModelSettings(gpus=(0,), replicas=2), "B": ModelSettings(gpus=(0,))}, cap=2)
    story.loaded("A", "B")
    story.crashes("A", 1)
    story.untold()
    story.arrives(10, "A")
    assert story.last(e.SwapBegun).victims == []
    assert story.phase("B") == "ready"


def test_a_model_that_cools_down_goes_on_serving_from_what_is_left_of_it() -> None:
    story = Scenario(models=TWO, slots=2)
    story.loaded("A")
    story.crashes("A", 0)
    story.arrives(10, "A")
    story.ready("A", 0)
    story.untold()
    story.crashes("A", 0)
    story.decides("cool down A (crashes)")
    story.arrives(11, "A")
    story.decides("dispatch 11 to A/1 (least_busy)")
    story.after(11)
    story.arrives(12, "A")
    story.decides("swap to A (top_up)", "spawn A/0")


def test_a_stalled_replica_is_stopped_although_it_is_busy_and_its_requests_come_back() -> None:
    story = Scenario(models=MODELS, slots=2)
    story.serving((10, "A"), (11, "A"))
    story.stalls("A")
    story.decides("stop A/0 (stalled, force)")
    story.loses(10)
    story.loses(11, begun=True)
    story.decides(
        "requeue 10 (upstream_lost), attempt 2", "hold 10 (evicting, hard) for A", "fail 11 (502 upstream_stalled)"
    )
    story.stopped("A")
    story.decides("swap to A (idle)", "spawn A/0")


def test_a_stall_counts_as_a_crash() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.stalls("A")
    story.stopped("A")
    story.loaded("A")
    story.stalls("A")
    story.untold()
    story.stopped("A")
    story.decides("cool down A (crashes)")


def test_a_stalled_victim_is_not_waited_for() -> None:
    """A drains for B and hangs: it is stopped by force, and the swap goes on."""
    story = Scenario(models={"A": (0,), "B": (0,)})
    story.serving((10, "A"))
    story.arrives(11, "B")
    story.untold()
    story.stalls("A")
    story.decides("stop A/0 (stalled, force)")
    story.loses(10, begun=True)
    story.stopped("A")
    story.decides("fail 10 (502 upstream_stalled)", "spawn B/0")
