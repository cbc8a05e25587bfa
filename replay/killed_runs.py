"""Runs of the router that did not end in order, as the run after each of them found: killed, or with the machine.

Counterpart: `incidents` lists what ended inside a run. The last run of a log is not told of: it may still be running.
"""

from pathlib import Path

import msgspec

from eventlog import events as e
from eventlog.reader import read


class KilledRun(msgspec.Struct, kw_only=True):
    """One of them."""

    run: int
    found_us: int
    """When the next run began."""
    lost: list[int] = []
    """Requests that it left open."""


def killed_runs(path: Path) -> list[KilledRun]:
    """All of them, the first one first. Raises LogError and LogDamaged."""
    found: list[KilledRun] = []
    for event in read(path, types=("RouterStarted", "RequestLost")):
        match event:
            case e.RouterStarted() if not event.carried.clean:
                found.append(KilledRun(run=event.run - 1, found_us=event.at_us))
            case e.RequestLost() if found and found[-1].run == event.lost_run:
                found[-1].lost.append(event.rid)
    return found
