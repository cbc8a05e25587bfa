"""The history API: /router/history and /router/status_timeline, which the router's port passes on to here.

Its parameters are documented, and numbers among them checked, where the router lists its routes. Rows are those of
the table `requests`, so docs/tables.md says what each field means. What had ended before the history was last reset is
left out.
"""

import json
import time
from collections.abc import AsyncIterator
from difflib import get_close_matches
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from dashboard.history import History
from projections import questions
from projections.errors import QuestionFailed
from projections.output import plain
from projections.sandbox import Answer

TIME_LIMIT_S = 30.0
DEFAULT_LIMIT = 10_000
MAX_LIMIT = 100_000
PIECE = 5_000
"""Rows that are read, and sent, at once."""

FIELDS = (
    "rid",
    "run",
    "arrived_us",
    "model",
    "asked",
    "route",
    "work",
    "stream",
    "priority",
    "key",
    "client",
    "conversation",
    "session",
    "stage",
    "attempts",
    "replica",
    "swap",
    "dispatched_us",
    "wait_us",
    "load_wait_us",
    "ttft_us",
    "took_us",
    "ended_us",
    "total_us",
    "outcome",
    "status",
    "code",
    "reason",
    "finish_reason",
    "cancelled_by",
    "bytes_out",
    "prompt_tokens",
    "cached_tokens",
    "uncached_tokens",
    "completion_tokens",
    "prompt_us",
    "predicted_us",
    "prompt_tokens_per_s",
    "tokens_per_s",
    "cost",
)
FOREVER_US = 1 << 62
MANY = ("model", "outcome", "key", "client", "session", "route")
"""Filters that may be given more than once: any of the values."""
HISTORY_PARAMETERS = (*MANY, "since", "until", "limit", "before", "after", "order")
TIMELINE_PARAMETERS = ("since", "until", "gpu")

_RESET = "SELECT max(seq), arg_max(at_us, seq) FROM operations WHERE kind = 'reset_history'"


def routes(history: History) -> APIRouter:
    api = APIRouter()

    @api.get("/router/history")
    async def show_history(request: Request) -> StreamingResponse:
        _check_names(request, HISTORY_PARAMETERS)
        given = request.query_params
        await history.fresh()
        reset_seq, reset_us = await _reset(history)
        where, parameters = _conditions(request, reset_seq)
        order = given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise QuestionFailed(f"order is asc (oldest first) or desc, not {order!r}")
        limit = _number(given.get("limit"), "limit", DEFAULT_LIMIT)
        if limit > MAX_LIMIT:
            raise QuestionFailed(f"limit is at most {MAX_LIMIT}, or 0 for all, not {limit}")
        pieces = _pieces(history, where, parameters, order, limit)
        # The first is read now, so that a mistake is still answered as one.
        first = await anext(pieces)
        return StreamingResponse(_document(first, pieces, reset_us), media_type="application/json")

    @api.get("/router/status_timeline")
    async def show_timeline(request: Request) -> JSONResponse:
        _check_names(request, TIMELINE_PARAMETERS)
        await history.fresh()
        since_us, until_us = _range(request, since="2h", until_us=time.time_ns() // 1000)
        _, reset_us = await _reset(history)
        question = questions.find("status_over_time")
        parameters = question.parameters(since_us=max(since_us, reset_us), until_us=until_us)
        answer = await history.ask(question.sql, parameters, time_limit_s=TIME_LIMIT_S)
        wanted = {_number(text, "gpu", 0) for text in request.query_params.getlist("gpu")}
        timelines: dict[int, list[dict[str, Any]]] = {}
        for gpu, status, from_us, to_us in answer.rows:
            if not wanted or gpu in wanted:
                timelines.setdefault(gpu, []).append({"status": status, "from_us": from_us, "until_us": to_us})
        return JSONResponse(
            {
                "since_us": max(since_us, reset_us),
                "until_us": until_us,
                "gpus": [{"gpu": gpu, "timeline": timeline} for gpu, timeline in timelines.items()],
            }
        )

    return api


# --- what is asked ------------------------------------------------------------------------------------------------


def _check_names(request: Request, known: tuple[str, ...]) -> None:
    """A parameter with a typing mistake would be a filter that filters nothing."""
    for name in request.query_params:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise QuestionFailed(f"there is no parameter {name!r}; {hint}")


def _conditions(request: Request, reset_seq: int) -> tuple[str, dict[str, Any]]:
    """What the rows must fulfil, as SQL with its parameters."""
    given = request.query_params
    since_us, until_us = _range(request)
    conditions = ["arrived_us >= $since_us", "arrived_us < $until_us", "coalesce(end_seq, $reset_seq + 1) > $reset_seq"]
    parameters: dict[str, Any] = {"since_us": since_us, "until_us": until_us, "reset_seq": reset_seq}
    for name in MANY:
        values = given.getlist(name)
        if values:
            names = [f"{name}_{place}" for place in range(len(values))]
            conditions.append(f"{name} IN ({', '.join(f'${each}' for each in names)})")
            parameters |= zip(names, values, strict=True)
    for name, sign in (("before", "<"), ("after", ">")):
        if name in given:
            conditions.append(f"rid {sign} ${name}")
            parameters[name] = _number(given[name], name, 0)
    return " AND ".join(conditions), parameters


def _range(request: Request, *, since: str = "", until_us: int = FOREVER_US) -> tuple[int, int]:
    """Microseconds, from then on and before then; these where the request does not say."""
    now_us = time.time_ns() // 1000
    since = request.query_params.get("since", since)
    until = request.query_params.get("until", "")
    since_us = questions.time_us(since, now_us) if since else 0
    until_us = questions.time_us(until, now_us) if until else until_us
    if since_us >= until_us:
        raise QuestionFailed(f"since ({since}) is not before until ({until or 'now'})")
    return since_us, until_us


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 18:
        raise QuestionFailed(f"{name} is a whole number, not {text!r}")
    return int(text)


async def _reset(history: History) -> tuple[int, int]:
    """Line and moment of the last reset; zeros without one."""
    answer = await history.ask(_RESET, time_limit_s=TIME_LIMIT_S)
    seq, at_us = answer.rows[0]
    return seq or 0, at_us or 0


# --- what is answered -----------------------------------------------------------------------------------------------


async def _pieces(
    history: History, where: str, parameters: dict[str, Any], order: str, limit: int
) -> AsyncIterator[tuple[list[dict[str, Any]], bool]]:
    """Rows, some at a time, and whether there are more than `limit`. Each piece goes on after the last one's rid."""
    left = limit or None
    sign = "<" if order == "desc" else ">"
    beyond = ""
    while True:
        size = PIECE if left is None else min(PIECE, left)
        # First which, by few columns; then all of their columns.
        sql = f"""
            WITH chosen AS MATERIALIZED (
                SELECT rid FROM requests WHERE {where}{beyond} ORDER BY rid {order} LIMIT {size + 1}
            )
            SELECT {", ".join(FIELDS)} FROM requests WHERE rid IN (FROM chosen) ORDER BY rid {order}
        """
        rows = _rows(await history.ask(sql, parameters, time_limit_s=TIME_LIMIT_S))
        more = len(rows) > size
        left = left - size if left is not None else None
        yield rows[:size], more
        if not more or left == 0:
            return
        beyond = f" AND rid {sign} {rows[size - 1]['rid']}"


def _rows(answer: Answer) -> list[dict[str, Any]]:
    return [dict(zip(FIELDS, (plain(value) for value in row), strict=True)) for row in answer.rows]


async def _document(
    first: tuple[list[dict[str, Any]], bool],
    pieces: AsyncIterator[tuple[list[dict[str, Any]], bool]],
    reset_us: int,
) -> AsyncIterator[bytes]:
    """One JSON object, written while it is read: all rows of a long history are never in memory together."""
    rows, more = first
    yield b'{"history":['
    yield _encoded(rows)
    async for rows, more in pieces:  # noqa: B007
        yield b"," + _encoded(rows)
    tail = json.dumps({"more": more, "reset_us": reset_us or None}, separators=(",", ":"))
    yield b"]," + tail[1:].encode()


def _encoded(rows: list[dict[str, Any]]) -> bytes:
    return ",".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows).encode()
