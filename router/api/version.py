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
        builds = (model.build for model in services.view.models.values() if model.build)
        build = started.llama_build or next(builds, "")  # each says it when it is loaded
        return Json({"version": started.version, "llama_server": started.llama_server, "llama_build": build})

    return api
