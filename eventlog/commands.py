"""`llama-router log ...`: look at a log, prove it, repair it. Needs no configuration and no running router.

Every verb takes the log's directory, or a single segment where that makes sense; without one, the command line
that the verbs are added to says where the log lies.
"""

import argparse
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from eventlog.errors import LogError
from eventlog.events import BY_NAME, Observation, SegmentOpened
from eventlog.filters import Filter
from eventlog.housekeeping import read_header
from eventlog.pretty import pretty, when
from eventlog.reader import Streams, records, segments_at
from eventlog.repair import repair
from eventlog.segments import STREAMS, Segment, Stream, segment_of
from eventlog.stats import LogStats, log_stats
from eventlog.tail import Record, follow, wait_a_moment
from eventlog.verify import verify

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_EXIT_CODES = "exit codes: 0 done and nothing wrong, 1 not done or damage found, 2 the command line is wrong"


def add_commands(verbs: Any, find: Callable[[], Path]) -> None:
    """Add `log` and its verbs to a command line; each sets `run(args) -> exit code`.

    `find` says where the log lies if nobody names it.
    """
    log = verbs.add_parser("log", help="look at the event log, prove it, repair it", **_texts(_EXAMPLES["log"]))
    verbs = log.add_subparsers(title="commands", metavar="COMMAND", required=True)

    cat = _verb(verbs, "cat", _cat, "print events", find)
    _add_output(cat)
    _add_stream(cat, "events")
    cat.add_argument("--run", type=int, action="append", default=[], dest="runs", metavar="N", help="of this run")
    cat.add_argument("--since", type=_time_us, metavar="TIME", help="from then on: 2h, 2026-03-01T12:00, 1772362800")
    cat.add_argument("--until", type=_time_us, metavar="TIME", help="before then")
    cat.add_argument(
        "--type", type=_type, action="append", default=[], dest="types", metavar="TYPE", help="of this type"
    )
    cat.add_argument("--request", type=int, action="append", default=[], dest="requests", metavar="RID")
    cat.add_argument("--model", action="append", default=[], dest="models", metavar="MODEL", help="about it")
    cat.add_argument("--replica", action="append", default=[], dest="replicas", metavar="ID")

    tail = _verb(verbs, "tail", _tail, "print the last events, and new ones as they come", find)
    _add_output(tail)
    _add_stream(tail, "events")
    tail.add_argument("-n", "--lines", type=int, default=10, metavar="N", help="how many of the last (10)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new ones until interrupted")

    proof = _verb(verbs, "verify", _verify, "prove that every line is what was written", find)
    proof.add_argument("--json", action="store_true", help="print one JSON object")

    mend = _verb(verbs, "repair", _repair, "keep what is valid, set the rest aside", find)
    mend.add_argument("--dry-run", action="store_true", help="only say what would be lost")

    counts = _verb(verbs, "stats", _stats, "what the log consists of", find)
    counts.add_argument("--json", action="store_true", help="print one JSON object")


# --- the verbs ------------------------------------------------------------------------------------------------------


def _cat(args: argparse.Namespace) -> int:
    wanted = Filter(
        runs=args.runs,
        since_us=args.since,
        until_us=args.until,
        types=args.types,
        requests=args.requests,
        models=args.models,
        replicas=args.replicas,
    )
    # A model's requests and replicas are known from the events, whichever stream is to be printed.
    stream: Streams = "all" if args.models else args.stream
    _expect_a_log(args.path)
    progress = Progress(args.path, quiet=sys.stdout.isatty())
    types = args.types if args.types and not args.models else None
    from_seq = 0 if args.since is None else _checkpoint_before(args.path, args.since)
    found = records(args.path, stream=stream, types=types, from_seq=from_seq, progress=progress)
    _print(
        (record for record in found if wanted.wants(record[1]) and _in_stream(record, args.stream)),
        args.pretty,
    )
    progress.done()
    return 0


def _tail(args: argparse.Namespace) -> int:
    _expect_a_log(args.path)
    segment = segment_of(args.path)
    if args.follow and segment:
        raise LogError("a single segment cannot be followed: name the log's directory")
    streams = (segment.stream,) if segment else STREAMS if args.stream == "all" else (args.stream,)
    lines = max(0, args.lines)
    last: list[Record] = []
    next_seqs: dict[Stream, int] = {}
    for stream in streams:
        # One after another, and each is followed from its own end: what is written meanwhile is missed by neither.
        found, next_seqs[stream] = _last_records(args.path, stream, lines)
        last += found
    last.sort(key=lambda record: record[1].seq)
    _print(last[len(last) - lines :] if lines < len(last) else last, args.pretty)
    if args.follow:
        _print(follow(args.path, stream=args.stream, from_seq=next_seqs, wait=_flush_and_wait), args.pretty)
    return 0


def _verify(args: argparse.Namespace) -> int:
    _expect_a_log(args.path)
    progress = Progress(args.path)
    result = verify(args.path, progress)
    progress.done()
    if args.json:
        fields = {name: value for name, value in vars(result).items() if name not in ("torn", "faults")}
        texts = {"torn": [str(fault) for fault in result.torn], "faults": [str(fault) for fault in result.faults]}
        print(msgspec.json.encode({"ok": result.ok, **fields, **texts}).decode())
        return 0 if result.ok else 1
    for fault in result.torn:
        print(f"torn tail, which the next start cuts off: {fault}")
    for fault in result.faults:
        print(f"DAMAGED {fault}")
    print(
        f"{'proved' if result.ok else 'read'} {result.lines} lines in {result.segments} segments, "
        f"seq {result.first_seq} to {result.last_seq}, {result.checkpoints} checkpoints, {_size(result.bytes)}"
        + (f", {result.unknown} of unknown types" if result.unknown else "")
        + (f", {result.holes} holes from repairs" if result.holes else "")
    )
    if not result.ok:
        print(f"to keep what is valid: llama-router log repair {_directory(args.path)}")
        return 1
    return 0


def _repair(args: argparse.Namespace) -> int:
    if not args.path.is_dir():
        raise LogError(f"{args.path} is not a directory: a log is repaired as a whole")
    _expect_a_log(args.path)
    progress = Progress(args.path)
    lost = repair(args.path, dry_run=args.dry_run, progress=progress)
    progress.done()
    for each in lost:
        print(f"{'would lose' if args.dry_run else 'lost'} {each}")
    if not lost:
        print("nothing to repair")
        return 0
    if args.dry_run:
        return 1
    result = verify(args.path)
    print("the log is whole again" if result.ok else "the log is still damaged; see llama-router log verify")
    return 0 if result.ok else 1


def _stats(args: argparse.Namespace) -> int:
    _expect_a_log(args.path)
    progress = Progress(args.path)
    stats = log_stats(args.path, progress)
    progress.done()
    if args.json:
        print(msgspec.json.encode(stats).decode())
    else:
        _print_stats(stats)
    return 1 if stats.faults else 0


def _print_stats(stats: LogStats) -> None:
    print(f"{stats.events} events, seq {stats.first_seq} to {stats.last_seq}, {stats.runs} runs")
    if stats.events:
        print(f"from {when(stats.first_at_us)} to {when(stats.last_at_us)}")
    for name, files in stats.streams.items():
        print(
            f"{name}: {files.segments} segments ({files.sealed} sealed, {files.checkpoints} with a checkpoint), "
            f"{_size(files.bytes)} in {_size(files.stored_bytes)}"
        )
    total = sum(counted.bytes for counted in stats.types.values())
    print(f"\n{'type':<24}{'events':>12}{'bytes':>14}{'each':>8}{'share':>8}")
    for name, counted in sorted(stats.types.items(), key=lambda item: -item[1].bytes):
        each = counted.bytes / counted.events
        print(f"{name:<24}{counted.events:>12}{counted.bytes:>14}{each:>8.0f}{counted.bytes / total:>8.1%}")
    for torn in stats.torn:
        print(f"torn tail, which the next start cuts off: {torn}")
    for fault in stats.faults:
        print(f"DAMAGED {fault}")


# --- arguments ------------------------------------------------------------------------------------------------------


def _verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, find: Callable[[], Path]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, **_texts(_EXAMPLES[name], text))
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="LOG",
        help="directory of the log, or one segment (default: this machine's router's log)",
    )
    parser.set_defaults(run=lambda args: _guarded(run, args, find))
    return parser


def _guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace, find: Callable[[], Path]) -> int:
    args.path = find() if args.path is None else args.path.expanduser()
    try:
        return run(args)
    except LogError as error:
        sys.stdout.flush()
        print(f"llama-router log: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"llama-router log: {error.filename} was removed meanwhile; please try again", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise  # whoever reads the output has seen enough
    except OSError as error:
        sys.stdout.flush()
        print(f"llama-router log: {error.filename or args.path}: {error.strerror}", file=sys.stderr)
        return 1


def _texts(examples: str, text: str = "") -> dict[str, Any]:
    return {
        "description": text or None,
        "epilog": f"examples:\n{examples}\n\n{_EXIT_CODES}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


_EXAMPLES = {
    "log": "  llama-router log cat --since 1h --model qwen3-8b\n"
    "  llama-router log tail -f\n"
    "  llama-router log verify && echo proved",
    "cat": "  llama-router log cat --request 4711                 what happened to a request\n"
    "  llama-router log cat --type SwapBegun --since 1d    every swap of the last day\n"
    "  llama-router log cat --json | jq .type              lines as they are stored\n"
    "  llama-router log cat --stream all --replica 'qwen3-8b#0.3'",
    "tail": "  llama-router log tail -f\n  llama-router log tail -n 100 --stream all --pretty",
    "verify": "  llama-router log verify\n  llama-router log verify events-000000000001.ndjson.gz",
    "repair": "  llama-router log repair --dry-run\n  llama-router log repair ~/.local/state/llama-router/events",
    "stats": "  llama-router log stats\n  llama-router log stats --json | jq .types",
}


def _add_output(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_false", dest="pretty", help="lines as stored (default if piped)")
    how.add_argument("--pretty", action="store_true", dest="pretty", help="lines for people (default on a terminal)")
    parser.set_defaults(pretty=None)


def _add_stream(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--stream", choices=(*STREAMS, "all"), default=default, help=f"default: {default}")


def _type(text: str) -> str:
    if text not in BY_NAME:
        near = [name for name in BY_NAME if text.lower() in name.lower()] or get_close_matches(text, BY_NAME)
        hint = f"; is it {' or '.join(near)}?" if near else f"; known are {', '.join(BY_NAME)}"
        raise argparse.ArgumentTypeError(f"no event is called {text!r}{hint}")
    return text


def _time_us(text: str) -> int:
    """`2h` (ago), seconds since the epoch, or a date and time; local where it names no zone."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text):
        return int((time.time() - float(match[1]) * _UNITS_S[match[2]]) * 1e6)
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return int(float(text) * 1e6)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e6)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: expected 30m, 2h, 1d, 2026-03-01, 2026-03-01T12:00 or seconds since 1970"
        ) from None


# --- output ---------------------------------------------------------------------------------------------------------


def _print(found: Iterable[Record], as_pretty: bool | None) -> None:
    out = sys.stdout.buffer
    if as_pretty or (as_pretty is None and sys.stdout.isatty()):
        for _, event in found:
            out.write(pretty(event).encode("utf-8", "replace") + b"\n")
    else:
        for line, _ in found:
            out.write(line + b"\n")
    out.flush()


def _flush_and_wait() -> bool:
    sys.stdout.buffer.flush()
    return wait_a_moment()


def _in_stream(record: Record, stream: str) -> bool:
    if stream == "all":
        return True
    event = record[1]
    observed = isinstance(event, Observation) or (isinstance(event, SegmentOpened) and event.stream != "events")
    return observed == (stream == "observations")


def _last_records(path: Path, stream: Stream, lines: int) -> tuple[list[Record], int]:
    """The last lines of a stream, and the seq that comes after them; no more segments are read than it takes."""
    segments = segments_at(path, stream)
    back = 2
    while True:
        from_seq = segments[-back].first_seq if back < len(segments) else 0
        last: deque[Record] = deque(maxlen=lines)
        next_seq = from_seq
        for record in records(path, stream=stream, from_seq=from_seq):
            if not isinstance(record[1], SegmentOpened):
                last.append(record)
                next_seq = record[1].seq + 1
        if len(last) == lines or back >= len(segments):
            return list(last), next_seq
        back *= 4


def _checkpoint_before(path: Path, at_us: int) -> int:
    """Where to begin to read for what came from then on: with a checkpoint, which says who belongs to which model."""
    from_seq = 0
    for segment in segments_at(path, "events"):
        header = read_header(segment)
        if header is not None and header.at_us > at_us:
            break
        if header is not None and header.state:
            from_seq = segment.first_seq
    return from_seq


def _expect_a_log(path: Path) -> None:
    """A slip in the path is no empty log. Raises LogError."""
    if not any(segments_at(path, stream) for stream in STREAMS):
        raise LogError(f"there is no log at {path}: expected files named events-*.ndjson or .ndjson.gz")


def _directory(path: Path) -> Path:
    return path.parent if segment_of(path) else path


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count} bytes"


class Progress:
    """A bar on a terminal's stderr that moves with each segment; silent elsewhere and for short work."""

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self._total = 0
        self._done = 0
        self._shown = False
        if sys.stderr.isatty() and not quiet and (path.is_dir() or segment_of(path)):
            self._total = sum(len(segments_at(path, stream)) for stream in STREAMS)

    def __call__(self, segment: Segment) -> None:
        self._done += 1
        if self._total < 2:
            return
        self._shown = True
        share = min(1.0, self._done / self._total)
        bar = "#" * round(share * 30)
        sys.stderr.write(f"\r[{bar:<30}] {self._done}/{self._total} {segment.path.name}\x1b[K")
        sys.stderr.flush()

    def done(self) -> None:
        """Take the bar away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
