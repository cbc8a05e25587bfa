"""Read a log: iterate over its events, checked against their chain.

    for event in read(directory): ...
    for event in read(directory, stream="all", from_seq=1000, types={"SwapBegun"}): ...
    for line, event in records(Path("events-000000000001.ndjson.gz")): ...

A torn tail is where a log ends; a line that is still being written is not there yet; damage raises LogDamaged.
Segments that retention removes meanwhile are left out. Counterparts: `tail` follows a log that grows, `verify` proves
one, `recover` reads just enough for a start.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Literal

from eventlog import codec
from eventlog.errors import LogDamaged, LogError
from eventlog.events import Event
from eventlog.scan import Scan, is_torn_tail
from eventlog.segments import STREAMS, Segment, Stream, list_segments, segment_of

logger = logging.getLogger("llama_router.eventlog")

Streams = Literal["events", "observations", "all"]


def read(
    path: Path,
    *,
    stream: Streams = "events",
    from_seq: int = 0,
    to_seq: int | None = None,
    types: Collection[str] | None = None,
) -> Iterator[Event]:
    """The events of a log directory, or of one segment (plain or compressed), in order.

    `to_seq` is included. `types` are names of classes; other lines are checked, but not decoded. The headers of
    segments (SegmentOpened) come along; their seq is the next that was free. Raises LogDamaged and LogError.
    """
    streams = [_events_of(segments, from_seq, to_seq, types) for segments in _choose(path, stream, from_seq)]
    if len(streams) == 1:
        return streams[0]
    return merge(*streams, key=_seq)


def records(
    path: Path,
    *,
    stream: Streams = "events",
    from_seq: int = 0,
    to_seq: int | None = None,
    types: Collection[str] | None = None,
    progress: Callable[[Segment], None] = lambda segment: None,
) -> Iterator[tuple[bytes, Event]]:
    """As `read`, with each line as it is stored (without its newline); `progress` hears of each segment begun."""
    streams = [_records_of(segments, from_seq, to_seq, types, progress) for segments in _choose(path, stream, from_seq)]
    if len(streams) == 1:
        return streams[0]
    return merge(*streams, key=lambda record: record[1].seq)


def segments_at(path: Path, stream: Stream) -> list[Segment]:
    """The segments of a stream in a log directory, or the one segment that the path names. Raises LogError."""
    segment = segment_of(path)
    if segment is None or path.is_dir():
        if path.is_file():
            raise LogError(f"{path} is no segment of a log: expected a name such as events-000000000001.ndjson")
        return list_segments(path, stream)
    if not path.is_file():
        raise LogError(f"there is no segment {path}")
    return [segment] if segment.stream == stream else []


def _seq(event: Event) -> int:
    return event.seq


def _choose(path: Path, stream: Streams, from_seq: int) -> list[list[Segment]]:
    """Per stream, the segments that can hold `from_seq` and later. A single file brings its own stream."""
    segment = segment_of(path)
    if segment is not None:
        return [segments_at(path, segment.stream)]
    wanted = STREAMS if stream == "all" else (stream,)
    chosen = []
    for each in wanted:
        segments = segments_at(path, each)
        while len(segments) > 1 and segments[1].first_seq <= from_seq:
            del segments[0]
        chosen.append(segments)
    return chosen


def _events_of(
    segments: list[Segment], from_seq: int, to_seq: int | None, types: Collection[str] | None
) -> Iterator[Event]:
    for lines, schema in _blocks(segments, types):
        events = codec.decode_lines(lines, schema)
        if not events or (events[0].seq >= from_seq and (to_seq is None or events[-1].seq <= to_seq)):
            yield from events
            continue
        for event in events:
            if to_seq is not None and event.seq > to_seq:
                return
            if event.seq >= from_seq:
                yield event


def _records_of(
    segments: list[Segment],
    from_seq: int,
    to_seq: int | None,
    types: Collection[str] | None,
    progress: Callable[[Segment], None],
) -> Iterator[tuple[bytes, Event]]:
    for lines, schema in _blocks(segments, types, progress):
        for line, event in zip(lines, codec.decode_lines(lines, schema), strict=True):
            if to_seq is not None and event.seq > to_seq:
                return
            if event.seq >= from_seq:
                yield line, event


def _blocks(
    segments: list[Segment],
    types: Collection[str] | None,
    progress: Callable[[Segment], None] = lambda segment: None,
) -> Iterator[tuple[list[bytes], int]]:
    """The valid lines of these types, block by block, with their schema."""
    starts = None if types is None else tuple(b'{"type":"%b"' % name.encode() for name in types)
    last_seq = 0
    for segment in segments:
        progress(segment)
        scan = Scan(segment)
        with suppress(FileNotFoundError):
            for lines in scan:
                chosen = lines if starts is None else [line for line in lines if line.startswith(starts)]
                if chosen:
                    yield chosen, scan.schema
                last_seq = codec.decode(lines[-1], scan.schema).seq
        if scan.fault:
            _judge(scan, segment is segments[-1], last_seq)


def _judge(scan: Scan, last: bool, last_seq: int) -> None:
    if last and scan.incomplete:
        return
    if not last or not is_torn_tail(scan):
        raise LogDamaged(scan.segment.path, scan.end, last_seq, scan.fault)
    logger.warning("%s ends in a torn tail at byte %d: %s", scan.segment.path, scan.end, scan.fault)
