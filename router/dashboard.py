"""The dashboard's process, seen from the router: started, watched, started again, ended with the router.

    starting --answers--> up --dies, or does not answer--> waits (half a second, doubling) --> starting

Nothing that is served waits for it: the router knows where it listens, and that is all it needs. What the process does
is in `dashboard/`, which is never imported here; what it says goes into the router's own diary. It dies with the
router, however that ends.
"""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from router.config import Config
from router.orphans import marker
from router.places import dashboard_socket_in, directory_id
from router.process import Process
from router.spawn import SpawnError, environment, start
from router.upstream import Endpoint, UpstreamError, fetch

NAME = "dashboard"
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 60.0
"""Between its end and its next start."""
LIVED_S = 60.0
"""After so long it is taken to be well: the next pause is the first one again."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""
LOOK_EVERY_S = 15.0
ANSWER_S = 30.0
SILENT_MAX = 4
"""So many looks in a row without an answer, and it is started again."""
LINE_MAX = 4096

_LEVEL = re.compile(rb"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")

log = logging.getLogger("llama_router.dashboard")


class Dashboard:
    """One process at a time. Belongs to the event loop of the main thread."""

    def __init__(self, config: Config, run: int, environ: Mapping[str, str] = os.environ) -> None:
        """`run` as in the envelope of events."""
        self._config = config
        self._socket = dashboard_socket_in(config.run_dir, config.log_dir)
        self._marker = marker(directory_id(config.log_dir), run, NAME)
        self._environ = environ
        self._process: Process | None = None
        self._line = b""

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens while it is up."""
        return Endpoint(path=str(self._socket))

    async def run(self) -> None:
        """Keep it running until cancelled; then it is gone."""
        pause_s = FIRST_PAUSE_S
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._live()
            except (SpawnError, OSError) as error:
                log.error("the dashboard cannot be started: %s", error)
            if clock() - began_s >= LIVED_S:
                pause_s = FIRST_PAUSE_S
            log.info("the dashboard is started again in %g s", pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _live(self) -> None:
        """One life, from the start until nothing of it is left."""
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        child = start(self._command(), self._child_environ())
        process = self._process = Process(child, self._marker, self._said)
        watching = asyncio.create_task(self._until_silent())
        ended = asyncio.create_task(process.exited.wait())
        try:
            await asyncio.wait((watching, ended), return_when=asyncio.FIRST_COMPLETED)
            if not process.exited.is_set():
                log.error("the dashboard does not answer any more: it is ended")
        finally:
            watching.cancel()
            ended.cancel()
            # Also when the router stops, whose patience this must not depend on.
            await asyncio.shield(process.end(GRACE_S))
            self._said(b"\n")
            self._process = None
        log.warning("the dashboard has ended (%s)", process.exit)

    async def _until_silent(self) -> None:
        """Returns when it has not answered for long; a question that takes its time is no reason."""
        silent = 0
        while silent < SILENT_MAX:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await fetch(self.endpoint, "GET", "/health", timeout_s=ANSWER_S)
                silent = 0
            except (UpstreamError, TimeoutError):
                silent += 1

    def _command(self) -> list[str]:
        config = self._config
        options = {
            "--log": config.log_dir,
            "--db": config.history_db,
            "--socket": self._socket,
            "--threads": config.dashboard.threads,
            "--memory": config.dashboard.memory_mib,
        }
        # -P: not from the directory that the router happens to have been started in.
        return [sys.executable, "-P", "-m", "dashboard.process", *(str(x) for pair in options.items() for x in pair)]

    def _child_environ(self) -> dict[str, str]:
        ours = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (ours, self._environ.get("PYTHONPATH"))))
        # No GPU is visible to it, and no key.
        return environment(self._config.for_children(self._environ), {"PYTHONPATH": path}, (), "", self._marker)

    def _said(self, data: bytes) -> None:
        """Its output, line by line, at the level that it says."""
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_MAX:
            lines.append(self._line)
            self._line = b""
        for line in lines:
            if line.strip():
                found = _LEVEL.match(line)
                level = logging.getLevelName(found[1].decode()) if found else logging.INFO
                text = line[found.end() :] if found else line
                log.log(level, "%s", text[:LINE_MAX].decode("utf-8", "replace"))
