"""What a log consists of: how many events of which type, how many bytes, which runs, from when to when."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from eventlog import codec
from eventlog.events import SegmentOpened
from eventlog.reader import segments_at
from eventlog.scan import Scan, is_torn_tail
from eventlog.segments import STREAMS, Segment, stored_bytes


class TypeStats(msgspec.Struct):
    """Lines of one type; bytes uncompressed, newline and checksum included."""

    events: int = 0
    bytes: int = 0


class StreamStats(msgspec.Struct):
    """The files of one stream."""

    segments: int = 0
    sealed: int = 0
    stored_bytes: int = 0
    """As the files are, compressed or not."""
    bytes: int = 0
    """Uncompressed."""
    checkpoints: int = 0


class LogStats(msgspec.Struct):
    """A whole log. Times are microseconds since the epoch; 0 where there is no event."""

    events: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_at_us: int = 0
    last_at_us: int = 0
    runs: int = 0
    last_run: int = 0
    types: dict[str, TypeStats] = {}
    streams: dict[str, StreamStats] = {}
    torn: list[str] = []
    """Tails that the next start will cut off: a crash left them."""
    faults: list[str] = []
    """Where a segment could not be read any further."""


def log_stats(path: Path, progress: Callable[[Segment], None] = lambda segment: None) -> LogStats:
    """Count a log directory or one segment. Raises LogError where there is none."""
    stats = LogStats()
    runs: set[int] = set()
    for stream in STREAMS:
        segments = segments_at(path, stream)
        for segment in segments:
            progress(segment)
            files = stats.streams.setdefault(stream, StreamStats())
            _count_segment(stats, files, segment, runs, last=segment is segments[-1])
    stats.runs = len(runs)
    stats.last_run = max(runs, default=0)
    return stats


def _count_segment(stats: LogStats, files: StreamStats, segment: Segment, runs: set[int], *, last: bool) -> None:
    scan = Scan(segment)
    for lines in scan:
        for line, event in zip(lines, codec.decode_lines(lines, scan.schema), strict=True):
            name = line[9 : line.index(b'"', 9)].decode()
            counted = stats.types.setdefault(name, TypeStats())
            counted.events += 1
            counted.bytes += len(line) + 1
            if isinstance(event, SegmentOpened):
                files.checkpoints += bool(event.state)
                continue
            stats.events += 1
            runs.add(event.run)
            stats.first_seq = min(stats.first_seq or event.seq, event.seq)
            stats.last_seq = max(stats.last_seq, event.seq)
            stats.first_at_us = min(stats.first_at_us or event.at_us, event.at_us)
            stats.last_at_us = max(stats.last_at_us, event.at_us)
    files.segments += 1
    files.sealed += segment.sealed
    files.bytes += scan.end
    files.stored_bytes += stored_bytes(segment)
    if scan.fault and not (last and scan.incomplete):
        found = stats.torn if last and is_torn_tail(scan) else stats.faults
        found.append(f"{segment.path.name}: byte {scan.end}: {scan.fault}")
