"""The watchmen watched: each check says so when what it watches for is there."""

from collections.abc import Callable
from typing import Any

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler.invariants import check, check_decision
from router.scheduler.state import Answer, Lost, Refusal, State
from tests.scheduler.scenario import Scenario


def busy_story() -> Scenario:
    """A serves 9 on its only slot and 10 waits for it; P is loaded and may not leave; C drains for D."""
    story = Scenario(
        models={"A": (0,), "P": ModelSettings(gpus=(1,), persistent=True), "C": (2,), "D": (2,), "E": (3,)},
        parallel={"K": 1},
    )
    story.loaded("P")
    story.serving((8, "C"))
    story.arrives(9, "A", key="K")
    story.ready("A")
    story.arrives(10, "A", key="K")
    story.arrives(11, "A")
    story.arrives(12, "D")
    return story


def miscount_a_lane(state: State) -> None:
    state.lanes["A"].length += 1


def disorder_a_lane(state: State) -> None:
    state.lanes["A"].by_key = {"": [(1, 0, 11), (1, 0, 10)]}
    state.lanes["A"].length = 2


def forget_to_force(state: State) -> None:
    state.unforced.clear()


def move_metadata_away(state: State) -> None:
    """Metadata has no weight and is not counted: nothing else would notice that it is nowhere."""
    state.requests[9].work = "metadata"
    state.models["A"].in_flight = 0
    state.replicas["A#0.3"].in_flight = {}
    state.replicas["A#0.3"].load = 0


BROKEN: dict[str, Callable[[State], object]] = {
    "is miscounted on GPU": lambda state: state.residents[0].remove("A"),
    "counts a model twice": lambda state: state.residents[0].append("A"),
    "should be ready": lambda state: setattr(state.models["A"], "phase", "absent"),
    "in flight, not": lambda state: setattr(state.models["A"], "in_flight", 5),
    "counts a load of": lambda state: setattr(state.replicas["A#0.3"], "load", 7),
    "not alone": lambda state: setattr(state.replicas["A#0.3"], "alone", 4711),
    "is miscounted": miscount_a_lane,
    "is out of order": disorder_a_lane,
    "who is forced next": forget_to_force,
    "state.running": lambda state: state.running.clear(),
    "state.refused": lambda state: state.refused.update({1: Refusal(model="A", status=404, code="x")}),
    "state.lost": lambda state: state.lost.update({1: Lost(replica="A#0.3", begun=False)}),
    "state.answers": lambda state: state.answers.update({1: Answer(outcome="done")}),
    "state.stale_timers": lambda state: state.stale_timers.append("grace:1"),
    "is not on": move_metadata_away,
    "two loads touch": lambda state: state.swaps.update({99: state.swaps[4]}),
    "victim_of": lambda state: (
        setattr(state.models["C"], "victim_of", 0) or setattr(state.models["C"], "phase", "ready")
    ),
    "target_of": lambda state: (
        setattr(state.models["D"], "target_of", 0)
        or setattr(state.models["D"], "phase", "absent")
        or state.residents[2].remove("D")
    ),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_broken_state_is_noticed(complaint: str) -> None:
    story = busy_story()
    check(story.state)
    BROKEN[complaint](story.state)
    with pytest.raises(AssertionError) as noticed:
        check(story.state)
    assert complaint in str(noticed.value) or complaint in str(noticed.traceback[-1].statement)


def victim(name: str) -> e.Victim:
    return e.Victim(model=name)


WRONG: dict[str, e.Decision] = {
    "is stopped while it serves": e.ReplicaStopOrdered(replica="A#0.3", why="evict"),
    "is dispatched twice": e.RequestDispatched(rid=9, replica="A#0.3"),
    "makes a load of": e.RequestDispatched(rid=11, replica="A#0.3"),
    "key K is over its limit": e.RequestDispatched(rid=10, replica="A#0.3", weight=0),
    "is started on GPU": e.ReplicaSpawnOrdered(replica="D#0.9", model="D", index=0, gpus=(2,)),
    "a victim is named twice": e.SwapBegun(swap=9, target="E", why="idle", victims=[victim("A"), victim("A")]),
    "would evict itself": e.SwapBegun(swap=9, target="A", why="idle", victims=[victim("A")]),
    "an unload takes one model": e.SwapBegun(swap=9, why="ttl", victims=[victim("A"), victim("P")]),
    "may not be evicted": e.SwapBegun(swap=9, target="E", why="idle", victims=[victim("P")]),
    "is to leave, but is draining": e.SwapBegun(swap=9, target="E", why="idle", victims=[victim("C")]),
    "nobody waits for that": e.AdminDone(op=4711, outcome="done"),
}


@pytest.mark.parametrize("complaint", WRONG)
def test_a_wrong_decision_is_noticed(complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_decision(busy_story().state, WRONG[complaint])


def test_a_dispatch_to_a_replica_that_cannot_take_it_is_noticed() -> None:
    changes: dict[str, Any] = {
        "which is stopping": ("phase", "stopping"),
        "may be dead": ("suspect", True),
        "must be alone": ("alone", 9),
    }
    for complaint, (field, value) in changes.items():
        story = busy_story()
        story.finishes(9)
        setattr(story.state.replicas["A#0.3"], field, value)
        story.state.requests[10].replica = ""
        with pytest.raises(AssertionError, match=complaint):
            check_decision(story.state, e.RequestDispatched(rid=10, replica="A#0.3"))


def test_a_second_stop_of_the_same_process_is_noticed() -> None:
    story = busy_story()
    story.finishes(8)
    with pytest.raises(AssertionError, match="is stopped twice"):
        check_decision(story.state, e.ReplicaStopOrdered(replica="C#0.2", why="evict"))
