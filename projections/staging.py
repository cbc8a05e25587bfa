"""The lines of a batch as temporary tables, one per type of event, and the name `batch` for them in the SQL of a step.

DuckDB reads JSON fastest from a file, and a type at a time: each line is then read once, with the columns that some
step wants of it and no others. In a small batch, as they come live, each statement costs more than its lines: its types
are read together, into one table. The file lies in memory, has no name, and is empty between two batches; it is the
only file that the instance can open (`database`). Lines of types that no step names are kept with their envelope alone.

Counterparts: `columns` says which columns, `definitions` what the steps are.
"""

import os
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import NamedTuple

import duckdb

from eventlog.segments import Stream
from projections.columns import columns_of, shapes
from projections.definitions import Step, definitions

SMALL_LINES = 2000
TOGETHER = "batch_together"
OTHERS = ""
"""Stands for all types that no step names."""

_TYPE_AT = len(b'{"type":"')
_BATCH = re.compile(r"(\bFROM|\bJOIN|,)\s+batch\b(?!\.)(?:\s+AS\s+(\w+))?")
_PIECES = os.sysconf("SC_IOV_MAX")
"""So many can be written at once."""
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
        self._type_end = _TYPE_AT + max(map(len, self._named)) + 1
        self._tables: set[str] = set()

    def sorted(self, blocks: Iterable[Sequence[bytes]]) -> "Batch":
        """The lines of these blocks, type by type. Touches no table: the next batch is sorted while one is loaded."""
        batch = Batch()
        for lines in blocks:
            batch.lines += len(lines)
            batch.size_bytes += sum(map(len, lines))
            batch.longest_bytes = max(batch.longest_bytes, max(map(len, lines)))
            batch.last = lines[-1]
            # Joined at once, so that no more than a block of single lines is ever in memory.
            for name, some in self._by_type(lines).items():
                some.append(b"")
                batch.pieces.setdefault(name, []).append(b"\n".join(some))
        return batch

    def load(self, connection: duckdb.DuckDBPyConnection, batch: "Batch") -> "Staged":
        """Make tables of its lines."""
        present = frozenset(batch.pieces)
        together = batch.lines <= SMALL_LINES
        if together:
            columns = {"type": "VARCHAR"}
            for name in sorted(present):
                columns |= columns_of(self.stream, name)
            tables = {TOGETHER}
            self._read(connection, TOGETHER, columns, [*chain(*batch.pieces.values())], batch.longest_bytes)
        else:
            tables = {_table(name) for name in present}
            for name, pieces in batch.pieces.items():
                self._read(connection, _table(name), columns_of(self.stream, name), pieces, batch.longest_bytes)
        os.ftruncate(self._fd, 0)
        for table in self._tables - tables:
            connection.execute(f"DROP TABLE {table}")
        self._tables = tables
        return Staged(self.stream, present, together)

    def forget(self) -> None:
        """The connection is another from now on."""
        self._tables = set()

    def close(self) -> None:
        os.close(self._fd)

    def _by_type(self, lines: Sequence[bytes]) -> dict[str, list[bytes]]:
        # By as much as the longest name takes: what follows a shorter one makes a few kinds of it, put together below.
        end = self._type_end
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for line in lines:
            found[line[_TYPE_AT:end]].append(line)
        by_type: dict[str, list[bytes]] = {}
        for head, some in found.items():
            name = head.partition(b'"')[0].decode(errors="replace")
            if name in self._named:
                by_type.setdefault(name, []).extend(some)
            elif self._takes_others:
                by_type.setdefault(OTHERS, []).extend(some)
        return by_type

    def _read(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: str,
        columns: dict[str, str],
        pieces: Sequence[bytes],
        longest_bytes: int,
    ) -> None:
        size = 0
        for first in range(0, len(pieces), _PIECES):
            size += os.pwritev(self._fd, pieces[first : first + _PIECES], size)
        os.ftruncate(self._fd, size)
        # What does not have the type of its column comes as NULL.
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS FROM read_json("
            f"'{self.path}', format = 'newline_delimited', columns = {columns},"
            f" ignore_errors = true, maximum_object_size = {max(_OBJECT_BYTES, longest_bytes)})"
        )


@dataclass
class Batch:
    """Lines of one stream, sorted: pieces of those of each type."""

    lines: int = 0
    size_bytes: int = 0
    longest_bytes: int = 0
    last: bytes = b""
    pieces: dict[str, list[bytes]] = field(default_factory=dict)


class Staged(NamedTuple):
    """What lies there now: which types, and whether they are in one table."""

    stream: Stream
    present: frozenset[str]
    together: bool


@cache
def expanded(step: Step, staged: Staged) -> str:
    """The SQL of a step, with `batch` as the lines of those of its types that are present."""
    types = sorted(staged.present if "*" in step.types else staged.present & step.types)
    wanted = {name: shape for name, shape in shapes(staged.stream).items() if name in step.words}
    if staged.together:
        there = {name for each in staged.present for name in columns_of(staged.stream, each)}
        chosen = "" if "*" in step.types else f" WHERE type IN ({', '.join(map(repr, types))})"
        batch = f"(SELECT type, {_listed(wanted, there)} FROM {TOGETHER}{chosen})"
    else:
        selects = (
            f"SELECT '{each}' AS type, {_listed(wanted, columns_of(staged.stream, each))} FROM {_table(each)}"
            for each in types
        )
        batch = f"({' UNION ALL '.join(selects)})"
    return _BATCH.sub(lambda match: f"{match[1]} {batch} AS {match[2] or 'batch'}", step.sql)


def _listed(wanted: dict[str, str], there: Container[str]) -> str:
    return ", ".join(f'"{name}"' if name in there else f'NULL::{shape} AS "{name}"' for name, shape in wanted.items())


def _table(kind: str) -> str:
    return f"batch_{kind}"
