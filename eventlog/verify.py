"""Prove that a log is what was written: every line against its chain, every chain against the segment before.

Starts at the oldest segment that is there and takes its header's word for what came before; so a log that retention
has cut is proved from there on. Counterpart: `repair`, for what is found here. Changes nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eventlog import codec
from eventlog.codec import UnknownEvent
from eventlog.events import Event, LogTruncated, SegmentOpened
from eventlog.reader import segments_at
from eventlog.scan import Scan, is_torn_tail
from eventlog.segments import STREAMS, Segment


@dataclass(frozen=True)
class Fault:
    """The first thing in a segment that is not as written."""

    file: Path
    offset: int
    after_seq: int
    """The last event before it; 0 where there is none."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: byte {self.offset}, after seq {self.after_seq}: {self.reason}"


@dataclass
class Verified:
    """What was proved, and what was not."""

    segments: int = 0
    checkpoints: int = 0
    lines: int = 0
    bytes: int = 0
    """Uncompressed."""
    first_seq: int = 0
    last_seq: int = 0
    unknown: int = 0
    """Lines of types that this version does not know; their bytes are proved like any other."""
    holes: int = 0
    """Places where a repair took out what could not be read."""
    torn: list[Fault] = field(default_factory=list)
    """Tails that the next start will cut off: a crash left them."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing but a torn tail was found."""
        return not self.faults


def verify(path: Path, progress: Callable[[Segment], None] = lambda segment: None) -> Verified:
    """Verify a log directory or one segment. Raises LogError where there is none."""
    result = Verified()
    for stream in STREAMS:
        before: Checked | None = None
        segments = segments_at(path, stream)
        for segment in segments:
            progress(segment)
            checked = Checked(segment, result)
            for fault in checked.run(before, last=segment is segments[-1]):
                result.faults.append(fault)
            before = checked
    return result


class Checked:
    """One segment under proof; adds what it finds to `result`."""

    def __init__(self, segment: Segment, result: Verified) -> None:
        self.scan = Scan(segment)
        self.last: Event = Event()
        self._result = result

    def run(self, before: "Checked | None", *, last: bool) -> Iterator[Fault]:
        """Prove it, and that it follows the one before."""
        result = self._result
        result.segments += 1
        if before is not None:
            self.last = Event(seq=before.last.seq)
        for lines in self.scan:
            start = self.scan.end - sum(map(len, lines)) - len(lines)
            events = codec.decode_lines(lines, self.scan.schema)
            yield from self._check_order(events, lines, start)
            result.lines += len(lines)
            result.unknown += sum(type(event) is UnknownEvent for event in events)
        result.bytes += self.scan.end
        if self.scan.header is not None:
            result.checkpoints += bool(self.scan.header.state)
            result.first_seq = min(result.first_seq or self.scan.header.seq, self.scan.header.seq)
            yield from self._check_chain(self.scan.header, before)
        result.last_seq = max(result.last_seq, self.last.seq)
        if self.scan.fault:
            fault = self._fault(self.scan.end, self.scan.fault)
            if last and is_torn_tail(self.scan):
                result.torn.append(fault)
            else:
                yield fault

    def _check_order(self, events: list[Event], lines: list[bytes], start: int) -> Iterator[Fault]:
        seq = self.last.seq
        for index, event in enumerate(events):
            if isinstance(event, SegmentOpened):
                # Its seq is the next that was free: it takes no number of its own.
                if event.seq <= seq:
                    yield self._fault(start, f"the segment opens at seq {event.seq} after seq {seq}")
                seq = max(seq, event.seq - 1)
                continue
            if event.seq <= seq:
                offset = start + sum(map(len, lines[:index])) + index
                yield self._fault(offset, f"seq {event.seq} after seq {seq}")
            seq = event.seq
        if events and not isinstance(events[-1], SegmentOpened):
            self.last = events[-1]

    def _check_chain(self, header: SegmentOpened, before: "Checked | None") -> Iterator[Fault]:
        if before is None or before.scan.fault or int(header.chain, 16) == before.scan.crc:
            return
        if isinstance(before.last, LogTruncated) and before.last.next_chain == header.chain:
            self._result.holes += 1
            return
        yield Fault(
            self.scan.segment.path,
            0,
            before.last.seq,
            f"it does not continue {before.scan.segment.path.name}: a segment is missing, or not the one that was",
        )

    def _fault(self, offset: int, reason: str) -> Fault:
        return Fault(self.scan.segment.path, offset, self.last.seq, reason)
