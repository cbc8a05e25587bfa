"""Every event log that a router of the tests leaves behind is verified: its decisions follow from its facts.

A router's process says `left(folder)` when it has ended; conftest.py fails the test in which that happened if the log
does not verify, and counts them at the end. A test whose log is damaged on purpose says so with
`@pytest.mark.damages_log`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from eventlog.errors import LogError
from eventlog.segments import list_segments
from replay.verify import verify
from replay.verify_command import as_text


@dataclass
class Found:
    """What came of the logs of this session."""

    logs: int = 0
    events: int = 0
    checkpoints: int = 0
    bad: list[str] = field(default_factory=list)
    """What is wrong with logs that nobody has asked about yet."""

    def add(self, logs: int = 0, events: int = 0, checkpoints: int = 0) -> None:
        """What another process of this session has found."""
        self.logs += logs
        self.events += events
        self.checkpoints += checkpoints


found = Found()


def left(folder: Path) -> None:
    """A router has ended and left this log, if it got that far."""
    if not folder.is_dir() or not list_segments(folder, "events"):
        return
    found.logs += 1
    try:
        result = verify(folder)
    except LogError as error:
        found.bad.append(f"{folder}: {error}")
        return
    found.events += result.events
    found.checkpoints += len(result.checkpoints)
    if not result.ok or result.differences or result.skipped or result.unknown:
        found.bad.append(f"{folder}:\n{as_text(result)}")


def take_bad() -> list[str]:
    """What is wrong with the logs that were left since this was last asked."""
    bad, found.bad = found.bad, []
    return bad
