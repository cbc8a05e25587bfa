"""`/api/version`: which router and which llama-server."""

from fastapi import APIRouter
from starlette.responses import Response

from router.api.reply import Json
from router.api.services import Services


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["status"])

    @api.get("/api/version", summary="Versions of the router and of llama-server")
    async def version() -> Response:
        started = services.started
        return Json(
            {"version": started.version, "llama_server": started.llama_server, "llama_build": started.llama_build}
        )

    return api
