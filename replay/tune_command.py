"""`llama-router replay tune SOURCE`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.source_arguments import add_progress, add_verb, introduction, source_of

if TYPE_CHECKING:
    from replay.tune import Trial, Tuned

EPILOG = """\
examples:
  llama-router replay tune                                      this machine's log: grace, its clock, the last resort
  llama-router replay tune log --sweep MAX_MODELS_PER_GPU=1,2 --sweep QUEUE_HEAD_GRACE=0,10,30
  llama-router replay tune log --sweep replicas.qwen3-8b=1,2 --html report.html
  llama-router replay tune code=code.csv chat=conv.csv --keep-every 20 --optimum

Each --sweep replaces what is tried by default; all combinations are run. Whether the memory of the GPUs allows more
models or replicas is not known here.

exit codes: 0 done, 1 the source or a setting cannot be used, 2 the command line is wrong
"""

COLUMNS: tuple[tuple[str, str], ...] = (
    ("swaps", "swaps"),
    ("load_s", "load s"),
    ("wait_mean_s", "wait mean"),
    ("wait_p50_s", "p50"),
    ("wait_p95_s", "p95"),
    ("wait_p99_s", "p99"),
    ("wait_max_s", "max"),
    ("ttft_mean_s", "ttft"),
    ("overtakes", "overtakes"),
    ("forced", "forced"),
    ("cached_share", "cached"),
    ("prefill_saved_s", "prefill saved"),
    ("fair_clients", "fair clients"),
    ("fair_models", "fair models"),
)
"""Fields of Measures, and the heads of their columns; waits in seconds."""


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "tune",
        _run,
        find_log,
        text="try many settings on recorded traffic and recommend one",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--sweep",
        type=_sweep,
        action="append",
        default=[],
        dest="sweeps",
        metavar="KEY=V1,V2,...",
        help="values to try for a setting, named as for `simulate --set`",
    )
    parser.add_argument("--optimum", action="store_true", help="compare with the least time that loads could take")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--seed", type=int, default=0, help="for the order in which load times are drawn")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with figures, readable offline")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_progress(parser)


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from replay.alternatives import config_lines
    from replay.progress import Bar, Told
    from replay.tune import default_sweeps, grid, tune

    told = Told(args.progress)
    source = source_of(args, told)
    settings = source.workload.settings
    sweeps: dict[str, list[str]] = {}
    for key, values in args.sweeps:
        sweeps.setdefault(key, []).extend(values)
    trials = grid(settings, sweeps or default_sweeps(settings))
    bar = Bar(len(trials))
    began_s = time.monotonic()

    def show(done: int, total: int) -> None:
        bar.show(done, f"{done} of {total} settings")
        told("trying settings", done, total)

    show(0, len(trials))
    try:
        tuned = tune(
            source,
            trials,
            seed=args.seed,
            jobs=args.jobs,
            optimum=args.optimum,
            progress=show,
        )
    finally:
        bar.close()
    if args.json:
        fields = msgspec.to_builtins(tuned)
        fields["config"] = msgspec.json.decode(config_lines(settings, tuned.choice.sets))
        print(msgspec.json.encode(fields).decode())
    else:
        print(introduction(source))
        print(as_text(tuned))
    if args.html is not None:
        from replay.report import page

        args.html.write_text(page(tuned, introduction(source)), encoding="utf-8")
        print(f"report: {args.html}", file=sys.stderr)
    print(f"{len(trials)} settings in {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    return 0


def as_text(tuned: "Tuned") -> str:
    """The table, the recommendation, and the lines to paste."""
    from replay.alternatives import config_lines, told
    from replay.costs import ASSUMED
    from replay.simulate_command import NOT_AS_RECORDED, NOT_RECORDED, errors_table
    from replay.text import aligned

    lines = []
    if tuned.errors:
        lines += ["", "the simulator's own error, under the recorded settings:", errors_table(tuned.errors)]
    else:
        lines += ["", NOT_RECORDED if tuned.costs == ASSUMED else NOT_AS_RECORDED]
    lines += ["", f"as it is: {told(tuned.settings)}", ""]
    head = ["", "settings", *(words for _, words in COLUMNS)]
    if tuned.optimum_arrival is not None:
        head += ["x optimum", "x optimum as served"]
    rows = [_row(tuned, places) for places in alike(tuned)]
    lines.append(aligned(head, rows))
    lines += ["> recommended, = as it is, * no other is better in mean wait, p99 and load time at once"]
    if tuned.optimum_arrival is not None:
        least = tuned.optimum_arrival
        lines.append(f"optimum for the order of arrival: {least.loads:,} loads, {least.load_s:,.1f} s")
        if least.left_out:
            why = "the engine is not the cap per GPU" if tuned.settings.engine != "residency" else NOT_RECKONED
            lines.append(f"not reckoned in the optimum ({why}): {', '.join(least.left_out)}")
    lines += ["", f"recommended: {' '.join(tuned.choice.sets) or 'no change'}", f"  {tuned.why}"]
    if tuned.choice.sets:
        lines += ["", "in config.json:", config_lines(tuned.settings, tuned.choice.sets)]
    return "\n".join(lines)


def alike(tuned: "Tuned") -> list[list[int]]:
    """Places of the trials, those with the same figures together; the recommended one and the current one first."""
    groups: dict[str, list[int]] = {}
    for place, trial in enumerate(tuned.trials):
        groups.setdefault(repr(trial.measures), []).append(place)
    return [
        sorted(places, key=lambda place: (place != tuned.recommended, bool(tuned.trials[place].sets), place))
        for places in groups.values()
    ]


def _row(tuned: "Tuned", places: Sequence[int]) -> list[str]:
    from replay.simulate_command import figure

    trial = tuned.trials[places[0]]
    marks = ">" if tuned.recommended in places else ""
    marks += "=" if any(not tuned.trials[place].sets for place in places) else ""
    marks += "*" if trial.best else ""
    name = name_of(trial) + (f" and {len(places) - 1} alike" if len(places) > 1 else "")
    cells = [marks, name, *(figure(getattr(trial.measures, field)) for field, _ in COLUMNS)]
    if tuned.optimum_arrival is not None:
        cells += [ratio(trial.ratio_arrival), ratio(trial.ratio_served)]
    return cells


def ratio(value: float) -> str:
    """Of an optimum; a dash where there was none to compare with."""
    return f"{value:.2f}" if value else "-"


NOT_RECKONED = "on several GPUs or none, with replicas, or beside such a model"

SHORT = {
    "QUEUE_HEAD_GRACE_FROM": "from",
    "QUEUE_HEAD_GRACE": "grace",
    "QUEUE_FORCE_LOAD_TIMEOUT": "force",
    "EVICTION_POLICY": "eviction",
    "MAX_MODELS_PER_GPU": "per gpu",
    "routing.router.use": "engine",
    "routing.router.scope": "scope",
}
"""Words for a table, where the names of settings are too long."""


def name_of(trial: "Trial") -> str:
    """In what a trial differs, in short."""
    parts = (setting.partition("=") for setting in trial.sets)
    return ", ".join(f"{SHORT.get(key, key)} {value}" for key, _, value in parts) or "as it is"


def _sweep(text: str) -> tuple[str, list[str]]:
    key, _, values = text.partition("=")
    listed = [value.strip() for value in values.split(",")]
    if not key or not all(listed):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=V1,V2,..., such as QUEUE_HEAD_GRACE=0,10,30")
    return key.strip(), listed
