"""A segment while it is written: a descriptor, how far it is good, and what is not yet known to be on the disk.

What was written but not synced stays in memory, since after a failed sync nobody can say whether the disk has it.
Counterpart: `writer` decides when to write, sync, cut and go on in another file.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eventlog.codec import encode_lines
from eventlog.events import Event, SegmentOpened
from eventlog.segments import UNFINISHED, Stream, fsync_directory, segment_name

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE = 0o640


class Mark(NamedTuple):
    """A place between two lines: offset in the file, checksum of the line before it."""

    offset: int
    crc: int


class SegmentFile:
    """An open segment; what it says of itself changes only once the operating system has done what it was asked."""

    __slots__ = ("end", "fd", "header_end", "last_seq", "path", "stream", "synced", "unsynced")

    def __init__(self, stream: Stream, path: Path, fd: int, header_end: int, end: Mark, last_seq: int) -> None:
        self.stream: Stream = stream
        self.path = path
        self.fd = fd
        self.header_end = header_end
        self.end = end
        self.synced = end
        self.unsynced: deque[tuple[Mark, bytes]] = deque()
        """What was appended after `synced`, each with the mark behind it."""
        self.last_seq = last_seq
        """Lines that are appended have a higher seq than this."""

    @classmethod
    def resume(cls, stream: Stream, path: Path, header_end: int, end: Mark, last_seq: int) -> "SegmentFile":
        """Go on in an existing segment whose good part ends at `end`."""
        return cls(stream, path, os.open(path, _FLAGS, _MODE), header_end, end, last_seq)

    def append(self, data: bytes, crc: int) -> None:
        """Write whole lines in one go. Raises OSError; then nothing is known of what stands behind `end`."""
        write_whole(self.fd, data)
        self.end = Mark(self.end.offset + len(data), crc)

    def sync(self) -> None:
        """Bring what was appended so far to the disk, and let go of it. Raises OSError."""
        end = self.end
        os.fdatasync(self.fd)
        self.synced = end
        while self.unsynced and self.unsynced[0][0].offset <= end.offset:
            self.unsynced.popleft()

    def close(self) -> None:
        """Give the descriptor back; what it was asked to do has been judged before."""
        with suppress(OSError):
            os.close(self.fd)


def write_whole(fd: int, data: bytes) -> None:
    """Write all of it or raise OSError; a short write to a file means that there is no more room."""
    written = os.write(fd, data)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")


def create_file(path: Path, data: bytes, *, sync: bool, before_rename: Callable[[], None] = lambda: None) -> int:
    """A file that appears under its name with all of `data` in it, or not at all; returns its descriptor.

    Raises OSError, and then leaves nothing behind.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    fd = os.open(unfinished, _FLAGS | os.O_TRUNC, _MODE)
    try:
        write_whole(fd, data)
        if sync:
            os.fsync(fd)
        before_rename()
        os.replace(unfinished, path)
        if sync:
            fsync_directory(path.parent)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return fd


def create_segment(directory: Path, header: SegmentOpened, events: Sequence[Event] = (), *, sync: bool) -> SegmentFile:
    """A new segment with its header and, perhaps, its first lines. Raises OSError, and then there is none."""
    head, crc = encode_lines([header], int(header.chain, 16))
    lines, crc = encode_lines(events, crc)
    path = directory / segment_name(header.stream, header.seq)
    fd = create_file(path, head + lines, sync=sync)
    last_seq = events[-1].seq if events else header.seq - 1
    return SegmentFile(header.stream, path, fd, len(head), Mark(len(head) + len(lines), crc), last_seq)
