"""Waits that several things may end at the same moment."""

import asyncio

import pytest

from router.waits import first, within


@pytest.mark.parametrize("turns", range(6))
def test_a_cancel_in_the_moment_of_success_is_not_lost(turns: int) -> None:
    """Somebody waits in a loop for a nudge; the nudge and the cancel come within a few turns of the event loop.

    The cancel wins in any order. A wait that lets it be eaten by the success goes round for ever, and whoever cancelled
    waits for ever: that is how a child that printed its last line and died was never missed.
    """

    async def story() -> None:
        nudge = asyncio.Event()

        async def go_round() -> None:
            while True:
                await within(60, nudge.wait())
                nudge.clear()

        task = asyncio.create_task(go_round())
        await asyncio.sleep(0.001)
        nudge.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()

    asyncio.run(story())


def test_the_first_of_several_ends_the_others() -> None:
    """One is done, the other is cancelled and has ended when the wait returns."""

    async def story() -> None:
        other = asyncio.Event()
        ended = False

        async def wait_for_ever() -> None:
            nonlocal ended
            try:
                await other.wait()
            finally:
                ended = True

        await first(asyncio.sleep(0.001), wait_for_ever())
        assert ended

    asyncio.run(story())


def test_within_a_time_and_no_longer() -> None:
    """The wait is given up silently when its time is over."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await within(0.02, asyncio.Event().wait())
        assert 0.02 <= loop.time() - begun < 10

    asyncio.run(story())
