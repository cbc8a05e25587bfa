"""Ask the tables a question in SQL, in a way that nothing else can be read or changed.

DuckDB's read-only mode alone still reads and writes files, loads extensions and looks into Python's variables. So the
database is opened read-only, without external access, without replacement scans, with bounded memory and nothing on
the disk, and its configuration is locked; only one statement that reads is taken; and it is interrupted in time.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from projections.errors import QuestionFailed

TIME_LIMIT_S = 30.0
MEMORY_LIMIT_MIB = 512
FETCH_ROWS = 1000

SHOW_TABLES = """
SELECT table_name AS "table", string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_index) AS columns
FROM duckdb_columns()
WHERE NOT internal
GROUP BY table_name
ORDER BY table_name
"""

_READS = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}


@dataclass(frozen=True)
class Answer:
    """The rows of one question. `types` are DuckDB's names; `more`: there were more rows than were asked for."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def open_sandbox(path: Path, *, memory_mib: int = MEMORY_LIMIT_MIB, threads: int = 2) -> duckdb.DuckDBPyConnection:
    """A connection to a database file that nobody writes. Raises duckdb.Error where it cannot be read."""
    return duckdb.connect(str(path), read_only=True, config=locked_down(memory_mib, threads))


def locked_down(memory_mib: int, threads: int) -> dict[str, str | bool | int | float | list[str]]:
    """The settings of an instance that may only look at its own tables."""
    return {
        "enable_external_access": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "temp_directory": "",
        "memory_limit": f"{memory_mib}MiB",
        "threads": str(threads),
        "lock_configuration": "true",
    }


def ask(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    max_rows: int | None = None,
) -> Answer:
    """The answer to one statement that reads. Raises QuestionFailed, which says what is wrong with it."""
    try:
        statements = connection.extract_statements(sql)
    except (duckdb.Error, ValueError) as error:
        # Of statements that are younger than the Python module, it does not know the type.
        raise QuestionFailed(str(error)) from error
    if len(statements) != 1:
        raise QuestionFailed(f"one statement at a time, not {len(statements)}")
    if statements[0].type not in _READS:
        raise QuestionFailed(f"only SELECT, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN, not {statements[0].type.name}")
    try:
        with _interrupted_after(connection, time_limit_s):
            found = connection.execute(statements[0], dict(parameters or {}))
            rows = _fetch(found, max_rows)
            columns = found.description or []
    except duckdb.InterruptException as error:
        raise QuestionFailed(f"it took longer than {time_limit_s:g} s and was interrupted") from error
    except duckdb.Error as error:
        raise QuestionFailed(str(error)) from error
    more = max_rows is not None and len(rows) > max_rows
    return Answer(
        columns=tuple(column[0] for column in columns),
        types=tuple(str(column[1]) for column in columns),
        rows=rows[:max_rows],
        more=more,
    )


def _fetch(found: duckdb.DuckDBPyConnection, max_rows: int | None) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    while max_rows is None or len(rows) <= max_rows:
        some = found.fetchmany(FETCH_ROWS)
        if not some:
            break
        rows += some
    return rows


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
