"""docs/tables.md and the schema say the same: every table, every column, every type, and nothing else."""

import re
from pathlib import Path

import pytest

from projections.database import new_database
from projections.questions import all_questions

DOCUMENT = Path(__file__).parents[2] / "docs" / "tables.md"
ITSELF = {"about", "applied", "queue_now"}
"""Told in prose."""

Columns = dict[str, str]


def documented() -> dict[str, Columns]:
    found: dict[str, Columns] = {}
    name = ""
    for line in DOCUMENT.read_text().splitlines():
        if match := re.fullmatch(r"## (\w+)", line):
            name = match[1]
            found[name] = {}
        elif match := re.fullmatch(r"\| `(\w+)` \| ([A-Z]+(?:\[\])?) \| (.+) \|", line):
            assert match[1] not in found[name], f"{name}.{match[1]} stands there twice"
            found[name][match[1]] = match[2]
    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Columns]:
    found: dict[str, Columns] = {}
    with new_database(tmp_path_factory.mktemp("db") / "db") as connection:
        rows = connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY column_index"
        ).fetchall()
    for table, column, kind in rows:
        found.setdefault(table, {})[column] = kind
    return found


def test_every_table_is_documented_and_every_documented_table_exists(real: dict[str, Columns]) -> None:
    requests = {"open_requests", "ended_requests"}
    assert set(documented()) == set(real) - ITSELF - requests
    text = DOCUMENT.read_text()
    assert all(f"`{name}`" in text for name in ITSELF | requests)
    assert all(f"`{column}`" in text for name in ITSELF for column in real[name])


@pytest.mark.parametrize("table", sorted(documented()))
def test_every_column_is_documented_in_order_with_its_type(table: str, real: dict[str, Columns]) -> None:
    assert list(documented()[table].items()) == list(real[table].items())


def test_the_two_halves_of_requests_have_the_same_columns(real: dict[str, Columns]) -> None:
    assert real["open_requests"] == real["ended_requests"] == real["requests"]


def test_every_question_says_what_it_answers() -> None:
    for question in all_questions():
        assert re.fullmatch(r"[A-Z][^\n]+\.", question.title), question.name
