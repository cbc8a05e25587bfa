"""The scheduler's state at any place of a log, folded from what was recorded: nothing is decided again.

Counterpart: `verify`, which decides again and compares.
"""

from pathlib import Path

from eventlog.errors import LogError
from eventlog.events import Decision, Event, Fact, RouterStarted, SegmentOpened
from eventlog.housekeeping import read_header
from eventlog.reader import read
from replay.lines import events_segments
from router.scheduler import State, fold, restore


def state_at(path: Path, seq: int) -> State:
    """The state after the event `seq` and all before it.

    Reads from the nearest checkpoint before it on, or from the start of its run. Raises LogError where the log has
    neither, and LogDamaged.
    """
    state = _checkpoint_after(path, seq)
    if state is not None:
        return state
    for event in read(path, from_seq=_nearest_checkpoint(path, seq), to_seq=seq):
        match event:
            case SegmentOpened(state=raw) if raw and state is None:
                state = restore(raw)
            case RouterStarted() if state is None:
                state = State()
        if state is not None and isinstance(event, Fact | Decision):
            fold_recorded(path, state, event)
    if state is None:
        raise LogError(f"no state is known at seq {seq}: the log at {path} has no checkpoint and no start before it")
    return state


def fold_recorded(path: Path, state: State, event: Event) -> None:
    """Take one event of a log into the state. Raises LogError where it cannot follow on what the log says before."""
    try:
        fold(state, event)
    except Exception as error:
        raise LogError(
            f"{path}: event #{event.seq}, {type(event).__name__}, does not fit to what the log says before it "
            f"({type(error).__name__}: {error}): a part is missing, or it is of a newer version; "
            "`llama-router log verify` and `llama-router replay verify` tell more"
        ) from error


def _checkpoint_after(path: Path, seq: int) -> State | None:
    """The state that a segment opens with right behind `seq`: the first one of a log that retention has cut, say."""
    for segment in events_segments(path):
        if segment.first_seq == seq + 1:
            header = read_header(segment)
            return restore(header.state) if header is not None and header.state else None
    return None


def _nearest_checkpoint(path: Path, seq: int) -> int:
    """First seq of the last segment before `seq` that opens with a checkpoint, or else of the first segment."""
    segments = events_segments(path)
    for segment in reversed(segments):
        if segment.first_seq <= seq:
            header = read_header(segment)
            if header is not None and header.state:
                return segment.first_seq
    return segments[0].first_seq
