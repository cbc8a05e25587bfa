"""The Prometheus text format (version 0.0.4): families of samples in, text out. Nothing here knows what is counted."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram", "untyped"]
Labels = tuple[str, ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Family:
    """All samples of one name; `labels` names their labels, each sample has as many values."""

    def __init__(self, name: str, kind: Kind, text: str, labels: Labels = ()) -> None:
        assert is_name(name), name
        self.name = name
        self.kind = kind
        self.text = text
        self.labels = labels
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + by

    def set(self, *labels: str, to: float) -> None:
        self.values[labels] = to

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.kind, self.text)
        for labels, value in self.values.items():
            yield f"{self.name}{_braces(self.labels, labels)} {number(value)}"


class Histogram:
    """Counts by upper bound, per label values; bounds are in the unit that the name ends with."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: tuple[float, ...]) -> None:
        assert is_name(name), name
        self.name = name
        self.text = text
        self.labels = labels
        self.bounds = bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, *labels: str, value: float) -> None:
        counts = self.counts.get(labels)
        if counts is None:
            counts = self.counts[labels] = [0] * (len(self.bounds) + 1)
            self.sums[labels] = 0.0
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] += value

    def lines(self) -> Iterator[str]:
        yield from head(self.name, "histogram", self.text)
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_braces((*self.labels, 'le'), (*labels, number(bound)))} {total}"
            plain = _braces(self.labels, labels)
            yield f"{self.name}_sum{plain} {number(self.sums[labels])}"
            yield f"{self.name}_count{plain} {total}"


def is_name(text: str) -> bool:
    """Whether a metric may be called so."""
    return _NAME.fullmatch(text) is not None


def text_of(families: Iterable[Family | Histogram]) -> bytes:
    """The page that a scrape gets."""
    return "".join(f"{line}\n" for family in families for line in family.lines()).encode()


def head(name: str, kind: Kind, text: str) -> Iterator[str]:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {escaped}"
    yield f"# TYPE {name} {kind}"


def number(value: float) -> str:
    """Whole numbers without a fraction, and infinities as Prometheus spells them."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)


def _braces(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
