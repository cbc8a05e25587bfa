"""Values with their units, as pages show them. Pure. What is not known is a dash.

Counterpart: `words`, which says in sentences what happened.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from projections.units import UNKNOWN, duration, percent

__all__ = [
    "UNKNOWN",
    "cost",
    "count",
    "duration",
    "gpus",
    "iso",
    "listed",
    "mib",
    "moment",
    "number",
    "percent",
    "rate",
    "signed_percent",
    "size",
]


def moment(at_us: int | None) -> str:
    """A date and time in UTC, to the second. Pages put the local time of the browser in its place."""
    return UNKNOWN if at_us is None else f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(at_us: int) -> str:
    """The same for machines, to the millisecond."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float | None) -> str:
    """Whole numbers whole and with separators, others with three digits that matter."""
    if value is None:
        return UNKNOWN
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(value: int | None, noun: str, plural: str = "") -> str:
    """1 request, 2 requests."""
    return UNKNOWN if value is None else f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def rate(per_s: float | None, unit: str = "tokens") -> str:
    """83 tokens/s."""
    return UNKNOWN if per_s is None else f"{number(per_s)} {unit}/s"


def signed_percent(share: float | None) -> str:
    """+4 %, −12 %."""
    if share is None:
        return UNKNOWN
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def size(octets: float | None) -> str:
    """512 B, 1.5 KiB, 20 MiB."""
    if octets is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if octets < 1024:
            return f"{number(round(octets, 1) if octets < 10 else round(octets))} {unit}"
        octets /= 1024
    return f"{number(round(octets, 1))} GiB"


def mib(value: float | None) -> str:
    """Memory of GPUs: MiB, or GiB from 10 of them on."""
    if value is None:
        return UNKNOWN
    return f"{value / 1024:.3g} GiB" if value >= 10 * 1024 else f"{number(value)} MiB"


def cost(dollars: float | None) -> str:
    """$1.20, $0.00042."""
    if dollars is None:
        return UNKNOWN
    return f"${dollars:,.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.2g}"


def listed(names: Sequence[object], most: int = 8) -> str:
    """a, b and c; the rest is counted."""
    words = [str(name) for name in names[:most]]
    if len(names) > most:
        words.append(f"{len(names) - most:,} more")
    if len(words) < 2:
        return words[0] if words else "nobody"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def gpus(numbers: Sequence[int] | None) -> str:
    """GPU 0, GPUs 0 and 1, no GPU."""
    if numbers is None:
        return UNKNOWN
    if not numbers:
        return "no GPU"
    return f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {listed(numbers)}"
