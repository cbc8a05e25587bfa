"""Who may ask in SQL may ask for anything, and gets the tables and nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from projections.errors import QuestionFailed
from projections.sandbox import ask, open_sandbox
from tests.projections.logs import Story, arrives, project


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    with Story(folder / "log") as story:
        for rid in range(1, 6):
            story.at(rid, arrives(rid, "A", rid))
    project(folder / "log", folder / "db").close()
    return folder / "db"


@pytest.fixture
def connection(database: Path, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    with open_sandbox(database, memory_mib=128) as opened:
        yield opened


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "SELECT * FROM '{folder}/secret.csv'",
        "SELECT * FROM read_text('{folder}/secret.csv')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_json('/proc/self/environ')",
        "SELECT * FROM sniff_csv('{folder}/secret.csv')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM read_duckdb('{folder}/other.duckdb', table_name = 'requests')",
        "SELECT * FROM read_parquet('https://127.0.0.1/x.parquet')",
        "SELECT getenv('HOME')",
        "FROM query('SELECT * FROM read_text(''{folder}/secret.csv'')')",
    ],
)
def test_files_the_environment_and_the_network_cannot_be_read(
    sql: str, connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    with pytest.raises(QuestionFailed) as refused:
        ask(connection, sql.format(folder=tmp_path))
    assert "hunter2" not in str(refused.value)


WRITES = [
    "COPY requests TO '{folder}/stolen.csv'",
    "COPY (SELECT 1) TO '{folder}/stolen.parquet'",
    "EXPORT DATABASE '{folder}/stolen'",
    "ATTACH '{folder}/stolen.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "PRAGMA enable_profiling = 'json'",
    "CALL enable_logging(storage = 'file', storage_path = '{folder}/stolen')",
    "CREATE SECRET stolen (TYPE s3)",
    "CREATE TABLE stolen (x INTEGER)",
    "CREATE TEMP TABLE stolen (x INTEGER)",
    "INSERT INTO queue_now VALUES ('A', 1, 1)",
    "DELETE FROM open_requests",
    "DROP TABLE runs",
    "CHECKPOINT",
    "BEGIN",
]


@pytest.mark.parametrize("sql", WRITES)
def test_nothing_can_be_written_or_set(sql: str, connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())

    with pytest.raises(QuestionFailed):
        ask(connection, sql.format(folder=tmp_path))

    assert sorted(tmp_path.iterdir()) == before
    assert ask(connection, "SELECT count(*) FROM requests").rows == [(5,)]


@pytest.mark.parametrize("sql", [sql for sql in WRITES if not sql.startswith(("CREATE TEMP", "CHECKPOINT", "BEGIN"))])
def test_the_instance_itself_refuses_them_too(sql: str, connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """Even if the kind of a statement were mistaken."""
    with pytest.raises(duckdb.Error):
        connection.execute(sql.format(folder=tmp_path))
    assert not list(tmp_path.glob("stolen*"))


def test_variables_of_python_are_no_tables(connection: duckdb.DuckDBPyConnection) -> None:
    secrets = duckdb.connect().sql("SELECT 'hunter2' AS password")

    with pytest.raises(QuestionFailed, match="secrets"):
        ask(connection, "SELECT * FROM secrets")
    assert secrets.fetchall() == [("hunter2",)]


def test_only_one_statement_is_taken(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QuestionFailed, match="one statement at a time, not 2"):
        ask(connection, "SELECT 1; DROP TABLE requests")
    with pytest.raises(QuestionFailed, match="not 0"):
        ask(connection, "-- nothing")


def test_reading_statements_of_every_kind_are_taken(connection: duckdb.DuckDBPyConnection) -> None:
    for sql in (
        "FROM requests",
        "DESCRIBE requests",
        "SHOW TABLES",
        "SUMMARIZE runs",
        "EXPLAIN SELECT 1",
        "VALUES (1)",
    ):
        assert ask(connection, sql).columns


def test_a_question_without_end_is_interrupted(connection: duckdb.DuckDBPyConnection) -> None:
    begin_s = time.monotonic()
    with pytest.raises(QuestionFailed, match=r"longer than 0\.2 s"):
        ask(
            connection,
            "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x FROM r) SELECT count(*) FROM r",
            time_limit_s=0.2,
        )
    assert time.monotonic() - begin_s < 10
    assert ask(connection, "SELECT 1").rows == [(1,)]


def test_a_question_gets_so_much_memory_and_no_disk(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(QuestionFailed, match="Out of Memory"):
        ask(
            connection,
            "SELECT count(*) FROM (SELECT DISTINCT a.range * 10000 + b.range FROM range(10000) a, range(10000) b)",
        )
    assert sorted(tmp_path.iterdir()) == before


def test_a_mistake_in_sql_is_told_with_what_would_be_right(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QuestionFailed, match="Did you mean"):
        ask(connection, "SELECT rid FROM request")


def test_an_answer_can_be_cut(connection: duckdb.DuckDBPyConnection) -> None:
    answer = ask(connection, "SELECT rid FROM requests ORDER BY rid", max_rows=2)

    assert answer.rows == [(1,), (2,)]
    assert answer.more
    assert not ask(connection, "SELECT rid FROM requests", max_rows=5).more
