"""A load may take as long as it likes, as long as it moves; being asked how it is does not count as moving."""

import os

import pytest

from router import proc
from router.progress import Sample, Stall, measure

S = 1_000_000
SECOND_OF_CPU = proc.TICKS_PER_S


@pytest.mark.parametrize(
    "step",
    [
        Sample(cpu_ticks=SECOND_OF_CPU),
        Sample(faults=5000),
        Sample(bytes_read=1 << 20),
        Sample(bytes_written=1 << 20),
    ],
)
def test_work_of_any_kind_is_progress(step: Sample) -> None:
    """It computes, touches new memory, reads its file, or writes what it downloads."""
    stall = Stall(0)
    stall.feed(1 * S, Sample(), 0)
    stall.feed(2 * S, step, 0)
    assert stall.still_us(5 * S) == 3 * S


def test_output_is_progress_by_itself() -> None:
    """A line that it prints is a sign of life, whatever the counters say."""
    stall = Stall(0)
    stall.feed(1 * S, Sample(), 100)
    stall.feed(2 * S, Sample(), 100)
    stall.feed(3 * S, Sample(), 101)
    assert stall.still_us(4 * S) == 1 * S


def test_what_answering_health_probes_costs_is_no_progress() -> None:
    """Four probes a second cost a tick of CPU time now and then, and a few page faults."""
    stall = Stall(0)
    for second in range(1, 121):
        stall.feed(second * S, Sample(cpu_ticks=second, faults=second * 20, bytes_read=second * 100), 0)
    assert stall.still_us(120 * S) == 120 * S


def test_a_single_tick_between_two_looks_in_quick_succession_is_no_progress() -> None:
    """Eight looks a second: what probes cost adds up to a tick now and then, which is a tenth of so short a time."""
    stall = Stall(0)
    for look in range(1, 41):
        stall.feed(look * S // 8, Sample(cpu_ticks=look // 4), 0)
    assert stall.still_us(5 * S) == 5 * S


def test_the_counters_are_those_of_the_kernel() -> None:
    """This process has computed and touched memory; one that does not exist has done nothing."""
    mine = measure([os.getpid()])
    assert mine.cpu_ticks > 0
    assert mine.faults > 0
    assert mine.bytes_read > 0
    assert mine.resident_bytes > 0
    assert measure([2**22 + 1]) == Sample()
