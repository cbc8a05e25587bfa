"""What listeners are told of changes: all that they missed, once, and not too often."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from dashboard import news as news_module
from dashboard.news import News, TooMany


async def told(stream: AsyncIterator[bytes]) -> tuple[int, list[str]]:
    """The next message: its seq and its tables."""
    async with asyncio.timeout(10):
        frame = (await anext(stream)).decode()
    head, _, data = frame.strip().partition("\ndata: ")
    seq = int(head.splitlines()[0].removeprefix("id: "))
    found = json.loads(data)
    assert found["seq"] == seq
    return seq, found["tables"]


async def began(stream: AsyncIterator[bytes]) -> None:
    assert (await anext(stream)).startswith(b"retry:")


def test_changes_that_come_quickly_are_one_message() -> None:
    async def story() -> None:
        news = News(pause_s=0.05)
        stream = news.listen(None)
        await began(stream)
        news.changed(frozenset({"requests"}), 5)
        assert await told(stream) == (5, ["requests"])
        for seq in range(6, 60):
            news.changed(frozenset({"requests" if seq % 2 else "swaps"}), seq)
        assert await told(stream) == (59, ["requests", "swaps"])

    asyncio.run(story())


def test_who_comes_back_is_told_of_what_it_missed_and_of_nothing_else() -> None:
    async def story() -> None:
        news = News(pause_s=0)
        news.changed(frozenset({"swaps"}), 10)
        news.changed(frozenset({"requests"}), 20)
        stream = news.listen(10)
        await began(stream)
        assert await told(stream) == (20, ["requests"])
        # A number that is not of this log: whatever there is may have changed.
        stream = news.listen(999)
        await began(stream)
        assert await told(stream) == (20, ["requests", "swaps"])

    asyncio.run(story())


def test_a_change_of_the_stream_that_is_behind_is_told_as_well() -> None:
    """Observations up to 12 came first; then an event with the number 11 that was written while they were read."""

    async def story() -> None:
        news = News(pause_s=0)
        stream = news.listen(None)
        await began(stream)
        news.changed(frozenset({"token_seconds"}), 12)
        assert (await told(stream))[1] == ["token_seconds"]
        news.changed(frozenset({"requests"}), 12)
        assert (await asyncio.wait_for(told(stream), 5))[1] == ["requests"]

    asyncio.run(story())


def test_a_listener_that_reads_nothing_costs_a_number() -> None:
    """After ten thousand changes there is one message for it."""

    async def story() -> None:
        news = News(pause_s=0)
        slow = news.listen(None)
        await began(slow)
        for seq in range(1, 10_000):
            news.changed(frozenset({"requests"}), seq)
        assert await told(slow) == (9_999, ["requests"])

    asyncio.run(story())


def test_while_nothing_changes_there_is_a_sign_of_life_and_at_the_end_the_stream_ends() -> None:
    async def story() -> None:
        news = News(heartbeat_s=0.01)
        stream = news.listen(None)
        await began(stream)
        assert await anext(stream) == b":\n\n"
        news.close()
        assert [frame async for frame in stream] in ([], [b":\n\n"])

    asyncio.run(story())


def test_there_are_only_so_many_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(news_module, "LISTENERS", 2)
        news = News()
        first, second = news.listen(None), news.listen(None)
        await began(first)
        await began(second)
        with pytest.raises(TooMany):
            news.listen(None)
        await first.aclose()  # type: ignore[attr-defined]
        await began(news.listen(None))

    asyncio.run(story())
