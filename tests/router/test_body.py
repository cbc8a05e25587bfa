"""Request bodies: whole, decoded, limited, and out of memory when there is too much of them."""

import gzip
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from router.body import PIECE, SPILL_OVER, Body, BodyStore, ClientGone, Receive
from router.errors import RouterError
from tests.router.relay_rig import run

MIB = 1 << 20


def store(directory: Path, memory_limit: int = 64 * MIB, body_limit: int = 0) -> BodyStore:
    return BodyStore(directory, memory_limit=memory_limit, body_limit=body_limit)


def coming(data: bytes, step: int = 64 * 1024, *, leaves: bool = False) -> Receive:
    """An ASGI `receive` that gives `data` in pieces and then, with `leaves`, no end but a client that is gone."""
    pieces = [data[at : at + step] for at in range(0, len(data), step)] or [b""]

    async def receive() -> MutableMapping[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces) or leaves}

    return receive


async def everything(body: Body) -> bytes:
    sent = body.to_send()
    if isinstance(sent, (bytes, bytearray)):
        return bytes(sent)
    return b"".join([piece async for piece in sent])


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3 * MIB])
@pytest.mark.parametrize("memory_limit", [0, 64 * MIB], ids=["on disk", "in memory"])
def test_a_body_is_what_came_wherever_it_is_kept(tmp_path: Path, size: int, memory_limit: int) -> None:
    data = os.urandom(size)

    async def story() -> None:
        bodies = store(tmp_path, memory_limit)
        body = await bodies.read(coming(data))
        assert body.size == size
        assert body.spilled == (size > SPILL_OVER and memory_limit == 0)
        assert await everything(body) == data
        assert await everything(body) == data, "a second attempt sends it again"
        assert body.look(bytes) == data
        body.close()
        body.close()
        assert bodies.in_memory == 0

    run(story)


def test_what_is_too_much_for_memory_goes_to_a_nameless_file(tmp_path: Path) -> None:
    """Small bodies stay; of the large ones, those that came first."""

    async def story() -> None:
        bodies = store(tmp_path, memory_limit=4 * MIB)
        first = await bodies.read(coming(bytes(3 * MIB)))
        large = [await bodies.read(coming(bytes(10 * MIB))) for _ in range(5)]
        small = await bodies.read(coming(b"small"))
        assert not first.spilled
        assert all(body.spilled for body in large)
        assert not small.spilled
        assert bodies.in_memory <= 4 * MIB
        assert os.listdir(tmp_path) == [], "nothing is left behind, whatever happens to the process"
        for body in (first, small, *large):
            body.close()
        assert bodies.in_memory == 0

    run(story)


def test_many_bodies_of_middling_size_stay_within_the_limit(tmp_path: Path) -> None:
    """In one message or in several: whatever is worth a file goes into one when memory is full."""

    async def story() -> None:
        bodies = store(tmp_path, memory_limit=2 * MIB)
        kept = [await bodies.read(coming(bytes(300_000), step)) for step in (64 * 1024, 1 * MIB) * 10]
        assert sum(body.spilled for body in kept) == 20 - 2 * MIB // 300_000
        assert bodies.in_memory <= 2 * MIB
        for body in kept:
            assert await everything(body) == bytes(300_000)
            body.close()
        assert bodies.in_memory == 0

    run(story)


def test_memory_stays_within_a_piece_of_the_limit_while_a_body_comes_in(tmp_path: Path) -> None:
    async def story() -> None:
        bodies = store(tmp_path, memory_limit=2 * MIB)
        most = 0
        source = coming(bytes(20 * MIB))

        async def receive() -> MutableMapping[str, Any]:
            nonlocal most
            most = max(most, bodies.in_memory)
            return await source()

        body = await bodies.read(receive)
        assert most <= 2 * MIB + PIECE
        body.close()

    run(story)


def test_a_client_that_leaves_while_sending_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        bodies = store(tmp_path, memory_limit=0)
        with pytest.raises(ClientGone):
            await bodies.read(coming(bytes(5 * MIB), leaves=True))
        assert bodies.in_memory == 0

    run(story)


@pytest.mark.parametrize("length", [None, 2000], ids=["chunked", "with its length"])
def test_a_body_over_the_limit_is_refused(tmp_path: Path, length: int | None) -> None:
    async def story() -> None:
        bodies = store(tmp_path, body_limit=1000)
        with pytest.raises(RouterError, match="at most 1000") as caught:
            await bodies.read(coming(bytes(2000), step=100), length=length)
        assert (caught.value.status, caught.value.code) == (413, "body_too_large")
        assert bodies.in_memory == 0

    run(story)


def test_gzip_is_decoded_members_in_a_row_included(tmp_path: Path) -> None:
    data = os.urandom(100_000) * 20

    async def story() -> None:
        for zipped in (gzip.compress(data), gzip.compress(data[:7]) + gzip.compress(data[7:])):
            for step in (10_000, len(zipped)):
                body = await store(tmp_path).read(coming(zipped, step), encoding=b"GZIP", length=len(zipped))
                assert await everything(body) == data

    run(story)


def test_a_gzip_bomb_is_stopped_at_the_limit(tmp_path: Path) -> None:
    """A megabyte that would be a gigabyte costs no more than the limit."""
    bomb = gzip.compress(bytes(256 * MIB))

    async def story() -> None:
        bodies = store(tmp_path, body_limit=8 * MIB)
        most = 0
        keep = bodies._check

        def check(size: int) -> None:
            nonlocal most
            most = max(most, size)
            keep(size)

        bodies._check = check  # type: ignore[method-assign]
        with pytest.raises(RouterError) as caught:
            await bodies.read(coming(bomb, step=len(bomb)), encoding=b"gzip")
        assert caught.value.code == "body_too_large"
        assert most <= 8 * MIB + PIECE
        assert bodies.in_memory == 0

    run(story)


@pytest.mark.parametrize(
    ("sent", "encoding", "status", "says"),
    [
        (b"plain", b"gzip", 400, "says gzip, but the body is not"),
        (gzip.compress(b"x" * 1000)[:-9], b"gzip", 400, "ends before its end"),
        (b"x", b"br", 415, "'br' is not understood; use gzip or none"),
        (b"x", b"gzip, gzip", 415, "use gzip or none"),
    ],
    ids=["no gzip", "cut off", "unknown", "twice"],
)
def test_what_does_not_decode_is_told(tmp_path: Path, sent: bytes, encoding: bytes, status: int, says: str) -> None:
    async def story() -> None:
        with pytest.raises(RouterError, match=says) as caught:
            await store(tmp_path).read(coming(sent), encoding=encoding)
        assert caught.value.status == status

    run(story)


def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_bytes(b"")

    async def story() -> None:
        bodies = store(nowhere / "below", memory_limit=0)
        with pytest.raises(RouterError, match="does not take it") as caught:
            await bodies.read(coming(bytes(2 * MIB)))
        assert caught.value.status == 503
        assert bodies.in_memory == 0

    run(story)
