"""The tables of the log, kept up to date in a thread, and questions to them in a few others.

Counterpart: `projections.projector`, which belongs to that one thread here. A reader gets a cursor of its own for each
question and sees whole batches only.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from eventlog.segments import STREAMS, Segment, list_segments, stored_bytes
from projections.database import MEMORY_MIB
from projections.definitions import definitions
from projections.projector import Projector
from projections.sandbox import Answer, ask

logger = logging.getLogger("llama_router.dashboard")

FRESH_S = 2.0
READERS = 2
"""Questions at once; more wait. A browser with many panels must not take the machine."""


class History:
    """Call `start`, then `ask`; `close` at the end."""

    def __init__(
        self,
        log_dir: Path,
        db_path: Path,
        failed: Callable[[BaseException], None],
        changed: Callable[[frozenset[str], int], None] = lambda tables, seq: None,
        *,
        memory_mib: int = MEMORY_MIB,
        threads: int | None = None,
    ) -> None:
        """Opens the file, or takes it over: whoever else has it is a dashboard that is ending. Raises LogError.

        `failed` hears of what ended the thread, if something did; `changed`, after each batch, which tables took
        lines, and the seq that they have reached. Both are called by that thread.
        """
        self.log_dir = log_dir
        self._building = _Building(log_dir)
        self._projector = Projector(
            log_dir,
            db_path,
            take_over=True,
            progress=self._building.begun,
            memory_mib=memory_mib,
            threads=threads,
        )
        self._failed = failed
        self._changed = changed
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="question")
        self._thread = threading.Thread(target=self._follow, name="projector", daemon=True)
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._waiting: list[Callable[[], object]] = []
        """To be called by the thread once it has looked at the log."""
        self._caught_up = False
        self._caught_up_once = threading.Event()
        self._applied_at_s = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Until all that was in the log at the start is in the tables."""
        return self._caught_up_once.wait(timeout_s)

    async def ask(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, time_limit_s: float, max_rows: int | None = None
    ) -> Answer:
        """The answer to one statement that reads. Raises QuestionFailed."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._ask, sql, parameters, time_limit_s, max_rows
        )

    async def fresh(self, patience_s: float = FRESH_S) -> None:
        """Until the tables hold what the log holds now, or for so long."""
        loop = asyncio.get_running_loop()
        looked = asyncio.Event()
        self._waiting.append(lambda: loop.call_soon_threadsafe(looked.set))
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await looked.wait()

    @property
    def is_ready(self) -> bool:
        """Whether the tables hold all that was in the log when they were begun: before that, numbers are too small."""
        return self._caught_up

    @property
    def built(self) -> float:
        """How much of the log has been read, from 0 to 1, while they are not ready."""
        return self._building.fraction

    @property
    def applied(self) -> dict[str, int]:
        """Stream to the seq of the last line that is in the tables; 0 for none."""
        with self._projector.cursor() as cursor:
            return dict(cursor.execute("SELECT stream, seq FROM applied").fetchall())

    def state(self) -> dict[str, Any]:
        """How far the tables are."""
        return {
            "caught_up": self._caught_up,
            "built": 1.0 if self._caught_up else round(self.built, 3),
            "rebuilt_because": self._projector.rebuilt_because,
            "idle_s": round(time.monotonic() - self._applied_at_s, 3),
        }

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join()
        self._readers.shutdown(cancel_futures=True)
        self._projector.close()

    def _ask(self, sql: str, parameters: Mapping[str, Any] | None, time_limit_s: float, max_rows: int | None) -> Answer:
        with self._projector.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            return ask(cursor, sql, parameters, time_limit_s=time_limit_s, max_rows=max_rows)

    def _follow(self) -> None:
        rebuilt_because = self._projector.rebuilt_because
        try:
            while not self._closing.is_set():
                self._wake.clear()
                waiting, self._waiting = self._waiting, []
                # At first all that is there, as quickly as it can be; then, in small pieces, whatever comes.
                some = self._projector.poll() if self._caught_up else self._projector.catch_up(self._closing)
                if rebuilt_because != self._projector.rebuilt_because:
                    rebuilt_because = self._projector.rebuilt_because
                    self._caught_up = False
                if some:
                    self._applied_at_s = time.monotonic()
                    self._tell()
                elif not self._caught_up:
                    self._caught_up = True
                    self._projector.changed = {definition.name for definition in definitions()}
                    self._tell()
                    self._caught_up_once.set()
                for call_back in waiting:
                    call_back()
                if self._caught_up:
                    self._wake.wait(self._projector.pause_s())
        except Exception as error:
            logger.error("the dashboard's tables cannot be kept up to date: %s", error)
            self._failed(error)

    def _tell(self) -> None:
        tables, self._projector.changed = self._projector.changed, set()
        if self._caught_up:
            self._changed(frozenset(tables), max(self._projector.applied.values()))


class _Building:
    """How far a build is, by the segments that have been begun."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._done_bytes = 0
        self._begun_bytes = 0

    def begun(self, segment: Segment) -> None:
        self._done_bytes += self._begun_bytes
        self._begun_bytes = stored_bytes(segment)

    @property
    def fraction(self) -> float:
        total = sum(stored_bytes(segment) for stream in STREAMS for segment in list_segments(self._log_dir, stream))
        return min(1.0, self._done_bytes / total) if total else 0.0
