"""Which slot holds which conversation: matched by what `/slots` tells while requests run, and told once."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from eventlog import events as e
from router import slot_watch
from router.probe import Work
from router.scheduler.state import Replica, Request, State
from router.slot_watch import SlotWatch
from router.upstream import Endpoint


class Stage:
    """A replica with requests in flight, and whatever `/slots` is to say, look by look."""

    def __init__(self, slots: int = 4) -> None:
        self.state = State()
        self.state.settings = type(self.state.settings)(keep_caches=True)
        self.replica = self.state.replicas["m#0.1"] = Replica(
            id="m#0.1", model="m", index=0, mask=1, phase="ready", slots=slots
        )
        self.looks: list[tuple[Work, ...] | None] = []
        self.told: list[e.SlotHolds] = []
        self.subscriber: Callable[[e.Event], None] = lambda event: None
        self.on_told: Callable[[], None] = lambda: None

    def post(self, *facts: e.Fact) -> None:
        self.told += [fact for fact in facts if isinstance(fact, e.SlotHolds)]
        self.on_told()

    def subscribe(self, callback: Callable[[e.Event], None]) -> Callable[[], None]:
        self.subscriber = callback
        return lambda: None

    def sends(self, rid: int, conversation: str, weight: int = 1) -> None:
        self.state.requests[rid] = Request(
            rid=rid, model="m", arrived_us=1, conversation=conversation, replica="m#0.1", slots_wanted=weight
        )
        self.replica.in_flight[rid] = weight
        self.subscriber(e.RequestDispatched(rid=rid, replica="m#0.1", weight=weight))

    def ends(self, rid: int) -> None:
        del self.state.requests[rid]
        del self.replica.in_flight[rid]

    def places(self) -> dict[int, tuple[int, str]]:
        return {told.rid: (told.slot, told.conversation) for told in self.told}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()

    async def work(endpoint: Endpoint, timeout_s: float) -> tuple[Work, ...] | None:
        return made.looks.pop(0) if len(made.looks) > 1 else made.looks[0]

    monkeypatch.setattr(slot_watch.probe, "work", work)
    monkeypatch.setattr(slot_watch, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(slot_watch, "LONGEST_PAUSE_S", 0.001)
    return made


def look(*tasks: int, busy: tuple[int, ...] | None = None) -> tuple[Work, ...]:
    """Slots by their task; -1 for one that was never used. All that have one are at work unless `busy` names some."""
    return tuple(
        Work(task=task, busy=task >= 0 if busy is None else slot in busy, prompt_tokens=1, tokens=1, held=100 + slot)
        for slot, task in enumerate(tasks)
    )


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def watched(stage: Stage, story: Callable[[], Any]) -> None:
    async def run() -> None:
        watch = SlotWatch(stage, lambda replica: Endpoint(path="/nowhere.sock"))
        try:
            await story()
        finally:
            watch.stop()

    asyncio.run(run())


def test_a_request_that_runs_alone_has_the_slot_that_works(stage: Stage) -> None:
    async def story() -> None:
        stage.looks = [look(-1, -1), look(-1, 0)]
        stage.sends(1, "x")
        await until(lambda: stage.told)

    watched(stage, story)
    assert stage.told == [e.SlotHolds(replica="m#0.1", slot=1, conversation="x", tokens=101, rid=1)]


def test_requests_that_were_sent_together_are_matched_in_their_order(stage: Stage) -> None:
    """Only once as many tasks are seen as requests were sent: one task could be of either."""

    async def story() -> None:
        stage.looks = [look(-1, -1, 7), look(8, -1, 7)]
        stage.sends(1, "x")
        stage.sends(2, "y")
        await until(lambda: len(stage.told) == 2)

    watched(stage, story)
    assert stage.places() == {1: (2, "x"), 2: (0, "y")}


def test_a_request_that_joins_is_told_from_those_that_are_known(stage: Stage) -> None:
    async def story() -> None:
        stage.looks = [look(3, -1)]
        stage.sends(1, "x")
        await until(lambda: stage.told)
        stage.looks = [look(3, 4)]
        stage.sends(2, "y")
        await until(lambda: len(stage.told) == 2)

    watched(stage, story)
    assert stage.places() == {1: (0, "x"), 2: (1, "y")}


def test_a_slot_that_rests_is_nobody_s(stage: Stage) -> None:
    """Its task is of a request that has ended before anybody looked."""

    async def story() -> None:
        stage.looks = [look(3, 5, busy=(1,))]
        stage.sends(1, "x")
        await until(lambda: stage.told)

    watched(stage, story)
    assert stage.places() == {1: (1, "x")}


def test_a_slot_is_matched_again_when_its_task_is_another(stage: Stage) -> None:
    async def story() -> None:
        stage.looks = [look(3)]
        stage.sends(1, "x")
        await until(lambda: stage.told)
        stage.ends(1)
        stage.looks = [look(3, busy=()), look(9)]
        stage.sends(2, "y")
        await until(lambda: len(stage.told) == 2)

    watched(stage, story)
    assert stage.places()[2] == (0, "y")


def test_a_request_that_is_sent_in_the_moment_in_which_a_watch_ends_is_matched(stage: Stage) -> None:
    """All were matched, so the watch is over; the next request is dispatched before anything else runs."""

    async def story() -> None:
        stage.looks = [look(3), look(3, 9)]

        def next_one() -> None:
            stage.on_told = lambda: None
            asyncio.get_running_loop().call_soon(stage.sends, 2, "y")

        stage.on_told = next_one
        stage.sends(1, "x")
        await until(lambda: len(stage.told) == 2)

    watched(stage, story)
    assert stage.places() == {1: (0, "x"), 2: (1, "y")}


def test_a_request_with_several_slots_is_told_to_hold_no_conversation(stage: Stage) -> None:
    async def story() -> None:
        stage.looks = [look(3, 4)]
        stage.sends(1, "x", weight=2)
        await until(lambda: len(stage.told) == 2)

    watched(stage, story)
    assert [(told.slot, told.conversation) for told in stage.told] == [(0, ""), (1, "")]


def test_nothing_is_asked_while_caches_are_not_kept(stage: Stage) -> None:
    async def story() -> None:
        stage.state.settings = type(stage.state.settings)()
        stage.sends(1, "x")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    watched(stage, story)


def test_a_replica_that_is_gone_is_asked_no_more(stage: Stage) -> None:
    async def story() -> None:
        stage.looks = [None]
        stage.sends(1, "x")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2
        del stage.state.replicas["m#0.1"]
        await until(lambda: len(asyncio.all_tasks()) == 1)

    watched(stage, story)
    assert json.dumps(stage.places()) == "{}"
