"""What a simulation says beside what happened: waits, swaps and loading, waits per model; and a sweep's trade-off."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

HAPPENED, BEFORE, AFTER = "what happened", "simulated as it was", "simulated with the change"
COLOURS = {HAPPENED: "var(--text-3)", BEFORE: "var(--hue-1)", AFTER: "var(--accent)"}
MODELS_SHOWN = 20

Row = Mapping[str, Any]


def _sides(recorded: Row | None, before: Row, after: Row | None) -> list[tuple[str, Row]]:
    sides = [(HAPPENED, recorded), (BEFORE, before), (AFTER, after)]
    return [(name, side) for name, side in sides if side is not None]


def waits(recorded: Row | None, before: Row, after: Row | None) -> dict[str, Any]:
    """Mean and quantiles of the wait, in seconds."""
    fields = (("wait_mean_s", "mean"), ("wait_p50_s", "half"), ("wait_p95_s", "95 %"), ("wait_p99_s", "99 %"))
    traces = [
        _bars(name, [words for _, words in fields], [side[field] for field, _ in fields], "s")
        for name, side in _sides(recorded, before, after)
    ]
    return {"data": traces, "layout": _layout("wait, s")}


def costs(recorded: Row | None, before: Row, after: Row | None) -> dict[str, Any]:
    """Swaps on the left axis, seconds of loading on the right one."""
    traces = []
    for name, side in _sides(recorded, before, after):
        traces.append(_bars(name, ["swaps"], [side["swaps"]], ""))
        loading = _bars(name, ["loading, s"], [side["load_s"]], "s") | {"yaxis": "y2", "showlegend": False}
        traces.append(loading | {"offsetgroup": name})
        traces[-2]["offsetgroup"] = name
    layout = _layout("")
    layout["yaxis2"] = dict(layout["yaxis"]) | {"overlaying": "y", "side": "right", "showgrid": False}
    return {"data": traces, "layout": layout}


def models(before: Row, after: Row) -> dict[str, Any]:
    """Mean wait of each model, the longest first."""
    old, new = before["wait_mean_by_model_s"], after["wait_mean_by_model_s"]
    names = sorted({*old, *new}, key=lambda name: (-max(old.get(name, 0), new.get(name, 0)), name))[:MODELS_SHOWN]
    short = [escape(name if len(name) <= 24 else f"{name[:14]}…{name[-8:]}", quote=False) for name in names]
    # Two long names may be alike once they are short: places tell them apart.
    places = list(range(len(names)))
    traces = [
        _bars(name, places, [waits.get(model, 0) for model in names], "s")
        | {"text": [escape(model, quote=False) for model in names], "textposition": "none"}
        | {"hovertemplate": f"%{{text}}<br>%{{y:.3~g}} s<extra>{name}</extra>"}
        for name, waits in ((BEFORE, old), (AFTER, new))
    ]
    layout = _layout("mean wait, s")
    layout["xaxis"] |= {"type": "linear", "tickvals": places, "ticktext": short, "automargin": True}
    return {"data": traces, "layout": layout | {"height": 320}}


def trade_off(trials: Sequence[Row], recommended: int) -> dict[str, Any]:
    """Mean wait over time spent loading, a point for each combination of settings."""
    groups: dict[str, list[Row]] = {"others": [], "no other is better": [], "as it is": [], "recommended": []}
    for place, trial in enumerate(trials):
        if place == recommended:
            groups["recommended"].append(trial)
        elif not trial["sets"]:
            groups["as it is"].append(trial)
        else:
            groups["no other is better" if trial["best"] else "others"].append(trial)
    looks = {
        "others": ("var(--text-3)", 7, "circle"),
        "no other is better": ("var(--accent)", 9, "circle"),
        "as it is": ("var(--warn)", 13, "x"),
        "recommended": ("var(--ok)", 15, "star"),
    }
    traces = []
    for name, group in groups.items():
        colour, size, symbol = looks[name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [trial["measures"]["load_s"] for trial in group],
                "y": [trial["measures"]["wait_mean_s"] for trial in group],
                "text": [escape(", ".join(trial["sets"]) or "as it is", quote=False) for trial in group],
                "marker": {"color": colour, "size": size, "symbol": symbol},
                "hovertemplate": "%{text}<br>mean wait %{y:.3~g} s, %{x:.4~g} s loading<extra></extra>",
            }
        )
    layout = _layout("mean wait, s")
    layout["xaxis"] = {"title": {"text": "time spent loading, s"}, "zeroline": False}
    layout["margin"] = layout["margin"] | {"b": 44}
    return {
        "data": [trace for trace in traces if trace["x"]],
        "layout": layout | {"height": 340, "hovermode": "closest"},
    }


def _bars(name: str, x: Sequence[Any], y: Sequence[float], unit: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": COLOURS[name], "line": {"width": 0}},
        "hovertemplate": f"%{{y:.3~g}} {unit}".rstrip(),
    }


def _layout(title: str) -> dict[str, Any]:
    return {
        "height": 280,
        "margin": {"l": 56, "r": 44, "t": 8, "b": 32},
        "barmode": "group",
        "bargap": 0.3,
        "hovermode": "x unified",
        "xaxis": {"type": "category", "zeroline": False, "showgrid": False},
        "yaxis": {"title": {"text": title}, "rangemode": "tozero", "zeroline": False, "nticks": 5, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": True,
    }
