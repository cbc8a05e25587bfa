"""Logs to project, and the tables that come of them.

Most come from a pretend world through the real scheduler and the real writer (`tests.replay.recording`), since that has
crashes, failed loads and evictions by the dozen; observations are added as the relay and the samplers would.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from eventlog.writer import LogWriter
from projections.projector import Projector
from tests.replay.recording import SETTINGS, Recording
from tests.scheduler.shell import SECOND
from tests.scheduler.shell import START_US as WORLD_START_US
from tests.scheduler.world import Manners

Row = dict[str, Any]

UNRULY = Manners(
    load_s=(1.0, 5.0),
    stop_s=(0.1, 1.0),
    service_s=(0.2, 3.0),
    release_s=(0.0, 1.0),
    slots=(1, 2),
    load_fails=0.15,
    crashes=0.08,
    stalls=0.02,
    breaks=0.05,
)
START_US = 1_750_000_000_000_000


def unruly_log(folder: Path, *, runs: int = 2, requests: int = 40, segment_bytes: int = 24_000, seed: int = 3) -> None:
    """Runs with misfortunes; all but the last are broken off in the middle. Small segments, both streams."""
    dice = random.Random(seed)
    left: dict[int, str] = {}
    for run in range(1, runs + 1):
        with Recording(folder, SETTINGS, segment_bytes=segment_bytes, seed=seed + run, manners=UNRULY) as world:
            lose(world.writer, world.begins_us, world.run_number, left)
            began_s = (world.begins_us - WORLD_START_US) / SECOND
            at_s = began_s
            for _ in range(requests):
                at_s += dice.expovariate(1.0)
                world.arrives(
                    at_s,
                    dice.choice("AABC"),
                    leaves_after_s=dice.choice([None, None, None, 4.0]),
                    priority=dice.choice([0, 0, 1]),
                    client=dice.choice(["x", "y"]),
                )
            ends_s = at_s if run == runs else began_s + requests / 2
            for second in range(int(began_s), int(ends_s), 5):
                world.run_until(second)
                observe(world.writer, world.now_us, world.run_number, list(world.running), dice)
            if run == runs:
                world.run()
            left = dict.fromkeys([*world.waiting, *world.running], "A")


def lose(writer: LogWriter, at_us: int, run: int, open_requests: dict[int, str]) -> None:
    """What the run before left open, as the router says it when it starts."""
    seq = writer.next_seq
    writer.append(
        [
            e.RequestLost(seq=seq + place, at_us=at_us, run=run, rid=rid, model=model, lost_run=run - 1)
            for place, (rid, model) in enumerate(open_requests.items())
        ]
    )


def observe(writer: LogWriter, at_us: int, run: int, rids: list[int], dice: random.Random) -> None:
    """A second of tokens for these requests, and a sample of two GPUs."""
    seq = writer.next_seq
    observations: list[e.Event] = [
        e.TokensStreamed(rid=rid, gaps_us=[dice.randrange(5_000, 60_000) for _ in range(20)]) for rid in rids
    ]
    observations += [e.GpuSampled(gpu=gpu, utilisation_percent=dice.randrange(100), used_mib=4000) for gpu in (0, 1)]
    writer.append_observations(
        [
            msgspec.structs.replace(event, seq=seq + place, at_us=at_us, run=run)
            for place, event in enumerate(observations)
        ]
    )


class Story:
    """A log told event by event: numbered, timed in seconds, written at once with the real chain."""

    def __init__(self, folder: Path, *, run: int = 1) -> None:
        self.writer = LogWriter.open(folder, durability="never")
        self.run = run

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def at(self, second: float, *events: e.Event) -> None:
        for event in events:
            at_us = START_US + round(second * SECOND)
            stamped = msgspec.structs.replace(event, seq=self.writer.next_seq, at_us=at_us, run=self.run)
            if isinstance(event, e.Observation):
                self.writer.append_observations([stamped])
            else:
                self.writer.append([stamped])


def us(second: float) -> int:
    """A moment of a story."""
    return START_US + round(second * SECOND)


def arrives(rid: int, model: str, second: float, **fields: Any) -> e.RequestArrived:
    return e.RequestArrived(rid=rid, model=model, arrived_us=us(second), **fields)


def started(*models: str, effective: dict[str, Any] | None = None, **fields: Any) -> e.RouterStarted:
    settings = SchedulerSettings(models={name: ModelSettings() for name in models})
    return e.RouterStarted(config=settings, effective=effective or {}, **fields)


# --- reading --------------------------------------------------------------------------------------------------------


def project(log: Path, database: Path) -> Projector:
    """A projector that has caught up."""
    projector = Projector(log, database)
    projector.catch_up()
    return projector


def ask(projector: Projector, sql: str, *parameters: Any) -> list[Row]:
    with projector.cursor() as cursor:
        found = cursor.execute(sql, list(parameters))
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def every_row(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """All tables and views with all rows, in an order that does not depend on how they came."""
    names = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE NOT temporary"
        " UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
    ).fetchall()
    return {name: sorted(map(repr, connection.execute(f'FROM "{name}"').fetchall())) for (name,) in names}
