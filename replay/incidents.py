"""The crashes, failed loads and stalls of a log, numbered in their order, and whom each of them was serving.

Counterpart: `postmortem` tells the story of one of them.
"""

from pathlib import Path
from typing import Literal

import msgspec

from eventlog import events as e
from eventlog.reader import read
from replay.lines import events_segments

Kind = Literal["crash", "load_failure", "stall"]

_TYPES = (
    "ReplicaSpawnOrdered",
    "UpstreamLost",
    "ReplicaAnswered",
    "ReplicaCrashed",
    "ReplicaLoadFailed",
    "ReplicaStalled",
)


class Incident(msgspec.Struct, kw_only=True):
    """One of them; `number` counts from the beginning of the log that is there."""

    number: int
    seq: int
    at_us: int
    run: int
    kind: Kind
    replica: str
    model: str
    gpus: tuple[int, ...] = ()
    cause: str = ""
    """ReplicaCrashed.cause_of_exit, ReplicaLoadFailed.kind, or stall."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    lasted_us: int = 0
    """How long it had been up, how long the load had taken, or how long it had been silent."""
    last_lines: list[str] = []
    rids: list[int] = []
    """Requests that it was serving."""

    @property
    def signature(self) -> str:
        """What two incidents with the same reason have in common: cause, exit, and the words of the reason."""
        words = "".join(" " if letter.isdigit() else letter for letter in self.reason)
        return f"{self.cause} {self.exit_code or self.signal or ''} {' '.join(words.split())}".strip()


def incidents(path: Path) -> list[Incident]:
    """All of them. Raises LogError, also where there is no log, and LogDamaged."""
    events_segments(path)
    found: list[Incident] = []
    gpus: dict[str, tuple[int, ...]] = {}
    lost: dict[str, list[int]] = {}
    for event in read(path, types=_TYPES):
        match event:
            case e.ReplicaSpawnOrdered():
                gpus[event.replica] = event.gpus
            case e.UpstreamLost():
                lost.setdefault(event.replica, []).append(event.rid)
            case e.ReplicaAnswered():
                lost.pop(event.replica, None)
            case e.ReplicaCrashed() | e.ReplicaLoadFailed() | e.ReplicaStalled():
                found.append(_incident(event, len(found) + 1, gpus.get(event.replica, ())))
    for incident in found:
        incident.rids = list(dict.fromkeys([*incident.rids, *lost.get(incident.replica, ())]))
    return found


def model_of(replica: str) -> str:
    """A replica's id begins with the name of its model."""
    return replica.rpartition("#")[0]


def _incident(
    event: e.ReplicaCrashed | e.ReplicaLoadFailed | e.ReplicaStalled, number: int, gpus: tuple[int, ...]
) -> Incident:
    incident = Incident(
        number=number,
        seq=event.seq,
        at_us=event.at_us,
        run=event.run,
        kind="stall",
        replica=event.replica,
        model=model_of(event.replica),
        gpus=gpus,
    )
    match event:
        case e.ReplicaStalled():
            incident.cause, incident.lasted_us, incident.rids = "stall", event.silent_us, list(event.rids)
            return incident
        case e.ReplicaCrashed():
            incident.kind, incident.cause, incident.lasted_us = "crash", event.cause_of_exit, event.uptime_us
        case e.ReplicaLoadFailed():
            incident.kind, incident.cause, incident.lasted_us = "load_failure", event.kind, event.took_us
    incident.exit_code, incident.signal = event.exit_code, event.signal
    incident.reason, incident.last_lines = event.reason, list(event.last_lines)
    return incident
