"""Starting and stopping the service without ending the process: what `/router/start`, `/stop` and `/restart` do.

While stopped, new requests are refused with 503 `service_unavailable` (the relay asks `services.gate`), those that are
in already end, and then every model is unloaded. Administration and status stay available.
"""

import asyncio
import logging
from typing import Literal

from eventlog import events as e
from router import errors
from router.api import operations
from router.api.services import Services

AGAIN_S = 1.0
"""After an unload that was refused, because the log cannot be written mostly."""

log = logging.getLogger("llama_router.api")

Status = Literal["active", "inactive", "starting", "stopping", "error"]


class Lifecycle:
    """One per router. Its calls are idempotent; the last one counts."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._emptying: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def status(self) -> Status:
        """In the words of the seed router's API; `error` while the log cannot be written."""
        state = self._services.loop.state
        if not self._services.loop.available:
            return "error"
        if state.stopping_at_us:
            return "stopping"
        if not self._services.gate.is_open:
            return "stopping" if state.requests or state.replicas else "inactive"
        return "active" if state.run else "starting"

    async def start(self, *, by: str) -> None:
        """Take requests again, and load what is to be loaded at the start."""
        self._call_off_restart()
        if self._services.gate.is_open:
            return
        self._stop_emptying()
        self._services.gate.is_open = True
        self._say(f"started by {by}")
        operations.preload(self._services)

    async def stop(self, *, by: str, wait: bool) -> None:
        """Refuse new requests, let the others end, unload everything; with `wait`, until that is done."""
        self._call_off_restart()
        if self._services.gate.is_open:
            self._services.gate.is_open = False
            self._say(f"stopped by {by}: new requests get 503")
            self._emptying = asyncio.create_task(self._empty(by))
        if wait and self._emptying is not None:
            await asyncio.wait([self._emptying])

    async def restart(self, *, by: str, wait: bool) -> None:
        """Stop, then start: every process is a new one afterwards."""

        await self.stop(by=by, wait=False)
        self._restarting = asyncio.create_task(self._start_once_empty(by))
        if wait:
            await asyncio.wait([self._restarting])

    async def _start_once_empty(self, by: str) -> None:
        if self._emptying is not None:
            await asyncio.wait([self._emptying])
        await self.start(by=by)

    async def _empty(self, by: str) -> None:
        state = self._services.loop.state
        while True:
            await self._until_no_request()
            if not state.replicas or state.stopping_at_us:
                return
            try:
                await operations.drain(self._services, wait=True, by=by)
            except errors.RouterError as problem:
                log.warning("what is loaded could not be unloaded: %s; trying again", problem)
                await asyncio.sleep(AGAIN_S)

    async def _until_no_request(self) -> None:
        changed = asyncio.Event()
        unsubscribe = self._services.loop.subscribe(lambda event: changed.set())
        try:
            while self._services.loop.state.requests:
                changed.clear()
                await changed.wait()
        finally:
            unsubscribe()

    def _call_off_restart(self) -> None:
        """Another call came after it."""
        if self._restarting is not None and self._restarting is not asyncio.current_task():
            self._restarting.cancel()
            self._restarting = None

    def _stop_emptying(self) -> None:
        if self._emptying is not None and self._emptying is not asyncio.current_task():
            self._emptying.cancel()
        self._emptying = None

    def _say(self, text: str) -> None:
        self._services.loop.note(e.LogLine(level="info", text=f"the router was {text}"))
