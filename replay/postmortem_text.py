"""A postmortem in plain words, for a terminal. Pure; counterpart: `postmortem_html`."""

import signal
from collections.abc import Sequence

import msgspec

from replay.incidents import Incident
from replay.killed_runs import KilledRun
from replay.postmortem import MemorySample, Next, Postmortem, Served, Victim
from replay.text import aligned, clock, count, duration, listed, time_of_day

KINDS = {"crash": "crash", "load_failure": "failed load", "stall": "stall"}
STILL = {"open": "still waiting", "running": "still running", "lost": "lost: the router ended"}
LINES_SHOWN = 15
ROWS_SHOWN = 15


def list_text(found: Sequence[Incident], killed: Sequence[KilledRun] = ()) -> str:
    """All incidents of a log, one a line, and after them the runs of the router that were killed."""
    return "\n".join([_incidents(found), *map(_killed, killed)])


def _killed(killed: KilledRun) -> str:
    lost = f"{count(len(killed.lost), 'request')} lost: {listed(killed.lost)}" if killed.lost else "no request lost"
    return f"router killed: run {killed.run}, before {clock(killed.found_us)}; {lost}"


def _incidents(found: Sequence[Incident]) -> str:
    if not found:
        return "no crash, failed load or stall in this log"
    rows = [
        (
            str(each.number),
            clock(each.at_us),
            KINDS[each.kind],
            each.replica,
            how(each),
            str(len(each.rids)),
            each.reason,
        )
        for each in found
    ]
    return aligned(("N", "at", "what", "replica", "how", "served", "reason"), rows)


def postmortem_text(story: Postmortem) -> str:
    incident = story.incident
    parts = [
        f"{KINDS[incident.kind]} {incident.number} of {story.of}: {incident.replica}, {clock(incident.at_us)}, "
        f"#{incident.seq}\n{headline(story)}",
        _section("suspects", _suspects(story)),
        _section("it was serving", _served(story)),
        _section("its last lines", [f"  {line}" for line in incident.last_lines[-LINES_SHOWN:]]),
        _section("memory before", _memory(story)),
        _section("what else ran", _running(story)),
        _section("notes", [f"  {time_of_day(note.at_us)}  {note.text}" for note in story.notes[-ROWS_SHOWN:]]),
        _section("what the scheduler did next", _next(story.next)),
        _section("who was hurt", _hurt(story.hurt)),
        _section("before in this log", _earlier(story.earlier)),
    ]
    return "\n\n".join(part for part in parts if part)


def headline(story: Postmortem) -> str:
    """What happened, in a sentence or two."""
    incident = story.incident
    lasted = duration(incident.lasted_us)
    told = {
        "crash": f"it had been up for {lasted} and ended by itself: {how(incident)}",
        "load_failure": f"after {lasted} of loading it failed: {how(incident)}",
        "stall": f"it had made no data for {lasted}, against its own norm",
    }[incident.kind]
    reason = f" ({incident.reason})" if incident.reason else ""
    if story.down_us == 0:
        down = "another replica of the model served on"
    elif story.down_us < 0:
        down = "the model was not loaded again within what was looked at"
    else:
        down = f"the model was ready again after {duration(story.down_us)}"
    hurt = f"{count(len(story.hurt), 'request')} hurt" if story.hurt else "nobody was hurt"
    return f"{told}{reason}; {down}; {hurt}"


def how(incident: Incident) -> str:
    """exit code 1, SIGSEGV, out of GPU memory, ..."""
    if incident.signal is not None:
        try:
            name = signal.Signals(incident.signal).name
        except ValueError:
            name = f"signal {incident.signal}"
        return name if incident.cause in ("signal", "stall") else f"{incident.cause}, {name}"
    if incident.exit_code is not None:
        code = f"exit code {incident.exit_code}"
        return code if incident.cause == "exit" else f"{incident.cause}, {code}"
    return incident.cause


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, *lines]) if lines else ""


def _suspects(story: Postmortem) -> list[str]:
    return [
        f"  {place}. {suspect.kind} {suspect.name}: {'; '.join(suspect.evidence)}"
        for place, suspect in enumerate(story.suspects, 1)
    ]


def _served(story: Postmortem) -> list[str]:
    rows = [_served_row(served, story.incident) for served in story.served[:ROWS_SHOWN]]
    if not rows:
        return []
    head = ("request", "for", "attempt", "prompt", "key", "conversation", "tokens just before")
    return [aligned(head, rows, indent="  "), *_more(story.served)]


def _served_row(served: Served, incident: Incident) -> tuple[str, ...]:
    return (
        str(served.rid),
        duration(incident.at_us - served.since_us) if served.since_us else "",
        str(served.attempt),
        f"~{served.prompt_tokens} tokens" if served.prompt_tokens else f"{served.body_bytes} bytes",
        served.key,
        served.conversation[:12],
        tokens(served, incident),
    )


def tokens(served: Served, incident: Incident) -> str:
    """How its answer was coming along."""
    if not served.tokens:
        return "none seen" if served.stream else "it did not stream"
    frames = sum(number for _, number in served.tokens)
    first_us, last_us = served.tokens[0][0], served.tokens[-1][0]
    rate = f", {frames / ((last_us - first_us) / 1e6):.0f}/s" if last_us > first_us else ""
    return f"{count(frames, 'frame')}{rate}, the last seen {duration(incident.at_us - last_us)} before"


def _memory(story: Postmortem) -> list[str]:
    return [f"  {memory(gpu, samples)}" for gpu, samples in sorted(story.memory.items())]


def memory(gpu: int, samples: Sequence[MemorySample]) -> str:
    """First, most and last of a GPU's memory."""
    known = [sample for sample in samples if sample.used_mib >= 0]
    if not known:
        return f"GPU {gpu}: the driver does not tell"
    first, last = known[0], known[-1]
    most = max(known, key=lambda sample: sample.used_mib)
    total = f" of {last.total_mib}" if last.total_mib > 0 else ""
    own = f", {last.own_mib} MiB of that its own" if last.own_mib >= 0 else ""
    return (
        f"GPU {gpu}: {first.used_mib} MiB at {time_of_day(first.at_us)}, at most {most.used_mib}, "
        f"{last.used_mib}{total} MiB at {time_of_day(last.at_us)}{own} ({count(len(known), 'sample')})"
    )


def _running(story: Postmortem) -> list[str]:
    others = [each for each in story.running if each.replica != story.incident.replica]
    rows = [
        (each.replica, each.phase, ",".join(map(str, each.gpus)) or "cpu", f"{each.load}/{each.slots or '?'}")
        for each in others
    ]
    return [aligned(("replica", "phase", "gpus", "slots"), rows, indent="  ")] if rows else []


def _next(steps: Sequence[Next]) -> list[str]:
    rows = [(time_of_day(step.at_us), f"#{step.seq}", step.type, what(step)) for step in steps[:ROWS_SHOWN]]
    return [aligned(("at", "", "", ""), rows, indent="  ").partition("\n")[2], *_more(steps)] if rows else []


def what(step: Next) -> str:
    """The values of an event in a line."""
    words = []
    for name, value in step.what.items():
        text = value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode()
        words.append(f"{name}={text if len(text) <= 60 else text[:59] + '…'}")
    return " ".join(words)


def _hurt(victims: Sequence[Victim]) -> list[str]:
    rows = [hurt_row(victim) for victim in victims[:ROWS_SHOWN]]
    head = ("request", "how", "for", "key", "in the end")
    return [aligned(head, rows, indent="  "), *_more(victims)] if rows else []


def hurt_row(victim: Victim) -> tuple[str, ...]:
    end = STILL.get(victim.outcome, victim.outcome)
    end = f"{end}, {victim.code}" if victim.code else end
    lasted = duration(victim.for_us) if victim.for_us else "at once"
    return (str(victim.rid), victim.how, lasted, victim.key, end)


def _earlier(earlier: Sequence[Incident]) -> list[str]:
    if not earlier:
        return []
    rows = [
        (str(each.number), clock(each.at_us), KINDS[each.kind], how(each), listed(each.rids, 5)) for each in earlier
    ]
    return [aligned(("N", "at", "what", "how", "served"), rows, indent="  ")]


def _more(rows: Sequence[object]) -> list[str]:
    return [f"  and {len(rows) - ROWS_SHOWN} more"] if len(rows) > ROWS_SHOWN else []
