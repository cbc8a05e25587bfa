"""`llama-router replay ...` and `llama-router postmortem`: each verb in a module of its own, listed here.

Every such module has `add_command(verbs, find_log)`, where `find_log` says where the log lies if nobody named one. What
a verb needs is imported when it runs.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay import explain_command, import_command, postmortem_command, simulate_command, tune_command, verify_command

UNDER_REPLAY = (verify_command, explain_command, simulate_command, tune_command, import_command)

EPILOG = """\
examples:
  llama-router replay verify                  are the log's decisions those that its facts lead to?
  llama-router replay explain --request 4711  why did it wait?
  llama-router replay simulate --set QUEUE_HEAD_GRACE=30    the same traffic under another setting
  llama-router replay tune --html report.html               which settings would have been best

exit codes: 0 done, 1 not done or not as it should be, 2 the command line is wrong
"""


def add_commands(verbs: Any, find_log: Callable[[], Path]) -> None:
    """Add the verbs to a command line; each sets `run(args) -> exit code`."""
    replay = verbs.add_parser(
        "replay",
        help="the log again: verify, explain, simulate, tune",
        description="Make the decisions of an event log again, with the scheduler's own rules.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    under_replay = replay.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in UNDER_REPLAY:
        module.add_command(under_replay, find_log)
    postmortem_command.add_command(verbs, find_log)
