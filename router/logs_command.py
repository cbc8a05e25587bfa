"""`llama-router logs`: what llama-servers printed, from their files; of the configuration it reads the names only.

Counterpart: `child_log.py`, which writes the files and begins a new part of one by renaming the old.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from router.child_log import FILE_LIMIT, ChildLogs, tail
from router.problems import nearest

POLL_S = 0.25
"""Between looks at the files: the router is another process and tells nobody."""

NO_LOG = 1
EPILOG = """\
examples:
  llama-router logs                     which models have logs, and where they lie
  llama-router logs qwen3-8b            the last lines of its newest replica
  llama-router logs qwen3-8b -n 1000    more of them
  llama-router logs qwen3-8b -f         and whatever comes, from the next replicas as well

exit codes: 0 done, 1 no log of that model, 2 the command line is wrong
"""


def add_logs_command(subparsers: Any, log_dir: Callable[[], Path]) -> None:
    """Add `logs` to the command line. `log_dir()` is where the event log lies, asked only when needed."""
    parser = subparsers.add_parser(
        "logs",
        help="what the llama-servers print",
        description="Show what the llama-servers of a model printed, after their end and across restarts as well.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="name of the model; without it, list what there is")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as more is printed")
    parser.add_argument("-n", "--lines", type=int, default=200, metavar="N", help="last lines to show (default 200)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="directory of the event log (default: as configured)")
    parser.set_defaults(run=lambda args: _run(args, log_dir))


def _run(args: argparse.Namespace, log_dir: Callable[[], Path]) -> int:
    logs = ChildLogs(children_dir(args.dir or log_dir()))
    if args.model is None:
        return _list(logs)
    model = args.model
    if not logs.files(model):
        names = _names()
        model = names.get(model, model)
        if not logs.files(model) and (not args.follow or (names and model not in names)):
            print(f"llama-router: {_why_none(logs, model, names)}", file=sys.stderr)
            return NO_LOG
    out = sys.stdout.buffer
    try:
        if args.follow:
            _follow(logs, model, args.lines, out)
        else:
            out.write(_last(tail(logs.files(model)[-1], 2 * FILE_LIMIT), args.lines))
            out.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        # Whatever is left in the buffer has no reader: closing it must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _names() -> dict[str, str]:
    from router.config import configured_names  # here, because a model with a log needs none of it

    return configured_names()


def _why_none(logs: ChildLogs, model: str, names: Mapping[str, str]) -> str:
    """`names` are those of the configuration, if it can be read."""
    if model in names:
        return f"model {model!r} has not run yet: there is no log of it in {logs.directory}"
    if not names:
        return f"no log of model {model!r} in {logs.directory}"
    near = nearest(model, names)
    return f"there is no model {model!r}" + (f"; did you mean {near!r}?" if near else "")


def children_dir(log_dir: Path) -> Path:
    """Where the logs of children lie, beside the event log."""
    return log_dir / "children"


def _list(logs: ChildLogs) -> int:
    for path in logs.files():
        with path.open("rb") as file:
            head = file.readline().decode(errors="replace").strip("# \n")
        print(f"{path}  {head}")
    return 0


def _last(text: bytes, lines: int) -> bytes:
    kept = text.splitlines(keepends=True)
    return b"".join(kept[-lines:] if lines > 0 else [])


def _follow(logs: ChildLogs, model: str, lines: int, out: BinaryIO) -> None:
    """Until interrupted. Replicas that come later are shown from their first line."""
    reading: dict[Path, BinaryIO] = {}
    past = b""
    for path in logs.files(model):
        with contextlib.suppress(FileNotFoundError):
            reading[path] = path.open("rb")
            past = reading[path].read()
    out.write(_last(past, lines))
    try:
        while True:
            there = logs.files(model)
            for path in there:
                with contextlib.suppress(FileNotFoundError):  # removed since, or about to begin anew
                    _show_news(path, reading, out)
            for path in [path for path in reading if path not in there]:
                out.write(reading[path].read())
                reading.pop(path).close()
            out.flush()
            time.sleep(POLL_S)
    finally:
        for file in reading.values():
            file.close()


def _show_news(path: Path, reading: dict[Path, BinaryIO], out: BinaryIO) -> None:
    if path not in reading:
        reading[path] = path.open("rb")
    begun_anew = _replaced(path, reading[path])
    out.write(reading[path].read())
    if begun_anew:
        reading.pop(path).close()
        reading[path] = path.open("rb")
        out.write(reading[path].read())


def _replaced(path: Path, open_file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino != os.fstat(open_file.fileno()).st_ino
    except OSError:
        return False
