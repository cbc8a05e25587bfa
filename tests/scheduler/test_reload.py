"""A new configuration while running: what changed leaves and comes back, what did not is left alone."""

from eventlog import events as e
from eventlog.settings import KeySettings, ModelSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (1,)}


def test_a_model_whose_children_would_be_started_otherwise_leaves_in_peace_and_comes_back() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.loaded("B")
    story.reloads(A=ModelSettings(fingerprint="new"))
    story.arrives(10, "A")
    story.decides("unload A (stale)", "hold 10 (swapping, hard) for A")
    assert story.phase("B") == "ready"
    story.finishes(9)
    story.stopped("A")
    story.decides("stop A/0 (stale)", "finished unload", "swap to A (idle)", "spawn A/0")


def test_settings_that_concern_no_child_take_effect_without_a_restart() -> None:
    """Priority, ttl, persistence, more replicas: the process that runs is the one that is wanted."""
    story = Scenario(models=MODELS)
    story.loaded("A")
    replica = story.replica("A")
    story.reloads(A=ModelSettings(priority=7, ttl_us=10**12, persistent=True, replicas=2))
    story.decides()
    story.arrives(10, "A")
    story.decides("dispatch 10 to A/0 (least_busy)", "swap to A (top_up)", "spawn A/1")
    assert story.replica("A") == replica
    assert story.state.requests[10].priority == 7


def test_fewer_replicas_mean_a_restart() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.loaded("A")
    story.reloads(A=ModelSettings(replicas=1))
    story.decides("unload A (stale)", "stop A/0 (stale)", "stop A/1 (stale)")


def test_a_model_that_moves_counts_where_it_is_until_it_has_left() -> None:
    story = Scenario(models={"A": (0,), "B": (1,), "C": (0,)})
    story.serving((9, "A"))
    story.reloads(A=(1,))
    assert story.state.models["A"].gpus == (0,)
    story.untold()
    story.finishes(9)
    story.stopped("A")
    assert story.state.models["A"].gpus == (1,)
    story.loaded("B")
    story.arrives(10, "A")
    story.decides("swap to A (idle) evicting B", "stop B/0 (evict)")


def test_a_model_that_is_not_loaded_moves_at_once() -> None:
    story = Scenario(models={"A": (0,), "B": (1,)})
    story.reloads(A=(1,))
    story.loaded("B")
    story.arrives(10, "A")
    story.decides("swap to A (idle) evicting B", "stop B/0 (evict)")


def test_a_reload_that_changes_nothing_forgets_no_failure() -> None:
    """The next cool-down is the longer one all the same."""
    story = Scenario(models=MODELS, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A")
    story.after(10)
    story.reconfigures()
    story.arrives(2, "A")
    story.load_fails("A")
    assert story.last(e.ModelCooledDown).until_us == story.now_us + 20 * SECOND


def test_a_key_that_gets_a_limit_keeps_its_place_in_the_queue() -> None:
    """Requests of K stood among the others; from now on they stand by themselves, and in their order."""
    story = Scenario(models={"A": (0,)}, slots=1)
    story.serving((9, "A"))
    for rid in (10, 11, 12):
        story.arrives(rid, "A", key="K" if rid != 11 else "other")
    story.reconfigures(keys={"K": KeySettings(max_parallel=1)})
    for rid in (9, 10, 11):
        story.finishes(rid)
    story.reconfigures(keys={})
    story.finishes(12)
    assert story.order() == [9, 10, 11, 12]


def test_a_model_that_moves_while_its_swap_drains_is_planned_anew() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (1,)})
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.reloads(B=(1,))
    story.decides("abort swap to B (stale)", "swap to B (idle)", "spawn B/0")
    assert story.last(e.ReplicaSpawnOrdered).gpus == (1,)
    assert story.phase("A") == "ready"


def test_a_model_that_moves_while_its_victims_stop_is_planned_anew_once_they_are_gone() -> None:
    story = Scenario(models={"A": (0,), "B": (0,), "C": (1,)})
    story.loaded("A")
    story.arrives(10, "B")
    story.untold()
    story.reloads(B=(1,))
    story.decides()
    story.stopped("A")
    story.decides("failed swap to B", "swap to B (idle)", "spawn B/0")
    assert story.last(e.ReplicaSpawnOrdered).gpus == (1,)


def test_a_model_that_changes_while_it_loads_pays_out_and_is_restarted() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.reloads(A=ModelSettings(fingerprint="new"))
    story.untold()
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A", "unload A (stale)")


def test_a_load_that_fails_is_not_tried_again_the_old_way() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.reloads(A=ModelSettings(fingerprint="new"))
    story.untold()
    story.load_fails("A", kind="gpu_oom")
    story.decides("failed swap to A", "swap to A (idle)", "spawn A/0")
    assert story.last(e.ReplicaSpawnOrdered).after == ""


def test_a_model_taken_out_serves_what_runs_fails_what_waits_and_leaves() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.reloads(A=None)
    story.decides("fail 10 (404 model_not_found)", "unload A (stale)")
    story.arrives(12, "A")
    story.wished(7, 13, "A")
    story.decides("reject 12 (404 model_not_found)", "done 7 (unknown model_not_found)")
    story.finishes(9)
    story.stopped("A")
    story.decides("stop A/0 (stale)", "finished unload")


def test_a_model_taken_out_while_it_is_about_to_be_loaded_is_not_loaded() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)})
    story.loaded("A")
    story.arrives(10, "B")
    story.untold()
    story.reloads(B=None)
    story.decides("fail 10 (404 model_not_found)")
    story.stopped("A")
    story.decides("failed swap to B")


def test_a_model_taken_out_while_it_loads_leaves_when_it_is_up() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.untold()
    story.reloads(A=None)
    story.decides("fail 1 (404 model_not_found)")
    story.ready("A")
    story.decides("finished swap to A", "unload A (stale)", "stop A/0 (stale)")


def test_a_model_that_comes_back_before_it_has_left_is_restarted() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.reloads(A=None)
    story.reloads(A=(1,))
    story.untold()
    story.arrives(10, "A")
    story.finishes(9)
    story.stopped("A")
    assert story.last(e.ReplicaSpawnOrdered).gpus == (1,)


def test_a_reload_ends_the_cool_down_of_what_changed_and_of_what_could_not_get_better() -> None:
    """A's file was missing and may be there now. B ran out of memory, and nothing of it changed: it keeps its time."""
    story = Scenario(models={**MODELS, "C": (2,)}, load_retries=0)
    story.arrive({1: "A", 2: "B", 3: "C"})
    story.load_fails("A", kind="missing_file")
    story.load_fails("B", kind="gpu_oom")
    story.load_fails("C", kind="gpu_oom")
    story.untold()
    story.reloads(C=ModelSettings(gpus=(2,), fingerprint="new"))
    story.arrive({4: "A", 5: "B", 6: "C"})
    story.decides(
        "swap to A (idle)",
        "spawn A/0",
        "fail 5 (502 model_load_failed)",
        "swap to C (idle)",
        "spawn C/0",
    )


def test_with_room_for_fewer_models_the_first_in_the_order_of_eviction_leave() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)}, cap=2)
    story.loaded("A")
    story.after(1)
    story.loaded("B")
    story.reconfigures(max_models_per_gpu=1)
    story.decides("unload A (stale)", "stop A/0 (stale)")


def test_a_swap_planned_for_more_room_than_there_is_now_is_planned_anew() -> None:
    """C was to join A in place of B. With room for one, both must leave first."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2)
    story.loaded("B")
    story.after(1)
    story.loaded("A")
    story.arrives(10, "C")
    story.decides("swap to C (idle) evicting B", "stop B/0 (evict)")
    story.reconfigures(max_models_per_gpu=1)
    story.decides()
    story.stopped("B")
    story.decides("failed swap to C", "swap to C (idle) evicting A", "stop A/0 (evict)")


def test_other_knobs_take_effect_with_the_next_decision() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)}, slots=2, grace_s=1000)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.reconfigures(head_grace_us=0)
    story.decides("swap to B (grace_over) evicting A")
