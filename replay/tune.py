"""Try many settings on the same traffic, in parallel processes, and recommend one.

    tuned = tune(source, grid(source.workload.settings, sweeps))

Counterpart: `report` draws what is found here. Every trial is a simulation by `simulate.run_once`: the same traffic,
the same costs and the same seed, so that settings are all that differs.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from eventlog.settings import SchedulerSettings
from replay.alternatives import change_of, changed, differences
from replay.costs import Costs
from replay.measures import Measures
from replay.optimum import Optimum, mean_load_us, optimum_of
from replay.simulate import Error, Source, errors, without_collector
from replay.workload import Workload
from replay.world import World


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of settings, and what came of it."""

    sets: tuple[str, ...]
    """In what it differs from the settings as they are; empty for those themselves."""
    measures: Measures
    best: bool = False
    """On the Pareto front: no other is at least as good in everything and better in something."""
    optimum_served: Optimum | None = None
    """The least for the order in which it served."""
    ratio_arrival: float = 0.0
    """What its loads take over the least for the order of arrival, of the models that are reckoned in that; 0 where
    there is none."""
    ratio_served: float = 0.0


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep's result, best mean wait first."""

    source: str
    notes: tuple[str, ...]
    costs: str
    seed: int
    settings: SchedulerSettings
    errors: tuple[Error, ...]
    trials: tuple[Trial, ...]
    recommended: int
    """Place of the recommended trial."""
    why: str
    optimum_arrival: Optimum | None = None
    recorded: Measures | None = None
    """What really happened, where it can be compared."""

    @property
    def current(self) -> Trial:
        return next(trial for trial in self.trials if not trial.sets)

    @property
    def choice(self) -> Trial:
        return self.trials[self.recommended]


GRACES_S = (0, 2, 5, 10, 20, 30, 60, 120)
FORCES_S = (300, 900)
"""How long the last resort waits."""


def default_sweeps(settings: SchedulerSettings) -> dict[str, list[str]]:
    """What is worth trying without new hardware: the grace, its clock, the last resort and, where there is a choice of
    victims, who leaves first."""
    sweeps = {
        "QUEUE_HEAD_GRACE": [str(grace_s) for grace_s in GRACES_S],
        "QUEUE_HEAD_GRACE_FROM": ["head", "arrival"],
        "QUEUE_FORCE_LOAD_TIMEOUT": [str(force_s) for force_s in FORCES_S],
    }
    if settings.max_models_per_gpu > 1:
        sweeps["EVICTION_POLICY"] = ["lru", "fifo"]
    return sweeps


def grid(settings: SchedulerSettings, sweeps: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Every combination, each as its differences from the settings as they are, which come first. No two are alike."""
    found: dict[tuple[str, ...], None] = {(): None}
    for values in product(*sweeps.values()):
        sets = [f"{key}={value}" for key, value in zip(sweeps, values, strict=True)]
        trial = changed(settings, sets)
        is_patient = trial.head_grace_us or trial.head_release == "accrued"
        if not is_patient and trial.head_grace_from != settings.head_grace_from:
            continue  # without patience it makes no difference when it begins
        found[tuple(differences(settings, trial))] = None
    return list(found)


def tune(
    source: Source,
    trials: Sequence[tuple[str, ...]],
    *,
    seed: int = 0,
    jobs: int = 0,
    optimum: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuned:
    """Run every trial; `jobs` processes, 0 for one per core. `optimum` reckons the least time that loads can take."""
    workload, costs = source.workload, source.costs
    jobs = min(jobs or _cores(), len(trials))
    ran: dict[tuple[str, ...], tuple[Measures, Optimum | None, dict[str, int]]] = {}
    for sets, measures, least, loads in _run_all(workload, costs, trials, seed, optimum, jobs):
        ran[sets] = measures, least, loads
        progress(len(ran), len(trials))
    arrival = None
    if optimum:
        arrival = optimum_of([call.model for call in workload.calls if call.work == "generation"], workload, costs)
    tried = [_trial(sets, *ran[sets], arrival, costs) for sets in trials]
    front = pareto([trial.measures for trial in tried])
    tried = [msgspec.structs.replace(trial, best=best) for trial, best in zip(tried, front, strict=True)]
    current = next(trial for trial in tried if not trial.sets)
    choice = recommend(tried, current)
    tried.sort(key=lambda trial: (trial.measures.wait_mean_s, trial.measures.load_s))
    return Tuned(
        source=workload.source,
        notes=workload.notes,
        costs=costs.source,
        seed=seed,
        settings=workload.settings,
        errors=errors(source.recorded, current.measures) if source.recorded is not None else (),
        trials=tuple(tried),
        recommended=tried.index(choice),
        why=trade_off(current, choice),
        optimum_arrival=arrival,
        recorded=source.recorded,
    )


def _trial(
    sets: tuple[str, ...],
    measures: Measures,
    served: Optimum | None,
    loads: Mapping[str, int],
    arrival: Optimum | None,
    costs: Costs,
) -> Trial:
    return Trial(
        sets=sets,
        measures=measures,
        optimum_served=served,
        ratio_arrival=_ratio(loads, arrival, costs),
        ratio_served=_ratio(loads, served, costs),
    )


def _ratio(loads: Mapping[str, int], least: Optimum | None, costs: Costs) -> float:
    """What its loads of the models that were reckoned take over the least for these, each load at its mean."""
    if least is None or not least.load_s:
        return 0.0
    took_us = sum(count * mean_load_us(costs, model) for model, count in loads.items() if model not in least.left_out)
    return took_us / 1e6 / least.load_s


# --- choosing -------------------------------------------------------------------------------------------------------

AIMS = ("wait_mean_s", "wait_p99_s", "load_s")
"""What the Pareto front is about: waiting, the longest waits, and time spent loading."""
NEARLY = 0.02
"""Mean waits that differ by less than this share are as good as each other."""
WORTH_IT = 0.05
"""An improvement of the mean wait by less than this share is no reason to change anything."""


def pareto(measures: Sequence[Measures]) -> list[bool]:
    """Which of them no other beats: at least as good in all aims, better in one."""
    aims = [tuple(float(getattr(each, aim)) for aim in AIMS) for each in measures]
    return [
        not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in aims)
        for mine in aims
    ]


def recommend(trials: Sequence[Trial], current: Trial) -> Trial:
    """The shortest mean wait that makes neither the longest waits longer nor more requests fail.

    Of those nearly as good, the one that overtakes least, then the one that changes least, then the first that was
    tried. Where little can be won, the settings as they are.
    """
    now = current.measures
    fair = [
        trial
        for trial in trials
        if trial.measures.wait_p99_s <= now.wait_p99_s * (1 + NEARLY) and trial.measures.failed <= now.failed
    ]
    best_s = min(trial.measures.wait_mean_s for trial in fair)
    if best_s >= now.wait_mean_s * (1 - WORTH_IT):
        return current
    nearly = [trial for trial in fair if trial.measures.wait_mean_s <= best_s * (1 + NEARLY)]
    return min(nearly, key=lambda trial: (trial.measures.overtakes, len(trial.sets), trial.measures.wait_mean_s))


def trade_off(current: Trial, choice: Trial) -> str:
    """What is won and what it costs, in a sentence."""
    if choice is current:
        return (
            "the settings as they are: nothing that was tried shortens the mean wait by 5 % without longer long waits"
        )
    now, then = current.measures, choice.measures
    sentence = (
        f"the mean wait becomes {_s(then.wait_mean_s)} instead of {_s(now.wait_mean_s)}, the 99th percentile "
        f"{_s(then.wait_p99_s)} instead of {_s(now.wait_p99_s)}, with {then.swaps:,} swaps instead of {now.swaps:,}"
    )
    worse = {
        model: wait_s - now.wait_mean_by_model_s.get(model, 0.0)
        for model, wait_s in then.wait_mean_by_model_s.items()
        if wait_s > now.wait_mean_by_model_s.get(model, 0.0) * (1 + NEARLY)
    }
    prices = []
    if then.overtakes > now.overtakes:
        prices.append(f"requests are overtaken {then.overtakes:,} times instead of {now.overtakes:,}")
    if worse:
        model = max(worse, key=lambda name: (worse[name], name))
        before_s, after_s = now.wait_mean_by_model_s.get(model, 0.0), then.wait_mean_by_model_s[model]
        prices.append(f"{model} waits {_s(after_s)} on average instead of {_s(before_s)}")
    if then.load_s > now.load_s * (1 + NEARLY):
        prices.append(f"{_s(then.load_s)} are spent loading instead of {_s(now.load_s)}")
    return f"{sentence}; the price: {' and '.join(prices)}" if prices else f"{sentence}; nothing gets worse"


def _s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


# --- processes ------------------------------------------------------------------------------------------------------

_Ran = tuple[tuple[str, ...], Measures, Optimum | None, dict[str, int]]
"""A trial, its figures, the least for the order in which it served, and how often it loaded each model."""


def _run_all(
    workload: Workload, costs: Costs, trials: Sequence[tuple[str, ...]], seed: int, optimum: bool, jobs: int
) -> Iterator[_Ran]:
    """In any order. Processes are spawned, not forked, and get the workload once each."""
    if jobs <= 1:
        for sets in trials:
            yield _run_trial(workload, costs, sets, seed, optimum)
        return
    started_with = (msgspec.msgpack.encode(workload), msgspec.msgpack.encode(costs), seed, optimum)
    with multiprocessing.get_context("spawn").Pool(jobs, _begin, started_with) as pool:
        yield from pool.imap_unordered(_run_in_process, trials)


def _run_trial(workload: Workload, costs: Costs, sets: tuple[str, ...], seed: int, optimum: bool) -> _Ran:
    change = change_of(workload.settings, sets)
    with without_collector():
        world = World(workload, costs, change=change, seed=seed)
        measures = world.run()
        least = None
        if optimum:
            settings = change(workload.settings)
            least = optimum_of(world.served, msgspec.structs.replace(workload, settings=settings), costs)
    return sets, measures, least, world.loads


_process: dict[str, Any] = {}
"""What a process of the sweep was started with."""


def _begin(workload: bytes, costs: bytes, seed: int, optimum: bool) -> None:
    _process["workload"] = msgspec.msgpack.decode(workload, type=Workload)
    _process["costs"] = msgspec.msgpack.decode(costs, type=Costs)
    _process["seed"] = seed
    _process["optimum"] = optimum


def _run_in_process(sets: tuple[str, ...]) -> _Ran:
    return _run_trial(_process["workload"], _process["costs"], sets, _process["seed"], _process["optimum"])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
