"""`llama-router replay explain LOG --request ID | --swap N | --at TIME`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay.command_line import add_verb

EPILOG = """\
examples:
  llama-router replay explain --request 4711          why it waited, for what, how long each; who went first
  llama-router replay explain --swap 12               why then, why these victims, what it cost, whom it served
  llama-router replay explain --at 2026-03-01T03:14   what the state was
  llama-router replay explain ./log --at '#48211' --json

A request's number is in the X-Router-Request header of its answer; a swap's in /status and in SwapBegun.

exit codes: 0 done, 1 the log has no such thing or cannot be read, 2 the command line is wrong
"""


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "explain",
        _run,
        find_log,
        text="why a request waited, why a model was evicted, what the state was",
        epilog=EPILOG,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--request", type=int, metavar="ID", help="of this request or wish")
    what.add_argument("--swap", type=int, metavar="N", help="of this swap")
    what.add_argument("--at", metavar="TIME", help="a seq such as #4711, a date and time, or seconds since 1970")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from replay import explain

    story: explain.RequestStory | explain.SwapStory | explain.Moment
    if args.request is not None:
        story = explain.explain_request(args.log, args.request)
        text = explain.request_text(story)
    elif args.swap is not None:
        story = explain.explain_swap(args.log, args.swap)
        text = explain.swap_text(story)
    else:
        story = explain.explain_time(args.log, args.at)
        text = explain.moment_text(story)
    print(msgspec.json.encode(story).decode() if args.json else text)
    return 0
