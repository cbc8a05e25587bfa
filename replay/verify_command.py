"""`llama-router replay verify LOG`."""

import argparse
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.command_line import add_verb

if TYPE_CHECKING:
    from replay.differences import Difference
    from replay.verify import Verified

FIELDS_SHOWN = 20

EPILOG = """\
examples:
  llama-router replay verify                         the log of this machine's router
  llama-router replay verify ./log --json            for scripts: counts, digests, the first difference
  llama-router replay verify events-000000048211.ndjson.gz    from one checkpoint on
  llama-router replay verify old-log --strict        differences under an older policy are failures too

exit codes: 0 every decision is the same, or differs only where the log was recorded under another policy (counted and
shown); 1 a decision or a checkpoint is not the same, the log cannot be read or has nothing to verify; 2 the command
line is wrong
"""


def add_command(verbs: Any, find_log: Callable[[], Path]) -> None:
    parser = add_verb(
        verbs,
        "verify",
        _run,
        find_log,
        text="make every decision of a log again from its facts, and compare byte for byte",
        epilog=EPILOG,
    )
    parser.add_argument("--strict", action="store_true", help="fail on differences under another policy, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(args: argparse.Namespace) -> int:
    from replay.progress import SegmentsBar
    from replay.verify import verify

    bar = SegmentsBar(args.log)
    try:
        result = verify(args.log, strict=args.strict, progress=bar)
    finally:
        bar.close()
    print(as_json(args.log, result) if args.json else as_text(result))
    sys.stdout.flush()
    return 0 if result.ok and result.events else 1


def as_json(log: Path, result: "Verified") -> str:
    """All of it, the state around the first difference included."""
    import msgspec

    fields = msgspec.to_builtins(result)
    fields |= {
        "log": str(log),
        "events": result.events,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return msgspec.json.encode(fields).decode()


def as_text(result: "Verified") -> str:
    """The verdict, what it rests on, and the first difference."""
    from replay.text import count, listed

    lines = []
    if result.first is not None:
        lines += [_difference(result.first), ""]
    runs = f"{count(len(result.runs), 'run')}" if result.runs else "no run"
    what = f"{count(result.events, 'event')} ({result.facts:,} facts, {result.decisions:,} decisions) of {runs}"
    if not result.events:
        lines.append("nothing to verify: the log has no checkpoint and no start of a run")
    elif not result.differences:
        lines.append(f"verified {what}: every decision is the same")
    elif result.ok:
        lines.append(
            f"verified {what}: {count(result.differences, 'difference')}, all in runs recorded under another policy "
            f"({listed(_policies(result))}; this is policy {result.policy_version})"
        )
    else:
        lines.append(f"NOT THE SAME after {what}")
    lines.append(
        f"seq {result.first_seq} to {result.last_seq}; {_checkpoints(result)}; "
        f"{result.seconds:.1f} s, {result.events / max(result.seconds, 1e-9):,.0f} events/s"
    )
    if result.skipped:
        lines.append(f"{count(result.skipped, 'event')} skipped: no checkpoint and no start of a run before")
    if result.unknown:
        lines.append(f"{count(result.unknown, 'event')} of types or with values that this version does not know")
    if result.interrupted:
        facts = [f"#{seq}" for seq in result.interrupted]
        lines.append(f"a crash kept the decisions after {listed(facts)} from the log, which is no difference")
    lines.append(f"decisions {result.decisions_digest}")
    lines.append(f"states    {result.states_digest}")
    return "\n".join(lines)


def _checkpoints(result: "Verified") -> str:
    from replay.text import count

    same = sum(checkpoint.same for checkpoint in result.checkpoints)
    if same == len(result.checkpoints):
        return count(same, "checkpoint") + (", the same" if same else "")
    return f"{same:,} of {count(len(result.checkpoints), 'checkpoint')} the same"


def _policies(result: "Verified") -> list[int]:
    return sorted({policy for policy in result.recorded_policies if policy is not None} - {result.policy_version})


def _difference(first: "Difference") -> str:
    from replay.differences import MEANING
    from replay.state_tables import render_state
    from replay.text import aligned, clock

    lines = [f"#{first.seq} at {clock(first.at_us)}, run {first.run}: {MEANING[first.kind]}"]
    if first.error:
        lines.append(f"  {first.error}")
    if first.kind in ("checkpoint", "carried"):
        pass  # Whole states: the fields that differ say it.
    else:
        for name, decision in (("recorded", first.recorded), ("recomputed", first.recomputed)):
            lines.append(f"  {name:<11} {_one_line(decision)}")
    if first.fields:
        rows = [(each.field, _short(each.recorded), _short(each.recomputed)) for each in first.fields[:FIELDS_SHOWN]]
        lines.append(aligned(("field", "recorded", "recomputed"), rows, indent="  "))
        if len(first.fields) > FIELDS_SHOWN:
            lines.append(f"  and {len(first.fields) - FIELDS_SHOWN} more fields")
    if first.state is not None:
        lines += ["", "the state before it", render_state(first.state)]
    return "\n".join(lines)


def _one_line(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "nothing"
    return " ".join(
        value if name == "type" else f"{name}={_short(value)}" for name, value in decision.items() if name != "run"
    )


def _short(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
