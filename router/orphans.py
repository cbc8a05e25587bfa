"""Children that an earlier run left behind: found by what only they can bear, and ended before anything is loaded.

A router that is killed outright cannot end its children. Most die with it (`exec_child.py`), but what a wrapper script
started lives on and holds its GPU. An orphan is ours if its environment names this router and another run, if its pid
and start time are the ones in the log, or if it belongs to the session of such a process. Anything else is a stranger
and left alone.

Call it before the first spawn. It knows neither models nor events, only processes.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eventlog.events import Orphan
from router import proc
from router.spawn import MARKER

log = logging.getLogger("llama_router.orphans")

GRACE_S = 3.0
"""From SIGTERM to SIGKILL. Nobody waits for an answer of an orphan any more."""
LIMIT_S = 15.0
"""After SIGKILL; a process that hangs in a driver may take for ever."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One process that was ended, or that outlived even SIGKILL."""

    pid: int
    replica: str
    """Empty when nothing tells."""
    killed: bool
    """SIGTERM was not enough."""
    gone: bool


def marker(directory: str, run: int, replica: str) -> str:
    """The value of the environment marker of one child."""
    return f"{directory}:{run}:{replica}"


def end_orphans(
    known: Sequence[Orphan], directory: str, *, grace_s: float = GRACE_S, limit_s: float = LIMIT_S
) -> list[Ended]:
    """End every child of earlier runs of the router `directory`, and return when they are gone. Blocks.

    `known` are the children that the log says were alive. An empty list means that there was no orphan.
    """
    found = _find(known, directory)
    # A descriptor holds on to the process itself: its number may go to a stranger at any time, the descriptor never.
    held = {pid: descriptor for pid in found if (descriptor := _hold(found[pid])) is not None}
    try:
        left = _signal(held, signal.SIGTERM, grace_s)
        killed = set(left)
        left = _signal({pid: held[pid] for pid in left}, signal.SIGKILL, limit_s)
    finally:
        for descriptor in held.values():
            os.close(descriptor)
    ended = []
    for pid in held:
        one = Ended(pid=pid, replica=found[pid].replica, killed=pid in killed, gone=pid not in left)
        ended.append(one)
        if not one.gone:
            log.error("process %d of an earlier run does not die, not even by SIGKILL: it may hold a GPU", pid)
    return ended


@dataclass(frozen=True, slots=True)
class _Found:
    stat: proc.Stat
    replica: str


def _find(known: Sequence[Orphan], directory: str) -> dict[int, _Found]:
    everyone = [one for one in proc.every() if one.alive and one.pid != os.getpid()]
    ours: dict[int, _Found] = {}
    for one in everyone:
        bears = proc.environment(one.pid).get(MARKER, "")
        if bears.startswith(f"{directory}:"):
            ours[one.pid] = _Found(one, bears.split(":", 2)[2])
    by_number = {(orphan.pid, orphan.started_ticks): orphan.replica for orphan in known}
    for one in everyone:
        replica = by_number.get((one.pid, one.started_ticks))
        if replica is not None:
            ours.setdefault(one.pid, _Found(one, replica))
    # A wrapper may have cleared the environment of what it started, which is still in the session that it led.
    sessions = {pid: found.replica for pid, found in ours.items() if found.stat.session == pid}
    for one in everyone:
        if one.session in sessions:
            ours.setdefault(one.pid, _Found(one, sessions[one.session]))
    return ours


def _hold(found: _Found) -> int | None:
    """A descriptor of this very process; None when it is gone already."""
    try:
        descriptor = os.pidfd_open(found.stat.pid)
    except ProcessLookupError:
        return None
    now = proc.stat(found.stat.pid)
    if now is None or now.started_ticks != found.stat.started_ticks:
        os.close(descriptor)
        return None
    return descriptor


def _signal(held: dict[int, int], number: signal.Signals, wait_s: float) -> set[int]:
    """Send a signal to each and wait; the pids that are still there when time is up."""
    for descriptor in held.values():
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            continue
    return _wait(held, wait_s)


def _wait(held: dict[int, int], wait_s: float) -> set[int]:
    poll = select.poll()
    pid_of = {descriptor: pid for pid, descriptor in held.items()}
    for descriptor in pid_of:
        poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + wait_s
    left = set(held)
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remaining_s * 1000):
            poll.unregister(descriptor)
            left.discard(pid_of[descriptor])
    return left
