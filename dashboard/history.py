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
from pathlib import Path
from typing import Any

from projections.projector import Projector
from projections.sandbox import Answer, ask

logger = logging.getLogger("llama_router.dashboard")

READERS = 2
"""Questions at once; more wait. A browser with many panels must not take the machine."""


class History:
    """Call `start`, then `ask`; `close` at the end. `failed` hears of what ended the thread, if something did."""

    def __init__(self, log_dir: Path, db_path: Path, failed: Callable[[BaseException], None]) -> None:
        """Opens the file, or takes it over: whoever else has it is a dashboard that is ending. Raises LogError."""
        self._projector = Projector(log_dir, db_path, take_over=True)
        self._failed = failed
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="question")
        self._thread = threading.Thread(target=self._follow, name="projector", daemon=True)
        self._closing = threading.Event()
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

    def state(self) -> dict[str, Any]:
        """How far the tables are."""
        return {
            "caught_up": self._caught_up,
            "rebuilt_because": self._projector.rebuilt_because,
            "idle_s": round(time.monotonic() - self._applied_at_s, 3),
        }

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._readers.shutdown(cancel_futures=True)
        self._projector.close()

    def _ask(self, sql: str, parameters: Mapping[str, Any] | None, time_limit_s: float, max_rows: int | None) -> Answer:
        with self._projector.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            return ask(cursor, sql, parameters, time_limit_s=time_limit_s, max_rows=max_rows)

    def _follow(self) -> None:
        try:
            while not self._closing.is_set():
                if self._projector.poll():
                    self._applied_at_s = time.monotonic()
                elif not self._caught_up:
                    self._caught_up = True
                    self._caught_up_once.set()
                self._closing.wait(self._projector.pause_s() if self._caught_up else 0)
        except Exception as error:
            logger.error("the dashboard's tables cannot be kept up to date: %s", error)
            self._failed(error)
