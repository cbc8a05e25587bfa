"""Make a damaged log usable again: keep every valid prefix, set the rest aside, and write down what is missing.

Nothing is deleted: what is taken out lies in `damaged/` beside the log. Of each damaged segment the valid lines before
the damage stay. Later segments stay if they open with a checkpoint (observations need none); those that only continue
what is missing are set aside as well. Where lines are missing in the middle, a LogTruncated at the end of what is
before the hole names the chain that goes on behind it, so `verify` accepts this hole and no other.

Counterpart: `verify`, which finds the damage, and passes afterwards.
"""

import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from eventlog.codec import encode_lines
from eventlog.damaged import set_aside
from eventlog.events import Event, LogTruncated, SegmentOpened
from eventlog.lock import lock_log
from eventlog.scan import Scan
from eventlog.segment_file import create_file, write_whole
from eventlog.segments import (
    STREAMS,
    SYNCED,
    DamagedGzip,
    Segment,
    fsync_directory,
    list_segments,
    read_blocks,
)

_SEQ = re.compile(rb'"seq":(\d+)')


@dataclass(frozen=True)
class Lost:
    """A part of the log that is taken out."""

    segment: Segment
    what: Literal["file", "tail", "gap"]
    """A whole segment, its end, or segments after it that are not there."""
    offset: int
    """Of the first byte that is lost; in a compressed segment, of the uncompressed bytes."""
    bytes: int
    """How many cannot be kept, as far as they can still be read."""
    after_seq: int
    reason: str
    aside: Path | None = None
    """Where they are now."""

    def __str__(self) -> str:
        where = f", now in {self.aside}" if self.aside else ""
        return (
            f"{self.segment.path.name}: {self.bytes} bytes from byte {self.offset} on, "
            f"after seq {self.after_seq}: {self.reason}{where}"
        )


@dataclass
class _Kept:
    """A segment that stays, up to `scan.end`, with what is lost behind it."""

    scan: Scan
    last: Event
    lost: list[Lost] = field(default_factory=list)
    next_header: SegmentOpened | None = None
    """Of the next segment that stays."""

    @property
    def undeclared(self) -> bool:
        """Whether the next segment does not continue this one, and nothing says so yet."""
        header = self.next_header
        return header is not None and int(header.chain, 16) != self.scan.crc and not _declares(self.last, header)


def repair(
    directory: Path, *, dry_run: bool = False, progress: Callable[[Segment], None] = lambda segment: None
) -> list[Lost]:
    """Repair a log that no router writes at the moment, and return what was lost; empty if nothing was wrong.

    With `dry_run` nothing is changed. Raises LogLocked, LogError and OSError.
    """
    list_segments(directory, "events")
    lock = lock_log(directory)
    try:
        plans = [_plan(list_segments(directory, stream), progress) for stream in STREAMS]
        lost = [each for _, losses in plans for each in losses]
        if dry_run or not lost:
            return lost
        lost = [_set_aside(each) for each in lost]
        last_seq = max((kept.last.seq for keep, _ in plans for kept in keep), default=0)
        for keep, _ in plans:
            for kept in keep:
                last_seq = max(last_seq, _mend(kept, last_seq))
        for each in lost:
            if each.what == "file":
                each.segment.path.unlink()
        (directory / SYNCED).unlink(missing_ok=True)
        fsync_directory(directory)
        return lost
    finally:
        os.close(lock)


def _plan(segments: list[Segment], progress: Callable[[Segment], None]) -> tuple[list[_Kept], list[Lost]]:
    """What stays and what goes, in order."""
    keep: list[_Kept] = []
    losses: list[Lost] = []

    def lose(segment: Segment, what: Literal["file", "tail", "gap"], offset: int, reason: str) -> None:
        size = 0 if what == "gap" else _readable_bytes(segment) - offset
        lost = Lost(segment, what, offset, size, keep[-1].last.seq if keep else 0, reason)
        losses.append(lost)
        if keep:
            keep[-1].lost.append(lost)

    for segment in segments:
        progress(segment)
        scan = Scan(segment).finish()
        header = scan.header
        if header is None:
            lose(segment, "file", 0, scan.fault)
            continue
        before = keep[-1] if keep else None
        if before is None:
            follows = not losses
        else:
            follows = int(header.chain, 16) == before.scan.crc or _declares(before.last, header)
        if not follows and segment.stream == "events" and not header.state:
            lose(segment, "file", 0, "it continues a part that is missing")
            continue
        if before is not None:
            if not follows and not before.lost:
                lose(before.scan.segment, "gap", before.scan.end, f"what came before seq {header.seq} is missing")
            before.next_header = header
        keep.append(_Kept(scan, _last_event(scan)))
        if scan.fault:
            lose(segment, "tail", scan.end, scan.fault)
    return keep, losses


def _declares(last: Event, header: SegmentOpened) -> bool:
    """Whether an earlier repair has written down the hole between this last event and this header."""
    return isinstance(last, LogTruncated) and last.next_chain == header.chain


def _last_event(scan: Scan) -> Event:
    last = scan.last_event()
    assert last is not None
    if isinstance(last, SegmentOpened):
        return Event(seq=last.seq - 1, at_us=last.at_us, run=last.run)
    return last


def _readable_bytes(segment: Segment) -> int:
    size = 0
    with suppress(DamagedGzip):
        for block in read_blocks(segment.path):
            size += len(block)
    return size


def _set_aside(lost: Lost) -> Lost:
    """Copy what is lost; of a compressed segment all of it, since its end cannot be had alone."""
    if lost.what == "gap":
        return lost
    return replace(lost, aside=set_aside(lost.segment.path, 0 if lost.segment.sealed else lost.offset))


def _mend(kept: _Kept, last_seq: int) -> int:
    """Cut a segment back to its valid part and write down what is missing behind it; returns its last seq."""
    scan = kept.scan
    at_the_end = bool(kept.lost) and kept.next_header is None
    if not (scan.fault or kept.undeclared or at_the_end):
        return kept.last.seq
    line = b""
    seq = kept.last.seq
    if kept.undeclared or at_the_end:
        first = kept.lost[0]
        header = kept.next_header
        seq = last_seq + 1 if header is None else _lost_seq(kept, header.seq)
        truncated = LogTruncated(
            seq=seq,
            at_us=kept.last.at_us,
            run=kept.last.run,
            file=first.segment.path.name,
            offset=first.offset,
            bytes=sum(lost.bytes for lost in kept.lost),
            reason=f"repair: {first.reason}",
            next_chain=header.chain if header is not None else "",
        )
        line, _ = encode_lines([truncated], scan.crc)
    if scan.segment.sealed:
        _rewrite_sealed(scan, line)
    else:
        fd = os.open(scan.segment.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.ftruncate(fd, scan.end)
            write_whole(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
    return seq


def _lost_seq(kept: _Kept, before_seq: int) -> int:
    """A number that was taken by a line that is lost, so that it cannot stand in the other stream."""
    for lost in kept.lost:
        if lost.what == "gap":
            continue
        rest = b""
        with suppress(DamagedGzip):
            for block in read_blocks(lost.segment.path, lost.offset):
                rest += block
        for match in _SEQ.finditer(rest):
            if kept.last.seq < int(match[1]) < before_seq:
                return int(match[1])
    return kept.last.seq + 1


def _rewrite_sealed(scan: Scan, line: bytes) -> None:
    compress = zlib.compressobj(wbits=31)
    data = [compress.compress(b"".join(line + b"\n" for line in lines)) for lines in Scan(scan.segment)]
    data += [compress.compress(line), compress.flush()]
    os.close(create_file(scan.segment.path, b"".join(data), sync=True))
