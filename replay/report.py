"""The report of a sweep: one HTML file with Plotly figures that needs nothing from the network.

Figures are pure functions of what `tune` found. Plotly is imported here and nowhere else in `replay`.
"""

import base64
import gzip
from collections.abc import Sequence
from html import escape
from typing import Any

from plotly import graph_objects  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from replay.alternatives import changed, config_lines, told
from replay.simulate_command import figure
from replay.tune import Trial, Tuned
from replay.tune_command import COLUMNS, name_of, ratio

BLUE, GREY, RED, GREEN = "#2563eb", "#9ca3af", "#dc2626", "#059669"
INK, GRID = "#7b8494", "rgba(127,127,127,0.25)"

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --page: #fff; --box: #f3f4f6; --line: #e5e7eb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --page: #111827; --box: #1f2937; --line: #374151; }
  tr.chosen td { background: #064e3b !important; } tr.current td { background: #713f12 !important; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1100px;
  margin: 2em auto; padding: 0 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
pre { background: var(--box); padding: .8em 1em; border-radius: 6px; overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; display: block; overflow-x: auto; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.chosen td { background: #d1fae5; font-weight: 600; } tr.current td { background: #fef3c7; }
.lead { font-size: 1.1em; }
.figure { min-height: 420px; }
"""

_DRAW = """
const packed = Uint8Array.from(atob("PACKED"), (letter) => letter.charCodeAt(0));
new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text().then((plotly) => {
  const script = document.createElement("script");
  script.textContent = plotly;
  document.head.append(script);
  for (const box of document.querySelectorAll(".figure")) {
    const { data, layout } = JSON.parse(box.dataset.figure);
    Plotly.newPlot(box, data, layout, { displayModeBar: false, responsive: true });
  }
});
"""


def page(tuned: Tuned, introduction: str) -> str:
    """The whole file."""
    parts = [
        "<h1>Settings compared</h1>",
        f"<p>{escape(tuned.source)}</p>",
        _recommendation(tuned),
        "<h2>Waiting against loading</h2>",
        "<p>Each point is a combination of settings; on the line, none is better in both.</p>",
        _embed(trade_off_figure(tuned)),
        "<h2>What the grace does</h2>",
        _embed(grace_figure(tuned)),
        "<h2>Who waits</h2>",
        _embed(models_figure(tuned)),
        "<h2>All settings</h2>",
        _table(tuned),
        "<h2>What was simulated</h2>",
        f"<pre>{escape(introduction)}</pre>",
        _errors(tuned),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>llama-router: settings compared</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + f"\n<script>{_script()}</script></body></html>\n"
    )


def _embed(drawn: graph_objects.Figure) -> str:
    # Seen on a phone and on a dark page as well: the legend lies above, and no colour assumes a white ground.
    drawn.update_layout(
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        height=420,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK},
    )
    drawn.update_xaxes(gridcolor=GRID, zerolinecolor=GRID)
    drawn.update_yaxes(gridcolor=GRID, zerolinecolor=GRID)
    return f'<div class="figure" data-figure="{escape(drawn.to_json())}"></div>'


def _script() -> str:
    """plotly.js, packed to a third of its 4.8 MB, and what unpacks it and draws with it."""
    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
    return _DRAW.replace("PACKED", packed)


# --- figures --------------------------------------------------------------------------------------------------------


def trade_off_figure(tuned: Tuned) -> graph_objects.Figure:
    """Mean wait against time spent loading."""
    drawn = graph_objects.Figure()
    trials = tuned.trials
    drawn.add_trace(_points([trial for trial in trials if not trial.best], "others", GREY, 8))
    front = sorted((trial for trial in trials if trial.best), key=lambda trial: trial.measures.load_s)
    drawn.add_trace(_points(front, "no other is better", BLUE, 10))
    drawn.add_trace(_points([tuned.current], "as it is", RED, 14, symbol="x"))
    drawn.add_trace(_points([tuned.choice], "recommended", GREEN, 16, symbol="star"))
    line = _lower_left(front)
    drawn.add_trace(
        graph_objects.Scatter(
            x=[trial.measures.load_s for trial in line],
            y=[trial.measures.wait_mean_s for trial in line],
            mode="lines",
            line={"color": BLUE, "width": 1, "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    drawn.update_layout(xaxis_title="time spent loading, s", yaxis_title="mean wait, s")
    if all(trial.measures.wait_mean_s > 0 for trial in trials):
        drawn.update_yaxes(type="log")
    return drawn


def _points(trials: Sequence[Trial], name: str, colour: str, size: int, symbol: str = "circle") -> Any:
    return graph_objects.Scatter(
        x=[trial.measures.load_s for trial in trials],
        y=[trial.measures.wait_mean_s for trial in trials],
        mode="markers",
        name=name,
        marker={"color": colour, "size": size, "symbol": symbol},
        text=[_hover(trial) for trial in trials],
        hoverinfo="text",
    )


def _hover(trial: Trial) -> str:
    measures = trial.measures
    return (
        f"{name_of(trial)}<br>mean {figure(measures.wait_mean_s)} s, p99 {figure(measures.wait_p99_s)} s"
        f"<br>{measures.swaps:,} swaps, {figure(measures.load_s)} s loading"
        f"<br>{measures.overtakes:,} overtakes, {measures.forced:,} forced loads"
    )


def _lower_left(front: Sequence[Trial]) -> list[Trial]:
    """By load time, those whose mean wait is shorter than that of all before."""
    line: list[Trial] = []
    for trial in front:
        if not line or trial.measures.wait_mean_s < line[-1].measures.wait_mean_s:
            line.append(trial)
    return line


def grace_figure(tuned: Tuned) -> graph_objects.Figure:
    """Mean and 95th percentile of the wait over the grace: the best of each grace, by when it begins."""
    drawn = graph_objects.Figure()
    by_clock: dict[str, dict[float, Trial]] = {}
    for trial in tuned.trials:  # best first
        settings = changed(tuned.settings, trial.sets)
        best = by_clock.setdefault(settings.head_grace_from, {})
        best.setdefault(settings.head_grace_us / 1e6, trial)
    for (clock, best), colour in zip(sorted(by_clock.items()), (BLUE, RED), strict=False):
        graces = sorted(best)
        for field, words, dash in (("wait_mean_s", "mean", "solid"), ("wait_p95_s", "p95", "dash")):
            drawn.add_trace(
                graph_objects.Scatter(
                    x=graces,
                    y=[getattr(best[grace].measures, field) for grace in graces],
                    mode="lines+markers",
                    name=f"{words}, from {clock}",
                    line={"color": colour, "dash": dash},
                )
            )
    drawn.update_layout(xaxis_title="QUEUE_HEAD_GRACE, s", yaxis_title="wait, s")
    return drawn


def models_figure(tuned: Tuned) -> graph_objects.Figure:
    """Mean wait of each model, as it is and as recommended."""
    drawn = graph_objects.Figure()
    for trial, name, colour in ((tuned.current, "as it is", RED), (tuned.choice, "recommended", GREEN)):
        waits = trial.measures.wait_mean_by_model_s
        drawn.add_trace(graph_objects.Bar(x=list(waits), y=list(waits.values()), name=name, marker={"color": colour}))
    drawn.update_layout(barmode="group", yaxis_title="mean wait, s")
    return drawn


# --- words ----------------------------------------------------------------------------------------------------------


def _recommendation(tuned: Tuned) -> str:
    sets = tuned.choice.sets
    lines = [f'<p class="lead"><b>{escape(" ".join(sets) or "No change")}</b>: {escape(tuned.why)}.</p>']
    lines.append(f"<p>As it is: <code>{escape(told(tuned.settings))}</code></p>")
    if sets:
        lines.append(f"<p>In config.json:</p><pre>{escape(config_lines(tuned.settings, sets))}</pre>")
    return "\n".join(lines)


def _table(tuned: Tuned) -> str:
    head = ["settings", *(words for _, words in COLUMNS)]
    if tuned.optimum_arrival is not None:
        head += ["x optimum", "x optimum as served"]
    rows = []
    for place, trial in enumerate(tuned.trials):
        cells = [name_of(trial), *(figure(getattr(trial.measures, field)) for field, _ in COLUMNS)]
        if tuned.optimum_arrival is not None:
            cells += [ratio(trial.ratio_arrival), ratio(trial.ratio_served)]
        kind = "chosen" if place == tuned.recommended else "" if trial.sets else "current"
        rows.append(f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{escape(words)}</th>" for words in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _errors(tuned: Tuned) -> str:
    if not tuned.errors:
        return "<p>Nothing was recorded to compare with, so the simulator's error is not known.</p>"
    rows = "".join(
        f"<tr><td>{escape(error.measure)}</td><td>{figure(error.recorded)}</td><td>{figure(error.simulated)}</td>"
        f"<td>{error.share:+.1%}</td></tr>"
        for error in tuned.errors
    )
    return (
        "<p>The simulator's own error, under the recorded settings:</p>"
        f"<table><thead><tr><th></th><th>recorded</th><th>simulated</th><th>error</th></tr></thead>{rows}</table>"
    )
