"""Simulate a workload under its own settings, compare with what was recorded, and only then under others.

    source = load_source([Path("log")])
    result = simulate(source, sets=["QUEUE_HEAD_GRACE=30"])

Counterpart: `verify` demands the recorded decisions; here the world is pretended, so that decisions may differ.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from eventlog.segments import segment_of
from eventlog.settings import SchedulerSettings
from replay.alternatives import change_of, changed, differences
from replay.costs import Costs
from replay.fit import fit
from replay.importers import Format, read_traces
from replay.measures import Measures
from replay.recorded import WHOLE, Span, read_recording
from replay.workload import Workload, WorkloadError, costs_in, read_workload
from replay.world import World


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be simulated, and what is known of it."""

    workload: Workload
    costs: Costs
    recorded: Measures | None = None
    """What really happened, where the source is a log that was not thinned, stretched or cut."""


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """How far the simulator is from what was recorded, in one measure; `share` is of the recorded value."""

    measure: str
    recorded: float
    simulated: float
    share: float


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation's result."""

    source: str
    notes: tuple[str, ...]
    seed: int
    costs: str
    settings: SchedulerSettings
    errors: tuple[Error, ...] = ()
    """Of the simulator, under the recorded settings; empty where nothing was recorded."""
    baseline: Measures
    alternative: Measures | None = None
    sets: tuple[str, ...] = ()
    """In what the alternative differs."""
    recorded: Measures | None = None
    """What really happened, where it can be compared."""


Progress = Callable[[str, float, float], None]
"""Stage, done, total."""


def _silent(stage: str, done: float, total: float) -> None:
    pass


def load_source(
    sources: Sequence[str],
    *,
    kind: Format | None = None,
    run: int | None = None,
    base: Sequence[str] = (),
    span: Span = WHOLE,
    progress: Progress = _silent,
) -> Source:
    """A log of ours, a workload file, or traces; `base` are settings for what has none of its own.

    `span`: only the requests of a log that arrived in it.

    Raises WorkloadError, LogError, OSError.
    """
    path = Path(sources[0])
    alone = kind is None and len(sources) == 1
    if alone and (path.is_dir() or segment_of(path) is not None):
        recording = read_recording(path, run, span, lambda done, total: progress("reading the log", done, total))
        workload = recording.workload
        models = {*workload.settings.models, *(call.model for call in workload.calls)}
        return Source(
            workload=based(workload, base),
            costs=fit(recording.durations, "measured in the log", models),
            recorded=None if base else recording.measures(),
        )
    if span != WHOLE:
        raise WorkloadError("only a log of ours can be cut by time: leave out --since and --until")
    if run is not None:
        raise WorkloadError("only a log of ours has runs: leave out --run")
    if alone and path.is_file() and _is_workload(path):
        workload, measured = read_workload(path), costs_in(path)
        costs = msgspec.json.decode(measured, type=Costs) if measured else Costs()
        return Source(workload=based(workload, base), costs=costs)
    return Source(workload=based(read_traces(sources, kind), base), costs=Costs())


def _is_workload(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(18).startswith(b'{"type":"Workload"')


def based(workload: Workload, base: Sequence[str]) -> Workload:
    """With other settings to begin with, which is noted."""
    if not base:
        return workload
    settings = changed(workload.settings, base)
    note = f"settings: {' '.join(differences(workload.settings, settings)) or 'as they were'}"
    return msgspec.structs.replace(workload, settings=settings, notes=(*workload.notes, note))


def run_once(
    workload: Workload,
    costs: Costs,
    sets: Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Measures:
    """One run in virtual time. `progress` hears which share of the calls has come."""
    with without_collector():
        return World(workload, costs, change=change_of(workload.settings, sets), seed=seed).run(progress)


def simulate(source: Source, *, sets: Sequence[str] = (), seed: int = 0, progress: Progress = _silent) -> Simulated:
    """The settings as they are, the simulator's error, then the alternative."""
    workload = source.workload
    other = changed(workload.settings, sets)
    baseline = run_once(workload, source.costs, (), seed, lambda share: progress("the settings as they were", share, 1))
    return Simulated(
        source=workload.source,
        notes=workload.notes,
        seed=seed,
        costs=source.costs.source,
        settings=workload.settings,
        errors=errors(source.recorded, baseline) if source.recorded is not None else (),
        baseline=baseline,
        alternative=run_once(workload, source.costs, sets, seed, lambda share: progress("the change", share, 1))
        if sets
        else None,
        sets=tuple(differences(workload.settings, other)),
        recorded=source.recorded,
    )


COMPARED = ("wait_mean_s", "wait_p95_s", "ttft_mean_s", "swaps", "load_s", "cached_share", "makespan_s")


def errors(recorded: Measures, simulated: Measures) -> tuple[Error, ...]:
    """Measure by measure. A value of nothing that was simulated as something is off by all of it."""
    found = []
    for name in COMPARED:
        real, pretended = float(getattr(recorded, name)), float(getattr(simulated, name))
        share = (pretended - real) / real if real else float(pretended != real)
        found.append(Error(measure=name, recorded=real, simulated=pretended, share=share))
    return tuple(found)


@contextmanager
def without_collector() -> Iterator[None]:
    """A run makes millions of small objects and no cycles: the collector would only look at them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
