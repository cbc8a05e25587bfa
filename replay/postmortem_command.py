"""`llama-router postmortem LOG [--crash N]`."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventlog.errors import LogError
from replay.command_line import add_verb

EPILOG = """\
examples:
  llama-router postmortem                        list crashes, failed loads, stalls and killed routers
  llama-router postmortem --crash 3              the story of one of them
  llama-router postmortem --crash 3 --html crash.html
  llama-router postmortem --crash 3 --bundle crash.zip      for others to look at: no prompts, names hashed

exit codes: 0 done, 1 there is no such crash or the log cannot be read, 2 the command line is wrong
"""


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "postmortem",
        _run,
        find_log,
        text="the story of a crash, a failed load or a stall, from the log",
        epilog=EPILOG,
    )
    parser.add_argument("--crash", metavar="N", help="which one, by its number or, as #48211, by its seq")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="write a zip to share: no prompts, names hashed")


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from replay.incidents import incidents
    from replay.killed_runs import killed_runs
    from replay.postmortem import postmortem
    from replay.postmortem_text import list_text, postmortem_text

    if args.crash is None:
        if args.html or args.bundle:
            print("llama-router postmortem: --html and --bundle need --crash N", file=sys.stderr)
            return 2
        found, killed = incidents(args.log), killed_runs(args.log)
        if args.json:
            print(msgspec.json.encode({"incidents": found, "killed_runs": killed}).decode())
        else:
            print(list_text(found, killed))
        return 0
    story = postmortem(args.log, _number_of(args.crash, args.log))
    if args.html:
        from replay.postmortem_html import postmortem_html

        args.html.write_text(postmortem_html(story), encoding="utf-8")
    if args.bundle:
        from replay.bundle import write_bundle

        write_bundle(args.log, story, args.bundle)
    if args.json:
        print(msgspec.json.encode(story).decode())
    elif not args.html and not args.bundle:
        print(postmortem_text(story))
    for written in (args.html, args.bundle):
        if written and not args.json:
            print(f"wrote {written}")
    return 0


def _number_of(crash: str, log: Path) -> int:
    """Which of the log's incidents. Raises LogError."""
    from replay.incidents import incidents

    if match := re.fullmatch(r"#(\d+)", crash):
        for incident in incidents(log):
            if incident.seq == int(match[1]):
                return incident.number
        raise LogError(f"the log at {log} has no crash with the seq {crash}; leave out --crash to list them")
    if not crash.isdecimal():
        raise LogError(f"--crash {crash}: expected a number such as 3, or a seq such as #48211")
    return int(crash)
