"""The tables, each in a file of its own under sql/: how it is made, fed from a batch of events, seeded and cut.

A file begins with a sentence on what the table is; then come its parts, each under a line of its own:

    -- create                                  statements that make the table and its views
    -- apply events: SwapBegun SwapFinished    statements that take `batch`, new lines of that stream, into the table;
                                               run when it holds one of these types (`*`: always)
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

from eventlog.segments import Stream

ORDER = (
    "runs",
    "gpus",
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

_PART = re.compile(r"^-- (create|seed|prune|apply (events|observations): (.+))$")


@dataclass
class Definition:
    """One file of sql/. `types` feed it, from one stream."""

    name: str
    stream: Stream = "events"
    types: frozenset[str] = frozenset()
    parts: dict[str, str] = field(default_factory=dict)

    def wants(self, types: set[str]) -> bool:
        return "*" in self.types or not self.types.isdisjoint(types)


@cache
def definitions() -> tuple[Definition, ...]:
    """Every table, in the order in which a batch is applied."""
    return tuple(_read(name) for name in ORDER)


@cache
def fingerprint() -> str:
    """Changes when any table is made or fed in another way: a database of another fingerprint is rebuilt."""
    text = "".join(_text(name) for name in ORDER)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def words(stream: Stream) -> frozenset[str]:
    """Every word of the SQL that takes batches of a stream: a field that is not among them need not be read."""
    text = "".join(each.parts.get("apply", "") for each in definitions() if each.stream == stream)
    return frozenset(re.findall(r"\w+", text))


def _text(name: str) -> str:
    return (files("projections") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def _read(name: str) -> Definition:
    found = Definition(name)
    part = "title"
    for line in _text(name).splitlines(keepends=True):
        match = _PART.match(line.rstrip())
        if match is None:
            found.parts[part] = found.parts.get(part, "") + line
            continue
        part = match[1].split()[0]
        if match[2]:
            found.stream = "events" if match[2] == "events" else "observations"
            found.types = frozenset(match[3].split())
    return found
