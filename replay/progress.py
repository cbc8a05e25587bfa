"""A progress bar on a terminal's stderr, silent elsewhere and for work that is soon done; or lines for a program."""

import json
import sys
import time
from pathlib import Path

from eventlog.segments import Segment
from replay.lines import events_segments

WIDTH = 30
SILENT_S = 0.5
"""What is done by then needs no bar."""
EVERY_S = 0.1


class Bar:
    """`done` out of `total`, in whatever unit, with the time that is left. Take it away with `close`."""

    def __init__(self, total: float, *, quiet: bool = False) -> None:
        self._total = total
        self._began_s = time.monotonic()
        self._drawn_s = self._began_s + SILENT_S - EVERY_S
        self._shown = False
        self._quiet = quiet or not sys.stderr.isatty()

    def show(self, done: float, what: str = "") -> None:
        now_s = time.monotonic()
        if self._quiet or not self._total or now_s < self._drawn_s + EVERY_S:
            return
        self._drawn_s = now_s
        self._shown = True
        share = min(1.0, done / self._total)
        left = f", {(now_s - self._began_s) * (1 - share) / share:.0f} s left" if share else ""
        sys.stderr.write(f"\r[{'#' * round(share * WIDTH):<{WIDTH}}] {share:4.0%}{left}  {what}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Told:
    """Progress as lines of JSON on stderr, for a program that shows it: {"stage": ..., "done": ..., "total": ...}."""

    def __init__(self, wanted: bool) -> None:
        """Without `wanted` it says nothing."""
        self._wanted = wanted
        self._stage = ""
        self._told_s = 0.0

    def __call__(self, stage: str, done: float, total: float) -> None:
        """A stage's first and last words are always said, others not too often."""
        now_s = time.monotonic()
        if not self._wanted or (stage == self._stage and done < total and now_s < self._told_s + EVERY_S):
            return
        self._stage, self._told_s = stage, now_s
        print(json.dumps({"stage": stage, "done": done, "total": total}), file=sys.stderr, flush=True)


class SegmentsBar:
    """A bar over the segments of a log, by their size on the disk: call it with each segment that is begun."""

    def __init__(self, path: Path) -> None:
        sizes = [_size(segment) for segment in events_segments(path)]
        self._bar = Bar(sum(sizes))
        self._done = 0
        self._current = 0

    def __call__(self, segment: Segment) -> None:
        self._done += self._current
        self._current = _size(segment)
        self._bar.show(self._done, segment.path.name)

    def close(self) -> None:
        self._bar.close()


def _size(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0
