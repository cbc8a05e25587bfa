"""The body of a request: read once, kept while the request waits, sent as often as it takes.

Bodies live in memory until all of them together pass a limit; from then on a large one that is still coming in goes to
a nameless file in the run directory. A gzip body is decoded on the way in, since llama-server refuses it, and its size
is limited after decoding. What arrived chunked is kept plain: whoever sends it on frames it by its real length.

This module does not know what is in a body; see `router.peek`.
"""

import asyncio
import mmap
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from router import errors

Buffer = bytes | bytearray | mmap.mmap
T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SPILL_OVER = 64 * 1024
"""Bodies up to this many bytes never go to disk: a file would cost as much as it saves."""
PIECE = 1 << 20
"""Bytes per read or write of a file."""


class ClientGone(Exception):
    """The client left before its body was in."""


class Body:
    """The bytes of one request, in memory or in a file. `close` it when nobody needs them any more."""

    __slots__ = ("_file", "_memory", "_store", "size")

    def __init__(self, store: "BodyStore", memory: bytes | bytearray, file: BinaryIO | None, size: int) -> None:
        self.size = size
        self._store = store
        self._memory = memory
        self._file = file

    @property
    def spilled(self) -> bool:
        """Whether it is in a file."""
        return self._file is not None

    def look(self, function: Callable[[Buffer], T]) -> T:
        """What `function` makes of all the bytes at once; nothing may refer to them afterwards."""
        if self._file is None:
            return function(self._memory)
        with mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ) as mapped:
            return function(mapped)

    def to_send(self) -> bytes | bytearray | AsyncIterator[bytes]:
        """What `Connection.send` takes; may be asked for again."""
        return self._memory if self._file is None else self._pieces(self._file)

    def close(self) -> None:
        """Give memory or file back; harmless when done twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        else:
            self._store.in_memory -= len(self._memory)
        self._memory = b""

    async def _pieces(self, file: BinaryIO) -> AsyncIterator[bytes]:
        offset = 0
        while offset < self.size:
            piece = await asyncio.to_thread(os.pread, file.fileno(), PIECE, offset)
            if not piece:
                raise OSError(f"a body of {self.size} bytes ended after {offset} in its file")
            offset += len(piece)
            yield piece


class BodyStore:
    """Reads bodies and keeps the account of their memory.

    `memory_limit` is in bytes for all bodies together, `body_limit` for one after decoding (0: no limit); `directory`
    takes the files.
    """

    def __init__(self, directory: Path, *, memory_limit: int, body_limit: int) -> None:
        self.in_memory = 0
        self._directory = directory
        self._memory_limit = memory_limit
        self._body_limit = body_limit

    async def read(self, receive: Receive, *, length: int | None = None, encoding: bytes = b"", path: str = "") -> Body:
        """Take the whole body from an ASGI `receive`.

        `length` is the Content-Length, `encoding` the Content-Encoding, `path` only for messages. Raises ClientGone, or
        RouterError for a body that is too large or does not decode.
        """
        if length is not None and not encoding:
            self._check(length)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if not message.get("more_body") and not encoding and self._has_room(len(body), len(body)):
            self._check(len(body))
            self.in_memory += len(body)
            return Body(self, body, None, len(body))
        intake = _Intake(self, _decoder(encoding))
        try:
            while True:
                await intake.add(message.get("body", b""), last=not message.get("more_body"))
                if not message.get("more_body"):
                    return intake.body()
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
        except BaseException:
            intake.discard()
            raise

    def limit(self, *, memory: int, body: int) -> None:
        """Other limits, for what comes in from now on."""
        self._memory_limit = memory
        self._body_limit = body

    def replaced(self, body: Body, data: bytes) -> Body:
        """Other bytes in the place of a body, which is closed."""
        body.close()
        self.in_memory += len(data)
        return Body(self, data, None, len(data))

    def _has_room(self, size: int, more: int) -> bool:
        """Whether a body that has `size` bytes by now may stay in memory, of which `more` are not counted yet."""
        return size <= SPILL_OVER or self.in_memory + more <= self._memory_limit

    def _check(self, size: int) -> None:
        if self._body_limit and size > self._body_limit:
            raise errors.error(
                "body_too_large", f"the body has {size} bytes or more; at most {self._body_limit} are taken"
            )

    def _spill(self) -> BinaryIO:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cast(BinaryIO, tempfile.TemporaryFile(dir=self._directory, prefix="body-", buffering=0))
        except OSError as error:
            raise _no_room(self._directory, error) from error


class _Intake:
    """One body while it comes in."""

    def __init__(self, store: BodyStore, inflate: "_Gzip | None") -> None:
        self._store = store
        self._inflate = inflate
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._size = 0

    async def add(self, data: bytes, *, last: bool) -> None:
        if self._inflate is None:
            await self._keep(data)
            return
        for piece in self._inflate.feed(data):
            await self._keep(piece)
            await asyncio.sleep(0)  # a little input may be a lot of output: others get their turn
        if last:
            self._inflate.finish()

    def body(self) -> Body:
        if self._file is None:
            return Body(self._store, self._memory, None, self._size)
        file, self._file = self._file, None
        try:
            self._write(file, self._memory)
        except BaseException:
            file.close()
            raise
        self._store.in_memory -= len(self._memory)
        return Body(self._store, b"", file, self._size)

    def discard(self) -> None:
        self._store.in_memory -= len(self._memory)
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()

    async def _keep(self, data: bytes) -> None:
        self._size += len(data)
        self._store._check(self._size)
        self._memory += data
        self._store.in_memory += len(data)
        if self._file is None:
            if self._store._has_room(self._size, 0):
                return
            self._file = self._store._spill()
        if len(self._memory) >= PIECE:
            full, self._memory = self._memory, bytearray()
            try:
                await asyncio.to_thread(self._write, self._file, full)
            finally:
                self._store.in_memory -= len(full)

    def _write(self, file: BinaryIO, data: bytearray) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise _no_room(self._store._directory, error) from error


class _Gzip:
    """Decodes gzip piece by piece, so that no input can make a large output at once."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._stream.eof:  # members may follow each other
                    self._stream = zlib.decompressobj(wbits=31)
                yield self._stream.decompress(data, PIECE)
                data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        except zlib.error as error:
            raise errors.error("invalid_body", f"Content-Encoding says gzip, but the body is not: {error}") from error

    def finish(self) -> None:
        if not self._stream.eof:
            raise errors.error("invalid_body", "the gzip body ends before its end")


def _decoder(encoding: bytes) -> _Gzip | None:
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return None
    if name in (b"gzip", b"x-gzip"):
        return _Gzip()
    raise errors.error(
        "unsupported_encoding", f"Content-Encoding {name.decode('latin-1')!r} is not understood; use gzip or none"
    )


def _no_room(directory: Path, error: OSError) -> errors.RouterError:
    reason = error.strerror or str(error)
    return errors.error("no_capacity", f"no memory is left for the body, and {directory} does not take it: {reason}")
