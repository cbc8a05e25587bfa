"""Complete lines of one stream of a log, in order, from any place on; and then whatever is new.

Old segments are read whole, checked against their chain and not decoded; the last one is followed with
`eventlog.tail.Tail`. Headers of segments are left out. Not known here: what the lines mean.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from eventlog.codec import seq_of, stored_crc
from eventlog.errors import LogDamaged, LogError
from eventlog.scan import HEADER_START, Scan
from eventlog.segments import Segment, Stream, list_segments
from eventlog.tail import Tail

BATCH_BYTES = 64 << 20
"""About so much is handed out at once: one pass over what is open."""


class LogChanged(LogError):
    """The line that was applied last is not in the log: it was cut, repaired, or is another log."""


class Lines:
    """The lines after `after_seq`, whose line must have the checksum `after_crc`; 0 for all lines.

    `progress` hears of each segment begun. Raises LogError where there is no log, and LogChanged.
    """

    def __init__(
        self,
        directory: Path,
        stream: Stream,
        after_seq: int = 0,
        after_crc: int = 0,
        progress: Callable[[Segment], None] = lambda segment: None,
    ) -> None:
        self._directory = directory
        self._stream: Stream = stream
        self._after_seq = after_seq
        self._progress = progress
        self._tail: Tail | None = None
        self._old: Iterator[list[bytes]] | None = self._old_blocks()
        self._held = self._find(after_crc) if after_seq else []

    def read(self, size_bytes: int = BATCH_BYTES) -> Iterator[list[bytes]]:
        """What comes next, about so much at most, in blocks of about 1 MiB; none if nothing does. Raises LogDamaged."""
        size = 0
        while size < size_bytes and (block := self._held or self._block()):
            self._held = []
            size += sum(map(len, block))
            yield block

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()

    def _find(self, crc: int) -> list[bytes]:
        """Go to the line that was applied last; what stands behind it in the same block."""
        while block := self._block():
            for index, line in enumerate(block):
                seq = seq_of(line)
                if seq == self._after_seq and stored_crc(line) == crc:
                    return block[index + 1 :]
                if seq >= self._after_seq:
                    raise LogChanged(f"{self._directory} has another line with seq {self._after_seq}")
        raise LogChanged(f"{self._directory} has no line of {self._stream} with seq {self._after_seq}")

    def _block(self) -> list[bytes]:
        if self._old is not None:
            for block in self._old:
                return block
            self._old = None
        assert self._tail is not None
        return self._tail.poll_lines()

    def _old_blocks(self) -> Iterator[list[bytes]]:
        """All segments but the last, from the one with the line that was applied last; the tail goes on from there."""
        segments = list_segments(self._directory, self._stream)
        while len(segments) > 1 and segments[1].first_seq <= self._after_seq:
            del segments[0]
        for segment in segments[:-1]:
            self._progress(segment)
            scan = Scan(segment, briskly=True)
            with suppress(FileNotFoundError):
                for lines in scan:
                    if lines[0].startswith(HEADER_START):
                        del lines[0]
                    if lines:
                        yield lines
            if scan.fault:
                raise LogDamaged(scan.segment.path, scan.end, 0, scan.fault)
        from_seq = self._after_seq
        if segments:
            self._progress(segments[-1])
            from_seq = max(from_seq, segments[-1].first_seq)
        self._tail = Tail(self._directory, self._stream, from_seq)
