"""What has changed in the tables, told to every page that listens, as server-sent events.

    id: 4711
    event: changed
    data: {"seq":4711,"tables":["queue_depth","requests"]}

A message names the tables that have taken lines since the last one, so that a page asks again for what it shows of
them and for nothing else. Per listener there is one number, not a queue: one that is slow, or that comes back with
`Last-Event-ID`, is told once of all that it missed.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from projections.errors import ProjectionError

PAUSE_S = 0.25
"""Between two messages to one listener."""
HEARTBEAT_S = 15.0
"""Between signs of life while nothing changes: less than what proxies wait."""
LISTENERS = 500


class TooMany(ProjectionError):
    """No more listeners are taken."""


class News:
    """Belongs to the event loop's thread."""

    def __init__(self, *, pause_s: float = PAUSE_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._pause_s = pause_s
        self._heartbeat_s = heartbeat_s
        self._seq = 0
        self._changed_at: dict[str, int] = {}
        """Table to the seq of its last change."""
        self._closed = False
        self._told = asyncio.Event()
        self._listeners = 0

    def changed(self, tables: frozenset[str], seq: int) -> None:
        """These tables have taken lines; all together have reached `seq`.

        Each change has a number of its own, also one of the stream that is behind the other.
        """
        self._seq = max(self._seq + 1, seq)
        self._changed_at.update(dict.fromkeys(tables, self._seq))
        self._wake()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._wake()

    def listen(self, after_seq: int | None) -> AsyncIterator[bytes]:
        """The stream for one listener; what changed after `after_seq` comes first. Raises TooMany."""
        if self._listeners >= LISTENERS:
            raise TooMany(f"{LISTENERS} pages listen already")
        return self._stream(self._seq if after_seq is None else after_seq)

    async def _stream(self, seen: int) -> AsyncIterator[bytes]:
        self._listeners += 1
        try:
            yield b"retry: 1000\n\n"
            while not self._closed:
                told = self._told
                if seen != self._seq:
                    tables, seen = self._since(seen), self._seq
                    if tables:
                        yield _message(seen, tables)
                        await asyncio.sleep(self._pause_s)
                elif not await _within(self._heartbeat_s, told):
                    yield b":\n\n"
        finally:
            self._listeners -= 1

    def _since(self, seen: int) -> list[str]:
        """What changed after `seen`. A number from another life of the log is as good as none: everything has."""
        return sorted(table for table, seq in self._changed_at.items() if seq > seen or seen > self._seq)

    def _wake(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()


def _message(seq: int, tables: list[str]) -> bytes:
    data = json.dumps({"seq": seq, "tables": tables}, separators=(",", ":"))
    return f"id: {seq}\nevent: changed\ndata: {data}\n\n".encode()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
