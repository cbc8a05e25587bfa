"""How many requests waited and ran over time, and below it how long those that arrived then waited."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from dashboard.figures.axes import Figure, Row, bands, layout, line, ms, title, with_gaps
from dashboard.units import duration

HEIGHT_PX = 300


def figure(depth: Sequence[Row], waits: Sequence[Row], since_us: int, until_us: int, bucket_us: int) -> Figure | None:
    """`depth` of queue_over_time, `waits` of waits_over_time; None where there were no requests."""
    if not depth and not waits:
        return None
    upper, lower = bands(2, 0.16)
    drawn = layout(since_us, until_us, HEIGHT_PX)
    drawn["margin"] |= {"t": 24}
    drawn["xaxis"] |= {"anchor": "y2"}
    most = max([1, *(max(row["queued_max"], row["in_flight_max"]) for row in depth)])
    # Halves of a request are no numbers to look at.
    drawn["yaxis"] = _axis(upper, range=[0, most * 1.08], **({"dtick": 1} if most < 5 else {"tickformat": "~s"}))
    unit, unit_us = _unit(waits)
    drawn["yaxis2"] = _axis(lower, rangemode="tozero", ticksuffix=f" {unit}")
    drawn["annotations"] = [
        title("requests, the most in each step", upper[1]),
        title("wait before the start", lower[1]),
    ]
    steps = _held(depth, until_us, bucket_us)
    columns = with_gaps([_wait(row, unit_us) for row in waits], bucket_us, ("p50", "p95", "p50_said", "p95_said"))
    quantiles = (("half of them", "p50", "var(--hue-2)"), ("95 %", "p95", "var(--hue-4)"))
    traces = [
        line(
            "waiting",
            steps,
            "queued",
            "var(--warn)",
            fill="tozeroy",
            fillcolor="var(--warn-fill)",
            hovertemplate="%{y} waiting<extra></extra>",
        ),
        line("running", steps, "in_flight", "var(--accent)", hovertemplate="%{y} running<extra></extra>"),
    ]
    for trace in traces:
        trace["line"]["shape"] = "hv"
    for name, value, colour in quantiles:
        said = columns[f"{value}_said"]
        told = f"{name} waited at most %{{customdata}}<extra></extra>"
        traces.append(
            line(name, columns, value, colour, yaxis="y2", customdata=said, hovertemplate=told)
            | {"mode": "lines+markers", "marker": {"size": 4, "color": colour}}
        )
    return {"data": traces, "layout": drawn}


def _held(depth: Sequence[Row], until_us: int, bucket_us: int) -> dict[str, list[Any]]:
    """The most of each step; between steps in which nothing changed, what was there at the end of the last."""
    columns: dict[str, list[Any]] = {"at_ms": [], "queued": [], "in_flight": []}

    def add(at_us: int, queued: int, in_flight: int) -> None:
        columns["at_ms"].append(ms(at_us))
        columns["queued"].append(queued)
        columns["in_flight"].append(in_flight)

    for row, following in zip_longest(depth, depth[1:]):
        add(row["at_us"], row["queued_max"], row["in_flight_max"])
        end_us = row["at_us"] + bucket_us
        if following is None or following["at_us"] > end_us:
            add(min(end_us, until_us), row["queued_last"], row["in_flight_last"])
        if following is None and end_us < until_us:
            add(until_us, row["queued_last"], row["in_flight_last"])
    return columns


def _unit(waits: Sequence[Row]) -> tuple[str, int]:
    """Of the axis of waits, and its microseconds."""
    longest_us = max((row["wait_p95_us"] or 0 for row in waits), default=0)
    return ("s", 1_000_000) if longest_us >= 1_000_000 else ("ms", 1000)


def _wait(row: Row, unit_us: int) -> Row:
    told = {"at_us": row["at_us"]}
    for name in ("p50", "p95"):
        wait_us = row[f"wait_{name}_us"]
        told |= {name: None if wait_us is None else wait_us / unit_us, f"{name}_said": duration(wait_us)}
    return told


def _axis(domain: tuple[float, float], **more: Any) -> dict[str, Any]:
    return {"domain": list(domain), "fixedrange": True, "zeroline": False, "nticks": 4} | more
