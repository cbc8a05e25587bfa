"""Small logs for tests: numbered events, written as the router writes them, and what can be read of them afterwards."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from eventlog.events import AdminDone, AdminDrain, Event, LogLine, LogTruncated, SegmentOpened
from eventlog.reader import read
from eventlog.recover import Recovered
from eventlog.segments import list_segments
from eventlog.writer import LogWriter

START_US = 1_750_000_000_000_000


class Numbered:
    """Writes AdminDrain{op: 1}, AdminDone{op: 1}, AdminDrain{op: 2}, ...: a gap or a repetition shows at once.

    Its state, for checkpoints, is the last `op`.
    """

    def __init__(self, start_us: int = START_US, run: int = 1) -> None:
        self.op = 0
        self.start_us = start_us
        self.run = run

    def checkpoint(self) -> msgspec.Raw:
        return msgspec.Raw(b'{"op":%d}' % self.op)

    def restore(self, recovered: Recovered) -> None:
        """Fold what a start found, as the router does."""
        if recovered.state is not None:
            self.op = msgspec.json.decode(recovered.state)["op"]
        for event in recovered.events:
            if isinstance(event, AdminDone):
                assert event.op == self.op + 1, "an event is missing, or there twice"
                self.op = event.op

    def step(self, seq: int) -> list[Event]:
        """The next fact and its decision, stamped."""
        self.op += 1
        at_us = self.start_us + self.op * 1000
        return [
            AdminDrain(seq=seq, at_us=at_us, run=self.run, op=self.op),
            AdminDone(seq=seq + 1, at_us=at_us, run=self.run, cause=seq, op=self.op, outcome="done"),
        ]

    def write(self, writer: LogWriter, steps: int) -> list[Event]:
        """So many steps, appended one by one, with segments rolled as the router does."""
        written = []
        for _ in range(steps):
            events = self.step(writer.next_seq)
            writer.append(events)
            written += events
            writer.roll_if_due()
        return written


def line(writer: LogWriter, text: str = "hello") -> LogLine:
    """An observation, stamped."""
    return LogLine(seq=writer.next_seq, at_us=START_US, run=1, level="info", text=text)


def small_log(directory: Path, steps: int = 3, **options: object) -> list[Event]:
    """A log that was closed in order, without a sync: quick. Returns its events."""
    numbered = Numbered()
    with LogWriter.open(
        directory,
        durability="never",
        checkpoint=numbered.checkpoint,
        **options,  # type: ignore[arg-type]
    ) as writer:
        return numbered.write(writer, steps)


def said(events: list[Event]) -> list[Event]:
    """Without what the log says about itself."""
    return [event for event in events if not isinstance(event, SegmentOpened | LogTruncated)]


def read_said(directory: Path) -> list[Event]:
    return said(list(read(directory)))


def truncations(directory: Path) -> list[LogTruncated]:
    return [event for event in read(directory) if isinstance(event, LogTruncated)]


def last_segment(directory: Path) -> Path:
    return list_segments(directory, "events")[-1].path


def flip(path: Path, bit: int) -> None:
    """Turn over one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    """Wait for what a thread of the log will do."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        threading.Event().wait(0.002)
