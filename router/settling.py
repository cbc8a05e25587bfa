"""After a process of ours has ended on a GPU: no load begins there before its memory is back, or a limit has passed.

The driver gives memory back only some time after a process is gone, and a load that begins too early runs out of it.
Each wait is told by one GpuMemorySettled; where NVML does not see the GPU nothing happens. Nothing is decided by it:
the scheduler's order stands, and is carried out a little later.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from eventlog.events import Fact, GpuMemorySettled
from router.config import Timings


class Shell(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    def post(self, *facts: Fact) -> None: ...


class Settled(Protocol):
    """How a wait for GPU memory ended."""

    @property
    def settled(self) -> bool: ...
    @property
    def waited_us(self) -> int: ...


class GpuMemory(Protocol):
    """The part of `router.gpus.Gpus` that is used here."""

    def measures(self, gpus: Collection[int]) -> bool: ...
    async def memory_settled(
        self, gpus: Collection[int], timeout_s: float, *, gone: Collection[int] = (), every_s: float = ...
    ) -> Settled: ...


class Settling:
    """One per router; belongs to the event loop's thread."""

    def __init__(self, loop: Shell, memory: GpuMemory | None) -> None:
        self._loop = loop
        self._memory = memory
        self._waits: dict[asyncio.Task[None], frozenset[int]] = {}

    def ended(self, gpus: Sequence[int], pids: Collection[int], timings: Timings) -> None:
        """The processes `pids` are gone, which were on these GPUs."""
        memory = self._memory
        if memory is None or not gpus or timings.unload_poll_timeout_s <= 0 or not memory.measures(gpus):
            return
        task = asyncio.get_running_loop().create_task(self._wait(memory, gpus, pids, timings))
        self._waits[task] = frozenset(gpus)
        task.add_done_callback(self._waits.pop)

    async def over(self, gpus: Collection[int]) -> None:
        """Returns when nobody has to wait for these GPUs any more."""
        while waits := [task for task, busy in self._waits.items() if busy & set(gpus)]:
            await asyncio.wait(waits)

    async def _wait(self, memory: GpuMemory, gpus: Sequence[int], pids: Collection[int], timings: Timings) -> None:
        limit_s, every_s = timings.unload_poll_timeout_s, timings.unload_poll_interval_s
        answer = await memory.memory_settled(gpus, limit_s, gone=pids, every_s=every_s)
        self._loop.post(GpuMemorySettled(gpus=sorted(gpus), waited_us=answer.waited_us, settled=answer.settled))
