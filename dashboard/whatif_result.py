"""What came of a what-if, ready to be shown: sentences, tables and figures. Pure.

Counterparts: `whatif_page`, which shows it; `replay.measures`, which says what each measure is.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from dashboard import words
from dashboard.figures import whatif as figures
from dashboard.rows import Row
from dashboard.units import duration, number, percent, signed_percent
from dashboard.whatif import Job

TRIALS_SHOWN = 40
GOOD, FAIR = 0.1, 0.3
"""The simulator's error, as a share, up to which its figures are called close, or rough."""

WORTH_SAYING = 0.005
"""A smaller difference is neither better nor worse."""


class Measure(NamedTuple):
    """A number of a result. `name`: its field there."""

    name: str
    words: str
    unit: Literal["s", "share", ""] = ""
    meaning: str = ""
    less_is_better: bool = True
    column: str = ""
    """Its heading in the list of trials, if it has a column there."""


MEASURES = (
    Measure("wait_mean_s", "wait, mean", "s", "from arrival until a replica takes the request", column="wait, mean"),
    Measure("wait_p50_s", "wait, half of the requests at most", "s"),
    Measure("wait_p95_s", "wait, 95 % at most", "s", column="95 %"),
    Measure("wait_p99_s", "wait, 99 % at most", "s", column="99 %"),
    Measure("wait_max_s", "wait, longest", "s"),
    Measure("ttft_mean_s", "first token, mean", "s", "from arrival to the first token: the wait and the prompt"),
    Measure("ttft_p95_s", "first token, 95 % at most", "s"),
    Measure(
        "swaps",
        "swaps",
        meaning="loads that a request or a wish caused; each takes a GPU out of work for a while",
        column="swaps",
    ),
    Measure(
        "load_s",
        "time spent loading",
        "s",
        "of all replicas together: time in which a GPU serves nobody",
        column="loading",
    ),
    Measure("evictions", "models that had to leave"),
    Measure(
        "overtakes",
        "overtakes",
        meaning="times that a later request went before one that waited for a swap on its GPUs",
        column="overtakes",
    ),
    Measure(
        "forced",
        "forced loads",
        meaning="loads that could only happen because a request had waited the longest allowed",
        column="forced",
    ),
    Measure(
        "cached_share",
        "prompt found in the cache",
        "share",
        "a reload empties the cache, so fewer swaps mean more of it",
        less_is_better=False,
    ),
    Measure(
        "fair_clients",
        "fairness over clients",
        meaning="1: every client is served for the same share of its time",
        less_is_better=False,
    ),
    Measure("fair_models", "fairness over models", meaning="the same for models", less_is_better=False),
    Measure("finished", "requests answered", less_is_better=False),
    Measure("cancelled", "cancelled by their clients", less_is_better=False),
    Measure("failed", "failed"),
    Measure("makespan_s", "from first arrival to last end", "s"),
)
KNOWN = {measure.name: measure for measure in MEASURES}
COLUMNS = [measure for measure in MEASURES if measure.column]
CALLED_FOR = ("wait_mean_s", "swaps", "load_s")
"""The measures by whose error the simulator is called close, rough or far off."""


def shown(job: Job) -> dict[str, Any]:
    """What came of a job, ready to be shown."""
    return simulated(job.result) if job.asked.kind == "simulate" else tuned(job.result)


def trust(errors: list[Row]) -> dict[str, Any]:
    """How far off the simulator is, by simulating what was recorded: a sentence, and a row for each measure."""
    if not errors:
        text = "Nothing was recorded to compare with, so how far off the figures are is not known."
        return {"kind": "warn", "words": text, "rows": []}
    worst = max(abs(error["share"]) for error in errors if error["measure"] in CALLED_FOR)
    if worst <= GOOD:
        kind, said = "", "It is close: the figures below can be taken as they are."
    elif worst <= FAIR:
        kind, said = "warn", "It is rough: trust large differences below, not small ones."
    else:
        kind, said = "bad", "It is far off for this traffic: take the figures below for hints only."
    listed = [
        {
            "words": KNOWN[error["measure"]].words,
            "recorded": figure(error["recorded"], KNOWN[error["measure"]].unit),
            "simulated": figure(error["simulated"], KNOWN[error["measure"]].unit),
            "off": signed_percent(error["share"]),
        }
        for error in errors
    ]
    return {"kind": kind, "words": said, "rows": listed}


def simulated(result: Row) -> dict[str, Any]:
    """Of `replay simulate`."""
    baseline, other, recorded = result["baseline"], result["alternative"], result["recorded"]
    table = []
    for name, said, unit, meaning, *_ in MEASURES:
        change, better = changed(name, baseline[name], other[name], unit) if other is not None else ("", None)
        table.append(
            {
                "words": said,
                "meaning": meaning,
                "recorded": figure(recorded[name], unit) if recorded else None,
                "baseline": figure(baseline[name], unit),
                "other": figure(other[name], unit) if other is not None else None,
                "change": change,
                "better": better,
            }
        )
    return {
        "kind": "simulate",
        "source": [*result["notes"], f"costs {result['costs']}"],
        "trust": trust(result["errors"]),
        "sets": result["sets"],
        "sentence": sentence(baseline, other)
        if other is not None
        else "Nothing differs from the settings as they were.",
        "table": table,
        "waits": figures.waits(recorded, baseline, other),
        "costs": figures.costs(recorded, baseline, other),
        "models": figures.models(baseline, other) if other is not None else None,
    }


def changed(name: str, before: float, after: float, unit: str = "") -> tuple[str, bool | None]:
    """The difference in words, and whether it is for the better; None where it is neither, or too little to tell."""
    if before == after:
        return "same", None
    if not before:
        return f"from 0 to {figure(after, unit)}", False if KNOWN[name].less_is_better else None
    share = (after - before) / before
    better = share < 0 if KNOWN[name].less_is_better and abs(share) >= WORTH_SAYING else None
    return signed_percent(share), better


def sentence(before: Row, after: Row) -> str:
    """What would have changed, in words."""
    waits = _compared("The mean wait would have been", before["wait_mean_s"], after["wait_mean_s"], seconds=True)
    swaps = _compared("with", before["swaps"], after["swaps"], unit=" swaps")
    loads = _compared("and", before["load_s"], after["load_s"], seconds=True, unit=" of loading")
    return f"{waits}, {swaps} {loads}."


def _compared(words: str, before: float, after: float, *, seconds: bool = False, unit: str = "") -> str:
    then, now = (figure(after, "s"), figure(before, "s")) if seconds else (number(after), number(before))
    return f"{words} {then}{unit} instead of {now}" if then != now else f"{words} {then}{unit} as before"


def tuned(result: Row) -> dict[str, Any]:
    """Of `replay tune`."""
    trials = result["trials"]
    best = result["recommended"]
    groups: dict[str, list[int]] = {}
    for place, trial in enumerate(trials):
        groups.setdefault(repr(trial["measures"]), []).append(place)
    shown_trials = [_row(trials, places, best) for places in groups.values()]
    kept = [trial for place, trial in enumerate(shown_trials) if place < TRIALS_SHOWN or trial["kind"]]
    changed = trials[best]["sets"]
    return {
        "kind": "tune",
        "source": [*result["notes"], f"costs {result['costs']}"],
        "trust": trust(result["errors"]),
        "sets": changed,
        "sentence": words.sentence(result["why"]),
        "config": msgspec.json.format(msgspec.json.encode(result["config"]), indent=2).decode() if changed else "",
        "columns": [measure.column for measure in COLUMNS],
        "trials": kept,
        "left_out": len(groups) - len(kept),
        "trade": figures.trade_off(trials, best),
    }


def _row(trials: Sequence[Row], places: Sequence[int], best: int) -> Row:
    """Trials with the same figures: the recommended one, or the one that changes least, and how many there are."""
    told = min(places, key=lambda place: (place != best, len(trials[place]["sets"])))
    name = ", ".join(trials[told]["sets"]) or "as it is"
    is_current = any(not trials[place]["sets"] for place in places)
    return {
        "name": f"{name}, and {len(places) - 1} more alike" if len(places) > 1 else name,
        "kind": "chosen" if best in places else "current" if is_current else "",
        "cells": [figure(trials[told]["measures"][measure.name], measure.unit) for measure in COLUMNS],
    }


def figure(value: float, unit: str) -> str:
    """A measure with its unit."""
    if unit == "s":
        return duration(round(value * 1e6)) if value else "0 s"
    return percent(value) if unit == "share" else number(value)
