"""Walk through a log step by step: a fact with its decisions as they were recorded, and the state after them.

Counterpart: `past`, for the state at one place. Nothing is decided again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.events import Decision, Fact, RouterStarted, SegmentOpened
from eventlog.reader import read
from replay.lines import blocks, events_segments, type_of
from replay.past import fold_recorded, state_at
from router.scheduler import State, restore


@dataclass
class Step:
    """A fact, its decisions, and the state when all of them are folded; the next step changes that state."""

    fact: Fact
    state: State
    decisions: list[Decision] = field(default_factory=list)


def steps(path: Path, from_seq: int) -> Iterator[Step]:
    """The steps from the fact `from_seq` on. Raises LogError where no state is known there, and LogDamaged.

    Each checkpoint on the way is taken as the state: behind a hole that a repair has left, nothing else is known.
    """
    state: State | None = None
    step: Step | None = None
    for event in read(path, from_seq=from_seq):
        if isinstance(event, SegmentOpened) and event.state:
            if step is not None:
                yield step
                step = None
            state = restore(event.state)
        elif isinstance(event, Fact):
            if step is not None:
                yield step
            if state is None:
                state = State() if isinstance(event, RouterStarted) else state_at(path, event.seq - 1)
            fold_recorded(path, state, event)
            step = Step(event, state)
        elif isinstance(event, Decision) and step is not None:
            fold_recorded(path, step.state, event)
            step.decisions.append(event)
    if step is not None:
        yield step


def find(path: Path, types: tuple[str, ...], field_name: str, value: int) -> int:
    """seq of the first fact or decision of these types in which a number has this value; 0 if there is none."""
    names = {name.encode() for name in types}
    wanted = b'"%b":%d,"' % (field_name.encode(), value)
    at_end = b'"%b":%d}' % (field_name.encode(), value)
    for lines, _ in blocks(path):
        for line in lines:
            if (wanted in line or at_end in line) and type_of(line) in names:
                return _seq_of(line)
    return 0


def said_of_the_cut(path: Path) -> str:
    """Where a log begins that has lost its beginning; empty for one that has not."""
    first_seq = events_segments(path)[0].first_seq
    return f"; the log begins with #{first_seq}, and what was before it has been removed" if first_seq > 1 else ""


def _seq_of(line: bytes) -> int:
    start = line.index(b'"seq":') + len(b'"seq":')
    end = start
    while line[end : end + 1].isdigit():
        end += 1
    return int(line[start:end])
