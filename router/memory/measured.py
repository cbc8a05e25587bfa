"""What NVML said that each model's processes held, as the log has it: at ready, and just before their end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.events import (
    Event,
    Memory,
    ReplicaCrashed,
    ReplicaReady,
    ReplicaSpawnOrdered,
    ReplicaStopped,
    RouterStarted,
)
from eventlog.reader import read

TYPES = ("ReplicaSpawnOrdered", "ReplicaReady", "ReplicaStopped", "ReplicaCrashed", "RouterStarted")


@dataclass(slots=True)
class Life:
    """One replica: MiB per GPU when it was ready and when it ended; empty where nobody measured."""

    replica: str
    ready_at_us: int = 0
    at_ready: dict[int, int] = field(default_factory=dict)
    at_end: dict[int, int] = field(default_factory=dict)

    @property
    def most(self) -> dict[int, int]:
        """The larger of both, per GPU."""
        gpus = sorted({*self.at_ready, *self.at_end})
        return {gpu: max(self.at_ready.get(gpu, 0), self.at_end.get(gpu, 0)) for gpu in gpus}


@dataclass(slots=True)
class Measured:
    """`lives` by model, oldest first, only those that were measured; `totals` is MiB per GPU as last seen."""

    lives: dict[str, list[Life]] = field(default_factory=dict)
    totals: dict[int, int] = field(default_factory=dict)

    def most(self, model: str) -> dict[int, int]:
        """Per GPU, the most that one replica of the model has held."""
        most: dict[int, int] = {}
        for life in self.lives.get(model, []):
            for gpu, mib in life.most.items():
                most[gpu] = max(most.get(gpu, 0), mib)
        return dict(sorted(most.items()))


def read_measured(log_dir: Path) -> Measured:
    """From a log; empty where there is none. Raises LogError."""
    return measure(read(log_dir, types=TYPES)) if log_dir.is_dir() else Measured()


def measure(events: Iterable[Event]) -> Measured:
    found = Measured()
    models: dict[str, str] = {}
    for event in events:
        match event:
            case RouterStarted():
                found.totals = {gpu.index: gpu.memory_mib for gpu in event.gpus if gpu.memory_mib}
            case ReplicaSpawnOrdered():
                models[event.replica] = event.model
            case ReplicaReady() if event.vram:
                life = Life(event.replica, event.at_us, _by_gpu(event.vram))
                found.lives.setdefault(models.get(event.replica, ""), []).append(life)
            case ReplicaStopped() | ReplicaCrashed():
                vram = event.freed if isinstance(event, ReplicaStopped) else event.vram
                for life in found.lives.get(models.pop(event.replica, ""), [])[-8:]:
                    if life.replica == event.replica:
                        life.at_end = _by_gpu(vram)
    return found


def _by_gpu(parts: Iterable[Memory]) -> dict[int, int]:
    return {part.gpu: part.mib for part in parts if part.mib > 0}
