"""A bar on a terminal's stderr that moves with each segment of a log; silent elsewhere and for short work."""

import sys
import time
from pathlib import Path

from eventlog.segments import STREAMS, Segment, Stream, list_segments, stored_bytes

WIDTH = 30
SILENT_S = 0.5


class Bar:
    """Call it with each segment that is begun; take it away with `close`."""

    def __init__(self, log: Path, *, quiet: bool = False) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._total = 0
        self._done = 0
        self._current: dict[Stream, int] = {}
        self._shown = False
        self._show_from_s = time.monotonic() + SILENT_S
        if not self._quiet:
            self._total = sum(stored_bytes(each) for stream in STREAMS for each in list_segments(log, stream))

    def __call__(self, segment: Segment) -> None:
        if self._quiet or not self._total:
            return
        self._done += self._current.get(segment.stream, 0)
        self._current[segment.stream] = stored_bytes(segment)
        if time.monotonic() < self._show_from_s:
            return
        self._shown = True
        share = min(1.0, self._done / self._total)
        sys.stderr.write(f"\r[{'#' * round(share * WIDTH):<{WIDTH}}] {share:4.0%}  {segment.path.name}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
