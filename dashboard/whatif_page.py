"""The page on which recorded traffic is served again under other settings, and what came of it beside what happened.

POST /dash/api/whatif          begin one; see `whatif.Asked`
POST /dash/api/whatif/cancel   end it
GET  /dash/api/whatif          the latest, with its result; ?job=N for an earlier one
GET  /dash/api/whatif/stream   how far it is, as server-sent events
"""

from typing import NamedTuple

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from dashboard.assets import PLOTLY
from dashboard.history import History
from dashboard.pages import page
from dashboard.rows import rows
from dashboard.whatif import Asked, Busy, Refused, WhatIf
from dashboard.whatif_result import MEASURES, shown


class Field(NamedTuple):
    """A setting that has a field of its own in the form."""

    name: str
    label: str
    hint: str
    example: str
    """Values that a search might try."""


FIELDS = (
    Field("QUEUE_HEAD_GRACE", "Grace, s", "how long later requests may pass the head of the queue", "0, 10, 30"),
    Field(
        "QUEUE_HEAD_GRACE_FROM", "Grace counts from", "head: it became the head; arrival: it arrived", "head, arrival"
    ),
    Field("QUEUE_FORCE_LOAD_TIMEOUT", "Forced load after, s", "the longest that a request may wait", "300, 900"),
    Field(
        "EVICTION_POLICY",
        "Who leaves first",
        "lru: unused longest; fifo: loaded longest; worth: by use",
        "lru, fifo, worth",
    ),
    Field("MAX_MODELS_PER_GPU", "Models per GPU", "whether their memory fits is for you to say", "1, 2"),
)
LABELS = {field.name: field.label for field in FIELDS}


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
            labels=LABELS,
            meanings=[(measure.words, measure.meaning) for measure in MEASURES if measure.meaning],
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
            return _error(400, "invalid_parameter", str(error), error.param)

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


def _error(status: int, code: str, message: str, param: str = "") -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": param or None}
    return JSONResponse({"error": error}, status)
