"""What all llama-servers of a run share, and the little of other parts that their lives need."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from eventlog.events import Fact, Memory, Observation
from router import settling
from router.child_log import ChildLogs
from router.config import Timings
from router.settling import Settling


class Shell(Protocol):
    """The part of `router.loop.Loop` that a life needs."""

    def post(self, *facts: Fact) -> None: ...
    def note(self, observation: Observation) -> None: ...


class Clock(Protocol):
    """The part of `router.clock.RunClock` that a life needs."""

    def now_us(self) -> int: ...


class GpuMemory(settling.GpuMemory, Protocol):
    """The part of `router.gpus.Gpus` that a life needs."""

    async def fresh(self) -> object: ...
    def memory_of(self, pids: Collection[int]) -> list[Memory]: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all lives of a run share."""

    loop: Shell
    clock: Clock
    logs: ChildLogs
    llama_server: tuple[str, ...]
    run_dir: Path
    directory: str
    """`places.directory_id` of this router."""
    run: int
    timings: Timings
    settling: Settling
    transport: Literal["unix", "tcp"] = "unix"
    memory: GpuMemory | None = None
    slot_save_path: Path | None = None
    """Where slots may be saved."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
