"""Where a recorded decision and the recomputed one part: which one, how, and in which state.

Counterpart: `verify` finds them. Pure.
"""

from typing import Any, Literal

import msgspec

from eventlog.codec import UnknownEvent
from eventlog.events import Event
from router.scheduler import State

Kind = Literal["other", "missing", "extra", "broken", "checkpoint", "carried"]
"""other: another decision than was recorded; missing: one that is not in the log; extra: one that only the log has;
broken: the rules break an invariant on this fact; checkpoint: another state than the log's checkpoint;
carried: the next run began with something else than this one left."""

MEANING: dict[Kind, str] = {
    "other": "the decision is another one",
    "missing": "a decision is not in the log",
    "extra": "the log has a decision that is not made again",
    "broken": "the rules break an invariant on this fact",
    "checkpoint": "the state is not that of the checkpoint",
    "carried": "the run began with something else than the one before had left",
}


class FieldDifference(msgspec.Struct, frozen=True):
    """One value, by its path such as `victims[0].age_us`; None where a side has none."""

    field: str
    recorded: Any
    recomputed: Any


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The place, both sides and what surrounds them."""

    seq: int
    """Of the recorded line; of the fact, where a decision is missing or the rules broke."""
    at_us: int
    run: int
    kind: Kind
    cause: int
    """seq of the fact that the decision follows; 0 where there is none."""
    recorded: dict[str, Any] | None
    recomputed: dict[str, Any] | None
    fields: list[FieldDifference]
    policy_version: int | None
    """That the run was recorded under; None where the log does not say."""
    error: str = ""
    state: State | None = None
    """What the decision was made from: all that the log says up to there, folded."""


def as_fields(event: Event) -> dict[str, Any]:
    """An event as plain values, its type first."""
    raw = event.raw if isinstance(event, UnknownEvent) else msgspec.json.encode(event)
    fields: dict[str, Any] = msgspec.json.decode(raw)
    fields.pop("crc", None)
    return fields


def compare(recorded: Any, recomputed: Any, path: str = "") -> list[FieldDifference]:
    """Every place in which two plain values differ; lists are compared place by place."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        found = []
        for key in [*recorded, *(key for key in recomputed if key not in recorded)]:
            inner = f"{path}.{key}" if path else str(key)
            found += compare(recorded.get(key), recomputed.get(key), inner)
        if not found and list(recorded) != list(recomputed):
            found.append(FieldDifference(f"{path or 'top'}: order of keys", list(recorded), list(recomputed)))
        return found
    if isinstance(recorded, list) and isinstance(recomputed, list):
        found = []
        for index in range(max(len(recorded), len(recomputed))):
            ours = recomputed[index] if index < len(recomputed) else None
            theirs = recorded[index] if index < len(recorded) else None
            found += compare(theirs, ours, f"{path}[{index}]")
        return found
    if type(recorded) is type(recomputed) and recorded == recomputed:
        return []
    return [FieldDifference(path, recorded, recomputed)]
