"""However the log comes in, the tables are the same: they depend on the log alone."""

import os
import random
from pathlib import Path

import pytest

from eventlog.errors import LogDamaged
from eventlog.segments import STREAMS, list_segments, read_blocks
from projections import projector as projector_module
from projections import staging
from projections.projector import Projector
from tests.projections.logs import ask, every_row, project, unruly_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    unruly_log(folder, runs=3)
    return folder


@pytest.fixture(scope="module")
def rebuilt(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    with project(log, tmp_path_factory.mktemp("db") / "whole.duckdb") as projector:
        return every_row(projector.cursor())


def test_the_log_that_these_tests_use_has_a_bit_of_everything(rebuilt: dict[str, list[str]]) -> None:
    for name in (
        "requests",
        "swaps",
        "replicas",
        "crashes",
        "decisions",
        "queue_depth",
        "token_seconds",
        "gpu_samples",
    ):
        assert len(rebuilt[name]) > 5, name
    assert "'lost'" in " ".join(rebuilt["replicas"]), "a run was broken off"
    assert "'lost'" in " ".join(rebuilt["requests"])
    assert not rebuilt["open_requests"], "the last run was brought to its end"


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_grows_in_any_pieces_gives_the_same_rows_as_a_rebuild(
    seed: int, log: Path, rebuilt: dict[str, list[str]], tmp_path: Path
) -> None:
    """Pieces end in the middle of lines, streams run ahead of each other, and the projector is started again."""
    dice = random.Random(seed)
    grows = tmp_path / "log"
    grows.mkdir()
    files = {
        stream: [
            (segment.path.name.removesuffix(".gz"), b"".join(read_blocks(segment.path)))
            for segment in list_segments(log, stream)
        ]
        for stream in STREAMS
    }
    most = dice.choice([8_000, 20_000, 60_000])
    projector = None
    while any(files.values()):
        stream = dice.choice([stream for stream, left in files.items() if left])
        name, data = files[stream][0]
        size = dice.randrange(1, most)
        with (grows / name).open("ab") as file:
            file.write(data[:size])
        files[stream][0] = (name, data[size:])
        if not data[size:]:
            del files[stream][0]
        if projector is None:
            projector = Projector(grows, tmp_path / "db")
        projector.poll()
        if dice.random() < 0.1:
            projector.close()
            projector = Projector(grows, tmp_path / "db")
            assert not projector.rebuilt_because
    assert projector is not None
    projector.catch_up()

    assert every_row(projector.cursor()) == rebuilt
    projector.close()


def test_a_batch_of_any_size_gives_the_same_rows(log: Path, rebuilt: dict[str, list[str]], tmp_path: Path) -> None:
    with Projector(log, tmp_path / "db") as projector:
        while projector.poll(size_bytes=1):
            pass

        assert every_row(projector.cursor()) == rebuilt


@pytest.mark.parametrize("small_lines", [0, 10_000_000])
def test_types_that_are_read_one_by_one_or_together_give_the_same_rows(
    small_lines: int, log: Path, rebuilt: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large batches are, and small ones."""
    monkeypatch.setattr(staging, "SMALL_LINES", small_lines)
    with project(log, tmp_path / "db") as projector:
        assert every_row(projector.cursor()) == rebuilt


@pytest.mark.parametrize("commit_bytes", [1, 60_000])
def test_a_rebuild_in_many_batches_and_transactions_of_several_gives_the_same_rows(
    commit_bytes: int,
    log: Path,
    rebuilt: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a log of gigabytes is: each batch is read while the one before is taken in."""
    monkeypatch.setattr(projector_module, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(projector_module, "COMMIT_BYTES", commit_bytes)
    with project(log, tmp_path / "db") as projector:
        assert every_row(projector.cursor()) == rebuilt
        assert projector.poll() == 0


def test_a_projector_that_has_all_of_it_reads_nothing_and_writes_nothing(log: Path, tmp_path: Path) -> None:
    with project(log, tmp_path / "db") as projector:
        before = os.stat(tmp_path / "db")

        assert projector.poll() == 0
        assert os.stat(tmp_path / "db").st_mtime_ns == before.st_mtime_ns


def test_the_place_that_was_reached_is_in_the_same_transaction_as_the_rows(log: Path, tmp_path: Path) -> None:
    """A reader between two batches sees a log up to a place."""
    with Projector(log, tmp_path / "db") as projector:
        while projector.poll(size_bytes=1):
            [seen] = ask(
                projector,
                "SELECT (SELECT seq FROM applied WHERE stream = 'events') AS place, max(seq) AS last FROM decisions",
            )
            assert seen["last"] is None or seen["last"] <= seen["place"]
            assert projector.applied["events"] == seen["place"]


def test_damage_in_one_stream_is_told_and_every_batch_stays_whole(tmp_path: Path) -> None:
    """Both streams are rebuilt side by side: the other one is as far as it came, up to the end of a batch."""
    log = tmp_path / "log"
    unruly_log(log, runs=1, segment_bytes=9_000)
    first, *others = [segment.path for segment in list_segments(log, "events")]
    assert others
    data = first.read_bytes()
    first.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])

    with Projector(log, tmp_path / "db") as projector:
        with pytest.raises(LogDamaged, match=first.name):
            projector.catch_up()
        reached = projector.applied
        [seen] = ask(projector, "SELECT (SELECT count(*) FROM requests) AS requests, max(seq) AS last FROM gpu_samples")

    assert reached["events"] == seen["requests"] == 0
    assert (seen["last"] or 0) <= reached["observations"]
