"""What crosses from one run to the next, and what does not."""

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from router.scheduler import State, carried_from, digest, step
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND, START_US

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (1,)}


def next_run(story: Scenario, **models: tuple[int, ...]) -> Scenario:
    return Scenario(models=models or MODELS, load_retries=0, carried=carried_from(story.state))


def test_a_new_run_begins_with_nothing_loaded_and_nobody_waiting() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "B")
    story.happens(e.RouterStarted(config=story.settings, carried=carried_from(story.state)))
    state = story.state
    assert (state.requests, state.replicas, state.swaps, state.lanes, state.timers) == ({}, {}, {}, {}, {})
    assert state.residents == [[], []]


def test_a_run_cannot_begin_at_zero_which_means_never() -> None:
    with pytest.raises(AssertionError, match="0 means never"):
        step(State(), e.RouterStarted(config=SchedulerSettings()))


def test_numbers_go_on_so_that_no_name_is_used_twice() -> None:
    story = Scenario(models=MODELS)
    story.arrives(41, "A")
    story.unload(17, "B")
    after = next_run(story)
    assert (after.state.last_rid, after.state.last_op, after.state.last_swap, after.state.last_spawn) == (41, 17, 1, 1)
    after.arrives(42, "A")
    assert after.replica("A") == "A#0.2"


@pytest.mark.parametrize(
    "call",
    [
        e.LoadWished(op=17, rid=1, model="A"),
        e.AdminUnload(op=17, model="A"),
        e.AdminCancel(op=17, rid=4711),
        e.AdminDrain(op=17),
        e.AdminGpu(op=17, gpu=0, action="out"),
    ],
    ids=lambda call: type(call).__name__,
)
def test_every_call_counts_for_the_numbers_of_the_next_run(call: e.Fact) -> None:
    story = Scenario(models=MODELS)
    story.happens(call)
    assert carried_from(story.state).next_op == 18


def test_a_cool_down_goes_on_for_what_is_left_of_it_and_counts_on() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A", reason="it died")
    story.after(4)
    story.happens(e.RouterStopped())
    after = next_run(story)
    after.at(1)
    after.arrives(2, "A")
    after.decides("fail 2 (503 model_cooling_down)")
    assert after.last(e.RequestFailed).retry_after_us == 5 * SECOND
    assert after.last(e.RequestFailed).reason == "it died"
    after.at(6)
    after.arrives(3, "A")
    after.load_fails("A")
    assert after.last(e.ModelCooledDown).until_us == after.now_us + 20 * SECOND


def test_a_cool_down_until_a_reload_ends_with_the_run() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.load_fails("A", kind="missing_file")
    after = next_run(story)
    after.arrives(2, "A")
    after.decides("swap to A (idle)", "spawn A/0")


def test_a_cool_down_of_a_model_that_is_gone_is_forgotten() -> None:
    story = Scenario(models=MODELS, load_retries=0)
    story.arrives(1, "A")
    story.load_fails("A")
    assert next_run(story, B=(0,)).state.models.keys() == {"B"}


def test_children_that_were_left_are_named_with_what_identifies_them() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "B")
    story.happens(e.ReplicaSpawned(replica=story.replica("A"), pid=4711, started_ticks=99))
    assert carried_from(story.state).orphans == [
        e.Orphan(replica=story.replica("A"), model="A", pid=4711, started_ticks=99)
    ]


def test_suspects_and_the_profile_are_remembered() -> None:
    story = Scenario(models=MODELS)
    story.happens(e.ProfileChanged(profile="night"))
    story.loaded("A")
    story.arrives(10, "A", conversation="poison")
    story.crashes("A")
    story.ready("A")
    story.crashes("A")
    after = next_run(story)
    assert (after.state.suspects, after.state.profile) == (["poison"], "night")
    assert carried_from(after.state).suspects == ["poison"]


def test_whether_the_run_ended_in_order_is_said() -> None:
    story = Scenario(models=MODELS)
    assert not carried_from(story.state).clean
    story.router_stops(0)
    story.happens(e.RouterStopped())
    assert carried_from(story.state).clean
    assert carried_from(State()).clean


def test_what_went_before_makes_no_difference_to_a_run() -> None:
    """RouterStarted alone gives the state: the same, whatever state it met."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    started = e.RouterStarted(config=SchedulerSettings(), at_us=START_US, run=2)
    used, fresh = story.state, State()
    step(used, started)
    step(fresh, started)
    assert digest(used) == digest(fresh)
    assert msgspec.json.encode(used) == msgspec.json.encode(fresh)
