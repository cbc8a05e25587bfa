"""Loads that fail: causes are told apart, nothing wedges, the GPU is free for others at once."""

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,)}
HOPELESS = ["missing_file", "bad_flag", "bad_model"]
WORTH_A_RETRY = ["gpu_oom", "host_oom", "stall", "ceiling", "exit", "signal", "spawn", "imposter"]


@pytest.mark.parametrize("kind", HOPELESS)
def test_what_cannot_get_better_is_not_tried_again_and_cools_down_until_a_reload(kind: e.LoadFailure) -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.untold()
    story.load_fails("A", kind=kind, reason="no such file: a.gguf")
    story.decides(f"cool down A ({kind})", "failed swap to A", "fail 1 (502 model_load_failed)")
    assert story.last(e.ModelCooledDown).until_us == -1
    assert story.last(e.RequestFailed).reason == "no such file: a.gguf"
    story.after(100_000)
    story.arrives(2, "A")
    story.decides("fail 2 (502 model_load_failed)")
    story.reconfigures()
    story.arrives(3, "A")
    story.decides("swap to A (idle)", "spawn A/0")


@pytest.mark.parametrize("kind", WORTH_A_RETRY)
def test_anything_else_is_tried_once_more_and_the_order_says_after_what(kind: e.LoadFailure) -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.untold()
    story.load_fails("A", kind=kind)
    story.decides(f"spawn A/0 again after {kind}")
    assert story.last(e.ReplicaSpawnOrdered).attempt == 2
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A")


def test_after_the_retry_the_queue_fails_with_the_reason_and_the_model_cools_down() -> None:
    story = Scenario(models=MODELS)
    story.arrive({1: "A", 2: "A"})
    story.load_fails("A", kind="gpu_oom")
    story.untold()
    story.load_fails("A", kind="gpu_oom", reason="CUDA error: out of memory")
    story.decides(
        "cool down A (gpu_oom)",
        "failed swap to A",
        "fail 1 (502 model_load_failed)",
        "fail 2 (502 model_load_failed)",
    )
    failed = story.last(e.RequestFailed)
    assert (failed.reason, failed.retry_after_us) == ("CUDA error: out of memory", 10 * SECOND)


def test_while_a_model_cools_down_arrivals_are_told_to_come_back_later() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A")
    story.after(4)
    story.untold()
    story.arrives(2, "A")
    story.decides("fail 2 (503 model_cooling_down)")
    assert story.last(e.RequestFailed).retry_after_us == 6 * SECOND
    story.wished(7, 3, "A")
    story.decides("done 7 (failed model_cooling_down)")
    story.at(10)
    story.arrives(4, "A")
    story.decides("swap to A (idle)", "spawn A/0")


def test_the_cool_down_doubles_from_10_s_to_300_s_and_a_good_answer_begins_it_anew() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    times: list[float] = []
    for rid in range(1, 8):
        story.arrives(rid, "A")
        story.load_fails("A")
        until_us = story.last(e.ModelCooledDown).until_us
        times.append((until_us - story.now_us) / SECOND)
        story.after(times[-1])
    assert times == [10, 20, 40, 80, 160, 300, 300]
    story.arrives(100, "A")
    story.ready("A")
    story.finishes(100, status=400)
    story.stopped("A")
    story.arrives(101, "A")
    story.load_fails("A")
    assert story.last(e.ModelCooledDown).until_us == story.now_us + 10 * SECOND


def test_a_server_error_as_an_answer_is_no_proof_of_health() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A")
    story.after(10)
    story.arrives(2, "A")
    story.ready("A")
    story.finishes(2, status=500)
    assert story.state.models["A"].failures == 1


def test_a_wish_fails_with_its_model_and_is_answered_once() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    story.wished(7, 1, "A")
    story.untold()
    story.load_fails("A", kind="exit")
    story.decides("cool down A (exit)", "failed swap to A", "done 7 (failed model_load_failed)")


def test_a_wish_for_two_replicas_is_answered_once_at_the_first() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.wished(7, 1, "A")
    story.untold()
    story.ready("A", 0)
    story.decides("done 7 (done)")
    story.ready("A", 1)
    story.decides("finished swap to A")


def test_a_model_comes_up_with_the_replicas_that_could_be_loaded() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.arrives(1, "A")
    story.untold()
    story.load_fails("A", 1, kind="gpu_oom")
    story.decides("spawn A/1 again after gpu_oom")
    story.load_fails("A", 1, kind="gpu_oom")
    story.ready("A", 0)
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A")
    assert story.last(e.SwapFinished).ready == 1


def test_the_missing_replica_is_tried_again_only_after_a_pause() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)}, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A", 1, kind="gpu_oom")
    story.ready("A", 0)
    story.untold()
    story.arrives(2, "A")
    story.decides()
    story.after(10)
    story.arrives(3, "A")
    story.decides("swap to A (top_up)", "spawn A/1")


def test_nothing_is_restored_for_a_load_that_failed() -> None:
    """A had to leave for B, and B did not come up: A is loaded again when somebody asks for it."""
    story = Scenario(models=MODELS, load_retries=0)
    story.loaded("A")
    story.arrives(10, "B")
    story.stopped("A")
    story.load_fails("B")
    story.untold()
    story.after(5)
    story.decides()
    story.arrives(11, "A")
    story.decides("swap to A (idle)", "spawn A/0")
