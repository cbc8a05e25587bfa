"""`llama-router replay import TRACE ... -o FILE`: other people's traces as one file that simulate and tune take."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay.source_arguments import add_verb, introduction, source_of

EPILOG = """\
examples:
  llama-router replay import code=code.csv chat=conv.csv --keep-every 20 -o azure.workload
  llama-router replay import mooncake.jsonl --spread a,b,c --stretch 10 -o mooncake.workload
  llama-router replay import activity.json --format llama-swap -o mine.workload

formats: azure (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), mooncake (JSONL), burstgpt (CSV), csv (any with a time,
prompt and output tokens; model, conversation, client where it has them), llama-swap (the activity that /api/metrics
gives), and logs of our own.

exit codes: 0 done, 1 a trace cannot be read, 2 the command line is wrong
"""


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "import",
        _run,
        find_log,
        text="read the traces of others into one file for simulate and tune",
        epilog=EPILOG,
        costs=False,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where to write it")


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from replay.costs import ASSUMED
    from replay.workload import NO_COSTS, write_workload

    source = source_of(args)
    is_measured = source.costs.source != ASSUMED
    costs = msgspec.Raw(msgspec.json.encode(source.costs)) if is_measured else NO_COSTS
    write_workload(source.workload, args.output, costs)
    told = introduction(source)
    print(told if is_measured else told.partition("\ncosts ")[0])
    print(f"written to {args.output}")
    return 0
