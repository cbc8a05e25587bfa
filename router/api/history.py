"""What was, as JSON: finished and open requests, and what each GPU did. The dashboard's process answers.

Here the routes are documented and their numbers checked; `dash` passes them on. Only the reset is the router's own: a
fact in the log, so that it outlives every database, and deletes nothing.
"""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from eventlog.events import Event, HistoryReset
from router import errors
from router.api.access import administrator, onlooker
from router.api.cors import Receive, Scope, Send
from router.api.dash import Dash
from router.api.head import SCOPE_HEAD
from router.api.reply import Json
from router.api.services import Services

SINCE = Query(None, description="from then on: 30m, 2h, 7d (ago), 2026-03-01T12:00, or seconds since 1970")
UNTIL = Query(None, description="before then, likewise")
ANY_OF = "; may be given more than once"


class Passed(Response):
    """The answer of the dashboard's process to the same request."""

    def __init__(self, dash: Dash) -> None:
        super().__init__()
        self._dash = dash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if SCOPE_HEAD in scope:
            scope = {**scope, "method": "HEAD"}  # whose answer is written past `send`
        await self._dash(scope, receive, send)


def routes(services: Services, dash: Dash) -> APIRouter:
    api = APIRouter(tags=["history"])

    @api.get("/router/history", summary="Requests, newest first, with their times and tokens")
    async def show_history(
        request: Request,
        model: Annotated[list[str] | None, Query(description="real name" + ANY_OF)] = None,
        outcome: Annotated[
            list[str] | None, Query(description="ok, error, failed, rejected, cancelled, lost" + ANY_OF)
        ] = None,
        key: Annotated[list[str] | None, Query(description="name of the API key" + ANY_OF)] = None,
        client: Annotated[list[str] | None, Query(description="fingerprint of who asked" + ANY_OF)] = None,
        session: Annotated[list[str] | None, Query(description="fingerprint of a session header" + ANY_OF)] = None,
        route: Annotated[list[str] | None, Query(description="path without /v1" + ANY_OF)] = None,
        since: str | None = SINCE,
        until: str | None = UNTIL,
        before: int | None = Query(None, ge=0, description="only requests with a lower rid: the next page"),
        after: int | None = Query(None, ge=0, description="only requests with a higher rid"),
        order: Literal["asc", "desc"] = Query("desc", description="desc: newest first"),
        limit: int = Query(10_000, ge=0, le=100_000, description="at most so many; 0 for all"),
    ) -> Response:
        onlooker(request)
        return Passed(dash)

    @api.get("/router/status_timeline", summary="What each GPU did: swapping, serving, idle; inactive without a router")
    async def show_timeline(
        request: Request,
        since: str | None = Query("2h", description=SINCE.description),
        until: str | None = UNTIL,
        gpu: Annotated[list[int] | None, Query(description="number" + ANY_OF)] = None,
    ) -> Response:
        onlooker(request)
        return Passed(dash)

    @api.post("/router/reset_history", summary="Tell the history from now on; the log keeps what was")
    async def reset_history(request: Request) -> Response:
        done = await _reset(services, administrator(request))
        return Json({"reset_us": done.at_us, "seq": done.seq})

    return api


async def _reset(services: Services, by: str) -> Event:
    """The fact, once it is logged."""
    if not services.loop.available:
        raise errors.of_decision(503, "log_unavailable", "")
    logged: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def see(event: Event) -> None:
        if isinstance(event, HistoryReset) and not logged.done():
            logged.set_result(event)

    unsubscribe = services.loop.subscribe(see)
    try:
        services.loop.post(HistoryReset(by=by))
        return await logged
    finally:
        unsubscribe()
