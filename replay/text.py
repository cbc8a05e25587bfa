"""Words for people: tables, durations, times of a log. Pure."""

from collections.abc import Sequence

from projections.units import duration
from projections.units import local_moment as clock

__all__ = ["Table", "aligned", "clock", "count", "duration", "listed", "time_of_day"]

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A head, and rows of as many cells."""


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Rows as lines, each column as wide as its widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def time_of_day(at_us: int) -> str:
    """As `clock`, without the date."""
    return clock(at_us).partition(" ")[2]


def listed(names: Sequence[object], most: int = 8) -> str:
    """a, b and c; the rest is counted."""
    words = [str(name) for name in names[:most]]
    if len(names) > most:
        words.append(f"{len(names) - most} more")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def count(number: int, noun: str, plural: str = "") -> str:
    """1 request, 2 requests."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
