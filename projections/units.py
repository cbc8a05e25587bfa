"""Values of columns as people read them: pages and the tables of `llama-router sql`. Pure."""

from datetime import datetime
from decimal import Decimal
from typing import Any

UNKNOWN = "–"
"""For None: not known, or not yet."""

MOMENTS_FROM_US = 1_000_000_000_000_000
"""In September 2001, or 31 years: a moment of a log is later, a time that something took is shorter."""

_MINUTE_US = 60_000_000
_HOUR_US = 60 * _MINUTE_US
_DAY_US = 24 * _HOUR_US


def by_name(column: str, value: Any) -> str | None:
    """A number with the unit that ends the name of its column; None where there is no such unit to show it in."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        return None
    if column.endswith("_us") and value in (float("inf"), float("-inf")):
        return None
    if column.endswith("_us"):
        return local_moment(int(value)) if value >= MOMENTS_FROM_US else duration(float(value))
    return percent(float(value)) if column == "share" or column.endswith("_share") else None


def local_moment(at_us: int) -> str:
    """Date and time of day in the time zone of this machine, to the millisecond."""
    seconds, us = divmod(at_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}.{us // 1000:03d}"


def duration(us: float | None) -> str:
    """850 µs, 80 ms, 1.25 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    if us is None:
        return UNKNOWN
    if us < 0:
        return f"−{duration(-us)}"
    if us < 1_000:
        return f"{us:.0f} µs"
    if us < 999_500:
        return f"{us / 1_000:.3g} ms"
    if us < 2 * _MINUTE_US:
        return f"{us / 1e6:.2f}".rstrip("0").rstrip(".") + " s"
    if us < 2 * _HOUR_US:
        minutes, seconds = divmod(round(us / 1e6), 60)
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    if us < 2 * _DAY_US:
        hours, minutes = divmod(round(us / _MINUTE_US), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(us / _HOUR_US), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def percent(share: float | None) -> str:
    """A share of 1 as 42 %."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.0f} %" if share in (0, 1) or abs(share) >= 0.1 else f"{100 * share:.2g} %"
