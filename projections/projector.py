"""Applies the log to the tables: one code path, batch by batch, for what is new and for a rebuild of everything.

A batch is complete lines of one stream. They become temporary tables, one per type of event; each table takes from
them what it wants; and the place that was reached is stored in the same transaction as the rows. So the database is
always each stream of the log up to a place, and dropping it loses nothing. Where much is to be read, one transaction
takes several batches, since storing rows costs as much as making them, and the next batch is read meanwhile.

    projector = Projector(log_directory, database)
    projector.catch_up()
    while True:
        projector.poll()
        wait(projector.pause_s())

Counterparts: `lines` hands out the lines, `staging` makes tables of them, `definitions` has the SQL, `database` the
file. Used by one thread; readers take a cursor of their own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from eventlog.codec import seq_of, stored_crc
from eventlog.housekeeping import read_header
from eventlog.segments import STREAMS, Segment, Stream, list_segments
from projections.database import MEMORY_MIB, new_database, open_database
from projections.definitions import definitions
from projections.errors import DatabaseLocked, DatabaseUnusable
from projections.lines import BATCH_BYTES, Lines, LogChanged
from projections.staging import Batch, Staging, expanded

logger = logging.getLogger("llama_router.projections")

SOONEST_S = 0.1
LATEST_S = 1.0

COMMIT_BYTES = 256 << 20
"""About so much goes into one transaction where much is to be read."""

Progress = Callable[[Segment], None]


class Projector:
    """The tables of one log. `rebuilt_because` says why the database was made anew; empty if it was not.

    Raises LogError where there is no log, and DatabaseLocked if another process has the file, unless `take_over`: then
    that one keeps its own copy, without a name.
    """

    def __init__(
        self,
        log_dir: Path,
        db_path: Path,
        *,
        take_over: bool = False,
        progress: Progress = lambda segment: None,
        memory_mib: int = MEMORY_MIB,
        threads: int | None = None,
    ) -> None:
        self.log_dir = log_dir
        self.db_path = db_path
        self.rebuilt_because = ""
        self.changed: set[str] = set()
        """Tables that have taken lines; whoever reads it empties it."""
        self._progress = progress
        self._feeds: dict[Stream, _Feed] = {}
        self._first_seqs: dict[Stream, int] = {}
        self._took_s = 0.0
        self._connection: duckdb.DuckDBPyConnection | None = None
        list_segments(log_dir, "events")
        self._staging: dict[Stream, Staging] = {stream: Staging(stream) for stream in STREAMS}
        self._limits: dict[str, Any] = {
            "memory_mib": memory_mib,
            "threads": threads,
            "readable": [staging.path for staging in self._staging.values()],
        }
        try:
            self._connection = open_database(db_path, **self._limits)
            self._follow()
        except FileNotFoundError:
            self.start_over("there was none")
        except (DatabaseUnusable, LogChanged, duckdb.Error) as error:
            self.start_over(str(error))
        except DatabaseLocked as error:
            if not take_over:
                self.close()
                raise
            self.start_over(str(error))

    @property
    def applied(self) -> dict[str, int]:
        """Stream to the seq of the last line that is in the tables; 0 for none."""
        return dict(self._open.execute("SELECT stream, seq FROM applied").fetchall())

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for a reader, for one thread. It sees whole batches only."""
        return self._open.cursor()

    def catch_up(self, over: threading.Event | None = None) -> int:
        """Apply all that is there, both streams side by side, unless it is `over` before; how many lines that was.

        Raises as `poll`.
        """
        return self._mended(lambda: self._catch_up(over or threading.Event()))

    def poll(self, size_bytes: int = BATCH_BYTES) -> int:
        """Apply what is new, one batch of each stream at most; how many lines.

        A file that turns out to be damaged is made anew, once: after that, the trouble is another. Raises LogDamaged
        and duckdb.Error, after which this projector is of no more use.
        """
        return self._mended(lambda: self._poll(size_bytes))

    def pause_s(self) -> float:
        """How long to wait before the next look: as long as the last one took, so that half a core is enough."""
        return min(LATEST_S, max(SOONEST_S, self._took_s))

    def start_over(self, why: str) -> None:
        """Empty tables, to be filled from the beginning of the log. Cursors must be closed first."""
        self._let_go()
        self.rebuilt_because = why
        logger.info("building %s from the log %s: %s", self.db_path, self.log_dir, why)
        self._connection = new_database(self.db_path, **self._limits)
        self._seed()
        self._follow()

    def close(self) -> None:
        self._let_go()
        for staging in self._staging.values():
            staging.close()
        self._staging = {}

    def __enter__(self) -> "Projector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- looks --------------------------------------------------------------------------------------------------------

    def _poll(self, size_bytes: int) -> int:
        begin_s = time.monotonic()
        counts = [feed.apply(size_bytes) for feed in self._feeds.values()]
        if any(counts):
            self._prune()
        self._took_s = time.monotonic() - begin_s
        return sum(counts)

    def _catch_up(self, over: threading.Event) -> int:
        failed = threading.Event()
        with ThreadPoolExecutor(len(STREAMS), thread_name_prefix="rebuild") as pool:
            drains = [
                pool.submit(feed.drain, lambda: over.is_set() or failed.is_set()) for feed in self._feeds.values()
            ]
            try:
                count = sum(each.result() for each in drains)
            finally:
                failed.set()
        self._prune()
        return count

    def _mended(self, look: Callable[[], int]) -> int:
        try:
            return look()
        except duckdb.Error as error:
            if self.rebuilt_because:
                raise
            self.start_over(str(error).splitlines()[0])
            return look()

    def _has_changed(self, table: str) -> None:
        self.changed.add(table)

    # --- the file -----------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None, "this projector was closed"
        return self._connection

    def _let_go(self) -> None:
        """Close the file, and forget where we were in the log."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds = {}
        self._first_seqs = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _follow(self) -> None:
        places = self._open.execute("SELECT stream, seq, crc FROM applied").fetchall()
        for stream, seq, crc in places:
            lines = Lines(self.log_dir, stream, seq, crc, self._progress)
            self._feeds[stream] = _Feed(stream, self._open.cursor(), lines, self._staging[stream], self._has_changed)
        self._prune()

    def _seed(self) -> None:
        """A log whose beginning was cut begins with a checkpoint: what was open then is known from there."""
        segments = list_segments(self.log_dir, "events")
        header = read_header(segments[0]) if segments else None
        if header is None or not header.state:
            return
        self._open.execute("CREATE OR REPLACE TEMP TABLE checkpoint (seq BIGINT, state JSON)")
        self._open.execute("INSERT INTO checkpoint VALUES (?, ?)", [header.seq, bytes(header.state).decode()])
        self._run_parts("seed")

    def _prune(self) -> None:
        """Drop what ended before the first line that the log still has: the database grows no larger than it."""
        firsts: dict[Stream, int] = {}
        for stream in STREAMS:
            segments = list_segments(self.log_dir, stream)
            firsts[stream] = segments[0].first_seq if segments else 0
        if firsts == self._first_seqs:
            return
        self._first_seqs = firsts
        self._open.execute(
            "CREATE OR REPLACE TEMP TABLE horizon AS SELECT ?::BIGINT AS events, ?::BIGINT AS observations",
            [firsts["events"], firsts["observations"]],
        )
        self._run_parts("prune")

    def _run_parts(self, part: str) -> None:
        with transaction(self._open):
            for definition in definitions():
                if part in definition.parts:
                    self._open.execute(definition.parts[part])


class _Feed:
    """One stream on its way into the tables, over a connection of its own."""

    def __init__(
        self,
        stream: Stream,
        connection: duckdb.DuckDBPyConnection,
        lines: Lines,
        staging: Staging,
        has_changed: Callable[[str], None],
    ) -> None:
        self._stream: Stream = stream
        self._has_changed = has_changed
        self._connection = connection
        self._lines = lines
        self._staging = staging
        self._parsed: dict[str, list[duckdb.Statement]] = {}
        staging.forget()

    def apply(self, size_bytes: int) -> int:
        """A batch of what is new, if something is; how many lines."""
        batch = self._next(size_bytes)
        if batch.lines:
            with transaction(self._connection):
                self._apply(batch)
        return batch.lines

    def drain(self, is_over: Callable[[], bool]) -> int:
        """All that is there, unless it is over before; how many lines."""
        count = 0
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead:
            batch = self._next(BATCH_BYTES)
            while batch.lines and not is_over():
                with transaction(self._connection):
                    taken_bytes = 0
                    while batch.lines and taken_bytes < COMMIT_BYTES and not is_over():
                        coming = ahead.submit(self._next, BATCH_BYTES) if batch.size_bytes >= BATCH_BYTES else None
                        self._apply(batch)
                        count += batch.lines
                        taken_bytes += batch.size_bytes
                        batch = coming.result() if coming else Batch()
        return count

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _next(self, size_bytes: int) -> Batch:
        return self._staging.sorted(self._lines.read(size_bytes))

    def _apply(self, batch: Batch) -> None:
        staged = self._staging.load(self._connection, batch)
        for definition in definitions():
            if definition.stream == self._stream:
                for step in definition.steps:
                    if step.wants(staged.present):
                        self._run(expanded(step, staged))
                        if "*" not in step.types:
                            self._has_changed(definition.name)
        place = [seq_of(batch.last), stored_crc(batch.last), self._stream]
        self._run("UPDATE applied SET seq = ?, crc = ? WHERE stream = ?", place)

    def _run(self, sql: str, parameters: Sequence[object] = ()) -> None:
        """Statements that come again and again: they are parsed once."""
        if sql not in self._parsed:
            self._parsed[sql] = self._connection.extract_statements(sql)
        for statement in self._parsed[sql]:
            self._connection.execute(statement, parameters)


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All or nothing of what is run meanwhile."""
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
