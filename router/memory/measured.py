"""What NVML said that each model's processes held, as the log has it: at ready, and just before their end."""

from collections.abc import Iterable, Mapping
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

KEPT = 8
"""Replicas of a model whose figures are kept."""
TYPES = ("ReplicaSpawnOrdered", "ReplicaReady", "ReplicaStopped", "ReplicaCrashed", "RouterStarted")


@dataclass(slots=True)
class Measured:
    """Figures of single replicas, whatever their number. Models that were never measured are not in here."""

    most: dict[str, dict[int, int]] = field(default_factory=dict)
    """Per model and GPU, the most MiB that one replica has held."""
    history: dict[str, list[dict[int, int]]] = field(default_factory=dict)
    """The same of the last few that were measured, oldest first: the larger of the figures at ready and at the end."""
    loads: dict[str, int] = field(default_factory=dict)
    """Replicas that were measured."""
    totals: dict[int, int] = field(default_factory=dict)
    """MiB of each GPU, as the router saw them at its last start."""
    _lives: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    """By model and replica, those of `history`."""
    _models: dict[str, str] = field(default_factory=dict)
    """Replica to model, while it lives."""

    def take(self, event: Event) -> None:
        """One event, in their order; those that say nothing about memory are passed over."""
        match event:
            case RouterStarted():
                self.totals = {gpu.index: gpu.memory_mib for gpu in event.gpus if gpu.memory_mib}
                self._models.clear()
            case ReplicaSpawnOrdered():
                self._models[event.replica] = event.model
            case ReplicaReady() if event.vram:
                model = self._models.get(event.replica, "")
                self.loads[model] = self.loads.get(model, 0) + 1
                self._note(model, event.replica, event.vram)
            case ReplicaStopped():
                self._note(self._models.pop(event.replica, ""), event.replica, event.freed)
            case ReplicaCrashed():
                self._note(self._models.pop(event.replica, ""), event.replica, event.vram)

    def _note(self, model: str, replica: str, parts: Iterable[Memory]) -> None:
        held = {part.gpu: part.mib for part in parts if part.mib > 0}
        if not model or not held:
            return
        lives = self._lives.setdefault(model, {})
        life = lives[replica] = _larger(lives.pop(replica, {}), held)
        if len(lives) > KEPT:
            del lives[next(iter(lives))]
        self.most[model] = _larger(self.most.get(model, {}), life)
        self.history[model] = list(lives.values())


def _larger(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Per GPU."""
    return {gpu: max(one.get(gpu, 0), other.get(gpu, 0)) for gpu in sorted({*one, *other})}


def measure(events: Iterable[Event]) -> Measured:
    """From events in their order."""
    found = Measured()
    for event in events:
        found.take(event)
    return found


def read_measured(log_dir: Path) -> Measured:
    """From a log; empty where there is none. Raises LogError."""
    return measure(read(log_dir, types=TYPES)) if log_dir.is_dir() else Measured()
