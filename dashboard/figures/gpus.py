"""Utilisation and memory of each GPU over time: a row per GPU, both in percent."""

from collections.abc import Sequence

from dashboard.figures.axes import Figure, Row, axis_name, bands, layout, layout_axis, line, title, with_gaps
from dashboard.units import mib

ROW_PX = 84
EDGES_PX = 66


def figure(rows: Sequence[Row], since_us: int, until_us: int, bucket_us: int) -> Figure | None:
    """`rows` of the question gpus_over_time; None where there are none."""
    by_gpu: dict[int, list[Row]] = {}
    for row in rows:
        by_gpu.setdefault(row["gpu"], []).append(row)
    if not by_gpu:
        return None
    height = EDGES_PX + ROW_PX * len(by_gpu)
    drawn = layout(since_us, until_us, height, annotations=[])
    drawn["margin"] |= {"t": 24}
    traces = []
    for place, ((gpu, samples), (low, high)) in enumerate(
        zip(sorted(by_gpu.items()), bands(len(by_gpu), 24 / height), strict=True)
    ):
        axis = axis_name(place)
        known = [_row(sample) for sample in samples]
        columns = with_gaps(known, bucket_us, ("utilisation", "memory", "memory_said"))
        traces.append(
            line(
                "utilisation",
                columns,
                "utilisation",
                "var(--accent)",
                yaxis=axis,
                fill="tozeroy",
                fillcolor="var(--accent-fill)",
                hovertemplate=f"GPU {gpu}: %{{y:.0f}} % busy<extra></extra>",
            )
        )
        traces.append(
            line(
                "memory",
                columns,
                "memory",
                "var(--hue-1)",
                yaxis=axis,
                customdata=columns["memory_said"],
                hovertemplate=f"GPU {gpu}: %{{customdata}} in use<extra></extra>",
            )
        )
        total = max((sample["total_mib"] or 0 for sample in samples), default=0)
        drawn[layout_axis(place)] = {
            "domain": [low, high],
            "range": [0, 104],
            "tickvals": [0, 50, 100],
            "ticktext": ["0 %", "50 %", "100 %"],
            "fixedrange": True,
            "zeroline": False,
        }
        drawn["annotations"].append(title(f"GPU {gpu}" + (f" · {mib(total)}" if total else ""), high))
    drawn["xaxis"] |= {"anchor": axis_name(len(by_gpu) - 1)}
    return {"data": traces, "layout": drawn}


def _row(sample: Row) -> Row:
    used, total = sample["used_mib"], sample["total_mib"]
    return {
        "at_us": sample["at_us"],
        "utilisation": sample["utilisation_percent"],
        "memory": 100 * used / total if used is not None and total else None,
        "memory_said": mib(used) + (f" of {mib(total)}" if total else ""),
    }
