"""The facts and decisions of a log as lines, not yet decoded, and whole blocks of them at a time.

Counterpart: `eventlog.reader`, for events one by one. A torn tail ends a log; damage raises LogDamaged.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from eventlog.codec import decode
from eventlog.errors import LogDamaged, LogError
from eventlog.events import LogTruncated
from eventlog.housekeeping import read_header
from eventlog.reader import segments_at
from eventlog.scan import Scan, is_torn_tail
from eventlog.segments import Segment

TYPE_AT = len(b'{"type":"')
"""Where the name of the type begins in every line."""

QUOTE = ord('"')


def type_of(line: bytes) -> bytes:
    """The name of a line's type."""
    return line[TYPE_AT : line.index(QUOTE, TYPE_AT)]


def events_segments(path: Path) -> list[Segment]:
    """The segments of facts and decisions under a path. Raises LogError if there are none."""
    segments = segments_at(path, "events")
    if not segments:
        raise LogError(f"there is no log of facts and decisions at {path}: expected events-*.ndjson or .ndjson.gz")
    return segments


def first_seq_before(path: Path, at_us: int) -> int:
    """A seq that is surely not after the time `at_us`, and not much before."""
    chosen = 0
    for segment in events_segments(path):
        header = read_header(segment)
        if header is None:
            continue  # damage that whoever reads it will tell of
        if chosen and header.at_us > at_us:
            break
        chosen = segment.first_seq
    return chosen


def blocks(
    path: Path, progress: Callable[[Segment], None] = lambda segment: None, *, unbroken: bool = False
) -> Iterator[tuple[list[bytes], int]]:
    """The valid lines of facts and decisions, about 1 MiB at a time, with the version of their schema.

    `progress` hears of each segment begun. What retention removes meanwhile is left out. `unbroken`: each segment has
    to continue the one before, unless a repair has written down what is missing between them.
    """
    segments = events_segments(path)
    after_seq = 0
    before: Scan | None = None
    for segment in segments:
        progress(segment)
        scan = Scan(segment)
        try:
            for lines in scan:
                if unbroken and before is not None:
                    _check_chain(before, scan, after_seq)
                before = None
                yield lines, scan.schema
                after_seq = decode(lines[-1], scan.schema).seq
        except FileNotFoundError:
            if unbroken and after_seq:
                raise LogError(f"{segment.path} was removed meanwhile; please try again") from None
            continue
        last = segment is segments[-1]
        if scan.fault and not (last and (scan.incomplete or is_torn_tail(scan))):
            raise LogDamaged(scan.segment.path, scan.end, after_seq, scan.fault)
        before = scan


def _check_chain(before: Scan, scan: Scan, after_seq: int) -> None:
    header, last = scan.header, before.last_event()
    if header is None or int(header.chain, 16) == before.crc:
        return
    if isinstance(last, LogTruncated) and last.next_chain == header.chain:
        return
    reason = f"it does not continue {before.segment.path.name}: a segment is missing, or not the one that was"
    raise LogDamaged(scan.segment.path, 0, after_seq, reason)
