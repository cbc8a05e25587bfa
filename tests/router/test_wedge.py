"""A replica that says ok and does nothing is found; one that is merely slow is left alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from eventlog.events import (
    Event,
    ReplicaReady,
    ReplicaSpawnOrdered,
    ReplicaStalled,
    RequestCancelled,
    RequestFinished,
    SlotReleased,
    SlotTiming,
)
from router.clock import RunClock
from router.flight import Progress
from router.probe import Work, has_moved
from router.upstream import Connection, request_head
from router.wedge import Patience, Silence, Silences, WedgeWatch
from tests.router.replica_world import World, play

S = 1_000_000


def flight(**known: Any) -> Progress:
    given = {"rid": 1, "replica": "r1", "dispatched_us": 0, "last_frame_us": 0, "frames": 0, "prompt_tokens": 100}
    return Progress(**{**given, "stream": True, **known})


def overdue(silences: Silences, now_us: int, *flights: Progress) -> list[str]:
    return [one.replica for one in silences.look(now_us, flights) if one.silent_us > one.allowed_us]


def test_a_stream_that_stops_is_overdue_after_a_minute() -> None:
    """After the first data frame: 60 s, and not from the dispatch but from the last frame."""
    silences = Silences()
    stopped = flight(last_frame_us=100 * S, frames=50)
    assert overdue(silences, 159 * S, stopped) == []
    assert silences.look(161 * S, [stopped]) == [Silence("r1", 61 * S, 60 * S, (1,))]


def test_a_stream_that_is_always_slow_has_its_own_norm() -> None:
    """One frame in 20 s, on a slow machine: ten times that may pass."""
    slow = flight(last_frame_us=200 * S, frames=10)
    assert overdue(Silences(), 390 * S, slow) == []
    assert overdue(Silences(), 401 * S, slow) == ["r1"]


def test_a_long_prompt_is_given_its_time_before_the_first_frame() -> None:
    """By the time per token that this model was measured to take, times ten; never less than two minutes."""
    silences = Silences()
    silences.learn(ReplicaSpawnOrdered(replica="r1", model="m", index=0))
    timing = SlotTiming(prompt_n=1000, prompt_us=10 * S)
    silences.learn(RequestFinished(rid=9, replica="r1", timing=timing, at_us=0))
    silences.learn(ReplicaSpawnOrdered(replica="r2", model="m", index=0))
    prefill = flight(replica="r2", prompt_tokens=5000)
    assert overdue(silences, 499 * S, prefill) == []
    assert overdue(silences, 501 * S, prefill) == ["r2"]
    assert overdue(silences, 119 * S, flight(replica="r3", prompt_tokens=1)) == []
    assert overdue(silences, 121 * S, flight(replica="r3", prompt_tokens=1)) == ["r3"]


def test_one_request_that_gets_data_speaks_for_all_and_the_most_patient_one_decides() -> None:
    """Slots of a replica take turns: a stream starves while a long prompt is read, and rightly."""
    stopped = flight(rid=1, last_frame_us=10 * S, frames=5)
    lively = flight(rid=2, last_frame_us=299 * S, frames=500)
    reading = flight(rid=3, dispatched_us=10 * S, prompt_tokens=10_000)
    assert overdue(Silences(), 300 * S, stopped, lively) == []
    assert overdue(Silences(), 300 * S, stopped, reading) == []
    assert overdue(Silences(), 300 * S, stopped) == ["r1"]


def test_clients_that_give_up_and_try_again_do_not_hide_a_wedge() -> None:
    """Each new attempt is young; the silence is not."""
    silences = Silences()
    for minute in range(2):
        attempt = flight(rid=minute, dispatched_us=minute * 60 * S)
        assert overdue(silences, (minute * 60 + 59) * S, attempt) == []
    assert overdue(silences, 121 * S, flight(rid=3, dispatched_us=120 * S)) == ["r1"]


def test_an_answer_that_was_finished_ends_the_silence() -> None:
    """Answers that do not stream show no frames, but they end."""
    silences = Silences()
    silences.look(0, [flight(stream=False)])
    silences.learn(RequestFinished(rid=1, replica="r1", at_us=100 * S))
    assert overdue(silences, 200 * S, flight(rid=2, stream=False, dispatched_us=101 * S)) == []


def test_a_slot_that_a_cancelled_request_never_gives_back_is_overdue() -> None:
    """Nobody waits for it, and yet it is lost."""
    silences = Silences()
    silences.learn(RequestCancelled(rid=1, replica="r1", at_us=0))
    silences.learn(RequestCancelled(rid=2, replica="r2", at_us=0))
    silences.learn(SlotReleased(rid=2, replica="r2", at_us=20 * S))
    assert overdue(silences, 119 * S) == []
    assert overdue(silences, 121 * S) == ["r1"]


def test_what_moves_in_the_slots_is_a_sign_of_life() -> None:
    """Tokens of a prompt or of an answer, an end, an answer after none; taking new work is not."""
    busy = Work(task=7, busy=True, prompt_tokens=512, tokens=0)
    idle = Work(task=7, busy=False, prompt_tokens=512, tokens=0)
    read_on = Work(task=7, busy=True, prompt_tokens=1024, tokens=0)
    assert has_moved((busy,), (read_on,))
    assert has_moved((busy,), (idle,))
    assert has_moved(None, (busy,))
    assert not has_moved((busy,), (busy,))
    assert not has_moved((busy, idle), (busy, busy))
    assert not has_moved((busy,), None)
    assert not has_moved(None, None)


class Told:
    """A loop of which only the telling is needed."""

    def __init__(self) -> None:
        self.told: list[Callable[[Event], None]] = []

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        self.told.append(callback)
        return lambda: None


HASTY = Patience(stream_us=600_000, first_us=1_200_000, prompt_token_us=1)


@asynccontextmanager
async def watched(world: World, flights: list[Progress]) -> AsyncIterator[RunClock]:
    """A ready replica r1 under the eyes of a watch with little patience."""
    world.spawn()
    await world.loop.sees(ReplicaReady)
    clock = RunClock()
    watch = asyncio.create_task(WedgeWatch(Told(), clock, world.replicas, lambda: flights, patience=HASTY).run())
    try:
        yield clock
    finally:
        watch.cancel()


async def ask(world: World, flights: list[Progress], clock: RunClock, **body: Any) -> None:
    """Send a chat request as the relay would, and keep its account in `flights`."""
    connection = await Connection.open(endpoint := world.replicas.endpoint("r1"))
    payload = msgspec.json.encode({"messages": [{"role": "user", "content": "hi"}], **body})
    head = [(b"Host", b"x"), (b"Content-Length", b"%d" % len(payload)), (b"Content-Type", b"application/json")]
    head.append((b"Authorization", b"Bearer " + endpoint.key.encode()))
    flights[:] = [flight(dispatched_us=clock.now_us(), stream=bool(body.get("stream")))]
    await connection.send(request_head(b"POST", b"/v1/chat/completions", head), payload)
    frames = 0
    try:
        await connection.start()
        while data := await connection.read():
            if body.get("stream") and b"data: " in data:  # pings do not count
                frames += data.count(b"data: ")
                flights[:] = [flights[0]._replace(last_frame_us=clock.now_us(), frames=frames)]
    finally:
        flights.clear()
        connection.close()


def test_a_stream_that_goes_silent_on_a_healthy_looking_server_is_found(tmp_path: Path) -> None:
    """It stops after the second chunk, goes on pinging, and says that it is well."""

    async def story(world: World) -> None:
        world.model("m", tokens=10, silent_at_chunk=3, ping_s=0.1)
        flights: list[Progress] = []
        async with watched(world, flights) as clock:
            asking = asyncio.create_task(ask(world, flights, clock, stream=True))
            stalled = await world.loop.sees(ReplicaStalled)
            assert stalled.rids == [1]
            assert stalled.silent_us > stalled.norm_us == HASTY.stream_us
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    play(tmp_path, story)


def test_a_slow_prefill_and_a_slow_stream_are_left_alone(tmp_path: Path) -> None:
    """Slower than the norm, but within its patience: no finding while it lasts, and none after it."""

    async def story(world: World) -> None:
        world.model("m", tokens=4, first_byte_s=0.8, gap_s=0.4)
        flights: list[Progress] = []
        async with watched(world, flights) as clock:
            await ask(world, flights, clock, stream=True)
            assert "ReplicaStalled" not in world.loop.story

    play(tmp_path, story)
