"""Numbers in the form in which people read them, for templates and figures. static/lib/format.js does the same there.

A number that is not known is a dash, never 0.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

UNKNOWN = "–"


def duration(us: float | None) -> str:
    """Microseconds: `850 ms`, `12.4 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if us is None:
        return UNKNOWN
    if us < 0:
        return f"-{duration(-us)}"
    if us < 1000:
        return f"{round(us)} µs" if us else "0 s"
    if us < 999_500:
        return f"{us / 1e3:.1f} ms" if us < 10_000 else f"{round(us / 1e3)} ms"
    if us < 59_950_000:
        return f"{us / 1e6:.2f} s" if us < 9_995_000 else f"{us / 1e6:.1f} s"
    seconds = round(us / 1e6)
    if seconds < 3600:
        return _parts(seconds // 60, "min", seconds % 60, "s")
    minutes = round(us / 60e6)
    if minutes < 24 * 60:
        return _parts(minutes // 60, "h", minutes % 60, "min")
    hours = round(us / 3600e6)
    return _parts(hours // 24, "d", hours % 24, "h")


def count(number: float | None) -> str:
    """`12,345`, and from a million on `1.23 M`."""
    if number is None:
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if abs(number) >= limit:
            return f"{number / limit:.3g} {unit}" if abs(number) < 999.5 * limit else f"{number / limit:,.0f} {unit}"
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:.3g}"


def percent(share: float | None) -> str:
    """Of a share between 0 and 1. Never 100 % unless it is all, nor 0 % unless it is nothing."""
    if share is None:
        return UNKNOWN
    value = share * 100
    if 99.9 < value < 100:
        return ">99.9 %"
    if 0 < value < 0.1:
        return "<0.1 %"
    return f"{value:.0f} %" if value == round(value) else f"{value:.1f} %"


def mib(number: float | None) -> str:
    """Memory: MiB, and GiB from 1024 of them on."""
    if number is None:
        return UNKNOWN
    return f"{number:.0f} MiB" if number < 1024 else f"{number / 1024:.1f} GiB"


def rate(per_s: float | None) -> str:
    """Something per second, without the unit of what."""
    if per_s is None:
        return UNKNOWN
    return f"{per_s:.1f}/s" if per_s < 100 else f"{per_s:,.0f}/s"


def moment(us: int | None) -> str | Markup:
    """A moment in microseconds since 1970. UTC without scripts; base.js makes the reader's own time of it."""
    if us is None:
        return UNKNOWN
    at = datetime.fromtimestamp(us / 1e6, UTC)
    shown = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup(f'<time datetime="{escape(at.isoformat())}" data-us="{us}">{escape(shown)}</time>')


def _parts(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "count": count,
    "percent": percent,
    "mib": mib,
    "rate": rate,
    "moment": moment,
}
