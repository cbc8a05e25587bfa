"""The router stops: it serves what it has until the deadline, then ends everything."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND, START_US

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,), "C": (1,)}


def test_nobody_new_is_let_in() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.router_stops(30)
    story.arrives(10, "A")
    story.wished(7, 11, "B")
    story.decides("reject 10 (503 shutting_down)", "done 7 (cancelled shutting_down)")


def test_with_nothing_to_do_every_process_ends_at_once() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A", "C")
    story.router_stops(30)
    story.decides("stop A/0 (stopping)", "stop C/0 (stopping)")


def test_streams_may_end() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.router_stops(30)
    story.decides("set drain:router to 30 s", timers=True)
    story.at(29)
    story.finishes(9)
    story.decides("stop A/0 (stopping)")


def test_what_waits_is_served_too_swaps_included_while_there_is_time() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.router_stops(30)
    story.untold()
    story.finishes(9)
    story.stopped("A")
    story.decides("stop A/0 (evict)", "spawn B/0")
    story.ready("B")
    story.decides("dispatch 10 to B/0 (pay_out)", "finished swap to B")
    story.finishes(10)
    story.decides("stop B/0 (stopping)")


def test_at_the_deadline_what_waits_fails_what_runs_is_cut_and_no_free_slot_is_given_away() -> None:
    story = Scenario(models=MODELS)
    story.serving((8, "A"), (9, "C"))
    story.arrives(10, "A")
    story.arrives(11, "B")
    story.router_stops(30)
    story.untold()
    story.at(30)
    story.decides(
        "fail 10 (503 shutting_down)",
        "fail 11 (503 shutting_down)",
        "stop A/0 (stopping, force)",
        "stop C/0 (stopping, force)",
    )
    story.loses(8, begun=True)
    story.decides("fail 8 (503 shutting_down)")
    assert story.last(e.RequestFailed).begun


def test_a_deadline_of_now_serves_nobody_any_more() -> None:
    """A has a slot free for request 10 the moment its only stream ends; the deadline comes first."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.untold()
    story.router_stops(0)
    story.decides("fail 10 (503 shutting_down)", "stop A/0 (stopping, force)")


def test_a_second_signal_shortens_the_time() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.router_stops(300)
    story.after(1)
    story.router_stops(5)
    assert story.timers["drain", "router"] == START_US + 6 * SECOND
    story.untold()
    story.router_stops(0)
    story.decides("stop A/0 (stopping, force)")


def test_a_swap_still_draining_at_the_deadline_is_called_off() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.router_stops(30)
    story.untold()
    story.at(30)
    story.decides(
        "fail 10 (503 shutting_down)",
        "abort swap to B (unwanted)",
        "stop A/0 (stopping, force)",
    )


def test_a_load_under_way_at_the_end_is_stopped_and_not_tried_again() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.router_stops(30)
    story.untold()
    story.leaves(1)
    story.decides("stop A/0 (stopping)")
    story.load_fails("A", kind="signal")
    story.decides("failed swap to A")
    assert not story.state.replicas


def test_a_load_of_an_operator_is_called_off_by_the_stop_and_the_process_ends() -> None:
    """The shell cancels wishes before it says that it stops; a load that a request wants as well goes on."""
    story = Scenario(models=MODELS)
    story.wished(6, 1, "A")
    story.wished(7, 2, "C")
    story.arrives(3, "C")
    story.untold()
    story.happens(e.AdminCancel(op=8, rid=1))
    story.happens(e.AdminCancel(op=9, rid=2))
    story.router_stops(30)
    assert story.done_ops == {6: "cancelled", 7: "cancelled", 8: "done", 9: "done"}
    story.untold()
    story.ready("C")
    story.decides("dispatch 3 to C/0 (pay_out)", "finished swap to C")
    story.finishes(3)
    story.decides("stop A/0 (stopping)", "stop C/0 (stopping)")


def test_a_load_that_fails_while_the_router_stops_is_tried_again_while_somebody_waits() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.router_stops(30)
    story.untold()
    story.load_fails("A", kind="gpu_oom")
    story.decides("spawn A/0 again after gpu_oom")


def test_lost_replicas_are_not_brought_back_for_the_end() -> None:
    """One of two replicas is gone; while the router stops, the other one does."""
    story = Scenario(models={"A": ModelSettings(replicas=2)})
    story.loaded("A")
    story.arrive({10: "A", 11: "A"})
    story.crashes("A", 0)
    story.router_stops(30)
    story.untold()
    story.finishes(11)
    story.decides("dispatch 10 to A/1 (alone, attempt 2)")


def test_wishes_and_calls_still_open_are_answered() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.wished(6, 10, "B")
    story.unload(7, "A")
    story.router_stops(30)
    story.untold()
    story.at(30)
    story.loses(9)
    story.stopped("A")
    assert story.done_ops == {1: "done", 6: "cancelled", 7: "done"}
    assert not story.state.replicas
