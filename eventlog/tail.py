"""Follow a log that grows: a `Tail` hands out what is new whenever it is asked, and never waits.

    tail = Tail(directory, from_seq=1000)
    while True:
        for event in tail.poll(): ...

It survives what happens to the files under it: a new segment, sealing, a tail that is cut and written again (every
event is handed out once). Counterpart: `reader`, for a log as it is.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from eventlog import codec
from eventlog.errors import LogDamaged
from eventlog.events import Event, SegmentOpened
from eventlog.reader import Streams
from eventlog.scan import HEADER_START, Scan
from eventlog.segments import STREAMS, Segment, Stream, list_segments

_READ_BYTES = 1 << 20
Record = tuple[bytes, Event]


class Tail:
    """One stream from `from_seq` on, or, with None, from what comes after now. Headers of segments are left out."""

    def __init__(self, directory: Path, stream: Stream = "events", from_seq: int | None = 0) -> None:
        self._directory = directory
        self._stream: Stream = stream
        self._next_seq = from_seq or 0
        self._place: _Place | None = None
        if from_seq is None and (segments := list_segments(directory, stream)):
            self._place = _Place(segments[-1])
            self._place.skip()

    def poll(self) -> list[Event]:
        """What is new, at most about 1 MiB of it; empty if nothing is. Raises LogDamaged and LogError."""
        return [event for _, event in self.poll_records()]

    def poll_records(self) -> list[Record]:
        """As `poll`, with each line as it is stored."""
        lines = self.poll_lines()
        if not lines:
            return []
        assert self._place is not None
        return list(zip(lines, codec.decode_lines(lines, self._place.schema), strict=True))

    def poll_lines(self) -> list[bytes]:
        """As `poll`, each line as it is stored, not decoded."""
        while True:
            if self._place is None and not self._move_on():
                return []
            assert self._place is not None
            lines = self._new(self._place.read())
            if lines:
                self._next_seq = codec.seq_of(lines[-1]) + 1
                return lines
            if not self._place.moved and not self._move_on():
                return []

    def close(self) -> None:
        """Give up the open file."""
        if self._place is not None:
            self._place.close()
            self._place = None

    def _new(self, lines: list[bytes]) -> list[bytes]:
        if lines and lines[0].startswith(HEADER_START):
            del lines[0]
        if not lines or codec.seq_of(lines[0]) >= self._next_seq:
            return lines
        return [line for line in lines if codec.seq_of(line) >= self._next_seq]

    def _move_on(self) -> bool:
        """To the segment after this one, or to the file that took its place."""
        place = self._place
        segments = list_segments(self._directory, self._stream)
        if place is None:
            while len(segments) > 1 and segments[1].first_seq <= self._next_seq:
                del segments[0]
        elif place.was_replaced():
            segments = [place.segment]
        else:
            segments = [segment for segment in segments if segment.first_seq > place.segment.first_seq]
            if segments and place.has_more():
                return True
            if segments and place.fault:
                raise LogDamaged(place.segment.path, place.offset, self._next_seq - 1, place.fault)
        if not segments:
            return False
        try:
            new = _Place(segments[0])
        except FileNotFoundError:
            # Sealed or removed since it was listed; the next poll lists again.
            return False
        self.close()
        self._place = new
        return True


class _Place:
    """A place in one segment. `moved`: the last read went forward."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.offset = 0
        self.moved = False
        self.fault = ""
        self._scan = Scan(segment)
        self._blocks: Iterator[list[bytes]] | None = iter(self._scan) if segment.sealed else None
        self._crc: int | None = None
        self.schema = codec.SCHEMA
        self._fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        self._ino = os.fstat(self._fd).st_ino

    def close(self) -> None:
        os.close(self._fd)

    def skip(self) -> None:
        """Go behind what is there."""
        scan = Scan(self.segment).finish()
        self.offset, self._crc, self.schema = scan.end, scan.crc, scan.schema
        self._blocks = iter(()) if self.segment.sealed else None

    def was_replaced(self) -> bool:
        """Whether another plain file has our name now."""
        try:
            return not self.segment.sealed and self.segment.path.stat().st_ino != self._ino
        except FileNotFoundError:
            return False

    def has_more(self) -> bool:
        """Whether a complete line stands behind this place."""
        return self._blocks is None and not self.fault and b"\n" in self._bytes()

    def read(self) -> list[bytes]:
        """The next block of lines."""
        if self._blocks is None:
            return self._plain_lines()
        lines: list[bytes] = []
        with suppress(FileNotFoundError):  # removed since it was listed
            lines = next(self._blocks, [])
        self.moved = bool(lines)
        self.fault, self.offset, self.schema = self._scan.fault, self._scan.end, self._scan.schema
        return lines

    def _plain_lines(self) -> list[bytes]:
        self.moved = False
        self.fault = ""
        data = self._bytes()
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        if not lines:
            return []
        if self._crc is None:
            header = codec.decode(lines[0])
            if not isinstance(header, SegmentOpened):
                self.fault = "it does not begin with the header of a segment"
                return []
            self._crc, self.schema = int(header.chain, 16), header.schema
        valid, self._crc = codec.count_valid(lines, self._crc)
        if valid < len(lines):
            # Perhaps a tail that is just being cut; it is damage if a later segment comes.
            self.fault = "its checksum does not match"
            del lines[valid:]
        self.offset += sum(map(len, lines)) + len(lines)
        self.moved = bool(lines)
        return lines

    def _bytes(self) -> bytes:
        """From here on, about 1 MiB, but at least one line if there is a complete one."""
        size = _READ_BYTES
        while True:
            data = os.pread(self._fd, size, self.offset)
            if len(data) < size or b"\n" in data:
                return data
            size *= 2


def follow(
    directory: Path,
    *,
    stream: Streams = "events",
    from_seq: int | Mapping[Stream, int] | None = None,
    wait: Callable[[], bool],
) -> Iterator[Record]:
    """Lines and events as they come, from `from_seq` on (one for both streams, or one for each) or from now on.

    `wait` is called when nothing is new: it returns whether to look again. Of two streams, what came between two looks
    is in the order of seq.
    """
    streams = STREAMS if stream == "all" else (stream,)
    tails = [Tail(directory, each, from_seq[each] if isinstance(from_seq, Mapping) else from_seq) for each in streams]
    try:
        while True:
            records = [record for tail in tails for record in tail.poll_records()]
            if len(tails) > 1:
                records.sort(key=lambda record: record[1].seq)
            yield from records
            if not records and not wait():
                return
    finally:
        for tail in tails:
            tail.close()


def wait_a_moment() -> bool:
    """For `follow`: look again five times a second."""
    time.sleep(0.2)
    return True
