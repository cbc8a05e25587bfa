"""A log whose beginning was cut: the database keeps no more than that, and a rebuild knows what was open at the cut."""

from pathlib import Path
from typing import Any

import pytest

from eventlog.housekeeping import read_header
from eventlog.segments import STREAMS, list_segments
from projections import questions
from projections.projector import Projector
from tests.projections.logs import Row, ask, project, unruly_log

KEYS = {
    "requests": "rid",
    "swaps": "swap",
    "swap_candidates": "swap || model",
    "replicas": "replica",
    "crashes": "seq",
    "queue_depth": "seq",
    "decisions": "seq",
    "operations": "op",
    "releases": "seq",
    "runs": "run",
    "token_seconds": "seq",
    "gpu_samples": "seq",
}


def cut(log: Path, keep: int) -> None:
    """As retention does: up to a checkpoint of the events, and observations of about the same age."""
    for stream in STREAMS:
        segments = list_segments(log, stream)
        for segment in segments[:-keep]:
            segment.path.unlink()
    header = read_header(list_segments(log, "events")[0])
    assert header is not None
    assert header.state, "retention leaves a checkpoint at the beginning"


def by_key(projector: Projector, table: str) -> dict[Any, Row]:
    return {row.pop("the_key"): row for row in ask(projector, f"SELECT {KEYS[table]} AS the_key, * FROM {table}")}


@pytest.mark.parametrize("keep", [2, 4])
def test_after_a_cut_the_live_tables_and_a_rebuild_hold_the_same_things(keep: int, tmp_path: Path) -> None:
    """What began before the cut is known better by the live ones; they never contradict each other."""
    log = tmp_path / "log"
    unruly_log(log, runs=2, requests=60, segment_bytes=9_000)
    live = project(log, tmp_path / "live")
    before = len(by_key(live, "requests"))
    live.close()
    cut(log, keep)
    unruly_log(log, runs=1, requests=10, seed=77)

    with project(log, tmp_path / "live") as live, project(log, tmp_path / "fresh") as fresh:
        assert not live.rebuilt_because
        assert len(by_key(live, "requests")) < before
        for table in KEYS:
            kept, known = by_key(live, table), by_key(fresh, table)
            assert set(kept) == set(known), table
            for key, row in known.items():
                for name, value in row.items():
                    if value is not None and not is_estimate(table, name, row):
                        assert kept[key][name] == value, (table, key, name)


def is_estimate(table: str, name: str, row: Row) -> bool:
    """A checkpoint does not say when a process was ordered, nor whether an earlier attempt had been made."""
    return row.get("seq") is None and (table, name) in {
        ("replicas", "ordered_us"),
        ("replicas", "ready_us"),
        ("replicas", "attempt"),
    }


def test_what_is_open_at_the_cut_is_known_from_the_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "log"
    unruly_log(log, runs=1, requests=60, segment_bytes=9_000)
    cut(log, 3)

    with project(log, tmp_path / "db") as projector:
        seeded = ask(projector, "SELECT rid, model, arrived_us, outcome FROM requests WHERE seq IS NULL")
        replicas = ask(projector, "SELECT model, gpus, ending FROM replicas WHERE seq IS NULL")
        deepest = ask(projector, "SELECT min(queued) AS least, min(in_flight) AS least_in_flight FROM queue_depth")

    assert seeded
    assert all(row["model"] and row["arrived_us"] and row["outcome"] for row in seeded)
    assert replicas
    assert all(row["gpus"] in ([0], [1]) for row in replicas)
    assert deepest == [{"least": 0, "least_in_flight": 0}]


def test_the_settings_of_a_run_are_known_although_its_beginning_was_cut(tmp_path: Path) -> None:
    wanted = "SELECT run, * EXCLUDE (seq, at_us) FROM settings ORDER BY seq"
    log = tmp_path / "log"
    unruly_log(log, runs=1, requests=60, segment_bytes=9_000)
    with project(log, tmp_path / "whole") as projector:
        whole = ask(projector, wanted)
    cut(log, 3)

    with project(log, tmp_path / "db") as projector:
        assert ask(projector, wanted) == whole
        assert ask(projector, "SELECT count(*) AS n FROM settings WHERE head_grace_us IS NULL") == [{"n": 0}]


def test_models_and_gpus_of_a_run_are_known_although_its_beginning_was_cut(tmp_path: Path) -> None:
    """All but the prices, and the names of the GPUs, which no checkpoint has."""
    models = "SELECT run, * EXCLUDE (seq, at_us, input_price, cached_input_price, output_price) FROM model_configs"
    wanted = (f"{models} ORDER BY model", "SELECT gpu FROM gpus ORDER BY gpu")
    log = tmp_path / "log"
    unruly_log(log, runs=1, requests=60, segment_bytes=9_000)
    with project(log, tmp_path / "whole") as projector:
        whole = [ask(projector, sql) for sql in wanted]
    cut(log, 3)

    with project(log, tmp_path / "db") as projector:
        assert ask(projector, wanted[0]) == whole[0]
        assert ask(projector, wanted[1])
        status = questions.find("status_over_time")
        until_us = ask(projector, "SELECT last_us FROM runs")[0]["last_us"]
        with projector.cursor() as cursor:
            rows = cursor.execute(status.sql, status.parameters(since_us=until_us - 5_000_000, until_us=until_us))
            assert "inactive" not in {row[1] for row in rows.fetchall()}, "the router ran all the time"
