"""Waiting for the first of several things, or for one but not for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def tasks_of(*waits: Coroutine[Any, Any, object]) -> "list[asyncio.Task[object]]":
    return [asyncio.create_task(wait) for wait in waits]


async def first(*waits: Coroutine[Any, Any, object]) -> None:
    """Until the first of these is done; the others are cancelled."""
    await first_of(set(tasks_of(*waits)))


async def first_of(tasks: "set[asyncio.Task[Any]]") -> None:
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def within(seconds: float, wait: Coroutine[Any, Any, object]) -> None:
    """Wait for something, but not longer.

    Not by `asyncio.wait_for`: up to Python 3.11 it loses a cancel that comes in the moment of its success.
    """
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        return
