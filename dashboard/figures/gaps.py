"""How the tokens of one request came: the gap before each, over the time since its dispatch."""

from collections.abc import Sequence
from typing import Any

HEIGHT_PX = 220
STALL_US = 1_000_000


def gaps_figure(gaps: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """`gaps`: (moment since the dispatch, gap before the token), microseconds, at least one."""
    longest_us = max(gap_us for _, gap_us in gaps)
    unit, size = ("s", 1e6) if longest_us >= STALL_US else ("ms", 1e3)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [round(at_us / 1e6, 4) for at_us, _ in gaps],
                "y": [round(gap_us / size, 3) for _, gap_us in gaps],
                "line": {"width": 1.25, "shape": "hv", "color": "var(--accent)"},
                "fill": "tozeroy",
                "fillcolor": "var(--accent-fill)",
                "hovertemplate": f"%{{y:.3~g}} {unit} at %{{x:.2f}} s<extra></extra>",
            }
        ],
        "layout": {
            "height": HEIGHT_PX,
            "margin": {"l": 52, "r": 12, "t": 24, "b": 40},
            "xaxis": {"title": {"text": "since the dispatch, s"}, "rangemode": "tozero", "zeroline": False},
            "yaxis": {"rangemode": "tozero", "zeroline": False, "nticks": 4, "fixedrange": True},
            "annotations": [
                {
                    "text": f"time since the token before, {unit}",
                    "xref": "paper",
                    "yref": "paper",
                    "x": 0,
                    "y": 1,
                    "xanchor": "left",
                    "yanchor": "bottom",
                    "showarrow": False,
                }
            ],
            "showlegend": False,
        },
    }
