"""The files of a log: their names, their order, their bytes.

    events-000000000001.ndjson.gz        sealed: never written again
    events-000000048211.ndjson           the current segment of the stream of facts and decisions
    observations-000000000001.ndjson     the same for observations
    lock                                 held by the one writer, with its process id
    synced                               how far the current events segment is known to be on the disk
    damaged/                             what was cut off or set aside, never deleted by us

The number in a name is the seq of the segment's SegmentOpened, which takes no number of its own: the lines before it
have lower ones, the lines after it this one or higher ones.

Counterpart: `writer` makes these files, `housekeeping` seals and removes them.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from eventlog.errors import LogError

Stream = Literal["events", "observations"]
STREAMS: tuple[Stream, Stream] = ("events", "observations")

LOCK = "lock"
SYNCED = "synced"
DAMAGED = "damaged"
UNFINISHED = ".new"
"""Ends the name of a file that is not yet complete; it is renamed when it is."""

_NAME = re.compile(r"(events|observations)-(\d{12,})\.ndjson(\.gz)?")
_READ_BYTES = 1 << 20
_FEED_BYTES = 1 << 16


@dataclass(frozen=True)
class Segment:
    """One file of a stream."""

    stream: Stream
    first_seq: int
    path: Path

    @property
    def sealed(self) -> bool:
        """Whether it is compressed and will not change any more."""
        return self.path.suffix == ".gz"


def segment_name(stream: Stream, first_seq: int) -> str:
    """File name of a segment that is being written."""
    return f"{stream}-{first_seq:012d}.ndjson"


def segment_of(path: Path) -> Segment | None:
    """The segment that a file name stands for; None for any other file."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    stream: Stream = "events" if match[1] == "events" else "observations"
    return Segment(stream, int(match[2]), path)


def list_segments(directory: Path, stream: Stream) -> list[Segment]:
    """The segments of a stream in order; without those whose sealing was interrupted half-way.

    A plain file and its compressed copy side by side mean that sealing ended between its last two steps; the plain one
    counts, since it was written by appending alone. Raises LogError if there is no such directory.
    """
    found: dict[int, Segment] = {}
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise LogError(f"cannot read the log directory {directory}: {error.strerror}") from error
    for name in names:
        segment = segment_of(directory / name)
        if segment is not None and segment.stream == stream and not (segment.sealed and segment.first_seq in found):
            found[segment.first_seq] = segment
    return [found[first_seq] for first_seq in sorted(found)]


def fsync_directory(directory: Path) -> None:
    """Make names in a directory survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DamagedGzip(Exception):
    """A compressed segment cannot be read any further; everything before was handed out."""


def read_blocks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The bytes of a segment from `offset` on, decompressed, about 1 MiB at a time; damage raises DamagedGzip.

    A plain segment that has been sealed since it was listed is read all the same; one that has been removed raises
    FileNotFoundError.
    """
    file = open_as_it_is_now(path)
    with file:
        if not is_sealed(file):
            file.seek(offset)
            while block := file.read(_READ_BYTES):
                yield block
            return
        skip = offset
        for block in _inflate(iter(lambda: file.read(_FEED_BYTES), b"")):
            if skip >= len(block):
                skip -= len(block)
            else:
                yield block[skip:]
                skip = 0


def stored_bytes(segment: Segment) -> int:
    """Size of the file, compressed or not; 0 if it has been removed."""
    path = segment.path
    for each in (path, path.with_name(path.name + ".gz")):
        with suppress(FileNotFoundError):
            return each.stat().st_size
    return 0


def open_as_it_is_now(path: Path) -> BinaryIO:
    """A segment's file or, where it has been sealed since it was listed, its compressed copy.

    The copy is there before the plain file goes, so whoever opens it second cannot miss both.
    """
    if path.suffix != ".gz":
        try:
            return path.open("rb")
        except FileNotFoundError:
            path = path.with_name(path.name + ".gz")
    return path.open("rb")


def is_sealed(file: BinaryIO) -> bool:
    """Whether `open_as_it_is_now` came by a compressed copy."""
    return os.fspath(file.name).endswith(".gz")


def _inflate(feeds: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress, members one after another; before damage, every byte that can be had."""
    inflate = zlib.decompressobj(wbits=31)
    fresh = True
    for feed in feeds:
        while feed:
            before = inflate.copy()
            try:
                block = inflate.decompress(feed)
            except zlib.error as error:
                yield from _inflate_bytewise(before, feed)
                raise DamagedGzip(str(error)) from None
            if block:
                yield block
            fresh = False
            feed = b""
            if inflate.eof:
                feed = inflate.unused_data
                inflate = zlib.decompressobj(wbits=31)
                fresh = True
    if not fresh:
        raise DamagedGzip("the compressed file ends too early")


def _inflate_bytewise(inflate: "zlib._Decompress", feed: bytes) -> Iterator[bytes]:
    for index in range(len(feed)):
        try:
            block = inflate.decompress(feed[index : index + 1])
        except zlib.error:
            return
        if block:
            yield block
