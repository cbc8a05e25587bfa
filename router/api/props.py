"""`/props` and `/slots` without a model: the router speaks for itself, in llama-server's words; nothing is loaded.

With `?model=` they are the relay's.
"""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from router.api.reply import Json
from router.api.services import Services


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["status"])

    @api.get("/props", summary="What the router is, in the shape of llama-server's router mode")
    @api.get("/v1/props", include_in_schema=False)
    async def props() -> Response:
        settings = services.loop.state.settings
        return Json(
            {
                "role": "router",
                "max_instances": settings.max_models_per_gpu * settings.gpus or len(settings.models),
                "models_autoload": True,
                "model_alias": "llama-router",
                "model_path": "none",
                # No n_ctx: it differs from model to model, and clients take a 0 at its word.
                "default_generation_settings": {"params": {}},
                "webui_settings": {},
                "ui_settings": {},
                "build_info": services.started.llama_build or f"llama-router {services.started.version}",
                "cors_proxy_enabled": False,
            }
        )

    @api.get("/slots", summary="Slots of every loaded replica, as last sampled")
    @api.get("/v1/slots", include_in_schema=False)
    async def slots() -> Response:
        state = services.loop.state
        rows: list[dict[str, Any]] = []
        for replica in state.replicas.values():
            seen = services.view.replicas.get(replica.id)
            sample = seen.slots if seen is not None else None
            rows.append(
                {
                    "model": replica.model,
                    "replica": replica.id,
                    "slots": replica.slots,
                    "dispatched": replica.load,
                    "busy": sample.busy if sample is not None else None,
                    "context_used": sample.context_used if sample is not None else [],
                    "sampled_us": sample.at_us if sample is not None else None,
                }
            )
        return Json(rows)

    return api
