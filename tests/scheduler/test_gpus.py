"""GPUs that are taken out of service, and come back."""

from eventlog import events as e
from tests.scheduler.scenario import Scenario

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (1,), "D": (1,), "W": (0, 1)}


def test_a_gpu_is_out_when_what_was_on_it_has_left_in_peace() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.gpu(7, 0, "out")
    story.decides("unload A (gpu_out)")
    story.finishes(9)
    story.decides("stop A/0 (gpu_out)")
    story.stopped("A")
    story.decides("finished unload", "done 7 (done)")


def test_nothing_is_loaded_on_it_until_it_is_back() -> None:
    story = Scenario(models=MODELS)
    story.gpu(7, 0, "out")
    story.arrives(1, "A")
    story.decides("done 7 (done)", "hold 1 (gpu_out)")
    story.after(1000)
    story.decides()
    story.gpu(8, 0, "in")
    story.decides("done 8 (done)", "swap to A (idle)", "spawn A/0")


def test_whoever_waits_for_a_gpu_that_is_out_stands_in_nobody_s_way() -> None:
    """W needs GPUs 0 and 1, and 0 is out for a week. Traffic on GPU 1, its swaps included, goes on."""
    story = Scenario(models=MODELS)
    story.loaded("C")
    story.gpu(7, 0, "out")
    story.arrives(10, "W")
    story.arrives(11, "D")
    story.decides("done 7 (done)", "hold 10 (gpu_out)", "swap to D (idle) evicting C", "stop C/0 (evict)")


def test_a_swap_still_draining_for_it_is_called_off() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.gpu(7, 0, "out")
    story.decides("abort swap to B (gpu_out)", "unload A (gpu_out)", "hold 10 (gpu_out)")


def test_a_swap_that_has_stopped_its_victims_loads_nothing_on_it() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "B")
    story.gpu(7, 0, "out")
    story.untold()
    story.stopped("A")
    story.decides("failed swap to B", "done 7 (done)", "hold 10 (gpu_out)")


def test_what_is_loading_on_it_pays_out_and_leaves() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.gpu(7, 0, "out")
    story.untold()
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A", "unload A (gpu_out)")


def test_a_model_on_other_gpus_does_not_notice() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "C"))
    story.gpu(7, 0, "out")
    story.decides("done 7 (done)")
    story.finishes(9)
    story.arrives(10, "C")
    story.decides("dispatch 10 to C/0 (least_busy)")


def test_a_gpu_that_does_not_exist_is_unknown() -> None:
    story = Scenario(models=MODELS)
    story.gpu(7, 2, "out")
    story.gpu(8, -1, "in")
    story.decides("done 7 (unknown gpu_not_found)", "done 8 (unknown gpu_not_found)")


def test_the_grace_of_a_request_begins_when_the_gpu_is_back() -> None:
    story = Scenario(models=MODELS, slots=2, grace_s=10, force_s=0)
    story.serving((9, "D"))
    story.gpu(7, 0, "out")
    story.arrives(10, "W")
    story.after(100)
    story.gpu(8, 0, "in")
    story.decides("done 7 (done)", "hold 10 (gpu_out)", "done 8 (done)", "hold 10 (grace) for D")
    assert story.last(e.RequestHeld).head_since_us == story.now_us
