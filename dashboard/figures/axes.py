"""What figures over time share: their axis of time, and steps without data.

Moments are milliseconds since 1970, which the page's script moves into the reader's own time. Colours are names of the
style sheet in `var()`, which it looks up, so that a figure fits the light theme and the dark one.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
Figure = dict[str, Any]

SHORTEST_STEP_US = 5_000_000
"""A rate over less says nothing."""


def ms(at_us: int) -> float:
    return at_us / 1000


def literal(text: str) -> str:
    """Text as it is: Plotly takes some tags for marks."""
    return escape(text, quote=False)


def time_axis(since_us: int, until_us: int) -> dict[str, Any]:
    return {"type": "date", "range": [ms(since_us), ms(until_us)], "showgrid": False, "zeroline": False}


def layout(since_us: int, until_us: int, height: int, **more: Any) -> dict[str, Any]:
    """With one axis of time for all rows of the figure."""
    return {
        "height": height,
        "margin": {"l": 52, "r": 12, "t": 8, "b": 38},
        "hovermode": "x unified",
        "showlegend": False,
        "dragmode": "zoom",
        "xaxis": time_axis(since_us, until_us),
    } | more


def every_step(
    rows: Sequence[Row], since_us: int, until_us: int, bucket_us: int, values: Iterable[str]
) -> dict[str, list[Any]]:
    """Columns with a row for each step: `at_ms`, and these values with 0 where nothing happened."""
    by_step = {row["at_us"]: row for row in rows}
    steps = range(since_us // bucket_us * bucket_us, until_us, bucket_us)
    columns: dict[str, list[Any]] = {"at_ms": [ms(step) for step in steps]}
    for name in values:
        columns[name] = [by_step[step][name] or 0 if step in by_step else 0 for step in steps]
    return columns


def step_s(at_us: int, since_us: int, until_us: int, bucket_us: int) -> float:
    """Seconds of this step that are within the range, as the question tokens_over_time counts them."""
    inside_us = min(at_us + bucket_us, until_us) - max(at_us, since_us)
    return max(inside_us, min(bucket_us, SHORTEST_STEP_US)) / 1e6


def with_gaps(rows: Sequence[Row], bucket_us: int, values: Iterable[str]) -> dict[str, list[Any]]:
    """Columns of these rows, with a None wherever steps are missing, so that no line is drawn across."""
    columns: dict[str, list[Any]] = {"at_ms": []} | {name: [] for name in values}
    before_us = None
    for row in rows:
        if before_us is not None and row["at_us"] - before_us > 3 * bucket_us:
            columns["at_ms"].append(ms(before_us + bucket_us))
            for name in columns.keys() - {"at_ms"}:
                columns[name].append(None)
        columns["at_ms"].append(ms(row["at_us"]))
        for name in columns.keys() - {"at_ms"}:
            columns[name].append(row[name])
        before_us = row["at_us"]
    return columns


def bands(count: int, gap: float) -> list[tuple[float, float]]:
    """Domains of so many rows of a figure, from the top; `gap` is a part of the whole height."""
    height = (1 - gap * (count - 1)) / count
    tops = [1 - place * (height + gap) for place in range(count)]
    return [(max(0.0, top - height), top) for top in tops]


def axis_name(place: int) -> str:
    """`y`, `y2`, ... by the place from 0 on."""
    return "y" if place == 0 else f"y{place + 1}"


def layout_axis(place: int) -> str:
    return "yaxis" if place == 0 else f"yaxis{place + 1}"


def title(text: str, top: float) -> dict[str, Any]:
    """A line of text above a row of a figure."""
    return {
        "text": literal(text),
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": "var(--text-2)"},
    }


def line(name: str, columns: dict[str, list[Any]], value: str, colour: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": columns["at_ms"],
        "y": columns[value],
        "line": {"color": colour, "width": 1.6},
    } | more
