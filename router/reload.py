"""A new configuration while serving: read as at the start, and taken as a whole or not at all.

Who is served notices nothing: only models that changed are unloaded once they are idle, and loaded anew by their next
request (the scheduler's `unload_stale_models`). Two calls in quick succession are one reload or two, never half of one.
"""

import asyncio
import logging
from collections.abc import Callable

from router.config import Config, ConfigErrors

log = logging.getLogger("llama_router.reload")

NEEDS_RESTART = (
    "host",
    "port",
    "log_dir",
    "log",
    "run_dir",
    "state_dir",
    "history_db",
    "dashboard",
    "child_transport",
    "cors_origins",
)
"""Taken once, at the start."""


class Reloader:
    """Belongs to the event loop's thread; the files are read in another."""

    def __init__(self, current: Config, read: Callable[[], Config], apply: Callable[[Config, str], None]) -> None:
        """`read` raises ConfigErrors; `apply(config, by)` puts a configuration in force."""
        self._current = current
        self._read = read
        self._apply = apply
        self._asked_by = ""
        self._running: asyncio.Task[None] | None = None

    def ask(self, by: str) -> None:
        """Reload soon. Calls that come while one is under way are answered by one more, together."""
        self._asked_by = by
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._asked_by:
            by, self._asked_by = self._asked_by, ""
            try:
                config = await asyncio.to_thread(self._read)
            except ConfigErrors as errors:
                log.error("the new configuration has mistakes, the old one stays in force:\n%s", errors)
                continue
            for warning in config.warnings:
                log.warning("%s", warning)
            for name in NEEDS_RESTART:
                if getattr(config, name) != getattr(self._current, name):
                    log.warning("a new %s takes effect when the router is started again", name)
            self._current = config
            self._apply(config, by)
            log.info("a new configuration is in force (asked for by %s)", by)
        self._running = None
