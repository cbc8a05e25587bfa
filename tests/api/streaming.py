"""An ASGI client that reads a stream piece by piece, as slowly as the test likes; httpx's would wait for its end."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

DEADLINE_S = 10.0


class Stream:
    """One answer. The application is held up while a piece is not taken, as a full socket would."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue(1)
        self._left = asyncio.Event()
        self._asked = False
        self._rest = ""
        self._frames: deque[str] = deque()

    async def pieces(self) -> AsyncIterator[str]:
        """Text as it was sent, until the answer ends."""
        while True:
            async with asyncio.timeout(DEADLINE_S):
                piece = await self._pieces.get()
            if piece is None:
                return
            yield piece

    async def frames(self) -> AsyncIterator[str]:
        """Server-sent events, without comments. A later call goes on where an earlier one was left."""
        while True:
            *frames, self._rest = self._rest.split("\n\n")
            self._frames += [frame for frame in frames if not frame.startswith(":")]
            while self._frames:
                yield self._frames.popleft()
            async for piece in self.pieces():
                self._rest += piece
                break
            else:
                return

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body") and not self._left.is_set():
            await self._pieces.put(message["body"].decode())
        if message["type"] == "http.response.body" and not message.get("more_body") and not self._left.is_set():
            await self._pieces.put(None)

    def leave(self) -> None:
        self._left.set()
        while not self._pieces.empty():
            self._pieces.get_nowait()


@asynccontextmanager
async def open_stream(
    app: Callable[..., Awaitable[None]], target: str, headers: dict[str, str] | None = None
) -> AsyncIterator[Stream]:
    """GET a stream; at the end of the block the client is gone, and so must the application be with this answer."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"router"), *((k.lower().encode(), v.encode()) for k, v in (headers or {}).items())],
        "server": ("router", 80),
        "client": ("client", 1),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    stream = Stream()
    serving = asyncio.ensure_future(app(scope, stream.receive, stream.send))
    try:
        yield stream
    finally:
        stream.leave()
        async with asyncio.timeout(DEADLINE_S):
            await serving
