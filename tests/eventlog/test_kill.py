"""kill -9 in the middle of appending, rolling and sealing: what was acknowledged is there, once, and in order."""

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.recover import recover
from eventlog.segments import list_segments
from eventlog.verify import verify
from eventlog.writer import LogWriter
from tests.eventlog.small_log import Numbered, line

ROUNDS = 200


def write_until_killed(directory: Path, seed: int, acknowledge: int) -> None:
    """A router that only logs: appends as fast as it can and tells the last `op` after each append."""
    rng = random.Random(seed)
    numbered = Numbered()
    writer = LogWriter.open(directory, segment_bytes=20_000, checkpoint=numbered.checkpoint)
    numbered.restore(writer.recovered)
    while True:
        events = []
        for _ in range(rng.randint(1, 4)):
            events += numbered.step(writer.next_seq + len(events))
        writer.append(events)
        os.write(acknowledge, b"%d\n" % numbered.op)
        writer.roll_if_due()
        if rng.random() < 0.3:
            writer.append_observations([line(writer)])


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory where there is one: a killed process is the same on any file system."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.mark.slow
def test_200_kills_lose_nothing_that_was_acknowledged(memory: Path) -> None:
    """The same log over and over, killed after a random number of acknowledgements, from the first one on."""
    rng = random.Random(7)
    for round_ in range(ROUNDS):
        acknowledged = killed_after(memory, seed=round_, acknowledgements=rng.choice([1, 2, 5, 40, 200, 600]))

        numbered = Numbered()
        numbered.restore(recover(memory))

        assert numbered.op >= acknowledged, f"round {round_}"
        if round_ % 20 == 19:
            assert verify(memory).ok, f"round {round_}"

    assert len(list_segments(memory, "events")) > 20
    assert len(list_segments(memory, "observations")) > 3


def killed_after(directory: Path, seed: int, acknowledgements: int) -> int:
    """Run a writer and kill it; returns the last `op` that it acknowledged."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_until_killed(directory, seed, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    with open(read_end, "rb") as answers:
        last = b""
        for _ in range(acknowledgements):
            last = answers.readline()
            assert last, "the writer ended by itself"
        os.kill(pid, signal.SIGKILL)
        rest = answers.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return int(rest[-1] if rest else last)
