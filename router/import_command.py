"""`llama-router import llama-swap config.yaml`: an existing llama-swap configuration as ours, with a report."""

import argparse
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  llama-router import llama-swap ~/llama-swap/config.yaml --to ~/.config/llama-router
  llama-router import llama-swap config.yaml --to try --json

exit codes: 0 the files are written, 1 nothing could be imported, 2 the command line is wrong
"""


def add_import_command(verbs: Any) -> None:
    """`import`, with a verb for each router that can be imported from."""
    parser = verbs.add_parser(
        "import",
        help="take over another router's configuration",
        description="Make config.json and presets.ini of another router's configuration.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    routers = parser.add_subparsers(title="routers", metavar="ROUTER", required=True)
    swap = routers.add_parser(
        "llama-swap",
        help="config.yaml of llama-swap",
        description="Write config.json and presets.ini that do what a llama-swap configuration does, and report what "
        "could not be carried over, why, and what to do about it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    swap.add_argument("file", type=Path, metavar="CONFIG.YAML")
    swap.add_argument("--to", type=Path, default=Path(), metavar="FOLDER", help="where to write (default: here)")
    swap.add_argument("--force", action="store_true", help="write over files that are there")
    swap.add_argument("--json", action="store_true", help="the report as one JSON object")
    swap.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> int:
    from router.llama_swap.importer import run

    return run(args)
