"""The tables, each in a file of its own under sql/: how it is made, fed from a batch of events, seeded and cut.

A file begins with a sentence on what the table is; then come its parts, each under a line of its own:

    -- create                                  statements that make the table and its views
    -- apply events: SwapBegun SwapFinished    statements that take `batch`, new lines of these types (`*`: of all) in
                                               that stream, into the table; run when there is one. There can be several
                                               such parts, which run in their order. Types in brackets are in `batch`
                                               as well, and are no reason to run it
    -- seed                                    for a log whose beginning was cut: takes `checkpoint(seq, state)`, the
                                               scheduler's state at its first line
    -- prune                                   drops what ended before `horizon(events, observations)`: the first
                                               seq of each stream that the log still has

A table depends on one stream only, so it does not matter how the two interleave.
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from eventlog.segments import Stream

ORDER = (
    "runs",
    "gpus",
    "settings",
    "model_configs",
    "swaps",
    "swap_candidates",
    "replicas",
    "crashes",
    "queue_depth",
    "requests",
    "releases",
    "operations",
    "cache_moves",
    "decisions",
    "token_seconds",
    "gpu_samples",
    "slot_samples",
    "log_lines",
)
"""Requests look up the replica and the swap that served them, and when a lost run ended; crashes, the model of a
replica; the queue's depth, where a request was before this batch."""

_PART = re.compile(r"^-- (create|seed|prune|apply (events|observations): (.+))$", re.MULTILINE)


class Step(NamedTuple):
    """Statements that take lines of these types into a table if there is one of a type that `causes` them."""

    causes: frozenset[str]
    types: frozenset[str]
    sql: str

    @property
    def words(self) -> frozenset[str]:
        """Every word of it: a field that is not among them need not be read."""
        return frozenset(re.findall(r"\w+", self.sql))

    def wants(self, types: frozenset[str]) -> bool:
        return "*" in self.causes or not self.causes.isdisjoint(types)


@dataclass
class Definition:
    """One file of sql/: the steps that feed it from one stream, and its other parts by name."""

    name: str
    stream: Stream = "events"
    steps: list[Step] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)


@cache
def definitions() -> tuple[Definition, ...]:
    """Every table, in the order in which a batch is applied."""
    return tuple(_read(name) for name in ORDER)


@cache
def fingerprint() -> str:
    """Changes when any table is made or fed in another way: a database of another fingerprint is rebuilt."""
    text = "".join(_text(name) for name in ORDER)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _text(name: str) -> str:
    return (files("projections") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def _read(name: str) -> Definition:
    found = Definition(name)
    heading, *pieces = _PART.split(_text(name))
    assert heading.startswith("-- "), f"{name}.sql begins with a sentence on what the table is"
    for part, stream, types, sql in zip(*[iter(pieces)] * 4, strict=True):
        if stream:
            found.stream = "events" if stream == "events" else "observations"
            causes, _, besides = types.removesuffix(")").partition(" (")
            found.steps.append(Step(frozenset(causes.split()), frozenset([*causes.split(), *besides.split()]), sql))
        else:
            found.parts[part] = sql
    return found
