"""Memory of one GPU in the minutes before a crash: in use, of that by the replica itself, and all there is."""

from collections.abc import Sequence
from typing import Any

HEIGHT_PX = 200


def memory_figure(samples: Sequence[Sequence[int]], at_us: int) -> dict[str, Any]:
    """`samples`: (at_us, used, total, own, utilisation), MiB, -1 where not known; `at_us`: the moment of the crash."""
    before = [round((sample[0] - at_us) / 1e6, 2) for sample in samples]
    traces = [_line("in use", before, [sample[1] for sample in samples], "var(--accent)", fill="tozeroy")]
    if any(sample[3] >= 0 for sample in samples):
        own = [sample[3] if sample[3] >= 0 else None for sample in samples]
        traces.append(_line("by this replica", before, own, "var(--warn)"))
    total = max(sample[2] for sample in samples)
    if total > 0:
        whole = _line("all there is", [before[0], 0], [total, total], "var(--text-3)")
        whole["line"]["dash"] = "dot"
        traces.append(whole)
    return {
        "data": traces,
        "layout": {
            "height": HEIGHT_PX,
            "margin": {"l": 60, "r": 12, "t": 8, "b": 40},
            "xaxis": {"title": {"text": "seconds before the end"}, "zeroline": False, "range": [before[0], 0]},
            "yaxis": {"rangemode": "tozero", "ticksuffix": " MiB", "zeroline": False, "nticks": 4, "fixedrange": True},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "showlegend": True,
            "hovermode": "x unified",
        },
    }


def _line(name: str, x: Sequence[float], y: Sequence[int | None], colour: str, **more: Any) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 1.6},
        "hovertemplate": "%{y:,} MiB",
    }
    if "fill" in more:
        trace["fillcolor"] = "var(--accent-fill)"
    return trace | more
