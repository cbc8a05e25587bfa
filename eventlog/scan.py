"""Walk one segment, line by line against its chain, up to its end or to the first line that is not as written.

Used by everything that reads: start, `read`, `verify`, `repair`. What a fault means (a torn tail, or damage) is
judged here too, from the file alone; chains from one segment to the next are the callers' business.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from eventlog import codec
from eventlog.events import Event, SegmentOpened
from eventlog.segments import SYNCED, DamagedGzip, Segment, read_blocks

TORN_BYTES = 1 << 20
"""A tail that was never synced is not longer than this, unless the writer noted where it begins."""

HEADER_START = b'{"type":"SegmentOpened"'


class Scan:
    """One pass over a segment. Iterate for its valid lines, in blocks; afterwards the attributes say how it ended.

    `start_crc` starts the chain in the middle, for a walk from `offset`; otherwise the first line says it. `briskly`
    does not compare what each line claims as its checksum, only the last of each block: for those who do not use it.
    """

    def __init__(
        self, segment: Segment, *, offset: int = 0, start_crc: int | None = None, briskly: bool = False
    ) -> None:
        self.segment = segment
        self.header: SegmentOpened | None = None
        self.header_end = 0
        """Offset after the header line."""
        self.crc = start_crc or 0
        """Checksum of the last valid line."""
        self.end = offset
        """Offset after the last valid line."""
        self.last_line = b""
        self.fault = ""
        """Why the walk ended before the end of the file; empty if it did not."""
        self.incomplete = False
        """The fault is a last line without its newline."""
        self._headless = start_crc is None
        self._briskly = briskly

    def __iter__(self) -> Iterator[list[bytes]]:
        rest: list[bytes] = []
        try:
            for block in read_blocks(self.segment.path, self.end):
                cut = block.rfind(b"\n") + 1
                if not cut:
                    rest.append(block)
                    continue
                rest.append(block[: cut - 1])
                lines = b"".join(rest).split(b"\n")
                rest = [block[cut:]] if cut < len(block) else []
                if self._headless and not self._open(lines[0]):
                    return
                if self._briskly and (after := codec.crc_after(lines, self.crc)) is not None:
                    valid, self.crc = len(lines), after
                else:
                    valid, self.crc = codec.count_valid(lines, self.crc)
                complete = valid == len(lines)
                if not complete:
                    self.fault = "its checksum does not match"
                    del lines[valid:]
                    if not lines and not self.end:
                        self.header, self.header_end = None, 0
                if lines:
                    self.end += sum(map(len, lines)) + len(lines)
                    self.last_line = lines[-1]
                    yield lines
                if not complete:
                    return
        except DamagedGzip as error:
            self.fault = f"the compressed data is damaged: {error}"
            return
        if rest:
            self.fault = "its last line is incomplete"
            self.incomplete = True
        elif self._headless:
            self.fault = "it is empty"
            self.incomplete = True

    def finish(self) -> "Scan":
        """Walk to the end without looking at the lines."""
        for _ in self:
            pass
        return self

    def last_event(self) -> Event | None:
        """The event of the last valid line."""
        return codec.decode(self.last_line, self.schema) if self.last_line else None

    @property
    def schema(self) -> int:
        """Version of the lines; the header tells."""
        return codec.SCHEMA if self.header is None else self.header.schema

    def _open(self, line: bytes) -> bool:
        """Start the chain from the header line."""
        self._headless = False
        try:
            header = codec.decode(line) if line.startswith(HEADER_START) else None
            if isinstance(header, SegmentOpened) and header.stream == self.segment.stream:
                self.crc = int(header.chain, 16)
                self.header = header
                self.header_end = len(line) + 1
                return True
        except (msgspec.DecodeError, ValueError):
            pass
        self.fault = "it does not begin with the header of a segment"
        return False


def is_torn_tail(scan: Scan) -> bool:
    """Whether the fault of the last segment of a stream is what a crash or a power cut leaves, and nothing else.

    Either it lies behind what the writer noted as synced, or there is no valid line after it and not much of anything.
    """
    path = scan.segment.path
    if scan.segment.sealed or not path.exists():
        return False
    synced = synced_offset(scan.segment)
    if synced is not None and scan.end >= synced:
        return True
    return path.stat().st_size - scan.end <= TORN_BYTES and not valid_line_after(path, scan.end, scan.crc)


def valid_line_after(path: Path, offset: int, crc: int) -> bool:
    """Whether a line after the bad one at `offset` continues the chain of the line before it.

    Its start is what that line claims as its checksum or, for the bad line's successor, what the bad line should claim.
    """
    bad, *lines = b"".join(read_blocks(path, offset)).split(b"\n")
    starts = {codec.stored_crc(bad), codec.checksum(bad, crc)}
    for line in lines:
        for start in starts:
            if start is not None and codec.count_valid([line], start)[0]:
                return True
        starts = {codec.stored_crc(line)}
    return False


def synced_offset(segment: Segment) -> int | None:
    """How far this current segment of the events is known to be synced; None if nobody noted it."""
    if segment.stream != "events":
        return None
    try:
        name, offset = (segment.path.parent / SYNCED).read_text("ascii").split()
        noted = int(offset)
    except (OSError, ValueError):
        return None
    if name == segment.path.name:
        return noted
    return 0 if name < segment.path.name else None


def write_synced(fd: int, name: str, offset: int) -> None:
    """Note how far a segment is synced. One small write in place: after a power cut it is the old note or this one."""
    os.pwrite(fd, f"{name} {offset}".ljust(63).encode("ascii") + b"\n", 0)
