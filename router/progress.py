"""Whether a load moves: output, CPU time, page faults, bytes read or written, of all processes of the child together.

A load may take as long as it takes as long as it moves. `Stall` decides that from samples and is pure; `measure` takes
them. What the router's own health probes cost the child is below the thresholds, so that asking keeps nothing alive.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from router import proc

CPU_SHARE = 0.05
"""Of one core. An idle server that answers four probes a second stays well below."""
FAULTS_PER_S = 250
"""About 1 MiB in pages."""
TICKS_MIN = 2
"""One more tick (10 ms) may be the last straw of many small things: it says nothing of so short a time."""
BYTES_PER_S = 4096
"""Little enough for a download over a poor line, which is a load as well."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals since the processes began; `resident_bytes` of mapped files tells how much of a mapped model is in."""

    cpu_ticks: int = 0
    faults: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    resident_bytes: int = 0


def measure(pids: Iterable[int]) -> Sample:
    """The sum over these processes; one that is gone counts nothing."""
    cpu_ticks = faults = bytes_read = bytes_written = resident = 0
    for pid in pids:
        if (found := proc.stat(pid)) is not None:
            cpu_ticks += found.cpu_ticks
            faults += found.faults
            read, written = proc.bytes_moved(pid)
            bytes_read += read
            bytes_written += written
            resident += proc.file_mapped_bytes(pid)
    return Sample(cpu_ticks, faults, bytes_read, bytes_written, resident)


class Stall:
    """How long a load has not moved. Times are microseconds on any clock that never runs backwards."""

    def __init__(self, now_us: int) -> None:
        self._moved_us = now_us
        self._sampled_us = now_us
        self._last: Sample | None = None
        self._output_bytes = 0

    def feed(self, now_us: int, sample: Sample, output_bytes: int) -> None:
        """A new sample, and how many bytes the child has printed so far."""
        if output_bytes > self._output_bytes or self._has_worked(sample, (now_us - self._sampled_us) / 1e6):
            self._moved_us = now_us
        self._output_bytes = output_bytes
        self._sampled_us = now_us
        self._last = sample

    def still_us(self, now_us: int) -> int:
        """Since it was last seen to move."""
        return now_us - self._moved_us

    def _has_worked(self, now: Sample, seconds: float) -> bool:
        last = self._last
        if last is None:
            return False
        return (
            now.cpu_ticks - last.cpu_ticks >= max(TICKS_MIN, CPU_SHARE * seconds * proc.TICKS_PER_S)
            or now.faults - last.faults >= max(1.0, FAULTS_PER_S * seconds)
            or now.bytes_read - last.bytes_read >= max(1.0, BYTES_PER_S * seconds)
            or now.bytes_written - last.bytes_written >= max(1.0, BYTES_PER_S * seconds)
        )
