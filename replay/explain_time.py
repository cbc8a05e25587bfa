"""What the state was at a moment, and what happened around it."""

import re
from datetime import datetime
from pathlib import Path

import msgspec

from eventlog.errors import LogError
from eventlog.events import Decision, Event, Fact
from eventlog.reader import read
from replay.lines import events_segments, first_seq_before
from replay.past import state_at
from router.scheduler import State

AROUND = 6
"""Events that are shown before and after."""


class Moment(msgspec.Struct, kw_only=True):
    """A place in the log: after the event `seq` and before the next."""

    seq: int
    at_us: int
    state: State
    before: list[Event]
    """The last events, that of `seq` included."""
    after: list[Event]


def explain_time(path: Path, when: str) -> Moment:
    """The moment that `when` names: a seq (`#4711` or a short number), seconds since 1970, or a date and time.

    A seq means after that event and all that was decided with it; a time, after everything that had happened by then.
    Raises LogError where it is neither, or not in the log.
    """
    seq, until_us = _parsed(when)
    before, after = _around(path, seq, until_us, _shortly_before(path, seq, until_us))
    if not before:
        before, after = _around(path, seq, until_us, 0)
    if not before:
        raise LogError(f"the log at {path} begins after {when}")
    last = before[-1]
    return Moment(seq=last.seq, at_us=last.at_us, state=state_at(path, last.seq), before=before, after=after)


def _shortly_before(path: Path, seq: int, until_us: int) -> int:
    """Where to begin to read: a segment before the one that has the moment, so that what came before it is shown."""
    near = seq or first_seq_before(path, until_us)
    firsts = [segment.first_seq for segment in events_segments(path) if segment.first_seq <= near]
    return firsts[-2] if len(firsts) > 1 else 0


def _around(path: Path, seq: int, until_us: int, from_seq: int) -> tuple[list[Event], list[Event]]:
    """The events before the moment and those after it, some of each."""
    before: list[Event] = []
    after: list[Event] = []
    for event in read(path, from_seq=from_seq):
        if not isinstance(event, Fact | Decision):
            continue
        is_past = event.seq <= seq if seq else event.at_us <= until_us
        if seq and isinstance(event, Decision) and before and event.cause in (seq, before[-1].cause, before[-1].seq):
            is_past = True
        if is_past:
            before = [*before[1 - AROUND :], event]
        elif len(after) < AROUND:
            after.append(event)
        else:
            break
    return before, after


def _parsed(when: str) -> tuple[int, int]:
    """(seq, 0) or (0, microseconds since 1970)."""
    if match := re.fullmatch(r"#?(\d{1,8})|#(\d+)", when):
        return int(match[1] or match[2]), 0
    if re.fullmatch(r"\d{9,}(\.\d+)?", when):
        return 0, round(float(when) * 1e6)
    try:
        return 0, round(datetime.fromisoformat(when).timestamp() * 1e6)
    except ValueError:
        raise LogError(
            f"{when!r} is no time: expected a seq such as #4711, 2026-03-01T12:00:05, or seconds since 1970"
        ) from None
