"""`llama-router sql` and `llama-router projections rebuild`, as a person calls them."""

import json
import re
import time
from pathlib import Path

import pytest

from projections.projector import Projector
from projections.questions import STEPS_S, all_questions, bucket_for, time_us
from router.cli import main
from tests.projections.logs import unruly_log
from tests.projections.test_disposable import held_open

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    unruly_log(folder, runs=1, requests=20)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_first_question_makes_the_database_from_the_log(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--log", log, "--db", tmp_path / "db"]

    code, out, _ = run(capsys, "sql", "SELECT count(*) AS n FROM requests", "--json", *places)

    assert code == 0
    assert json.loads(out) == [{"n": 20}]
    assert (tmp_path / "db").exists()


def test_log_and_database_are_found_without_being_named(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENT_LOG_DIR", str(log))
    monkeypatch.setenv("HISTORY_DB_PATH", str(tmp_path / "history.db"))

    assert run(capsys, "sql", "SELECT count(*) AS n FROM requests", "--csv") == (0, "n\n20\n", "")
    assert (tmp_path / "history.duckdb").exists(), "a .db belongs to an older router"


def test_an_answer_is_a_table_json_or_csv(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT 'a,b' AS name, 1.5 AS number, [1, 2] AS list, NULL AS nothing, TIMESTAMP '2026-01-02' AS day"
    places = ["--log", log, "--db", tmp_path / "db"]

    _, table, _ = run(capsys, "sql", sql, *places)
    _, as_json, _ = run(capsys, "sql", sql, "--json", *places)
    _, as_csv, _ = run(capsys, "sql", sql, "--csv", *places)

    assert table.splitlines()[0].split() == ["name", "number", "list", "nothing", "day"]
    assert table.splitlines()[2].split() == ["a,b", "1.5", "[1,", "2]", "2026-01-02T00:00:00"]
    expected = {"name": "a,b", "number": 1.5, "list": [1, 2], "nothing": None, "day": "2026-01-02T00:00:00"}
    assert json.loads(as_json) == [expected]
    assert as_csv == 'name,number,list,nothing,day\n"a,b",1.5,"[1, 2]",,2026-01-02T00:00:00\n'


def test_a_table_for_people_shows_times_and_shares_and_json_the_numbers(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duration, a moment in local time, an average that DuckDB would write as 2.73e+06, a share, and nothing."""
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    sql = (
        "SELECT 2731000.5::DOUBLE AS wait_us, 1767225600123000 AS arrived_us, 1.25::DECIMAL(9, 2) AS success_share, "
        "0.5 AS cached_share, NULL AS ttft_us, 1234567 AS tokens, -3000 AS gap_us"
    )
    places = ["--log", log, "--db", tmp_path / "db"]
    try:
        _, table, _ = run(capsys, "sql", sql, *places)
        _, as_json, _ = run(capsys, "sql", sql, "--json", *places)
    finally:
        monkeypatch.undo()
        time.tzset()

    assert re.split(r" {2,}", table.splitlines()[2].strip()) == [
        *("2.73 s", "2026-01-01 02:00:00.123", "125 %", "50 %"),
        *("1234567", "−3 ms"),
    ]
    (row,) = json.loads(as_json)
    assert (row["wait_us"], row["arrived_us"]) == (2731000.5, 1767225600123000)
    assert (row["success_share"], row["ttft_us"]) == (1.25, None)


def test_what_somebody_wrote_cannot_move_the_cursor(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, table, _ = run(capsys, "sql", "SELECT chr(27) || '[2J' AS x", "--log", log, "--db", tmp_path / "db")

    assert "\x1b" not in table


def test_a_wrong_question_ends_with_code_1_and_says_why(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--log", log, "--db", tmp_path / "db"]

    code, _, err = run(capsys, "sql", "COPY requests TO 'x.csv'", *places)
    assert (code, "only SELECT" in err) == (1, True)
    code, _, err = run(capsys, "sql", "--ask", "wait", *places)
    assert (code, "is it waits" in err) == (1, True)
    code, _, err = run(capsys, "sql", "SELECT 1", "--log", tmp_path / "none", "--db", tmp_path / "db")
    assert (code, "cannot read the log directory" in err) == (1, True)


def test_while_the_dashboard_has_the_file_a_copy_answers(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--log", log, "--db", tmp_path / "db"]
    run(capsys, "sql", "SELECT 1", *places)
    with held_open(tmp_path / "db"):
        code, out, err = run(capsys, "sql", "SELECT count(*) AS n FROM requests", "--json", *places)
        assert (code, json.loads(out)) == (0, [{"n": 20}])
        said = "another process, such as a running dashboard, uses the database; a copy is made from the log"
        assert err == f"llama-router: {said}\n", "no word of DuckDB's"

        code, _, err = run(capsys, "projections", "rebuild", *places)
        assert (code, "in use by another process" in err) == (1, True)


def test_rebuild_makes_the_same_database_and_says_how_much(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--log", log, "--db", tmp_path / "db"]
    (tmp_path / "db").write_text("my thesis")

    code, out, _ = run(capsys, "projections", "rebuild", "--json", *places)

    assert code == 0
    told = json.loads(out)
    assert told["events"] > 100
    assert told["bytes"] == (tmp_path / "db").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "db.set-aside"]
    with Projector(log, tmp_path / "db") as projector:
        assert not projector.rebuilt_because
        assert projector.catch_up() == 0


@pytest.mark.parametrize("name", [question.name for question in all_questions()])
def test_every_question_with_a_name_is_answered(
    name: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The world of these logs begins on 12 January 1970."""
    places = ["--log", log, "--db", tmp_path / "db"]
    for model in ("", "A"):
        code, out, err = run(capsys, "sql", "--ask", name, "--since", "1970-01-01", "--model", model, "--json", *places)
        assert (code, err) == (0, "")
        rows = json.loads(out)
        assert rows, f"{name} says nothing about {model or 'all models'}"


def test_the_questions_and_the_tables_can_be_listed(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--log", log, "--db", tmp_path / "db"]
    assert "waits " in run(capsys, "sql", "--ask", "help", *places)[1]
    assert "arrived_us BIGINT" in run(capsys, "sql", "--tables", "--csv", *places)[1]


def test_a_course_over_time_has_round_steps_and_not_too_many() -> None:
    assert bucket_for(HOUR_US) == 30_000_000
    assert bucket_for(24 * HOUR_US) == 900_000_000
    assert bucket_for(10_000 * 24 * HOUR_US) == STEPS_S[-1] * 1_000_000


def test_times_are_ago_or_since_1970_or_dates() -> None:
    now_us = 1_800_000_000_000_000

    assert time_us("90m", now_us) == now_us - 90 * 60_000_000
    assert time_us("1750000000", now_us) == 1_750_000_000_000_000
    assert time_us("2026-01-01T00:00+00:00", now_us) == 1_767_225_600_000_000
