"""Wishes, unloads, drains, cancels: every call is answered once."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (1,)}


def test_a_wish_waits_in_the_queue_as_a_request_does_and_is_answered_when_the_model_is_ready() -> None:
    story = Scenario(models=MODELS)
    story.wished(7, 1, "A")
    story.decides("swap to A (wish)", "spawn A/0")
    story.ready("A")
    story.decides("done 7 (done)", "finished swap to A")


def test_a_wish_for_what_is_loaded_is_answered_at_once() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.wished(7, 10, "A")
    story.decides("done 7 (already)")


def test_a_wish_for_what_is_being_loaded_joins_in() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.wished(7, 2, "A")
    story.untold()
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A", "done 7 (done)")


def test_an_unknown_model_is_said_to_be_unknown() -> None:
    story = Scenario(models=MODELS)
    story.wished(7, 1, "nope")
    story.unload(8, "nope")
    story.decides("done 7 (unknown model_not_found)", "done 8 (unknown model_not_found)")


def test_preloads_come_up_in_their_order() -> None:
    story = Scenario(models=MODELS)
    story.wished(1, 1, "B")
    story.wished(2, 2, "C")
    assert story.loads() == ["B", "C"]


def test_a_wish_for_a_gpu_with_earlier_traffic_waits_its_turn() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.wished(7, 11, "B")
    story.decides("hold 11 (protected, hard) for A")
    story.finishes(9)
    story.decides("dispatch 10 to A/0 (least_busy)", "swap to B (wish) evicting A")


def test_unloading_lets_work_end_keeps_the_queue_and_loads_again_for_it() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.unload(7, "A")
    story.decides("unload A (unload)", "hold 10 (swapping, hard) for A")
    story.finishes(9)
    story.decides("stop A/0 (unload)")
    story.stopped("A")
    story.decides("finished unload", "done 7 (done)", "swap to A (idle)", "spawn A/0")


def test_unloading_by_force_cuts_what_runs_and_fails_what_waits() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.unload(7, "A", force=True)
    story.decides("fail 10 (503 model_unloaded)", "unload A (unload)", "stop A/0 (unload, force)")
    story.loses(9, begun=True)
    story.decides("fail 9 (503 model_unloaded)")
    story.stopped("A")
    story.decides("finished unload", "done 7 (done)")


def test_whoever_arrives_during_a_forced_unload_meets_it_too() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.unload(7, "A", force=True)
    story.untold()
    story.arrives(10, "A")
    story.decides("fail 10 (503 model_unloaded)")


def test_force_overtakes_an_unload_that_still_drains() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.unload(7, "A")
    story.untold()
    story.unload(8, "A", force=True)
    story.decides("stop A/0 (unload, force)")
    story.loses(9)
    story.stopped("A")
    story.decides("fail 9 (503 model_unloaded)", "finished unload", "done 7 (done)", "done 8 (done)")


def test_force_on_a_victim_does_not_cut_the_other_victims_of_its_swap() -> None:
    """W evicts A and C, both busy. A is unloaded by force; C still drains in peace."""
    story = Scenario(models={**MODELS, "W": (0, 1)})
    story.serving((8, "A"), (9, "C"))
    story.arrives(10, "W")
    story.unload(7, "A", force=True)
    story.decides("swap to W (grace_over) evicting A, C", "stop A/0 (unload, force)")
    story.loses(8)
    story.stopped("A")
    story.decides("fail 8 (503 model_unloaded)", "done 7 (done)")
    story.finishes(9)
    story.decides("stop C/0 (evict)")


def test_unloading_what_is_not_loaded_is_done_already() -> None:
    story = Scenario(models=MODELS)
    story.unload(7, "A", force=True)
    story.decides("done 7 (already)")


def test_unloading_what_still_loads_waits_for_it_and_its_load_pays_out_first() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.unload(7, "A")
    story.untold()
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A", "unload A (unload)")
    story.finishes(1)
    story.stopped("A")
    story.decides("stop A/0 (unload)", "finished unload", "done 7 (done)")


def test_unloading_by_force_what_still_loads_ends_the_load() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.unload(7, "A", force=True)
    story.decides("swap to A (idle)", "spawn A/0", "fail 1 (503 model_unloaded)", "stop A/0 (unload, force)")
    story.load_fails("A", kind="signal")
    story.decides("failed swap to A", "done 7 (done)")
    assert not story.state.models["A"].failures


def test_a_load_that_waits_for_its_victims_is_not_begun_for_a_model_unloaded_by_force() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "B")
    story.unload(7, "B", force=True)
    story.untold()
    story.stopped("A")
    story.decides("failed swap to B", "done 7 (done)")


def test_an_unload_does_not_wait_for_the_swap_of_another_model_on_its_gpu() -> None:
    """Cap 2: C drains for D, which may take long. B leaves at once when told."""
    story = Scenario(models={"B": (0,), "C": (0,), "D": (0,)}, cap=2)
    story.serving((8, "C"))
    story.after(1)
    story.serving((9, "B"))
    story.arrives(10, "D")
    story.finishes(9)
    story.untold()
    story.unload(7, "B")
    story.decides("unload B (unload)", "stop B/0 (unload)")
    story.stopped("B")
    story.decides("finished unload", "done 7 (done)")


def test_a_drain_unloads_everything_once_idle_and_arrivals_load_again() -> None:
    story = Scenario(models=MODELS)
    story.loaded("C")
    story.serving((9, "A"))
    story.happens(e.AdminDrain(op=7))
    story.decides("unload A (unload)", "unload C (unload)", "stop C/0 (unload)")
    story.stopped("C")
    story.decides("finished unload")
    story.arrives(11, "C")
    story.decides("swap to C (idle)", "spawn C/0")
    story.finishes(9)
    story.stopped("A")
    story.decides("stop A/0 (unload)", "finished unload", "done 7 (done)")
    assert story.phase("C") == "loading"


def test_a_forced_drain_cuts_every_model_and_fails_only_what_waits_for_those() -> None:
    """A and C serve; another request waits for A, one for B, which is not loaded: that one is served afterwards."""
    story = Scenario(models=MODELS)
    story.serving((8, "A"), (9, "C"))
    story.arrives(10, "A")
    story.arrives(11, "B")
    story.untold()
    story.happens(e.AdminDrain(op=7, force=True))
    story.decides(
        "fail 10 (503 model_unloaded)",
        "unload A (unload)",
        "stop A/0 (unload, force)",
        "unload C (unload)",
        "stop C/0 (unload, force)",
        "hold 11 (swapping, hard) for A",
    )
    story.loses(8, begun=True)
    story.loses(9, begun=True)
    story.decides("fail 8 (503 model_unloaded)", "fail 9 (503 model_unloaded)")
    story.stopped("A")
    story.stopped("C")
    story.untold()
    story.ready("B")
    story.decides("dispatch 11 to B/0 (pay_out)", "finished swap to B")


def test_a_drain_of_nothing_is_done() -> None:
    story = Scenario(models=MODELS)
    story.happens(e.AdminDrain(op=7))
    story.decides("done 7 (done)")


def test_cancelling_a_request_is_answered_and_the_relay_reports_its_end() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.happens(e.AdminCancel(op=7, rid=9))
    story.happens(e.AdminCancel(op=8, rid=4711))
    story.decides("done 7 (done)", "done 8 (unknown request_not_found)")


def test_cancelling_a_wish_answers_both_calls_and_calls_its_swap_off() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.wished(7, 10, "B")
    story.decides("swap to B (wish) evicting A")
    story.happens(e.AdminCancel(op=8, rid=10))
    story.decides("done 8 (done)", "done 7 (cancelled)", "abort swap to B (unwanted)")


def test_two_unloads_of_the_same_model_are_both_answered() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.loaded("A")
    story.unload(7, "A")
    story.unload(8, "A")
    story.decides("unload A (unload)", "stop A/0 (unload)", "stop A/1 (unload)")
    story.stopped("A", 0)
    story.decides()
    story.stopped("A", 1)
    story.decides("finished unload", "done 7 (done)", "done 8 (done)")
