"""`/events`: the tail of the log as server-sent events, from any point, without a gap and without a duplicate.

History comes from the log's files, what follows from the loop. The subscription begins before the files are read, so
that whatever is logged meanwhile is in one of the two; what is in both is recognised by its number. A reader that is
too slow for the present is sent back to the files: nothing is kept for it beyond a small buffer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from eventlog import reader
from eventlog.codec import UnknownEvent
from eventlog.errors import LogError
from eventlog.events import Event, Observation, RouterStopping, SegmentOpened
from router import errors
from router.api.access import administrator
from router.api.reply import SSE_HEADERS
from router.api.services import Services

BUFFER = 1024
"""Events that may wait for a reader before it is sent back to the files."""
CHUNK = 256
"""Events that are read from the files, and sent, at once."""
PING_S = 15.0


@dataclass(slots=True)
class Seen:
    """The last numbers that a reader has: each of the log's two streams rises by itself."""

    event: int
    observation: int

    @classmethod
    def parse(cls, text: str) -> "Seen":
        """From the id of a frame: one number, or one for each stream. Raises ValueError."""
        event, _, observation = text.partition("-")
        return cls(int(event), int(observation or event))

    def within(self, last: int) -> "Seen":
        """At most what there is: a log that was removed begins its numbers anew, and who asks again must hear of it."""
        return self if max(self.event, self.observation) <= last else Seen(last, last)


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["events"])

    @api.get("/events", summary="The event log, as it grows; `from` starts in the past")
    async def tail(
        request: Request,
        start: Annotated[int | None, Query(alias="from", ge=0, description="first event wanted; now if absent")] = None,
        observations: Annotated[bool, Query(description="samples and token times as well")] = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        administrator(request)
        seen = Seen(start - 1, start - 1) if start is not None else None
        if last_event_id:
            try:
                seen = Seen.parse(last_event_id).within(services.view.seq)
            except ValueError:
                message = f"Last-Event-ID {last_event_id!r} is none that /events gave out"
                raise errors.error("invalid_parameter", message, status=400, param="Last-Event-ID") from None
        follower = Follower(services, seen, observations=observations)
        return StreamingResponse(follower.frames(), media_type="text/event-stream", headers=SSE_HEADERS)

    return api


class Follower:
    """One reader of the log."""

    def __init__(self, services: Services, seen: Seen | None, *, observations: bool) -> None:
        """`seen` None: nothing of the past is wanted."""
        self._services = services
        self._seen = seen or Seen(services.view.seq, services.view.seq)
        self._observations = observations
        self._buffer: deque[Event] = deque()
        self._behind = seen is not None
        """The files have what comes next, not the buffer."""
        self._news = asyncio.Event()
        self._failed = False
        """The files are damaged: what follows could not be told without a gap."""

    async def frames(self) -> AsyncIterator[bytes]:
        """Frames until the router stops; a comment now and then shows that the connection lives."""
        unsubscribe = self._services.loop.subscribe(self._take)
        try:
            yield b": ok\n\n"
            while True:
                if self._behind:
                    self._buffer.clear()
                    self._behind = False
                    async for frames in self._past():
                        yield frames
                    if self._failed:
                        return
                    continue
                fresh = [self._buffer.popleft() for _ in range(min(len(self._buffer), CHUNK))]
                if fresh:
                    yield b"".join(map(self._frame, fresh))
                    if any(isinstance(event, RouterStopping) for event in fresh):
                        return
                    continue
                if self._services.loop.state.stopping_at_us:
                    return  # a reader who came after the event that says so
                self._news.clear()
                try:
                    async with asyncio.timeout(PING_S):
                        await self._news.wait()
                except TimeoutError:
                    yield b": ping\n\n"
        finally:
            unsubscribe()

    def _take(self, event: Event) -> None:
        if isinstance(event, Observation) and not self._observations:
            return
        if len(self._buffer) >= BUFFER:
            self._behind = True
        if not self._behind:
            self._buffer.append(event)
        self._news.set()

    async def _past(self) -> AsyncIterator[bytes]:
        """From the files, in a thread: what follows what the reader has, up to where the log ends just now."""
        events = self._read()
        more = True
        while more:
            chunk, problem = await asyncio.to_thread(_take, events)
            frames = b"".join(map(self._frame, chunk))
            if problem is not None:
                self._failed = True
                frames += _failure(problem)
            if frames:
                yield frames
            more = bool(chunk) and problem is None

    def _read(self) -> Iterator[Event]:
        directory = self._services.config.log_dir
        if not self._observations:
            return reader.read(directory, from_seq=self._seen.event + 1)
        first = min(self._seen.event, self._seen.observation) + 1
        return reader.read(directory, stream="all", from_seq=first)

    def _frame(self, event: Event) -> bytes:
        """One frame; nothing for what the reader has already, or for a segment's header."""
        seen = self._seen
        if isinstance(event, SegmentOpened):
            return b""
        if isinstance(event, Observation):
            if event.seq <= seen.observation:
                return b""
            seen.observation = event.seq
        else:
            if event.seq <= seen.event:
                return b""
            seen.event = event.seq
        number = f"{seen.event}-{seen.observation}" if self._observations else f"{seen.event}"
        data = event.raw if isinstance(event, UnknownEvent) else msgspec.json.encode(event)
        return b"id: %b\ndata: %b\n\n" % (number.encode(), data)


def _take(events: Iterator[Event]) -> tuple[list[Event], LogError | None]:
    """The next few, and what kept it from being more."""
    chunk: list[Event] = []
    try:
        for event in islice(events, CHUNK):
            chunk.append(event)
    except LogError as problem:
        return chunk, problem
    return chunk, None


def _failure(problem: LogError) -> bytes:
    told = errors.error("internal_error", f"the log cannot be read any further: {problem}", status=500)
    return b"event: error\ndata: " + errors.openai_body(told) + b"\n\n"
