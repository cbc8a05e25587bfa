"""What the llama-servers print, as plain text: the last lines, then whatever comes, until the reader leaves."""

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from router.api import operations
from router.api.access import administrator, caller_in
from router.api.services import Services

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["logs"])

    @api.get("/logs", summary="Output of all replicas; `?no-history` leaves out what is past")
    async def all_logs(request: Request) -> Response:
        return _stream(services, request, None)

    @api.get("/logs/{name:path}", summary="Output of one model's replicas; `?no-history` leaves out what is past")
    async def model_logs(request: Request, name: str) -> Response:
        return _stream(services, request, operations.find(services, caller_in(request), name).name)

    return api


def _stream(services: Services, request: Request, model: str | None) -> Response:
    administrator(request)
    lines = services.replicas.logs(model, history="no-history" not in request.query_params)
    return StreamingResponse(lines, media_type="text/plain; charset=utf-8", headers=HEADERS)
