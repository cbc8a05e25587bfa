"""The lines of a batch as temporary tables, one per type of event, and the name `batch` for them in the SQL of a step.

DuckDB reads JSON fastest from a file, and a type at a time: each line is then read once, with the columns that some
step wants of it and no others. The file lies in memory, has no name, and is empty between two batches; it is the only
file that the instance can open (`database`). Lines of types that no step names are kept with their envelope alone.

Counterparts: `columns` says which columns, `definitions` what the steps are.
"""

import os
import re
from collections.abc import Sequence
from functools import cache

import duckdb

from eventlog.segments import Stream
from projections.columns import columns_of, shapes
from projections.definitions import Step, definitions

OTHERS = ""
"""Stands for all types that no step names."""

_TYPE_AT = len(b'{"type":"')
_BATCH = re.compile(r"(\bFROM|\bJOIN|,)\s+batch\b(?!\.)(?:\s+AS\s+(\w+))?")
_OBJECT_BYTES = 1 << 20
"""DuckDB reads in pieces of twice this size, unless a line is longer."""


class Staging:
    """Batches of one stream. `path` is the file that the instance must be able to read."""

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream = stream
        self._fd = os.memfd_create("llama-router-batch")
        self.path = f"/proc/self/fd/{self._fd}"
        steps = [step for each in definitions() if each.stream == stream for step in each.steps]
        self._named = frozenset(name for step in steps for name in step.types if name != "*")
        self._takes_others = any("*" in step.types for step in steps)
        self._tables: set[str] = set()

    def load(self, connection: duckdb.DuckDBPyConnection, lines: Sequence[bytes]) -> frozenset[str]:
        """Make tables of these lines; which types there are."""
        by_type = self._by_type(lines)
        for name, some in by_type.items():
            self._read(connection, name, some)
        os.ftruncate(self._fd, 0)
        for name in self._tables.difference(by_type):
            connection.execute(f"DROP TABLE {_table(name)}")
        self._tables = set(by_type)
        return frozenset(by_type)

    def forget(self) -> None:
        """The connection is another from now on."""
        self._tables = set()

    def close(self) -> None:
        os.close(self._fd)

    def _by_type(self, lines: Sequence[bytes]) -> dict[str, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for line in lines:
            raw = line[_TYPE_AT : line.index(b'"', _TYPE_AT)]
            if raw in found:
                found[raw].append(line)
            else:
                found[raw] = [line]
        by_type: dict[str, list[bytes]] = {}
        for raw, some in found.items():
            name = raw.decode()
            if name in self._named:
                by_type[name] = some
            elif self._takes_others:
                by_type.setdefault(OTHERS, []).extend(some)
        return by_type

    def _read(self, connection: duckdb.DuckDBPyConnection, name: str, lines: list[bytes]) -> None:
        data = b"\n".join(lines)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        longest = max(_OBJECT_BYTES, *map(len, lines)) if len(data) > _OBJECT_BYTES else _OBJECT_BYTES
        # What does not have the type of its column comes as NULL.
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {_table(name)} AS FROM read_json("
            f"'{self.path}', format = 'newline_delimited', columns = {columns_of(self.stream, name)},"
            f" ignore_errors = true, maximum_object_size = {longest})"
        )


@cache
def expanded(stream: Stream, step: Step, present: frozenset[str]) -> str:
    """The SQL of a step, with `batch` as the tables of those of its types that are present."""
    types = sorted(present if "*" in step.types else present & step.types)
    wanted = {name: shape for name, shape in shapes(stream).items() if name in step.words}
    selects = []
    for each in types:
        has = columns_of(stream, each)
        own = (f'"{name}"' if name in has else f'NULL::{shape} AS "{name}"' for name, shape in wanted.items())
        selects.append(f"SELECT '{each}' AS type, {', '.join(own)} FROM {_table(each)}")
    batch = f"({' UNION ALL '.join(selects)})"
    return _BATCH.sub(lambda match: f"{match[1]} {batch} AS {match[2] or 'batch'}", step.sql)


def _table(kind: str) -> str:
    return f"batch_{kind}"
