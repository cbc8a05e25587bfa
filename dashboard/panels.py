"""What the panels of `/dash` show, each as JSON under /dash/api/panels/{name}?since=24h&until=...&model=...

Every answer has the range that it is about (`since_us`, `until_us`, `bucket_us`), `rows` as the question of that name
gives them, and, where something is drawn, `figure` for Plotly, made of those rows by `figures`; `rows=false` leaves the
rows out. What the router does at this moment is not here: the page asks the router's own `/status`.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from dashboard import colours, request_list
from dashboard.figures import gpus, queue, residency, tokens
from dashboard.history import History
from projections import questions
from projections.errors import QuestionFailed
from projections.output import plain

TIME_LIMIT_S = 20.0
MAX_ROWS = 20_000
FINE_STEPS, COARSE_STEPS, MARKS = 1500, 300, 100
"""Stays that begin in the same step are one bar of the residency figure: about a pixel of it, or a few. The steps in
which swaps are one mark are as wide as a mark."""
BARS_MAX = 1500
"""More bars than that are drawn in coarse steps."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What a panel is asked for: a range in microseconds, and a model, or all."""

    since_us: int
    until_us: int
    model: str

    @property
    def bucket_us(self) -> int:
        return questions.bucket_for(self.until_us - self.since_us)


Panel = Callable[[History, Asked], Awaitable[dict[str, Any]]]


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash/api/panels")
    async def list_panels() -> list[str]:
        return [*PANELS, "requests"]

    @router.get("/dash/api/panels/requests")
    async def list_requests(
        request: Request,
        since: str = "24h",
        until: str = "",
        model: str = "",
        client: str = "",
        outcome: str = "",
        page: int = Query(1, ge=1, le=100_000),
        limit: int = Query(25, ge=1, le=500),
    ) -> JSONResponse:
        asked = _asked(since, until, model)
        wanted = request_list.Wanted(asked.since_us, asked.until_us, model, client, outcome, page, limit)
        return JSONResponse(_range(asked) | await request_list.listed(history, wanted))

    @router.get("/dash/api/panels/{name}")
    async def show_panel(
        name: str, since: str = "24h", until: str = "", model: str = "", rows: bool = True
    ) -> JSONResponse:
        panel = PANELS.get(name)
        if panel is None:
            raise QuestionFailed(f"there is no panel {name!r}; there are {', '.join([*PANELS, 'requests'])}")
        asked = _asked(since, until, model)
        told = await panel(history, asked)
        if not rows:
            told = {"figure": told.get("figure")}
        return JSONResponse(_range(asked) | told)

    @router.get("/dash/api/models")
    async def list_models() -> dict[str, Any]:
        """Every model that is or was configured, and the colour of those that are."""
        hues = await colours.hues(history)
        rows = await rows_of(history, "SELECT DISTINCT model FROM model_configs ORDER BY model", {})
        return {"models": [row["model"] for row in rows], "hues": hues}

    return router


async def rows_of(history: History, sql: str, parameters: dict[str, Any]) -> Rows:
    """Answer of one statement as objects in JSON's types."""
    answer = await history.ask(sql, parameters, time_limit_s=TIME_LIMIT_S, max_rows=MAX_ROWS)
    return [{name: plain(value) for name, value in record.items()} for record in answer.records()]


async def ask(history: History, name: str, asked: Asked, *, bucket_us: int = 0) -> Rows:
    """Answer of the question of this name."""
    question = questions.find(name)
    parameters = question.parameters(
        since_us=asked.since_us, until_us=asked.until_us, model=asked.model, bucket_us=bucket_us or asked.bucket_us
    )
    return await rows_of(history, question.sql, parameters)


# --- the panels -----------------------------------------------------------------------------------------------------


async def _tiles(history: History, asked: Asked) -> dict[str, Any]:
    return {"rows": await ask(history, "tiles", asked)}


async def _gpus(history: History, asked: Asked) -> dict[str, Any]:
    rows = await ask(history, "gpus_over_time", asked)
    return {"rows": rows, "figure": gpus.figure(rows, asked.since_us, asked.until_us, asked.bucket_us)}


async def _residency(history: History, asked: Asked) -> dict[str, Any]:
    span_us = asked.until_us - asked.since_us
    step_us = max(1, span_us // FINE_STEPS)
    rows = await ask(history, "residency_over_time", asked, bucket_us=step_us)
    if len(rows) > BARS_MAX:
        step_us = max(1, span_us // COARSE_STEPS)
        rows = await ask(history, "residency_over_time", asked, bucket_us=step_us)
    swaps = await ask(history, "swaps_over_time", asked, bucket_us=max(1, span_us // MARKS))
    hues = await colours.hues(history)
    drawn = residency.figure(rows, swaps, hues, asked.since_us, asked.until_us)
    return {"rows": rows, "swaps": swaps, "figure": drawn}


async def _queue(history: History, asked: Asked) -> dict[str, Any]:
    depth = await ask(history, "queue_over_time", asked)
    waits = await ask(history, "waits_over_time", asked)
    drawn = queue.figure(depth, waits, asked.since_us, asked.until_us, asked.bucket_us)
    return {"rows": depth, "waits": waits, "figure": drawn}


async def _tokens(history: History, asked: Asked) -> dict[str, Any]:
    made = await ask(history, "tokens_over_time", asked)
    prompts = await ask(history, "prompt_tokens_over_time", asked)
    drawn = tokens.figure(made, prompts, asked.since_us, asked.until_us, asked.bucket_us)
    return {"rows": made, "prompts": prompts, "figure": drawn}


async def _crashes(history: History, asked: Asked) -> dict[str, Any]:
    return {"rows": await ask(history, "crashes", asked)}


async def _clients(history: History, asked: Asked) -> dict[str, Any]:
    return {"rows": await request_list.clients(history, asked.since_us, asked.until_us, asked.model)}


PANELS: dict[str, Panel] = {
    "tiles": _tiles,
    "gpus": _gpus,
    "residency": _residency,
    "queue": _queue,
    "tokens": _tokens,
    "crashes": _crashes,
    "clients": _clients,
}


def _asked(since: str, until: str, model: str) -> Asked:
    """Raises QuestionFailed, which says what a time looks like."""
    now_us = time.time_ns() // 1000
    since_us = questions.time_us(since, now_us)
    until_us = questions.time_us(until, now_us) if until else now_us
    if since_us >= until_us:
        raise QuestionFailed(f"since ({since!r}) must be before until ({until or 'now'!r})")
    return Asked(since_us, until_us, model)


def _range(asked: Asked) -> dict[str, Any]:
    return {"since_us": asked.since_us, "until_us": asked.until_us, "bucket_us": asked.bucket_us}
