"""What the dashboard answers: questions to the tables, as JSON.

    GET  /health                        how far the tables are
    GET  /dash/api/stream               which tables change, as server-sent events; Last-Event-ID
    GET  /api/questions                 questions with a name
    GET  /api/ask/{name}                its answer; since, until (2h, 2026-03-01, seconds since 1970), model
    GET  /router/history, ...           see history_api
    POST /api/sql {"sql": "SELECT ..."} any question that reads
    GET  /dash, /dash/...               the pages, each a module of PAGES

An answer has `columns`, `types` and `rows`; a mistake is {"error": {"message": ...}}, as everywhere in the router, or a
page to somebody who looks at one.
While the tables are being built, everything but /health is answered 503, since every number would be too small.
"""

import time
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from dashboard import (
    assets,
    crash_page,
    history_api,
    overview,
    panels,
    request_page,
    swap_page,
    talk_pages,
    whatif_page,
)
from dashboard.history import History
from dashboard.news import News, TooMany
from dashboard.pages import page
from projections import questions
from projections.errors import QuestionFailed
from projections.output import plain
from projections.sandbox import Answer

TIME_LIMIT_S = 30.0
MAX_ROWS = 100_000
NOTHING = "there is nothing at this address"
SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


PAGES = (overview, panels, request_page, swap_page, crash_page, whatif_page, talk_pages)
"""Modules with `routes(history)`; see `pages`."""


class SqlQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /api/sql.

    `parameters` are those that the SQL names as `$name`. `max_rows` 0: as many as are ever given at once.
    """

    sql: str
    parameters: dict[str, int | str] = {}
    timeout_s: float = TIME_LIMIT_S
    max_rows: int = 0


def create_app(history: History, news: News | None = None) -> FastAPI:
    """The application on top of these tables; without `news`, nothing is ever said to change."""
    told = news or News()
    app = FastAPI(title="llama-router dashboard", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Door, history=history)

    @app.exception_handler(QuestionFailed)
    async def mistaken(request: Request, error: QuestionFailed) -> Response:
        return _told(request, 400, "invalid_question", str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place, name = first["loc"][0], str(first["loc"][-1])
        if place == "path":
            return _told(request, 404, "not_found", NOTHING)
        return _told(request, 400, "invalid_parameter", f"{name} is {first['input']!r}: {first['msg'].lower()}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return _told(request, 404, "not_found", NOTHING)
        return _told(
            request, error.status_code, "method_not_allowed", f"{request.method} is not what this address takes"
        )

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return _told(
            request, 500, "internal_error", "the dashboard made a mistake of its own; the router's diary says which"
        )

    app.include_router(assets.routes())
    app.include_router(history_api.routes(history))
    for each in PAGES:
        app.include_router(each.routes(history))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return history.state()

    @app.get("/dash/api/stream")
    async def stream(request: Request) -> Response:
        came_back = request.headers.get("last-event-id", "")
        try:
            events = told.listen(int(came_back) if came_back.isdecimal() else None)
        except TooMany as problem:
            return _error(503, "service_unavailable", str(problem))
        return StreamingResponse(events, headers=SSE_HEADERS, media_type="text/event-stream")

    @app.get("/api/questions")
    async def named() -> list[dict[str, str]]:
        return [{"name": each.name, "title": each.title} for each in questions.all_questions()]

    @app.get("/api/ask/{name}")
    async def ask_named(name: str, since: str = "24h", until: str = "", model: str = "") -> JSONResponse:
        question = questions.find(name)
        now_us = time.time_ns() // 1000
        since_us = questions.time_us(since, now_us)
        until_us = questions.time_us(until, now_us) if until else now_us
        parameters = question.parameters(since_us=since_us, until_us=until_us, model=model)
        return _answer(await history.ask(question.sql, parameters, time_limit_s=TIME_LIMIT_S, max_rows=MAX_ROWS))

    @app.post("/api/sql")
    async def ask_sql(request: Request) -> JSONResponse:
        try:
            asked = msgspec.json.decode(await request.body(), type=SqlQuestion)
        except msgspec.DecodeError as error:
            return _error(400, "invalid_body", f"the body is no question: {error}")
        max_rows = min(asked.max_rows or MAX_ROWS, MAX_ROWS)
        limit_s = max(0.1, min(asked.timeout_s, TIME_LIMIT_S))
        return _answer(await history.ask(asked.sql, asked.parameters, time_limit_s=limit_s, max_rows=max_rows))

    return app


class Door:
    """Answers 503 while the tables are being built; whoever passes that on knows it by the header.

    HEAD is taken as GET: uvicorn leaves out the body.
    """

    def __init__(self, app: ASGIApp, history: History) -> None:
        self._app = app
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health" and not self._history.is_ready:
            message = f"the history is being read from the log: {self._history.built:.0%} done"
            answer = _error(503, "service_unavailable", message)
            answer.headers["x-not-ready"] = "1"
            await answer(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, send)
        else:
            await self._app(scope, receive, send)


def _answer(answer: Answer) -> JSONResponse:
    rows = [[plain(value) for value in row] for row in answer.rows]
    return JSONResponse({"columns": answer.columns, "types": answer.types, "rows": rows, "more": answer.more})


def _told(request: Request, status: int, code: str, message: str) -> Response:
    """What is wrong: as a page to somebody who looks at one."""
    path = request.url.path
    is_page = path.startswith(("/dash", "/chat", "/translate")) and not path.startswith(("/dash/api/", "/dash/static/"))
    if is_page and "text/html" in request.headers.get("accept", ""):
        what = "There is no such page" if status == 404 else "This page could not be made"
        return page(request, "problem.html", status=status, what=what, why=message)
    return _error(status, code, message)


def _error(status: int, code: str, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status)
