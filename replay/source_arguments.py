"""What `import`, `simulate` and `tune` ask alike: where the requests come from, and what things cost."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventlog.errors import LogError

if TYPE_CHECKING:
    from replay.recorded import Span
    from replay.simulate import Progress, Source

FORMATS = ("azure", "mooncake", "burstgpt", "csv", "llama-swap")


def add_verb(
    verbs: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    find_log: Callable[[], Path],
    *,
    text: str,
    epilog: str,
    costs: bool = True,
) -> argparse.ArgumentParser:
    """A verb with sources; `run` may raise LogError, WorkloadError or OSError, which end it with code 1."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_sources(parser)
    if costs:
        _add_costs(parser)

    def guarded(args: argparse.Namespace) -> int:
        from replay.workload import WorkloadError

        args.sources = args.sources or [str(find_log())]
        try:
            return run(args)
        except BrokenPipeError:
            raise  # whoever reads the output has seen enough
        except (LogError, WorkloadError, OSError) as error:
            sys.stdout.flush()
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1

    parser.set_defaults(run=guarded)
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where the requests come from")
    group.add_argument(
        "sources",
        nargs="*",
        metavar="[MODEL=]SOURCE",
        help="a log of ours (default: this machine's router's), a file of `replay import`, or one or more traces",
    )
    group.add_argument("--format", choices=FORMATS, help="of the traces (default: what they look like)")
    group.add_argument("--run", type=_whole(1), dest="run_number", metavar="N", help="this run of the log")
    group.add_argument("--since", metavar="TIME", help="of a log, what arrived from then on: 2h, 2026-03-01T12:00")
    group.add_argument("--until", metavar="TIME", help="of a log, what arrived before then")
    group.add_argument("--keep-every", type=_whole(1), default=1, metavar="N", help="only one session of N")
    group.add_argument("--first", type=_whole(0), default=0, metavar="N", help="only the first N requests")
    group.add_argument("--stretch", type=_above_0, default=1.0, metavar="F", help="time between arrivals times F")
    group.add_argument(
        "--spread",
        type=_shares,
        default={},
        metavar="A:3,B,...",
        help="deal the sessions over these models, in turn; A three times as often",
    )
    group.add_argument(
        "--base",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="settings to begin with, for a trace that has none: NUM_GPUS=2, gpus.MODEL=1, QUEUE_HEAD_GRACE=5, ...",
    )


def _add_costs(parser: argparse.ArgumentParser) -> None:
    from replay.costs import KEYS

    group = parser.add_argument_group("what things cost (measured in a log; assumed for a trace)")
    for key, about in KEYS.items():
        group.add_argument(f"--{key.replace('_', '-')}", type=_not_below_0, metavar="X", help=about)
    group.add_argument("--cost", action="append", default=[], metavar="MODEL.KEY=X", help="the same for one model")


def add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", action="store_true", help="tell how far it is on stderr, as lines of JSON")


def source_of(args: argparse.Namespace, progress: "Progress | None" = None) -> "Source":
    """As the arguments say. Raises LogError, WorkloadError, OSError."""
    import msgspec

    from replay.costs import KEYS, with_costs
    from replay.simulate import load_source
    from replay.workload import first, keep_every, spread, stretch

    source = load_source(
        args.sources,
        kind=args.format,
        run=args.run_number,
        base=[] if args.spread else args.base,
        span=span_of(args.since, args.until),
        progress=progress or (lambda stage, done, total: None),
    )
    workload = source.workload
    if args.spread:
        from replay.simulate import based

        workload = based(spread(workload, args.spread), args.base)
    workload = stretch(keep_every(first(workload, args.first), args.keep_every), args.stretch)
    said = {key: getattr(args, key) for key in KEYS if getattr(args, key, None) is not None}
    models = {*workload.settings.models, *(call.model for call in workload.calls)}
    costs = with_costs(source.costs, said, getattr(args, "cost", []), models)
    is_whole = len(workload.notes) == len(source.workload.notes)
    return msgspec.structs.replace(
        source, workload=workload, costs=costs, recorded=source.recorded if is_whole else None
    )


def span_of(since: str | None, until: str | None) -> "Span":
    """A stretch of a log's time. Raises WorkloadError where it is none."""
    from replay.recorded import Span
    from replay.workload import WorkloadError

    now_us = time.time_ns() // 1000
    span = Span(since_us=_moment("--since", since, now_us), until_us=_moment("--until", until, now_us))
    if span.until_us and span.until_us <= span.since_us:
        raise WorkloadError(f"--until {until} is not after --since {since}")
    return span


def _moment(option: str, text: str | None, now_us: int) -> int:
    from projections.errors import QuestionFailed
    from projections.questions import time_us
    from replay.workload import WorkloadError

    if not text:
        return 0
    try:
        return time_us(text, now_us)
    except QuestionFailed as error:
        raise WorkloadError(f"{option}: {error}") from error


def introduction(source: "Source") -> str:
    """What is simulated, in a few lines."""
    from replay.costs import told
    from replay.text import count, duration

    workload = source.workload
    models: dict[str, int] = {}
    for call in workload.calls:
        models[call.model] = models.get(call.model, 0) + 1
    shares = ", ".join(f"{model} ({models[model]:,})" for model in sorted(models))
    lines = [
        workload.source,
        f"{count(len(workload.calls), 'request')} in {duration(workload.span_us)}: {shares}",
        *(f"note: {note}" for note in workload.notes),
        f"costs {source.costs.source}:",
        *(f"  {line}" for line in told(source.costs, sorted(models))),
    ]
    return "\n".join(lines)


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return number

    return read


def _not_below_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return number


def _above_0(text: str) -> float:
    number = _not_below_0(text)
    if not number:
        raise argparse.ArgumentTypeError("it must be above 0")
    return number


def _shares(text: str) -> dict[str, int]:
    shares: dict[str, int] = {}
    for part in text.split(","):
        name, colon, share = (word.strip() for word in part.partition(":"))
        if not name or name in shares or (colon and not (share.isdecimal() and int(share))):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of different models, such as a,b or a:3,b")
        shares[name] = int(share) if colon else 1
    return shares
