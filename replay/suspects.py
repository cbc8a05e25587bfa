"""Who may be to blame for a crash: conversations, the model, the GPU's memory, each with its evidence and points.

The points only order the list: what was seen more often, and in the company of less that is innocent, comes first.
Counterpart: `postmortem`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from eventlog import events as e
from eventlog.reader import read
from replay.incidents import Incident
from replay.text import count

if TYPE_CHECKING:
    from replay.postmortem import MemorySample

FULL_PERCENT = 95
MEMORY_CAUSES = ("gpu_oom",)
HOST_CAUSES = ("host_oom",)
SETUP_CAUSES = ("missing_file", "bad_flag", "bad_model")
KINDS_OF_COMPANY: tuple[tuple[Literal["conversation", "client"], int], ...] = (("conversation", 30), ("client", 15))


class Suspect(msgspec.Struct, kw_only=True):
    """One that may be to blame."""

    kind: Literal["request", "conversation", "client", "model", "gpu memory", "main memory", "signal", "configuration"]
    name: str
    points: int
    evidence: list[str]


def rank(
    path: Path, found: Sequence[Incident], incident: Incident, memory: Mapping[int, "Sequence[MemorySample]"]
) -> list[Suspect]:
    """The suspects, most likely first. `found`: every incident of the log; `memory`: that of its GPUs before."""
    suspects = [
        *_by_cause(incident),
        *_by_memory(incident, memory),
        *_by_company(path, found, incident),
        *_by_model(found, incident),
    ]
    return sorted(suspects, key=lambda suspect: (-suspect.points, suspect.kind, suspect.name))


def _by_cause(incident: Incident) -> list[Suspect]:
    said = incident.reason or incident.cause
    if incident.cause in SETUP_CAUSES:
        evidence = [f"the load failed by itself: {said}"]
        return [Suspect(kind="configuration", name=incident.model, points=90, evidence=evidence)]
    if incident.cause in MEMORY_CAUSES:
        name = ", ".join(f"GPU {gpu}" for gpu in incident.gpus) or "GPU"
        return [Suspect(kind="gpu memory", name=name, points=80, evidence=[f"the process said so: {said}"])]
    if incident.cause in HOST_CAUSES:
        return [Suspect(kind="main memory", name="this machine", points=60, evidence=[f"how it ended: {said}"])]
    if incident.cause == "killed":
        # Nobody ends by SIGKILL of itself, but a kernel that kills for want of memory is not always seen to do it.
        evidence = ["somebody ended it, or the kernel for want of memory: no sign of that in the log"]
        return [Suspect(kind="signal", name="SIGKILL", points=60, evidence=evidence)]
    return []


def _by_memory(incident: Incident, memory: Mapping[int, "Sequence[MemorySample]"]) -> list[Suspect]:
    suspects = []
    for gpu, samples in sorted(memory.items()):
        known = [sample for sample in samples if sample.used_mib >= 0 and sample.total_mib > 0]
        if not known:
            continue
        last = known[-1]
        percent = 100 * last.used_mib // last.total_mib
        if percent >= FULL_PERCENT:
            evidence = [f"{last.used_mib} of {last.total_mib} MiB were in use just before ({percent} %)"]
            suspects.append(Suspect(kind="gpu memory", name=f"GPU {gpu}", points=30, evidence=evidence))
    return suspects


def _by_company(path: Path, found: Sequence[Incident], incident: Incident) -> list[Suspect]:
    """Who was being served, now and at the other incidents up to now."""
    past = [each for each in found if each.number <= incident.number and each.rids]
    if not incident.rids:
        return []
    arrivals = _arrivals(path, {rid for each in past for rid in each.rids})
    alone = len(incident.rids) == 1
    suspects = []
    for rid in incident.rids:
        times = [each for each in past if rid in each.rids]
        evidence = [f"it was being served{', and nobody else was' if alone else ''}"]
        points = 25 if alone else 10
        if len(times) > 1:
            evidence.append(f"it was being served at {len(times)} incidents: {_numbers(times)}")
            points += 40
        suspects.append(Suspect(kind="request", name=str(rid), points=points, evidence=evidence))
    for kind, weight in KINDS_OF_COMPANY:
        for name, rids_at in _seen(past, arrivals, kind).items():
            rids = {rid for rids in rids_at.values() for rid in rids}
            if incident.number not in rids_at or len(rids_at) < 2 or len(rids) < 2:
                continue
            times = [each for each in past if each.number in rids_at]
            evidence = [f"{len(rids)} of its requests were being served at {len(times)} incidents: {_numbers(times)}"]
            others = len(past) - len(times)
            evidence += [f"{count(others, 'other incident')} without it"] if others else []
            points = weight + 10 * len(times) - 5 * others
            suspects.append(Suspect(kind=kind, name=name, points=points, evidence=evidence))
    return suspects


def _seen(
    past: Sequence[Incident], arrivals: Mapping[int, e.RequestArrived], kind: Literal["conversation", "client"]
) -> dict[str, dict[int, list[int]]]:
    """Per conversation or client: its requests at each incident, by the incident's number."""
    seen: dict[str, dict[int, list[int]]] = {}
    for each in past:
        for rid in each.rids:
            name = getattr(arrivals.get(rid), kind, "")
            if name:
                seen.setdefault(name, {}).setdefault(each.number, []).append(rid)
    return seen


def _by_model(found: Sequence[Incident], incident: Incident) -> list[Suspect]:
    same = [each for each in found if each.model == incident.model and each.number < incident.number]
    others = [each for each in found if each.model != incident.model and each.number < incident.number]
    evidence = []
    points = 5
    if same:
        evidence.append(f"{count(len(same), 'earlier incident')} of it: {_numbers(same)}")
        points += 8 * min(len(same), 5)
        alike = [each for each in same if each.signature == incident.signature]
        if alike:
            evidence.append(f"{len(alike)} for the same reason: {incident.reason or incident.cause}")
            points += 10
        rids = {rid for each in same for rid in each.rids}
        if rids and not rids & set(incident.rids):
            evidence.append("with other requests than now")
            points += 10
    else:
        evidence.append("it is the one that ended; nothing like it before in this log")
    if others:
        evidence.append(f"{count(len(others), 'incident')} of other models")
    return [Suspect(kind="model", name=incident.model, points=points, evidence=evidence)]


def _arrivals(path: Path, rids: set[int]) -> dict[int, e.RequestArrived]:
    arrived = read(path, types=("RequestArrived",))
    return {event.rid: event for event in arrived if isinstance(event, e.RequestArrived) and event.rid in rids}


def _numbers(times: Sequence[Incident]) -> str:
    numbers = [str(each.number) for each in times[-8:]]
    return ", ".join(numbers) if len(times) <= 8 else f"..., {', '.join(numbers)}"
