"""Tokens per second over time: made, and below it the prompts', those from a cache apart from those computed."""

from collections.abc import Sequence
from typing import Any

from dashboard.figures.axes import Figure, Row, bands, every_step, layout, line, step_s, title

HEIGHT_PX = 300


def figure(made: Sequence[Row], prompts: Sequence[Row], since_us: int, until_us: int, bucket_us: int) -> Figure | None:
    """`made` of tokens_over_time, `prompts` of prompt_tokens_over_time; None where there were none of either."""
    if not made and not prompts:
        return None
    upper, lower = bands(2, 0.16)
    drawn = layout(since_us, until_us, HEIGHT_PX, barmode="stack", bargap=0.1)
    drawn["margin"] |= {"t": 24}
    drawn["xaxis"] |= {"anchor": "y2"}
    drawn["annotations"] = [title("generated tokens/s", upper[1]), title("prompt tokens/s", lower[1])]
    speed = every_step(made, since_us, until_us, bucket_us, ("frames_per_s",))
    read = every_step(prompts, since_us, until_us, bucket_us, ("cached_tokens", "uncached_tokens"))
    lengths_s = [step_s(round(at_ms * 1000), since_us, until_us, bucket_us) for at_ms in read["at_ms"]]
    per_s = {
        value: [number / length_s for number, length_s in zip(read[value], lengths_s, strict=True)]
        for value in ("cached_tokens", "uncached_tokens")
    }
    together = [sum(both) for both in zip(*per_s.values(), strict=True)]
    drawn["yaxis"] = _axis(upper, max(speed["frames_per_s"], default=0))
    drawn["yaxis2"] = _axis(lower, max(together, default=0))
    traces = [
        line(
            "generated",
            speed,
            "frames_per_s",
            "var(--accent)",
            fill="tozeroy",
            fillcolor="var(--accent-fill)",
            hovertemplate="%{y:,.3~r} generated/s<extra></extra>",
        )
    ]
    for name, value, colour in (
        ("computed", "uncached_tokens", "var(--hue-4)"),
        ("cached", "cached_tokens", "var(--hue-2)"),
    ):
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": [at_ms + bucket_us / 2000 for at_ms in read["at_ms"]],
                "y": per_s[value],
                "yaxis": "y2",
                "marker": {"color": colour, "line": {"width": 0}},
                "hovertemplate": f"%{{y:,.3~r}} {name}/s<extra></extra>",
            }
        )
    return {"data": traces, "layout": drawn}


def _axis(domain: tuple[float, float], most: float) -> dict[str, Any]:
    return {
        "domain": list(domain),
        "fixedrange": True,
        "zeroline": False,
        "nticks": 4,
        "rangemode": "tozero",
        # Thousands have a k; less than one token per second is no "600m".
        "tickformat": "~s" if most >= 1000 else "~g",
    }
