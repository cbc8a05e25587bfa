"""Samples of the children: taken from those that work, never from those that sleep."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from eventlog.events import MetricsSampled, Observation, SlotsSampled
from router.clock import RunClock
from router.probe import COUNT_MAX
from router.sampler import RECENTLY_US, Sampler, parse
from router.scheduler.state import Model, Replica, State
from router.upstream import Endpoint

SLOTS = (
    b'[{"id":0,"is_processing":true,"n_prompt_tokens":100,"next_token":[{"n_decoded":11}]},'
    b'{"id":1,"is_processing":false}]'
)
METRICS = b"# HELP x y\n# TYPE x counter\nllamacpp:prompt_tokens_total 42\nllamacpp:requests_deferred 0.5\n"


class Child:
    """A llama-server that answers two paths and remembers what it was asked."""

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        status, body = self.answers[path]
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()


class Loop:
    """The state that the sampler looks at, and what it notes."""

    def __init__(self, *, in_flight: bool, used_us_ago: int) -> None:
        self.clock = RunClock()
        used_us = self.clock.now_us() - used_us_ago
        self.state = State(
            now_us=used_us,
            models={"m": Model(name="m", mask=1, phase="ready", replicas=["m#0.1"], used_us=used_us)},
            replicas={"m#0.1": Replica(id="m#0.1", model="m", index=0, mask=1, phase="ready", slots=2)},
        )
        if in_flight:
            self.state.replicas["m#0.1"].in_flight = {1: 1}
        self.noted: list[Any] = []

    def note(self, observation: Observation) -> None:
        self.noted.append(observation)


def play(tmp_path: Path, loop: Loop, child: Child, story: Callable[[Sampler], Awaitable[None]]) -> None:
    path = str(tmp_path / "s")

    async def run() -> None:
        server = await asyncio.start_unix_server(child.serve, path)
        async with server:
            await story(Sampler(loop, lambda replica: Endpoint(path=path)))

    asyncio.run(run())


def test_a_working_replica_is_asked_for_slots_and_metrics(tmp_path: Path) -> None:
    """What the slots hold, and every counter."""
    loop = Loop(in_flight=True, used_us_ago=0)
    play(tmp_path, loop, Child({"/slots": (200, SLOTS), "/metrics": (200, METRICS)}), Sampler.sample)
    slots = next(noted for noted in loop.noted if isinstance(noted, SlotsSampled))
    assert (slots.replica, slots.busy, slots.slots, slots.context_used) == ("m#0.1", 1, 2, [111, 0])
    metrics = next(noted for noted in loop.noted if isinstance(noted, MetricsSampled))
    assert metrics.values == {"llamacpp:prompt_tokens_total": 42.0, "llamacpp:requests_deferred": 0.5}


def test_a_replica_that_worked_a_moment_ago_is_asked_for_its_counters_only(tmp_path: Path) -> None:
    """Asking for slots would wake a child that has gone to sleep."""
    loop = Loop(in_flight=False, used_us_ago=1_000_000)
    child = Child({"/slots": (200, SLOTS), "/metrics": (200, METRICS)})
    play(tmp_path, loop, child, Sampler.sample)
    assert child.asked == ["/metrics"]


def test_an_idle_replica_is_left_alone(tmp_path: Path) -> None:
    """However often: the state's own clock stands still while nothing happens, so it is not what counts."""
    loop = Loop(in_flight=False, used_us_ago=RECENTLY_US + 1_000_000)
    child = Child({})
    play(tmp_path, loop, child, Sampler.sample)
    assert child.asked == []


def test_what_a_child_does_not_serve_is_asked_once(tmp_path: Path) -> None:
    """Started without --metrics it says 501."""
    loop = Loop(in_flight=True, used_us_ago=0)
    child = Child({"/slots": (200, SLOTS), "/metrics": (501, b"{}")})

    async def story(sampler: Sampler) -> None:
        await sampler.sample()
        await sampler.sample()

    play(tmp_path, loop, child, story)
    assert sorted(child.asked) == ["/metrics", "/slots", "/slots"]


def test_nonsense_and_silence_are_no_samples(tmp_path: Path) -> None:
    """A child may answer anything, or be gone."""
    loop = Loop(in_flight=True, used_us_ago=0)
    play(tmp_path, loop, Child({"/slots": (200, b'{"error":1}'), "/metrics": (200, b"x y z\n")}), Sampler.sample)
    assert loop.noted == []

    async def nobody() -> None:
        await Sampler(loop, lambda replica: Endpoint(path=str(tmp_path / "gone"))).sample()

    asyncio.run(nobody())
    assert loop.noted == []


def test_lines_with_labels_comments_and_timestamps() -> None:
    """Only plain samples are kept, by name."""
    page = '# HELP a b\na 1\nb{x="1"} 2\nc 3.5 1700000000000\nd NaNcy\n\n'
    assert parse(page) == {"a": 1.0, "c": 3.5}


def test_numbers_that_no_log_could_hold_are_no_samples(tmp_path: Path) -> None:
    """JSON has no infinity, and a count beyond all measure ends the watch over the others no more than nonsense."""
    assert parse("a inf\nb -inf\nc nan\nd 1e999\ne 2\n") == {"e": 2.0}
    loop = Loop(in_flight=True, used_us_ago=0)
    slots = b'[{"is_processing":true,"n_past":%b}]'
    for number in (b"1e999", b"9" * 5000, b"[" * 100_000 + b"]" * 100_000):
        play(tmp_path, loop, Child({"/slots": (200, slots % number), "/metrics": (501, b"")}), Sampler.sample)
    assert loop.noted == []
    play(tmp_path, loop, Child({"/slots": (200, slots % (b"9" * 40)), "/metrics": (501, b"")}), Sampler.sample)
    assert [noted.context_used for noted in loop.noted] == [[COUNT_MAX]]
