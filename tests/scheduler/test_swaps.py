"""The life of a swap: committed, drained, stopped, started, paid out, settled."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (0,)}


def test_nothing_is_loaded_before_somebody_asks() -> None:
    story = Scenario(models=MODELS)
    story.decides(timers=True)


def test_a_swap_from_beginning_to_end() -> None:
    """A drains for 2 s, stops for 3, B loads for 4; the log says so."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.decides("swap to B (grace_over) evicting A")
    story.after(2)
    story.finishes(9)
    story.decides("stop A/0 (evict)")
    story.after(3)
    story.stopped("A")
    story.decides("spawn B/0")
    story.after(4)
    story.ready("B")
    story.decides("dispatch 10 to B/0 (pay_out)", "finished swap to B")
    done = story.last(e.SwapFinished)
    assert (done.drain_us, done.stop_us, done.load_us) == (2 * SECOND, 3 * SECOND, 4 * SECOND)
    assert (done.ok, done.ready) == (True, 1)


def test_the_target_is_started_only_when_every_victim_is_gone() -> None:
    story = Scenario(models={"A": (0,), "B": (1,), "W": (0, 1)})
    story.loaded("A", "B")
    story.arrives(10, "W")
    story.untold()
    story.stopped("B")
    story.decides()
    story.stopped("A")
    story.decides("spawn W/0")


def test_no_victim_is_stopped_before_all_have_drained() -> None:
    """A is idle, B busy: A stays up until B is ready to go too, for the swap may yet be called off."""
    story = Scenario(models={"A": (0,), "B": (1,), "W": (0, 1)})
    story.loaded("A")
    story.serving((9, "B"))
    story.arrives(10, "W")
    story.decides("swap to W (grace_over) evicting A, B")
    story.leaves(10)
    story.decides("abort swap to W (unwanted)")
    story.arrives(11, "A")
    story.decides("dispatch 11 to A/0 (least_busy)")


def test_one_load_serves_all_who_wait_for_it() -> None:
    story = Scenario(models=MODELS, slots=4)
    story.arrive({1: "A", 2: "A", 3: "A"})
    story.ready("A")
    assert story.order() == [1, 2, 3]
    assert story.loads() == ["A"]


def test_a_swap_is_not_called_off_while_somebody_else_waits_for_its_target() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrive({10: "B", 11: "B"})
    story.untold()
    story.leaves(10)
    story.decides()


def test_a_target_that_nobody_wants_any_more_is_still_loaded_once_its_victims_stop() -> None:
    """Half a stop helps nobody. The model comes up and is an ordinary resident."""
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "B")
    story.untold()
    story.leaves(10)
    story.decides()
    story.swapped("A", to="B")
    story.decides("spawn B/0", "finished swap to B")
    assert story.phase("B") == "ready"


def test_a_more_urgent_request_does_not_stop_a_swap_that_has_begun() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.arrives(11, "A", priority=9)
    story.decides("hold 11 (swapping, hard) for B")
    story.finishes(9)
    story.decides("stop A/0 (evict)")


def test_when_the_one_who_caused_a_load_is_gone_it_pays_out_to_the_next_who_waits() -> None:
    """C is more urgent and would evict B unused; request 11 waits for B and is served first."""
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrive({10: "B", 11: "B"})
    story.leaves(10)
    story.arrives(12, "C", priority=9)
    story.untold()
    story.swapped("A", to="B")
    story.decides(
        "spawn B/0",
        "dispatch 11 to B/0 (pay_out, overtaking 1)",
        "finished swap to B",
        "swap to C (grace_over) evicting B",
    )


def test_a_load_pays_out_once() -> None:
    """Two slots: the one who caused it is served; the next must not pass C, who is due."""
    story = Scenario(models=MODELS, slots=2)
    story.arrive({1: "A", 2: "A"})
    story.arrives(3, "C", priority=9)
    story.untold()
    story.ready("A")
    story.decides(
        "dispatch 1 to A/0 (pay_out, overtaking 1)",
        "finished swap to A",
        "swap to C (grace_over) evicting A",
        "hold 2 (swapping, hard) for C",
    )


def test_a_victim_that_dies_while_it_drains_has_left() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.crashes("A", begun=(9,))
    story.decides("fail 9 (502 upstream_crashed)", "stop A/0 (evict)", "spawn B/0")


def test_a_swap_waits_only_for_generations_that_somebody_still_wants() -> None:
    """The client of A's request is gone and llama-server still works on it: nobody waits for that."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.leaves(9)
    story.decides("stop A/0 (evict)")


def test_a_second_replica_is_no_reason_to_hold_back_the_first() -> None:
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.arrives(1, "A")
    story.decides("swap to A (idle)", "spawn A/0", "spawn A/1")
    story.ready("A", 0)
    story.decides("dispatch 1 to A/0 (pay_out)")
    assert story.state.swaps


def test_swaps_on_the_same_gpu_come_one_after_the_other() -> None:
    story = Scenario(models=MODELS, cap=2)
    story.loaded("A", "B")
    story.arrives(10, "C")
    story.untold()
    story.stopped("A")
    story.arrives(11, "A")
    story.decides("spawn C/0", "hold 11 (swapping, hard) for C")


def test_names_of_processes_are_never_used_twice() -> None:
    story = Scenario(models=MODELS)
    for rid, model in enumerate("ABAB", start=1):
        if story.processes:
            there = next(iter(story.processes.values())).model
            story.arrives(rid, model)
            story.swapped(there, to=model)
        else:
            story.arrives(rid, model)
            story.ready(model)
        story.finishes(rid)
    assert sorted(story.processes_ever) == ["A#0.1", "A#0.3", "B#0.2", "B#0.4"]
