"""The tail of the log over HTTP: from any point, without a gap, without a duplicate, however slow the reader."""

import asyncio
import json
from typing import Any

import pytest

from eventlog import events as e
from eventlog.reader import read
from router.api import events
from tests.api.streaming import Stream
from tests.api.world import World


async def take(stream: Stream, count: int) -> list[tuple[str, dict[str, Any]]]:
    """So many frames, as (id, event)."""
    taken: list[tuple[str, dict[str, Any]]] = []
    async for frame in stream.frames():
        number, data = frame.split("\n", 1)
        taken.append((number.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
        if len(taken) == count:
            break
    return taken


def test_the_past_and_then_the_present() -> None:
    """From number 1: everything in the log, and what comes while the reader reads, each once."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        past = len(world.seen)
        async with world.stream("/events?from=0") as stream:
            before = await take(stream, past)
            await world.finish(await world.arrive("alpha"))
            after = await take(stream, 3)
        told = [event["seq"] for _, event in before + after]
        assert told == list(range(1, past + 4))
        assert [number for number, _ in before] == [str(n) for n in range(1, past + 1)]
        assert before[0][1]["type"] == "RouterStarted"
        assert [event["type"] for _, event in after] == ["RequestArrived", "RequestDispatched", "RequestFinished"]
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"

    World.run(story)


def test_without_a_start_only_what_comes() -> None:
    """As `tail -f -n 0`."""

    async def story(world: World) -> None:
        async with world.stream("/events") as stream:
            await anext(stream.pieces())
            rid = await world.arrive("alpha")
            ((_, first),) = await take(stream, 1)
        assert (first["type"], first["rid"]) == ("RequestArrived", rid)

    World.run(story)


def test_a_reader_resumes_behind_the_last_event_that_it_had() -> None:
    """EventSource sends the last id by itself; it wins over `from`."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        async with world.stream("/events?from=0", last_event_id="4") as stream:
            ((number, event),) = await take(stream, 1)
        assert (number, event["seq"]) == ("5", 5)
        answer = await world.http.get("/events", headers={"last-event-id": "yesterday"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")

    World.run(story)


def test_a_reader_of_a_log_that_is_there_no_more_hears_of_the_new_one() -> None:
    """Its numbers begin anew: whoever waited for the next of the old ones would wait for ever."""

    async def story(world: World) -> None:
        async with world.stream("/events", last_event_id="5000-7000") as stream:
            await anext(stream.pieces())
            rid = await world.arrive("alpha")
            ((_, first),) = await take(stream, 1)
        assert (first["type"], first["rid"]) == ("RequestArrived", rid)

    World.run(story)


def test_a_slow_reader_is_sent_back_to_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffer holds 4; 200 events pass while it reads nothing. It gets all of them, in order, once."""
    monkeypatch.setattr(events, "BUFFER", 4)
    monkeypatch.setattr(events, "CHUNK", 8)

    async def story(world: World) -> None:
        async with world.stream("/events?from=0") as stream:
            (first,) = await take(stream, 1)
            for _ in range(60):
                await world.finish(await world.arrive("alpha"))
            told = [first[1]["seq"], *(event["seq"] for _, event in await take(stream, len(world.seen) - 1))]
            assert told == list(range(1, len(world.seen) + 1))
            rid = await world.arrive("alpha")
            ((_, last), _) = await take(stream, 2)
            assert last["rid"] == rid

    World.run(story)


def test_a_slow_reader_of_the_present_is_not_sent_the_whole_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wanted nothing of before; back to the files means back to where it began."""
    monkeypatch.setattr(events, "BUFFER", 4)

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        world.loop.note(e.GpuSampled(gpu=0))
        world.loop.flush_observations()
        past = len(world.seen)
        async with world.stream("/events?observations=true") as stream:
            await anext(stream.pieces())
            for _ in range(20):
                await world.finish(await world.arrive("alpha"))
            told = [event["seq"] for _, event in await take(stream, len(world.seen) - past)]
        assert told == list(range(past + 1, len(world.seen) + 1))

    World.run(story)


def test_a_damaged_log_ends_the_stream_with_an_error() -> None:
    """What can be read is told, then what is wrong; nothing is skipped in silence."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        (segment,) = world.config.log_dir.glob("events-*.ndjson")
        damaged = segment.read_bytes().replace(b'"seq":3,', b'"seq":9,')
        segment.write_bytes(damaged)
        (world.config.log_dir / "synced").write_text(f"{segment.name} {len(damaged)}")
        async with world.stream("/events?from=0") as stream:
            told = [frame async for frame in stream.frames()]
        assert told[0].startswith("id: 1\n")
        assert told[-1].startswith("event: error\n")
        assert "damaged" in told[-1]

    World.run(story)


def test_events_logged_while_the_past_is_read_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be in the file as well as in the buffer: at every point of the reading, something is logged."""
    monkeypatch.setattr(events, "CHUNK", 2)

    async def story(world: World) -> None:
        for _ in range(5):
            await world.finish(await world.arrive("alpha"))
        told: list[int] = []
        async with world.stream("/events?from=0") as stream:
            for _ in range(12):
                told += [event["seq"] for _, event in await take(stream, 2)]
                await world.finish(await world.arrive("alpha"))
            told += [event["seq"] for _, event in await take(stream, len(world.seen) - len(told))]
        assert told == list(range(1, len(world.seen) + 1))

    World.run(story)


def test_observations_come_along_where_wanted_and_resume_by_themselves() -> None:
    """Both streams of the log rise by themselves, so an id has a number for each."""

    async def story(world: World) -> None:
        await world.arrive("alpha")
        for used_mib in (1, 2):
            world.loop.note(e.GpuSampled(gpu=0, used_mib=used_mib))
            world.loop.flush_observations()
            await world.arrive("alpha")
        logged = [event.seq for event in read(world.config.log_dir, stream="all") if event.seq]
        wanted = sorted(set(logged))
        async with world.stream("/events?from=0&observations=true") as stream:
            taken = await take(stream, len(wanted))
        assert [event["seq"] for _, event in taken] == wanted
        assert [event["used_mib"] for _, event in taken if event["type"] == "GpuSampled"] == [1, 2]
        half = len(wanted) // 2
        number = taken[half - 1][0]
        async with world.stream("/events?observations=true", last_event_id=number) as stream:
            rest = await take(stream, len(wanted) - half)
        assert [event["seq"] for _, event in rest] == wanted[half:]
        async with world.stream("/events?from=0") as stream:
            plain = await take(stream, len(wanted) - 2)
        assert all(event["type"] != "GpuSampled" for _, event in plain)

    World.run(story)


def test_the_stream_ends_when_the_router_stops() -> None:
    """So that it holds no shutdown up; its reader comes back and goes on from its last event."""

    async def story(world: World) -> None:
        async with world.stream("/events") as stream:
            await anext(stream.pieces())
            await world.post(e.RouterStopping(reason="SIGTERM", deadline_us=world.loop.clock.now_us() + 1_000_000))
            told = [json.loads(frame.partition("data: ")[2])["type"] async for frame in stream.frames()]
        assert told[0] == "RouterStopping"

    World.run(story)


def test_a_reader_that_leaves_is_forgotten() -> None:
    """No subscription stays behind."""

    async def story(world: World) -> None:
        before = len(world.loop._subscribers)
        async with world.stream("/events?from=0") as stream:
            await take(stream, 1)
            assert len(world.loop._subscribers) == before + 1
        await asyncio.sleep(0)
        assert len(world.loop._subscribers) == before

    World.run(story)


@pytest.mark.parametrize("path", ["/events", "/events?from=0", "/models/sse"])
def test_a_reader_who_comes_while_the_router_stops_does_not_hold_it_up(path: str) -> None:
    """The event that ends such streams came before it did."""

    async def story(world: World) -> None:
        await world.post(e.RouterStopping(reason="SIGTERM", deadline_us=world.loop.clock.now_us() + 60_000_000))
        async with world.stream(path) as stream:
            told = [json.loads(frame.partition("data: ")[2])["type"] async for frame in stream.frames()]
        assert told == (["RouterStarted", "RouterStopping"] if "from" in path else [])

    World.run(story)
