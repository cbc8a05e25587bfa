"""What the start made is put out of the garbage collector's sight, but never what belongs to a request."""

import asyncio
import gc
import weakref

import pytest

from router import serve


class Knot:
    """Something that refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_what_belongs_to_a_request_is_not_frozen_and_what_stays_is_frozen_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A router that is busy from its first second would keep its first clients in memory for ever."""
    monkeypatch.setattr(serve, "STARTED_S", 0)
    requests = [Knot()]
    lives = weakref.ref(requests[0])
    frozen: list[int] = []

    def is_idle() -> bool:
        frozen.append(gc.get_freeze_count())
        if len(frozen) == 3:
            requests.clear()
        return not requests

    async def start() -> None:
        serve.freeze_what_stays(is_idle)
        for _ in range(10):
            await asyncio.sleep(0)

    before = gc.get_freeze_count()
    try:
        asyncio.run(start())
        assert frozen == [before] * 3
        assert gc.get_freeze_count() > before
        assert lives() is None
    finally:
        gc.unfreeze()
