"""The page on which recorded traffic is served again under other settings, and what came of it beside what happened.

POST /dash/api/whatif          begin one; see `whatif.Asked`
POST /dash/api/whatif/cancel   end it
GET  /dash/api/whatif          the latest, with its result; ?job=N for an earlier one
GET  /dash/api/whatif/stream   how far it is, as server-sent events
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from dashboard import words
from dashboard.assets import PLOTLY
from dashboard.figures import whatif as figures
from dashboard.history import History
from dashboard.pages import page
from dashboard.rows import Row, rows
from dashboard.units import duration, number, percent, signed_percent
from dashboard.whatif import Asked, Busy, Job, Refused, WhatIf

TRIALS_SHOWN = 40
GOOD, FAIR = 0.1, 0.3
"""The simulator's error, as a share, up to which its figures are called close, or rough."""

WORTH_SAYING = 0.005
"""A smaller difference is neither better nor worse."""

FIELDS = (
    ("QUEUE_HEAD_GRACE", "Grace, s", "how long later requests may pass the head of the queue", "0, 10, 30"),
    ("QUEUE_HEAD_GRACE_FROM", "Grace counts from", "head: it became the head; arrival: it arrived", "head, arrival"),
    ("QUEUE_FORCE_LOAD_TIMEOUT", "Forced load after, s", "the longest that a request may wait", "300, 900"),
    (
        "EVICTION_POLICY",
        "Who leaves first",
        "lru: unused longest; fifo: loaded longest; worth: by use",
        "lru, fifo, worth",
    ),
    ("MAX_MODELS_PER_GPU", "Models per GPU", "whether their memory fits is for you to say", "1, 2"),
)
"""Name, label, what it is, values to try."""

MEASURES: tuple[tuple[str, str, str, str], ...] = (
    ("wait_mean_s", "wait, mean", "s", "from arrival until a replica takes the request"),
    ("wait_p50_s", "wait, half of the requests at most", "s", ""),
    ("wait_p95_s", "wait, 95 % at most", "s", ""),
    ("wait_p99_s", "wait, 99 % at most", "s", ""),
    ("wait_max_s", "wait, longest", "s", ""),
    ("ttft_mean_s", "first token, mean", "s", "from arrival to the first token: the wait and the prompt"),
    ("ttft_p95_s", "first token, 95 % at most", "s", ""),
    ("swaps", "swaps", "", "loads that a request or a wish caused; each takes a GPU out of work for a while"),
    ("load_s", "time spent loading", "s", "of all replicas together: time in which a GPU serves nobody"),
    ("evictions", "models that had to leave", "", ""),
    ("overtakes", "overtakes", "", "times that a later request went before one that waited for a swap on its GPUs"),
    ("forced", "forced loads", "", "loads that could only happen because a request had waited the longest allowed"),
    (
        "cached_share",
        "prompt found in the cache",
        "share",
        "a reload empties the cache, so fewer swaps mean more of it",
    ),
    ("fair_clients", "fairness over clients", "", "1: every client is served for the same share of its time"),
    ("fair_models", "fairness over models", "", "the same for models"),
    ("finished", "requests answered", "", ""),
    ("cancelled", "cancelled by their clients", "", ""),
    ("failed", "failed", "", ""),
    ("makespan_s", "from first arrival to last end", "s", ""),
)
"""Field of the result, its words, its unit, what it means."""
LESS_IS_BETTER = {
    *("wait_mean_s", "wait_p50_s", "wait_p95_s", "wait_p99_s", "wait_max_s", "ttft_mean_s", "ttft_p95_s"),
    *("swaps", "load_s", "evictions", "overtakes", "forced", "failed", "makespan_s"),
}
TRIAL_COLUMNS = (
    ("wait_mean_s", "wait, mean"),
    ("wait_p95_s", "95 %"),
    ("wait_p99_s", "99 %"),
    ("swaps", "swaps"),
    ("load_s", "loading"),
    ("overtakes", "overtakes"),
    ("forced", "forced"),
)


def routes(history: History) -> APIRouter:
    router = APIRouter()
    whatif = WhatIf(history.log_dir)

    @router.get("/dash/whatif")
    async def show(request: Request, job: int | None = None) -> HTMLResponse:
        chosen = whatif.latest if job is None else whatif.job(job)
        template = "whatif_job.html" if request.query_params.get("part") else "whatif.html"
        span = await rows(history, "SELECT min(arrived_us) AS first_us, max(arrived_us) AS last_us FROM requests")
        return page(
            request,
            template,
            plotly=PLOTLY,
            fields=FIELDS,
            meanings=[(words, text) for _, words, _, text in MEASURES if text],
            job=chosen,
            jobs=whatif.jobs,
            result=shown(chosen) if chosen is not None and chosen.state == "done" else None,
            span=span[0],
        )

    @router.get("/dash/api/whatif")
    async def tell(job: int | None = None) -> Response:
        chosen = whatif.latest if job is None else whatif.job(job)
        if chosen is None:
            return JSONResponse({"job": 0, "state": "none"})
        return JSONResponse(
            {**chosen.told(), "asked": msgspec.to_builtins(chosen.asked), "result": chosen.result or None}
        )

    @router.post("/dash/api/whatif")
    async def begin(request: Request) -> Response:
        # A form of another site cannot send this type without being asked for leave first.
        if not request.headers.get("content-type", "").startswith("application/json"):
            return _error(415, "invalid_body", "the body has to be application/json")
        try:
            asked = msgspec.json.decode(await request.body(), type=Asked)
            return JSONResponse(whatif.start(asked).told(), 202)
        except msgspec.DecodeError as error:
            return _error(400, "invalid_body", f"the body does not say what to try: {error}")
        except Busy as error:
            return _error(409, "service_unavailable", str(error))
        except Refused as error:
            return _error(400, "invalid_parameter", str(error))

    @router.post("/dash/api/whatif/cancel")
    async def cancel(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            return _error(415, "invalid_body", "the body has to be application/json")
        job = await whatif.cancel()
        return _error(404, "not_found", "no what-if is running") if job is None else JSONResponse(job.told())

    @router.get("/dash/api/whatif/stream")
    async def stream() -> Response:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(whatif.listen(), headers=headers, media_type="text/event-stream")

    return router


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": code}}, status)


# --- a result, for the template ---------------------------------------------------------------------------------------


def shown(job: Job) -> dict[str, Any]:
    """What came of a job, ready to be shown."""
    return simulated(job.result) if job.asked.kind == "simulate" else tuned(job.result)


def trust(errors: list[Row]) -> dict[str, Any]:
    """How far off the simulator is, by simulating what was recorded: a sentence, and a row for each measure."""
    if not errors:
        text = "Nothing was recorded to compare with, so how far off the figures are is not known."
        return {"kind": "warn", "words": text, "rows": []}
    worst = max(abs(error["share"]) for error in errors if error["measure"] in ("wait_mean_s", "swaps", "load_s"))
    if worst <= GOOD:
        kind, said = "", "It is close: the figures below can be taken as they are."
    elif worst <= FAIR:
        kind, said = "warn", "It is rough: trust large differences below, not small ones."
    else:
        kind, said = "bad", "It is far off for this traffic: take the figures below for hints only."
    known = {name: (text, unit) for name, text, unit, _ in MEASURES}
    listed = [
        {
            "words": known[error["measure"]][0],
            "recorded": figure(error["recorded"], known[error["measure"]][1]),
            "simulated": figure(error["simulated"], known[error["measure"]][1]),
            "off": signed_percent(error["share"]),
        }
        for error in errors
    ]
    return {"kind": kind, "words": said, "rows": listed}


def simulated(result: Row) -> dict[str, Any]:
    """Of `replay simulate`."""
    baseline, other, recorded = result["baseline"], result["alternative"], result["recorded"]
    table = []
    for name, said, unit, meaning in MEASURES:
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
        return f"from 0 to {figure(after, unit)}", False if name in LESS_IS_BETTER else None
    share = (after - before) / before
    better = share < 0 if name in LESS_IS_BETTER and abs(share) >= WORTH_SAYING else None
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
        "columns": [words for _, words in TRIAL_COLUMNS],
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
        "cells": [figure(trials[told]["measures"][name], _unit(name)) for name, _ in TRIAL_COLUMNS],
    }


def _unit(name: str) -> str:
    return next(unit for each, _, unit, _ in MEASURES if each == name)


def figure(value: float, unit: str) -> str:
    """A measure with its unit."""
    if unit == "s":
        return duration(round(value * 1e6)) if value else "0 s"
    return percent(value) if unit == "share" else number(value)
