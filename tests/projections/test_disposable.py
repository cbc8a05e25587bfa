"""The database is a cache: whatever happens to the file, it is made anew from the log and says why."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pytest

from eventlog.errors import LogError
from projections import database
from projections.errors import DatabaseLocked
from projections.projector import Projector
from tests.mortal import mortal
from tests.projections.logs import Story, arrives, ask, every_row, project, unruly_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    unruly_log(folder, runs=1, requests=20)
    return folder


@pytest.fixture(scope="module")
def rows(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    with project(log, tmp_path_factory.mktemp("db") / "whole") as projector:
        return every_row(projector.cursor())


def is_whole(projector: Projector, rows: dict[str, list[str]]) -> bool:
    projector.catch_up()
    return every_row(projector.cursor()) == rows


def test_a_file_that_is_missing_is_made(log: Path, rows: dict[str, list[str]], tmp_path: Path) -> None:
    with Projector(log, tmp_path / "deep" / "db") as projector:
        assert projector.rebuilt_because == "there was none"
        assert is_whole(projector, rows)


def test_a_file_that_is_there_is_used(log: Path, rows: dict[str, list[str]], tmp_path: Path) -> None:
    project(log, tmp_path / "db").close()

    with Projector(log, tmp_path / "db") as projector:
        assert projector.rebuilt_because == ""
        assert projector.catch_up() == 0
        assert is_whole(projector, rows)


@pytest.mark.parametrize("at_byte", [0, 5_000, 12_288])
def test_a_file_with_damaged_blocks_is_made_anew(
    at_byte: int, log: Path, rows: dict[str, list[str]], tmp_path: Path
) -> None:
    """In its headers, or everywhere after them."""
    project(log, tmp_path / "db").close()
    size = (tmp_path / "db").stat().st_size
    with (tmp_path / "db").open("r+b") as file:
        file.seek(at_byte)
        file.write(b"\xff" * (8_000 if at_byte < 12_288 else size - at_byte))

    with Projector(log, tmp_path / "db") as projector:
        assert is_whole(projector, rows)
        assert projector.rebuilt_because


def test_damage_that_shows_only_when_a_batch_is_applied_leads_to_a_new_file(log: Path, tmp_path: Path) -> None:
    """Here: a table that is gone."""
    log = shutil.copytree(log, tmp_path / "log")
    project(log, tmp_path / "db").close()
    with duckdb.connect(str(tmp_path / "db")) as connection:
        connection.execute("DROP VIEW requests; DROP TABLE open_requests")
    with Story(log, run=1) as story:
        story.at(1e9, arrives(999, "A", 1e9))

    with Projector(log, tmp_path / "db") as projector:
        assert not projector.rebuilt_because
        projector.catch_up()
        assert "open_requests" in projector.rebuilt_because
        assert {"rid": 999} in ask(projector, "SELECT rid FROM requests")


def test_a_file_that_is_no_database_is_set_aside_and_not_lost(
    log: Path, rows: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "db").write_text("my thesis")

    with Projector(log, tmp_path / "db") as projector:
        assert projector.rebuilt_because
        assert is_whole(projector, rows)
    assert (tmp_path / "db.set-aside").read_text() == "my thesis"


def test_a_database_of_something_else_is_not_taken_for_ours(
    log: Path, rows: dict[str, list[str]], tmp_path: Path
) -> None:
    with duckdb.connect(str(tmp_path / "db")) as connection:
        connection.execute("CREATE TABLE requests (rid TEXT)")

    with Projector(log, tmp_path / "db") as projector:
        assert "about" in projector.rebuilt_because
        assert is_whole(projector, rows)


@pytest.mark.parametrize("column", ["fingerprint", "duckdb"])
def test_a_file_of_another_version_is_made_anew(
    column: str, log: Path, rows: dict[str, list[str]], tmp_path: Path
) -> None:
    project(log, tmp_path / "db").close()
    with duckdb.connect(str(tmp_path / "db")) as connection:
        connection.execute(f"UPDATE about SET {column} = 'older'")

    with Projector(log, tmp_path / "db") as projector:
        assert projector.rebuilt_because == "it was made by another version"
        assert is_whole(projector, rows)


def test_a_database_of_another_log_is_made_anew(log: Path, tmp_path: Path) -> None:
    """Both logs have a line with the seq that was reached; its checksum tells them apart."""
    unruly_log(tmp_path / "other", runs=1, requests=30, seed=99)
    project(log, tmp_path / "db").close()

    with Projector(tmp_path / "other", tmp_path / "db") as projector:
        assert "another line with seq" in projector.rebuilt_because


def test_a_log_that_was_set_back_to_an_older_copy_is_projected_anew(log: Path, tmp_path: Path) -> None:
    """As after a power cut that took lines which had been applied."""
    shutil.copytree(log, tmp_path / "log")
    project(tmp_path / "log", tmp_path / "db").close()
    last = sorted((tmp_path / "log").glob("events-*.ndjson"))[-1]
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))

    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        assert "no line of events with seq" in projector.rebuilt_because
        projector.catch_up()
        [(last_seq,)] = projector.cursor().execute("SELECT seq FROM applied WHERE stream = 'events'").fetchall()
    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        assert not projector.rebuilt_because
        assert projector.applied["events"] == last_seq


@contextmanager
def held_open(path: Path) -> Iterator[None]:
    """By another process, to write."""
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        mortal([sys.executable, "-c", code, str(path)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "open\n"
        yield
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def test_a_file_that_another_process_writes_is_left_alone_unless_it_is_to_be_taken_over(
    log: Path, rows: dict[str, list[str]], tmp_path: Path
) -> None:
    project(log, tmp_path / "db").close()
    with held_open(tmp_path / "db"):
        with pytest.raises(DatabaseLocked, match="in use by another process"):
            Projector(log, tmp_path / "db")

        with Projector(log, tmp_path / "db", take_over=True) as projector:
            assert "in use" in projector.rebuilt_because
            assert is_whole(projector, rows)


def test_without_a_log_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot read the log directory"):
        Projector(tmp_path / "none", tmp_path / "db")
    assert not (tmp_path / "db").exists()


def test_a_log_directory_that_is_empty_yet_gives_empty_tables(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        assert projector.catch_up() == 0
        unruly_log(tmp_path / "log", runs=1, requests=3)
        assert projector.catch_up() > 0


def test_the_instance_that_is_written_can_touch_nothing_else_either(tmp_path: Path) -> None:
    with database.new_database(tmp_path / "db") as connection:
        settings = dict(connection.execute("SELECT name, value FROM duckdb_settings()").fetchall())

    assert settings["enable_external_access"] == "false"
    assert settings["autoinstall_known_extensions"] == settings["autoload_known_extensions"] == "false"
    assert settings["python_enable_replacements"] == "false"
    assert settings["lock_configuration"] == "true"


def batch_files() -> dict[Path, str]:
    """Those of this process, and what they really are."""
    names = {}
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names[file] = os.readlink(file)
    return {file: name for file, name in names.items() if "llama-router-batch" in name}


def test_the_files_that_batches_go_through_are_empty_between_them_and_no_other_can_be_read(
    log: Path, tmp_path: Path
) -> None:
    """Beside the database itself."""
    with project(log, tmp_path / "db") as projector, projector.cursor() as cursor:
        [(paths,)] = cursor.execute("SELECT current_setting('allowed_paths')").fetchall()
        memory = batch_files()
        found = [cursor.execute("SELECT size FROM read_text(?)", [str(file)]).fetchall() for file in memory]
        with pytest.raises(duckdb.PermissionException):
            cursor.execute("FROM read_text(?)", [__file__])

    own = str(tmp_path / "db")
    assert {path for path in paths if not path.startswith(own)} == set(memory.values())
    assert found
    assert all(rows == [(0,)] for rows in found)
