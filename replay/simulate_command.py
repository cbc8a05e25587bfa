"""`llama-router replay simulate SOURCE --set KEY=VALUE ...`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.source_arguments import add_progress, add_verb, introduction, source_of

if TYPE_CHECKING:
    from replay.measures import Measures
    from replay.simulate import Error, Simulated

EPILOG = """\
examples:
  llama-router replay simulate --set QUEUE_HEAD_GRACE=30        this machine's log, had the grace been 30 s
  llama-router replay simulate log --set EVICTION_POLICY=fifo --set replicas.qwen3-8b=2 --json
  llama-router replay simulate code=code.csv chat=conv.csv --keep-every 20 --load-s 8 --set QUEUE_HEAD_GRACE=30
  llama-router replay simulate mooncake.jsonl --spread a,b,c --base NUM_GPUS=2 --base gpus.c=1

The settings as they were come first: what the simulator makes of them, and how far that is from what was recorded.
The same seed gives the same output, byte for byte.

exit codes: 0 done, 1 the source or a setting cannot be used, 2 the command line is wrong
"""

ROWS: tuple[tuple[str, str], ...] = (
    ("finished", "requests finished"),
    ("cancelled", "cancelled"),
    ("failed", "failed"),
    ("swaps", "swaps"),
    ("evictions", "evictions"),
    ("load_s", "loading, s"),
    ("wait_mean_s", "wait mean, s"),
    ("wait_p50_s", "wait p50, s"),
    ("wait_p95_s", "wait p95, s"),
    ("wait_p99_s", "wait p99, s"),
    ("wait_max_s", "wait max, s"),
    ("ttft_mean_s", "first token mean, s"),
    ("ttft_p95_s", "first token p95, s"),
    ("overtakes", "overtakes"),
    ("forced", "forced loads"),
    ("cached_share", "prompt cached, share"),
    ("cache_hits", "caches found after a swap"),
    ("prefill_saved_s", "prefill saved so, s"),
    ("fair_clients", "fairness over clients"),
    ("fair_models", "fairness over models"),
    ("makespan_s", "makespan, s"),
)
"""Fields of Measures, and their words."""


NOT_RECORDED = "nothing was recorded, so the simulator's error is not known"
NOT_AS_RECORDED = "this is not what was recorded (see the notes), so the simulator's error is not known"


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "simulate",
        _run,
        find_log,
        text="serve recorded traffic again in virtual time, under other settings",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="KEY=VALUE",
        help="a setting of config.json (QUEUE_HEAD_GRACE=30) or of a model (replicas.MODEL=2, gpus.MODEL=0+1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="for the order in which load times are drawn")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_progress(parser)


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from replay.progress import Told
    from replay.simulate import simulate

    told = Told(args.progress)
    source = source_of(args, told)
    began_s = time.process_time()
    result = simulate(source, sets=args.sets, seed=args.seed, progress=told)
    took_s = time.process_time() - began_s
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        print(introduction(source))
        print(as_text(result))
    runs = 1 if result.alternative is None else 2
    speed = runs * len(source.workload.calls) / max(took_s, 1e-9)
    print(f"{took_s:.1f} s of CPU, {speed:,.0f} requests/s", file=sys.stderr)
    return 0


def as_text(result: "Simulated") -> str:
    """The simulator's error, then the table."""
    from replay.alternatives import told
    from replay.costs import ASSUMED

    lines = []
    if result.errors:
        lines += ["", "the simulator's own error, under the recorded settings:", errors_table(result.errors)]
    else:
        lines += ["", NOT_RECORDED if result.costs == ASSUMED else NOT_AS_RECORDED]
    columns: list[tuple[str, Measures]] = [("as it was", result.baseline)]
    if result.alternative is not None:
        columns.append(("changed", result.alternative))
    lines += ["", f"as it was: {told(result.settings)}"]
    if result.alternative is not None:
        lines.append(f"changed:   {' '.join(result.sets) or 'nothing'}")
    lines.append(table(columns))
    return "\n".join(lines)


def errors_table(errors: "Sequence[Error]") -> str:
    """Recorded against simulated."""
    from replay.text import aligned

    rows = [
        (WORDS[error.measure], figure(error.recorded), figure(error.simulated), f"{error.share:+.1%}")
        for error in errors
    ]
    return aligned(("", "recorded", "simulated", "error"), rows, indent="  ")


def table(columns: "Sequence[tuple[str, Measures]]") -> str:
    """One measure a row, one run a column."""
    from replay.text import aligned

    rows = [(words, *(figure(getattr(measures, name)) for _, measures in columns)) for name, words in ROWS]
    return aligned(("", *(name for name, _ in columns)), rows, indent="  ")


def figure(value: float) -> str:
    """Three digits that matter, whole numbers whole."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


WORDS = dict(ROWS)
