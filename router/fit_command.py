"""`llama-router fit MODEL`: how much memory a model takes, by its file and by what was measured, and what fits."""

import argparse
import json
import sys
from typing import Any

EPILOG = """\
examples:
  llama-router fit
  llama-router fit qwen3-8b
  llama-router fit gemma-12b --tokens 131072 --cram 16384
  llama-router fit qwen3-8b --json | jq .beside

exit codes: 0 done, 1 it cannot be said, 2 the command line is wrong
"""


def add_fit_command(verbs: Any) -> None:
    from router.check import add_config_arguments

    parser = verbs.add_parser(
        "fit",
        help="how much memory a model takes, and what fits beside it",
        description="Estimate a model's memory from its file, show what NVML measured, and say what fits together. "
        "It is advice: what may be loaded together is what the configuration says.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument("model", nargs="?", help="by name or alias (default: a line for each model)")
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help="length of a conversation (default: a slot)")
    parser.add_argument("--cram", type=int, metavar="MIB", help="size of the prompt cache (default: as configured)")
    parser.add_argument("--checkpoints", type=int, metavar="N", help="context checkpoints of a conversation (4)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=_fit)


def _fit(args: argparse.Namespace) -> int:
    from eventlog.errors import LogError
    from router.check import gpus_there_are, overrides
    from router.config import ConfigErrors, load
    from router.memory.fit import as_json, as_table, as_text, fit
    from router.memory.measured import read_measured

    try:
        chosen = overrides(args)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    gpus = gpus_there_are()
    try:
        config = load(chosen, nvml_gpus=len(gpus) or None, gpu_uuids=[gpu.uuid for gpu in gpus])
        measured = read_measured(config.log_dir)
    except (ConfigErrors, LogError) as errors:
        print(errors, file=sys.stderr)
        return 1
    model = config.resolve(args.model) if args.model else None
    if args.model and model is None:
        print(f"there is no model {args.model!r}; there are {', '.join(config.models)}", file=sys.stderr)
        return 1
    totals = {gpu.index: gpu.memory_mib for gpu in gpus if gpu.memory_mib} or measured.totals
    about = {"tokens": args.tokens, "cram_mib": args.cram, "checkpoints": args.checkpoints}
    wanted = config.models.values() if model is None else [model]
    found = [fit(config, each, measured, totals, **about) for each in wanted]
    if model is None:
        print(json.dumps({"models": list(map(as_json, found))}, indent=2) if args.json else as_table(found))
    else:
        print(json.dumps(as_json(found[0]), indent=2) if args.json else "\n".join(as_text(found[0])))
    return 0
