"""A workload: the requests that came, as a simulation needs them, without what became of them.

Read from a log of ours (`recorded`) or from somebody else's trace (`importers`). Counterpart: `world` serves it.
Times are microseconds from the start of the workload. Whatever was done to it (thinned, stretched, spread over
models) stands in `notes`, and every result made from it shows them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from eventlog.events import AdminDrain, AdminGpu, AdminUnload, ConfigLoaded, LoadWished
from eventlog.settings import ModelSettings, SchedulerSettings

Block = tuple[str, int]
"""A step of a growing prefix: hash of everything up to here, and the tokens up to here."""

Happening = AdminDrain | AdminGpu | AdminUnload | ConfigLoaded | LoadWished
"""What somebody did besides asking; its rid and op are given anew by the simulation."""


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `number` counts within the workload, in order of arrival, from 1."""

    number: int
    at_us: int
    """Arrival of the headers; where `after` is set, only the order among its like."""
    model: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix: tuple[Block, ...] = ()
    after: int = 0
    """Number of the call that this one follows: it comes `think_us` after that one's end. 0: it comes at `at_us`."""
    think_us: int = 0
    body_us: int = 0
    """From the headers to the end of the body."""
    leaves_after_us: int = -1
    """The client goes away so long after its arrival; -1: it stays."""
    leaves_after_tokens: int = -1
    """The client goes away once it has seen so many tokens; -1: it stays."""
    work: Literal["generation", "metadata"] = "generation"
    slots_wanted: int = 1
    priority: int = 0
    priority_from: Literal["", "header", "key"] = ""
    key: str = ""
    client: str = ""
    conversation: str = ""


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls in order of arrival, and the settings they met or shall meet."""

    calls: tuple[Call, ...]
    settings: SchedulerSettings
    happenings: tuple[tuple[int, Happening], ...] = ()
    """(time, what)"""
    source: str = ""
    """Where it comes from, with the attribution that its licence asks for."""
    notes: tuple[str, ...] = ()

    @property
    def span_us(self) -> int:
        """From the start to the last arrival, as recorded."""
        return max((call.at_us for call in self.calls), default=0)


class WorkloadError(Exception):
    """A trace or a workload cannot be used: what, where, and what would be right."""


def session_of(call: Call) -> str:
    """Calls of one conversation belong together; a call without one is alone."""
    return call.conversation or f"call {call.number}"


def keep_every(workload: Workload, nth: int) -> Workload:
    """Only every nth session, counted by first arrival."""
    if nth == 1:
        return workload
    numbers: dict[str, int] = {}
    for call in workload.calls:
        numbers.setdefault(session_of(call), len(numbers))
    kept = [call for call in workload.calls if numbers[session_of(call)] % nth == 0]
    note = f"thinned: one session of {nth}, {len(kept)} of {len(workload.calls)} requests"
    return msgspec.structs.replace(workload, calls=renumbered(kept), notes=(*workload.notes, note))


def stretch(workload: Workload, factor: float) -> Workload:
    """Time between arrivals, and time to think, `factor` times as long."""
    if factor == 1:
        return workload
    calls = tuple(
        msgspec.structs.replace(
            call,
            at_us=round(call.at_us * factor),
            think_us=round(call.think_us * factor),
            leaves_after_us=round(call.leaves_after_us * factor) if call.leaves_after_us > 0 else call.leaves_after_us,
        )
        for call in workload.calls
    )
    happenings = tuple((round(at_us * factor), what) for at_us, what in workload.happenings)
    note = f"stretched: time between arrivals times {factor:g}"
    return msgspec.structs.replace(workload, calls=calls, happenings=happenings, notes=(*workload.notes, note))


def first(workload: Workload, count: int) -> Workload:
    """Only the first `count` calls; 0 for all."""
    if not 0 < count < len(workload.calls):
        return workload
    note = f"cut: the first {count} of {len(workload.calls)} requests"
    calls = renumbered(workload.calls[:count])
    return msgspec.structs.replace(workload, calls=calls, notes=(*workload.notes, note))


def spread(workload: Workload, shares: Mapping[str, int]) -> Workload:
    """Deal the sessions of a trace over models, in turn, each as often as its share says."""
    dealt: dict[str, str] = {}
    turns = _in_turn(shares)
    for call in workload.calls:
        session = session_of(call)
        if session not in dealt:
            dealt[session] = next(turns)
    calls = tuple(msgspec.structs.replace(call, model=dealt[session_of(call)]) for call in workload.calls)
    like = next(iter(workload.settings.models.values()), ModelSettings())
    settings = msgspec.structs.replace(
        workload.settings, models={model: ModelSettings(gpus=like.gpus) for model in shares}
    )
    words = ", ".join(model if share == 1 else f"{model} ({share})" for model, share in shares.items())
    note = f"spread: sessions dealt over {words}"
    if workload.happenings:
        note += "; what was done to the models of before is left out"
    return msgspec.structs.replace(
        workload, calls=calls, settings=settings, happenings=(), notes=(*workload.notes, note)
    )


def _in_turn(shares: Mapping[str, int]) -> Iterator[str]:
    """Whoever is furthest behind its share comes next, so that a popular model comes often and not in a row."""
    credit = dict.fromkeys(shares, 0)
    whole = sum(shares.values())
    while True:
        for name, share in shares.items():
            credit[name] += share
        name = max(credit, key=lambda name: credit[name])
        credit[name] -= whole
        yield name


def renumbered(calls: Iterable[Call], start_us: int = 0) -> tuple[Call, ...]:
    """Numbers from 1 in order of arrival, times from `start_us` on.

    A call whose predecessor is gone comes at its recorded time.
    """
    ordered = sorted(calls, key=lambda call: (call.at_us, call.number))
    numbers = {call.number: number for number, call in enumerate(ordered, 1)}
    return tuple(
        msgspec.structs.replace(
            call, number=numbers[call.number], after=numbers.get(call.after, 0), at_us=call.at_us - start_us
        )
        for call in ordered
    )


# --- files ----------------------------------------------------------------------------------------------------------


NO_COSTS = msgspec.Raw()


class _Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="Workload", omit_defaults=True):
    settings: SchedulerSettings
    happenings: tuple[tuple[int, Happening], ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    costs: msgspec.Raw = NO_COSTS


def write_workload(workload: Workload, path: Path, costs: msgspec.Raw = NO_COSTS) -> None:
    """One line of JSON for the settings, then one for each call. `costs`: what was measured with it, as JSON."""
    header = _Header(
        settings=workload.settings,
        happenings=workload.happenings,
        source=workload.source,
        notes=workload.notes,
        costs=costs,
    )
    encode = msgspec.json.encode
    with path.open("wb") as file:
        for line in _lines(encode(header), (encode(call) for call in workload.calls)):
            file.write(line + b"\n")


def read_workload(path: Path) -> Workload:
    """A file of `write_workload`. Raises WorkloadError."""
    lines = path.read_bytes().splitlines()
    try:
        header = msgspec.json.decode(lines[0] if lines else b"", type=_Header)
        calls = tuple(msgspec.json.decode(line, type=Call) for line in lines[1:])
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{path} is no workload as `replay import` writes it: {error}") from error
    return Workload(
        calls=calls,
        settings=header.settings,
        happenings=header.happenings,
        source=header.source,
        notes=header.notes,
    )


def costs_in(path: Path) -> msgspec.Raw:
    """The costs that a file of `write_workload` has, as JSON; empty where it has none."""
    with path.open("rb") as file:
        header = msgspec.json.decode(file.readline(), type=_Header)
    return header.costs.copy()


def _lines(header: bytes, calls: Iterable[bytes]) -> Iterator[bytes]:
    yield header
    yield from calls
