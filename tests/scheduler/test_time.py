"""Idle models and timers: decisions look at the time, never at a timer."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND, START_US

SHORT_LIVED = {"A": ModelSettings(ttl_us=10 * SECOND), "B": ModelSettings(gpus=(1,))}


def test_an_idle_model_is_unloaded_after_its_ttl_counted_from_the_end_of_its_last_request() -> None:
    story = Scenario(models=SHORT_LIVED)
    story.serving((9, "A"))
    story.after(100)
    story.decides()
    story.finishes(9)
    story.after(9.9)
    story.decides()
    story.after(0.1)
    story.decides("unload A (ttl)", "stop A/0 (ttl)")
    story.stopped("A")
    story.decides("finished unload")
    story.after(1000)
    story.decides()


def test_a_request_in_between_begins_the_ttl_anew() -> None:
    """The timer fires as it was set and is set again: nobody moves it with every request."""
    story = Scenario(models=SHORT_LIVED)
    story.loaded("A")
    story.at(6)
    story.serving((9, "A"))
    story.finishes(9)
    story.at(15.9)
    story.decides("set ttl:A to 16 s", timers=True)
    story.at(16)
    story.decides("unload A (ttl)", "stop A/0 (ttl)")


def test_a_shorter_ttl_after_a_reload_moves_the_timer() -> None:
    story = Scenario(models={"A": ModelSettings(ttl_us=1000 * SECOND)})
    story.loaded("A")
    story.at(1)
    story.reloads(A=ModelSettings(ttl_us=10 * SECOND))
    story.at(10)
    story.decides("unload A (ttl)", "stop A/0 (ttl)")


def test_a_model_with_a_request_waiting_is_not_idle() -> None:
    """Its replica is under suspicion, so nothing is in flight; the request still counts."""
    story = Scenario(models=SHORT_LIVED)
    story.serving((9, "A"))
    story.loses(9)
    story.untold()
    story.after(1000)
    story.decides()


def test_a_timer_that_nobody_waits_for_any_more_is_cancelled() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)}, slots=2, grace_s=5)
    story.serving((9, "A"))
    story.arrives(10, "B")
    assert ("grace", "10") in story.timers
    story.leaves(10)
    assert ("grace", "10") not in story.timers


def test_a_timer_that_fires_early_is_set_again() -> None:
    story = Scenario(models={"A": (0,), "B": (0,)}, slots=2, grace_s=5)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.untold()
    story.after(1)
    story.happens(e.TimerFired(kind="grace", key="10", due_us=START_US + 5 * SECOND))
    story.decides("set grace:10 to 5 s", timers=True)


def test_a_timer_of_no_known_kind_changes_nothing() -> None:
    story = Scenario(models={"A": (0,)})
    digest = story.digest()
    story.happens(e.TimerFired(kind="what", key="ever", due_us=1))
    story.decides(timers=True)
    assert story.digest() == digest
