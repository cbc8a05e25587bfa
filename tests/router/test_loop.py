"""The loop: what is logged, decided and acted on, and in which order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from eventlog import events as e
from eventlog.errors import LogUnavailable
from eventlog.settings import ModelSettings, SchedulerSettings
from router.clock import RunClock
from router.loop import Loop
from router.scheduler import State

DEADLINE_S = 5.0


class MemoryLog:
    """A log in memory that can refuse."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.refuses = False
        self.batches: list[list[e.Event]] = []
        self.observed: list[e.Event] = []
        self.rolls = 0

    def append(self, events: Sequence[e.Event]) -> None:
        if self.refuses:
            raise LogUnavailable("no space left on device")
        self.batches.append(list(events))

    def append_observations(self, observations: Sequence[e.Event]) -> None:
        self.observed += observations

    def roll_if_due(self) -> bool:
        self.rolls += 1
        return False

    def reopen(self, pending: Sequence[e.Event]) -> None:
        self.append(pending)

    @property
    def events(self) -> list[e.Event]:
        return [event for batch in self.batches for event in batch]


class World:
    """A loop on a memory log, and what it handed out."""

    def __init__(self, **settings: Any) -> None:
        self.log = MemoryLog()
        self.broken = asyncio.Event()
        self.state = State()
        self.loop = Loop(RunClock(), self.log, self.state, run=1, on_broken=self.broken.set)
        self.told: list[e.Event] = []
        self._news = asyncio.Event()
        self.loop.subscribe(self._tell)
        models = {"A": ModelSettings(gpus=(0,)), "B": ModelSettings(gpus=(0,))}
        self.loop.post(e.RouterStarted(config=SchedulerSettings(models=models, **settings)))

    def _tell(self, event: e.Event) -> None:
        self.told.append(event)
        self._news.set()

    async def until(self, kind: type[e.Event], count: int = 1) -> e.Event:
        """The first (second, ...) event of a kind that has been handed out; waits for it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = [event for event in self.told if isinstance(event, kind)]
                if len(found) >= count:
                    return found[count - 1]
                self._news.clear()
                await self._news.wait()

    def arrives(self, rid: int, model: str = "A") -> e.RequestArrived:
        return e.RequestArrived(rid=rid, arrived_us=self.loop.clock.now_us(), model=model)


def in_a_world(story: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        await story(World(**settings))

    asyncio.run(run())


def test_a_decision_is_in_the_log_before_anybody_acts_on_it() -> None:
    """Persist, then act: when the order to spawn is handed out, the log has it already."""

    async def story(world: World) -> None:
        logged_when_handed_out = []
        world.loop.on(e.ReplicaSpawnOrdered, lambda order: logged_when_handed_out.append(order in world.log.events))
        world.loop.post(world.arrives(1))
        await world.until(e.ReplicaSpawnOrdered)
        assert logged_when_handed_out == [True]

    in_a_world(story)


def test_a_decision_names_its_cause_and_has_its_time() -> None:
    async def story(world: World) -> None:
        world.loop.post(world.arrives(1))
        swap = await world.until(e.SwapBegun)
        (fact,) = [event for event in world.log.events if isinstance(event, e.RequestArrived)]
        assert (swap.cause, swap.at_us, swap.run) == (fact.seq, fact.at_us, 1)
        seqs = [event.seq for event in world.log.events]
        assert seqs == sorted(set(seqs))

    in_a_world(story)


def test_facts_that_come_at_once_are_written_at_once() -> None:
    """A burst costs one call to the system, not one per request."""

    async def story(world: World) -> None:
        await world.until(e.RouterStarted)
        world.loop.post(*(world.arrives(rid) for rid in range(1, 101)))
        await world.until(e.SwapBegun)
        assert len(world.log.batches) == 2
        assert sum(isinstance(event, e.RequestArrived) for event in world.log.batches[1]) == 100

    in_a_world(story)


def test_a_request_that_ends_twice_in_one_turn_has_one_outcome() -> None:
    """Its model is taken away, which fails it, and its client leaves before anybody could tell it so."""

    async def story(world: World) -> None:
        world.loop.post(world.arrives(1), world.arrives(2, "B"))
        await world.until(e.ReplicaSpawnOrdered)
        without_b = SchedulerSettings(models={"A": ModelSettings(gpus=(0,))})
        world.loop.post(e.ConfigLoaded(config=without_b), e.RequestCancelled(rid=2, by="client"))
        await world.until(e.RequestFailed)
        world.loop.post(e.RequestCancelled(rid=1, by="client"), e.RequestCancelled(rid=1, by="client"))
        await world.until(e.RequestCancelled)
        ends = [
            (type(event).__name__, event.rid)
            for event in world.log.events
            if isinstance(event, (e.RequestFailed, e.RequestCancelled))
        ]
        assert ends == [("RequestFailed", 2), ("RequestCancelled", 1)]
        seqs = [event.seq for event in world.log.events]
        assert seqs == list(range(1, len(seqs) + 1)), "and no number is left out"

    in_a_world(story)


def test_while_the_log_refuses_nothing_is_acted_on_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: the decision waits in memory, later facts wait for their turn, then all goes on in order."""
    monkeypatch.setattr("router.loop.REOPEN_EVERY_S", 0.01)

    async def story(world: World) -> None:
        await world.until(e.RouterStarted)
        world.log.refuses = True
        world.loop.post(world.arrives(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not world.loop.available
        world.loop.post(world.arrives(2))
        world.loop.note(e.LogLine(level="info", text="dropped"))
        world.loop.flush_observations()
        await asyncio.sleep(0)
        assert [event for event in world.told if isinstance(event, e.RequestArrived | e.Decision)] == []
        world.log.refuses = False
        await world.until(e.ReplicaSpawnOrdered)
        await world.until(e.RequestArrived, count=2)
        assert world.loop.available
        assert [event.rid for event in world.log.events if isinstance(event, e.RequestArrived)] == [1, 2]
        assert world.log.observed == []

    in_a_world(story)


def test_a_timer_fires_when_it_is_due_and_not_before() -> None:
    async def story(world: World) -> None:
        world.loop.post(world.arrives(1))
        armed = await world.until(e.TimerSet)
        fired = await world.until(e.TimerFired)
        assert isinstance(armed, e.TimerSet)
        assert (armed.kind, armed.key) == ("force", "queue")
        assert fired.at_us >= armed.due_us

    in_a_world(story, force_load_us=20_000)


def test_a_cancelled_timer_does_not_fire() -> None:
    """The head that held a grace timer leaves; its time passes in silence."""

    async def story(world: World) -> None:
        world.loop.post(world.arrives(1))
        spawn = await world.until(e.ReplicaSpawnOrdered)
        assert isinstance(spawn, e.ReplicaSpawnOrdered)
        world.loop.post(e.ReplicaReady(replica=spawn.replica, slots=1), world.arrives(2, "B"))
        armed = await world.until(e.TimerSet)
        assert isinstance(armed, e.TimerSet)
        assert armed.kind == "grace"
        world.loop.post(e.RequestCancelled(rid=2))
        await world.until(e.TimerCancelled)
        await asyncio.sleep(0.35)
        assert not [event for event in world.told if isinstance(event, e.TimerFired)]

    in_a_world(story, head_grace_us=300_000, force_load_us=0)


def test_a_broken_rule_stops_the_router_and_leaves_the_fact_that_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better no router than one whose state is wrong; the log shows what led to it."""

    def breaks(state: State, fact: e.Fact) -> list[e.Decision]:
        raise AssertionError("slots counted below zero")

    async def story(world: World) -> None:
        await world.until(e.RouterStarted)
        monkeypatch.setattr("router.loop.step", breaks)
        world.loop.post(world.arrives(1))
        await asyncio.wait_for(world.broken.wait(), DEADLINE_S)
        assert isinstance(world.log.events[-1], e.RequestArrived)
        assert not world.loop.available

    in_a_world(story)


def test_an_event_that_no_line_can_hold_stops_the_router(caplog: pytest.LogCaptureFixture) -> None:
    """What it decides would never be in the log, though the state went by it; going on would show nobody."""

    async def story(world: World) -> None:
        def no_line(events: Sequence[e.Event]) -> None:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        await world.until(e.RouterStarted)
        told = len(world.told)
        world.log.append = no_line  # type: ignore[method-assign]
        world.loop.post(world.arrives(1))
        await asyncio.wait_for(world.broken.wait(), DEADLINE_S)
        assert not world.loop.available
        assert len(world.told) == told
        assert "could not take the fact" in caplog.text

    in_a_world(story)


def test_one_failing_listener_keeps_nobody_else_from_listening() -> None:
    async def story(world: World) -> None:
        def fails(event: Any) -> None:
            raise ValueError("cannot")

        world.loop.on(e.SwapBegun, fails)
        world.loop.subscribe(fails)
        world.loop.post(world.arrives(1))
        await world.until(e.ReplicaSpawnOrdered)

    in_a_world(story)


def test_observations_are_written_together_and_numbered_in_the_same_sequence() -> None:
    async def story(world: World) -> None:
        await world.until(e.RouterStarted)
        for number in range(3):
            world.loop.note(e.LogLine(level="info", text=str(number)))
        assert world.log.observed == []
        world.loop.flush_observations()
        assert [note.text for note in world.log.observed if isinstance(note, e.LogLine)] == ["0", "1", "2"]
        last_fact = world.log.events[-1].seq
        assert [note.seq for note in world.log.observed] == [last_fact + 1, last_fact + 2, last_fact + 3]

    in_a_world(story)


def test_what_is_reported_after_the_end_goes_nowhere() -> None:
    """The log is closed; a request that is cut off in the last moment still reports its end."""

    async def story(world: World) -> None:
        await world.until(e.RouterStarted)
        world.loop.post(world.arrives(1))
        world.loop.close()
        world.loop.post(world.arrives(2))
        batches = len(world.log.batches)
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(world.log.batches) == batches

    in_a_world(story)
