"""What the verbs of `llama-router replay` share: the LOG argument, and errors as one line."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventlog.errors import LogError


def add_verb(
    verbs: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    find_log: Callable[[], Path],
    *,
    text: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """A verb with a LOG argument; `run` may raise LogError or OSError, which end it with code 1."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "log",
        nargs="?",
        type=Path,
        metavar="LOG",
        help="directory of the log, or one segment (default: this machine's router's log)",
    )

    def guarded(args: argparse.Namespace) -> int:
        args.log = find_log() if args.log is None else args.log.expanduser()
        try:
            return run(args)
        except BrokenPipeError:
            raise  # whoever reads the output has seen enough
        except (LogError, OSError) as error:
            sys.stdout.flush()
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1

    parser.set_defaults(run=guarded)
    return parser
