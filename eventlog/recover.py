"""What a start needs to know of a log: the last checkpoint, the events since then, and where to go on.

Reads the last segment of each stream; earlier ones only while a segment opens without a checkpoint. Changes nothing:
a torn tail is described, and cut by the writer. Counterpart: `writer`, which goes on from here.

Invariant: no clock is looked at; what is newer follows from `seq` alone.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eventlog import codec
from eventlog.errors import LogDamaged
from eventlog.events import Event, SegmentOpened
from eventlog.scan import Scan, is_torn_tail, valid_line_after
from eventlog.segments import Segment, list_segments


@dataclass(frozen=True)
class Torn:
    """A tail to be cut off a segment: the bytes from `offset` on; with `offset` 0 the whole file."""

    segment: Segment
    offset: int
    bytes: int
    reason: str
    keep: bool
    """Valid lines follow inside it: it is set aside instead of deleted."""


@dataclass(frozen=True)
class Tip:
    """Where a stream goes on."""

    segment: Segment | None = None
    """To be appended to; None where a new one has to be opened."""
    size: int = 0
    header_end: int = 0
    crc: int = 0
    torn: list[Torn] = field(default_factory=list)


@dataclass(frozen=True)
class Recovered:
    """The state of a log at its end; `state` and `events` together are what the scheduler folds."""

    last_seq: int = 0
    """Over both streams."""
    last_run: int = 0
    last_at_us: int = 0
    """Of the last event of the events stream."""
    state: msgspec.Raw | None = None
    """The last checkpoint; None if there is none yet, then `events` begin where the log does."""
    events: list[Event] = field(default_factory=list)
    """Everything after the checkpoint, without headers."""
    tip: Tip = field(default_factory=Tip)
    observations_tip: Tip = field(default_factory=Tip)

    @property
    def truncated(self) -> list[Torn]:
        """What has to be cut off (by the writer, which says so with LogTruncated)."""
        return [*self.tip.torn, *self.observations_tip.torn]


def recover(directory: Path) -> Recovered:
    """Read the end of the log in `directory`. Raises LogDamaged where more than a torn tail is wrong."""
    scans, events, torn = _read_back_to_checkpoint(list_segments(directory, "events"))
    tip = _tip(scans[-1], torn) if scans else Tip(torn=torn)
    observed, observations_tip = _end_of_observations(list_segments(directory, "observations"))
    first = scans[0].header if scans else None
    last = events[-1] if events else first
    opened = scans[-1].header if scans else None
    return Recovered(
        last_seq=max(
            events[-1].seq if events else 0,
            opened.seq - 1 if opened else 0,
            observed.seq,
        ),
        last_run=max(last.run if last else 0, observed.run),
        last_at_us=last.at_us if last else observed.at_us,
        state=first.state if first and first.state else None,
        events=events,
        tip=tip,
        observations_tip=observations_tip,
    )


def _read_back_to_checkpoint(segments: list[Segment]) -> tuple[list[Scan], list[Event], list[Torn]]:
    """The segments from the last checkpoint on, in order, with their events; and the torn tail."""
    scans: list[Scan] = []
    torn: list[Torn] = []
    events: list[Event] = []
    for segment in reversed(segments):
        scan = Scan(segment)
        found = [event for lines in scan for event in codec.decode_lines(lines, scan.schema)]
        if scan.fault and scans:
            raise _damaged(scan, found)
        if scan.fault:
            if not is_torn_tail(scan):
                raise _damaged(scan, found)
            torn.append(_torn(scan))
            if scan.header is None:
                continue
        header = scan.header
        assert header is not None
        if scans and int(_header(scans[0]).chain, 16) != scan.crc:
            raise LogDamaged(
                scans[0].segment.path, 0, found[-1].seq, f"it does not continue {segment.path.name}; a part is missing"
            )
        scans.insert(0, scan)
        events[:0] = [event for event in found if not isinstance(event, SegmentOpened)]
        if header.state:
            break
    return scans, events, torn


def _end_of_observations(segments: list[Segment]) -> tuple[Event, Tip]:
    """The last observation (or an empty event) and where the stream goes on; damage here stops nothing."""
    torn: list[Torn] = []
    for segment in reversed(segments):
        scan = Scan(segment).finish()
        last = scan.last_event()
        damaged = bool(scan.fault) and not is_torn_tail(scan)
        if scan.fault and not damaged:
            torn.append(_torn(scan))
        if damaged:
            return _last_readable(segment, last or Event()), Tip(crc=scan.crc, torn=torn)
        if last is not None:
            if isinstance(last, SegmentOpened):
                last = msgspec.structs.replace(last, seq=last.seq - 1)
            return last, _tip(scan, torn)
    return Event(), Tip(torn=torn)


def _last_readable(segment: Segment, last: Event) -> Event:
    """Behind damage: the line with the highest seq, so that no number is given out twice."""
    for line in segment.path.read_bytes().split(b"\n") if not segment.sealed else ():
        try:
            event = codec.decode(line)
        except msgspec.DecodeError:
            continue
        if event.seq > last.seq:
            last = event
    return last


def _header(scan: Scan) -> SegmentOpened:
    assert scan.header is not None
    return scan.header


def _tip(scan: Scan, torn: list[Torn]) -> Tip:
    if scan.segment.sealed:
        return Tip(crc=scan.crc, torn=torn)
    return Tip(segment=scan.segment, size=scan.end, header_end=scan.header_end, crc=scan.crc, torn=torn)


def _torn(scan: Scan) -> Torn:
    path = scan.segment.path
    return Torn(
        segment=scan.segment,
        offset=scan.end,
        bytes=path.stat().st_size - scan.end,
        reason=scan.fault,
        keep=valid_line_after(path, scan.end, scan.crc),
    )


def _damaged(scan: Scan, found: list[Event]) -> LogDamaged:
    return LogDamaged(scan.segment.path, scan.end, found[-1].seq if found else 0, scan.fault)
