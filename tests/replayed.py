"""Replay a recorded run: its facts are fed to the scheduler again, and every decision must come out as it was logged.

Only facts are taken from the log. What follows from each is made anew, stamped as the loop stamps it, and compared with
the logged lines byte for byte; a checkpoint must be the state that the facts before it give. So a decision that
depended on anything but the log, or an effect that was not logged, is found here.

Counterparts: `eventlog.verify` proves that the bytes are those that were written. `replay.verify` proves what is proved
here, and more; this one shares no code with it, so that the tests do not take the product's word for itself.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eventlog import events as e
from eventlog.codec import TAIL, UnknownEvent
from eventlog.reader import records
from router.scheduler import State, digest, dump, fold, restore, step


@dataclass
class Replay:
    """What was replayed, and the state at its end."""

    state: State = field(default_factory=State)
    runs: int = 0
    facts: int = 0
    decisions: int = 0
    checkpoints: int = 0


def replayed(log_dir: Path) -> Replay:
    """Replay the log in `log_dir` from its beginning, or from its oldest checkpoint.

    Raises AssertionError at the first line that does not follow from the facts before it.
    """
    replay = Replay()
    folded = State()
    due: deque[bytes] = deque()
    for line, event in records(log_dir):
        assert not isinstance(event, UnknownEvent), f"seq {event.seq}: {event.why}: {line.decode()}"
        if isinstance(event, e.SegmentOpened):
            if event.state and replay.facts:
                assert not due, f"a checkpoint before seq {event.seq} cuts a step: {_words(due)} should precede it"
                assert bytes(event.state) == bytes(dump(replay.state)), f"the checkpoint before seq {event.seq} differs"
            elif event.state:
                replay.state, folded = restore(event.state), restore(event.state)
            replay.checkpoints += bool(event.state)
        elif isinstance(event, e.Fact):
            if isinstance(event, e.RouterStarted):
                replay.runs += 1
                # A run that was killed may have written the first part of its last step only.
                due.clear()
            assert not due, f"seq {event.seq} is a {type(event).__name__}, but this should follow first: {_words(due)}"
            due.extend(_decided(replay.state, event))
            replay.facts += 1
        elif isinstance(event, e.Decision):
            logged = line[:-TAIL] + b"}"
            assert due, f"seq {event.seq} does not follow from the facts before it: {logged.decode()}"
            made = due.popleft()
            assert made == logged, (
                f"seq {event.seq} was logged as\n{logged.decode()}\nbut what follows is\n{made.decode()}"
            )
            replay.decisions += 1
        fold(folded, event)
    assert not due, f"the log ends before what should follow: {_words(due)}"
    assert digest(folded) == digest(replay.state), "the logged decisions fold to another state than those made anew"
    return replay


def _decided(state: State, fact: e.Fact) -> list[bytes]:
    """What follows from a fact, each as its line without the checksum."""
    return [
        msgspec.json.encode(
            msgspec.structs.replace(decision, seq=fact.seq + place, at_us=fact.at_us, run=fact.run, cause=fact.seq)
        )
        for place, decision in enumerate(step(state, fact), 1)
    ]


def _words(due: deque[bytes]) -> str:
    return b", ".join(due).decode()
