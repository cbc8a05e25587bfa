"""What is done to segments that are no longer written: compress them, and remove the oldest.

Runs in a thread of low priority beside the writer. It may be killed between any two steps: a copy is complete before
it gets its name, and the plain file goes last. Nothing here can stop the router; a failure is logged and tried again
after the next segment.

Counterpart: `segments` lists what is there. Not known here: what the lines mean, except for the header's checkpoint.
"""

import logging
import os
import stat
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from eventlog import codec
from eventlog.events import SegmentOpened
from eventlog.segments import (
    STREAMS,
    UNFINISHED,
    DamagedGzip,
    Segment,
    Stream,
    fsync_directory,
    list_segments,
    read_blocks,
    segment_of,
    stored_bytes,
)

logger = logging.getLogger("llama_router.eventlog")

_NICE = 10
_LEVEL = 6
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Retention:
    """How much of the past is kept; 0 means without limit."""

    bytes: int = 0
    """Of all segments of both streams together."""
    us: int = 0
    """Microseconds before the newest event."""


class Housekeeper:
    """Seals and removes in the background; one pass at a time."""

    def __init__(self, directory: Path, retention: Retention) -> None:
        self._directory = directory
        self._retention = retention
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._now_us = 0
        self._thread: threading.Thread | None = None

    def start(self, now_us: int) -> None:
        """Look after everything but the current segments; `now_us` is the time of the newest event."""
        self._now_us = now_us
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="eventlog-housekeeping", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End soon; a segment that is half sealed is sealed at the next start."""
        self._stop.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stop.is_set():
                return
            # On a full disk nothing can be sealed, and then removing is what helps.
            self._try(lambda: seal_all(self._directory, self._stop))
            self._try(lambda: retain(self._directory, self._retention, self._now_us))

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:
            logger.warning("the log in %s could not be tidied up: %s", self._directory, error)


def seal_all(directory: Path, stop: threading.Event | None = None) -> None:
    """Compress every segment but the last of each stream."""
    for stream in STREAMS:
        for segment in list_segments(directory, stream)[:-1]:
            if not segment.sealed and not (stop is not None and stop.is_set()):
                seal(segment, stop)


def seal(segment: Segment, stop: threading.Event | None = None) -> None:
    """Replace a segment by its compressed copy: copy, sync, rename, sync the name, remove the plain file."""
    path = segment.path
    sealed = path.with_name(path.name + ".gz")
    unfinished = sealed.with_name(sealed.name + UNFINISHED)
    compress = zlib.compressobj(_LEVEL, wbits=31)
    try:
        with path.open("rb") as source, unfinished.open("wb") as target:
            os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            while block := source.read(_READ_BYTES):
                target.write(compress.compress(block))
                if stop is not None and stop.is_set():
                    return
            target.write(compress.flush())
            target.flush()
            os.fsync(target.fileno())
    except OSError:
        unfinished.unlink(missing_ok=True)  # on a full disk it would only take room
        raise
    os.replace(unfinished, sealed)
    fsync_directory(path.parent)
    path.unlink()


def remove_unfinished_copies(directory: Path) -> None:
    """Remove what a killed `seal` left; the plain file is still there."""
    for name in os.listdir(directory):
        if name.endswith(".gz" + UNFINISHED) and segment_of(directory / name.removesuffix(UNFINISHED)):
            (directory / name).unlink()


def retain(directory: Path, retention: Retention, now_us: int) -> list[Path]:
    """Remove the oldest segments beyond the limits, and return them.

    The current segments stay, and of the events everything from the last checkpoint on. What goes, goes up to the next
    checkpoint, so that what stays begins with one; and it goes from the beginning on, whatever a clock that was set
    back makes of the ages, so that what stays has no hole.
    """
    if not retention.bytes and not retention.us:
        return []
    units = sorted(
        (unit for stream in STREAMS for unit in _removable(list_segments(directory, stream))),
        key=lambda unit: unit.segments[0].first_seq,
    )
    total = sum(stored_bytes(segment) for stream in STREAMS for segment in list_segments(directory, stream))
    removed: list[Path] = []
    kept: set[Stream] = set()
    for unit in units:
        too_big = bool(retention.bytes) and total > retention.bytes
        too_old = bool(retention.us) and unit.ended_us < now_us - retention.us
        if unit.stream in kept or not (too_big or too_old):
            kept.add(unit.stream)
            continue
        total -= sum(stored_bytes(segment) for segment in unit.segments)
        for segment in unit.segments:
            segment.path.unlink()
            removed.append(segment.path)
    if removed:
        fsync_directory(directory)
        logger.info("removed %d old segments of the log in %s", len(removed), directory)
    return removed


@dataclass(frozen=True)
class _Unit:
    """Segments that go together."""

    segments: list[Segment]
    ended_us: int

    @property
    def stream(self) -> Stream:
        return self.segments[0].stream


def _removable(segments: list[Segment]) -> list[_Unit]:
    """Runs of segments from one checkpoint up to the next; observations need none, so each stands for itself.

    One whose header cannot be read goes with those before it: damage does not keep the rest of a log for ever.
    """
    units: list[_Unit] = []
    run: list[Segment] = []
    for segment in segments:
        header = read_header(segment)
        if run and header is not None and (segment.stream == "observations" or header.state):
            units.append(_Unit(run, header.at_us))
            run = []
        run.append(segment)
    return units


def read_header(segment: Segment) -> SegmentOpened | None:
    """The first line of a segment, its checksum not looked at; None if there is none, or it cannot be read."""
    line = b""
    with suppress(DamagedGzip):
        for block in read_blocks(segment.path):
            line += block
            if b"\n" in block:
                break
    try:
        header = codec.decode(line.partition(b"\n")[0])
    except msgspec.DecodeError:
        return None
    return header if isinstance(header, SegmentOpened) else None
