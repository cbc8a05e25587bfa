"""Words for people: tables, durations, times of a log. Pure."""

from collections.abc import Sequence
from datetime import datetime

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


def duration(us: int) -> str:
    """1.25 s, 80 ms, 3 min 20 s, 2 h 5 min."""
    if us < 0:
        return f"-{duration(-us)}"
    if us < 1_000:
        return f"{us} us"
    if us < 1_000_000:
        return f"{us / 1_000:.3g} ms"
    if us < 120_000_000:
        return f"{us / 1e6:.2f}".rstrip("0").rstrip(".") + " s"
    minutes, seconds = divmod(us // 1_000_000, 60)
    if minutes < 120:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def clock(at_us: int) -> str:
    """A local time of day to the millisecond, with its date."""
    seconds, us = divmod(at_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}.{us // 1000:03d}"


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
