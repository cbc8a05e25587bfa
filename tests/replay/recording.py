"""Logs for the tests of replay: a pretend world's facts and the scheduler's decisions, through the real writer.

with Recording(folder, settings) as world:
    world.arrives(0.0, "A")
    world.run()
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from pathlib import Path
from typing import Any, Self

import msgspec

from eventlog import events as e
from eventlog.codec import TAIL, rechain
from eventlog.recover import Recovered
from eventlog.segments import Stream, list_segments, read_blocks, segment_name
from eventlog.settings import ModelSettings, SchedulerSettings
from eventlog.writer import LogWriter
from router.scheduler import POLICY_VERSION, State, carried_from, dump, fold, restore
from tests.scheduler.shell import SECOND, START_US
from tests.scheduler.world import Manners, World

Line = dict[str, Any]

THREE = {"A": ModelSettings(gpus=(0,)), "B": ModelSettings(gpus=(0,)), "C": ModelSettings(gpus=(1,))}
SETTINGS = SchedulerSettings(models=THREE, gpus=2)
ONE_SEGMENT = 1 << 30


class Recording(World):
    """One run. What an earlier run left in the folder is carried over, as the router does."""

    def __init__(
        self,
        folder: Path,
        settings: SchedulerSettings = SETTINGS,
        *,
        segment_bytes: int = ONE_SEGMENT,
        policy_version: int = POLICY_VERSION,
        seed: int = 0,
        manners: Manners | None = None,
    ) -> None:
        self.policy_version = policy_version
        self.writer = LogWriter.open(
            folder, durability="never", segment_bytes=segment_bytes, checkpoint=lambda: dump(self.state)
        )
        self.run_number = self.writer.last_run + 1
        self.begins_us = max(START_US, self.writer.recovered.last_at_us + SECOND)
        carried = carried_from(_left_by(self.writer.recovered))
        super().__init__(settings, seed=seed, manners=manners, carried=carried)
        self.last_rid = carried.next_rid - 1
        self.last_op = carried.next_op - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def happens(self, fact: e.Fact) -> list[e.Decision]:
        if isinstance(fact, e.RouterStarted):
            self.now_us = self.begins_us
            fact = msgspec.structs.replace(fact, policy_version=self.policy_version)
        self.seq = self.writer.next_seq - 1
        logged = len(self.record)
        decisions = super().happens(fact)
        self.writer.append(self.record[logged:])
        self.writer.roll_if_due()
        return decisions

    def run_until(self, at_s: float) -> None:
        """Up to a moment; what was planned for later may still happen, or never."""
        while self.heap and self.heap[0][0] <= START_US + round(at_s * SECOND):
            self.now_us, _, what = heappop(self.heap)
            what()

    def _stamp(self, event: e.Event, cause: int) -> e.Event:
        self.seq += 1
        stamped = msgspec.structs.replace(event, seq=self.seq, at_us=self.now_us, run=self.run_number, cause=cause)
        self.record.append(stamped)
        return stamped


def busy_hour(world: World, requests: int = 40, *, from_s: float = 0.0) -> None:
    """Requests for all three models, a second apart; some clients leave. Everything comes to its end."""
    for number in range(requests):
        leaves_after_s = 2.5 if number % 9 == 8 else None
        world.arrives(from_s + number, "ABC"[number * number % 3], leaves_after_s=leaves_after_s, conversation="c")
    world.run()


def all_in_turn(world: World, requests: int) -> None:
    """As `busy_hour`, with each of the three models as often as the others, a few in a row."""
    for number in range(requests):
        leaves_after_s = 2.5 if number % 9 == 8 else None
        world.arrives(number, "ABC"[number // 2 % 3], leaves_after_s=leaves_after_s, conversation="c")
    world.run()


def lines_of(folder: Path, stream: Stream = "events") -> list[Line]:
    """Every line of facts and decisions, or of observations, headers included, without its checksum."""
    data = b"".join(b"".join(read_blocks(segment.path)) for segment in list_segments(folder, stream))
    return [msgspec.json.decode(line[:-TAIL] + b"}") for line in data.split(b"\n")[:-1]]


def rewrite(folder: Path, change: Callable[[list[Line]], list[Line]]) -> list[Line]:
    """The log with other lines, in one segment whose chain is right: a forgery that only the rules can find.

    Returns the lines.
    """
    lines = change(lines_of(folder))
    for segment in list_segments(folder, "events"):
        segment.path.unlink()
    data = b"".join(msgspec.json.encode(line)[:-1] + b',"crc":"00000000"}\n' for line in lines)
    first_seq = lines[0]["seq"]
    data, _ = rechain(data, int(lines[0]["chain"], 16))
    (folder / segment_name("events", first_seq)).write_bytes(data)
    return lines


def _left_by(recovered: Recovered) -> State:
    """What the last run left, folded from the log alone."""
    state = restore(recovered.state) if recovered.state is not None else State()
    for event in recovered.events:
        fold(state, event)
    return state
