"""Which model was on which GPU: bars over time, a lane for each model that is there at once, with swaps marked.

A mark leads to its swap's page: the page's script reads `customdata` of the trace `swaps`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard.colours import css
from dashboard.figures.axes import Figure, Row, layout, literal, ms
from dashboard.units import count, duration

LANE_PX = 30
EDGES_PX = 70
BAR = 0.82
GPU_GAP = 0.45
"""Both in lanes."""
PHASES = {"loading": "loading", "ready": "loaded", "stopping": "being stopped"}
PATTERN = {"loading": "/", "stopping": "x"}
SHORT = {
    "idle": "nobody wanted what left",
    "grace_over": "its turn had come",
    "forced": "forced",
    "wish": "asked for by hand",
    "top_up": "a replica was missing",
}


def figure(
    rows: Sequence[Row], swaps: Sequence[Row], hues: Mapping[str, int], since_us: int, until_us: int
) -> Figure | None:
    """`rows` of residency_over_time, `swaps` of swaps_over_time; None where nothing was loaded."""
    if not rows:
        return None
    lanes = _lanes(rows, until_us)
    places = _places(sorted(set(lanes)))
    last = max(places.values())
    height = EDGES_PX + round(LANE_PX * (last + 1))
    traces = [
        _bars(model, phase, hues.get(model), [(row, places[lane]) for row, lane in chosen], until_us)
        for (model, phase), chosen in _grouped(rows, lanes).items()
    ]
    first_lane = {gpu: min(place for (g, _), place in places.items() if g == gpu) for gpu, _ in places}
    marked = [swap for swap in swaps if swap["gpu"] in first_lane]
    traces.append(_marks(marked, first_lane))
    middles = {gpu: [place for (g, _), place in places.items() if g == gpu] for gpu in first_lane}
    drawn = layout(since_us, until_us, height, hovermode="closest", barmode="overlay")
    drawn["yaxis"] = {
        "range": [last + 0.5, -0.5 - GPU_GAP],
        "tickvals": [sum(lanes_of) / len(lanes_of) for lanes_of in middles.values()],
        "ticktext": [f"GPU {gpu}" for gpu in middles],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    drawn["shapes"] = [_rule(place - 0.5 - GPU_GAP) for place in first_lane.values() if place > 0]
    return {"data": traces, "layout": drawn}


def _places(lanes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Where each GPU's lanes are, counted in lanes from the top; between two GPUs there is room for marks."""
    places: dict[tuple[int, int], float] = {}
    before: tuple[int, int] | None = None
    for lane in lanes:
        if before is None:
            places[lane] = 0
        else:
            places[lane] = places[before] + 1 + (GPU_GAP if lane[0] != before[0] else 0)
        before = lane
    return places


def _lanes(rows: Sequence[Row], until_us: int) -> list[tuple[int, int]]:
    """GPU and lane of each row. A model keeps its lane on a GPU, so that its colour stays in one line."""
    ends: dict[int, list[tuple[str, int]]] = {}
    # Short stays are merged, so that those of different models may seem to overlap a little.
    slack_us = (until_us - min(row["from_us"] for row in rows)) // 150
    found = []
    for row in rows:
        lanes = ends.setdefault(row["gpu"], [])
        end_us = row["until_us"] if row["until_us"] is not None else until_us
        own = next((place for place, (model, _) in enumerate(lanes) if model == row["model"]), None)
        free = next((place for place, (_, end) in enumerate(lanes) if end <= row["from_us"] + slack_us), None)
        place = own if own is not None else free if free is not None else len(lanes)
        if place == len(lanes):
            lanes.append((row["model"], end_us))
        else:
            lanes[place] = (row["model"], max(end_us, lanes[place][1]))
        found.append((row["gpu"], place))
    return found


def _grouped(
    rows: Iterable[Row], lanes: Iterable[tuple[int, int]]
) -> dict[tuple[str, str], list[tuple[Row, tuple[int, int]]]]:
    groups: dict[tuple[str, str], list[tuple[Row, tuple[int, int]]]] = {}
    for row, lane in zip(rows, lanes, strict=True):
        groups.setdefault((row["model"], row["phase"]), []).append((row, lane))
    return groups


def _bars(
    model: str, phase: str, hue: int | None, chosen: Sequence[tuple[Row, float]], until_us: int
) -> dict[str, Any]:
    ends = [row["until_us"] if row["until_us"] is not None else until_us for row, _ in chosen]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": literal(model),
        "base": [ms(row["from_us"]) for row, _ in chosen],
        "x": [max(0.0, ms(end) - ms(row["from_us"])) for (row, _), end in zip(chosen, ends, strict=True)],
        "y": [place for _, place in chosen],
        # By itself Plotly makes it of the smallest distance between two lanes.
        "width": BAR,
        "marker": {"color": css(hue), "line": {"width": 0}},
        "customdata": [_said(row) for row, _ in chosen],
        "hovertemplate": "%{customdata}<extra></extra>",
        "meta": {"model": model, "phase": phase},
    }
    if phase in PATTERN:
        trace["marker"] |= {"pattern": {"shape": PATTERN[phase], "size": 5, "solidity": 0.35, "fgcolor": css(hue)}}
        trace["marker"]["pattern"]["bgcolor"] = "var(--surface-2)"
    return trace


def _said(row: Row) -> str:
    lasts = duration(row["lasted_us"])
    if row["until_us"] is None:
        lasts += ", and it goes on"
    times = f", {row['intervals']:,} times in" if row["intervals"] > 1 else " for"
    return f"<b>{literal(row['model'])}</b><br>GPU {row['gpu']}: {PHASES[row['phase']]}{times} {lasts}"


def _marks(swaps: Sequence[Row], lane_of: Mapping[int, float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "swaps",
        "x": [ms(swap["begun_us"]) for swap in swaps],
        "y": [lane_of[swap["gpu"]] - 0.62 for swap in swaps],
        "marker": {"symbol": "triangle-down", "size": 8, "color": "var(--text)"},
        "customdata": [swap["swap"] for swap in swaps],
        "text": [_swap_said(swap) for swap in swaps],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _swap_said(swap: Row) -> str:
    if swap["swaps"] > 1:
        return (
            f"{count(swap['swaps'], 'swap')} within a moment, {duration(swap['swapping_us'])} in all<br>click: the last"
        )
    why = SHORT.get(swap["why"], str(swap["why"]))
    took = f" in {duration(swap['took_us'])}" if swap["took_us"] is not None else ", still going on"
    what = f"<b>swap {swap['swap']}</b>: to {literal(swap['target'])}{took}"
    return f"{what}<br>{literal(why)}<br>click: why, and what it cost"


def _rule(y: float) -> dict[str, Any]:
    """Between two GPUs."""
    line = {"color": "var(--line)", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
