"""Models: what there is, in which state, and loading and unloading by hand. Reading never loads or touches one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from eventlog import events as e
from router import errors
from router.api import listing, operations
from router.api.access import administrator, caller_in
from router.api.reply import SSE_HEADERS, Json
from router.api.services import Services
from router.naming import targets_for

SSE_BACKLOG = 256
PING_S = 15.0

_BODY: dict[str, Any] = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "model": {"type": "string"},
                        "wait": {"type": "boolean", "default": False},
                        "force": {"type": "boolean", "default": False},
                    },
                    "required": ["model"],
                }
            }
        }
    }
}


class Wish(msgspec.Struct, frozen=True):
    """Body of a load or unload."""

    model: str = ""
    wait: bool = False
    force: bool = False


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["models"])

    @api.get("/v1/models", summary="Every model, loaded or not")
    @api.get("/models", summary="The same, where llama-server's web UI looks for it")
    async def list_models(request: Request) -> Response:
        allowed = caller_in(request).models
        listed = []
        for model in services.config.models.values():
            if not model.unlisted and (not allowed or model.name in allowed):
                listed.append(listing.entry(services, model))
                if services.config.include_aliases_in_list:
                    listed += [listing.entry(services, model, name=alias) for alias in model.aliases]
        for name, selector in services.config.selectors.items():
            if not selector.unlisted and targets_for(services.config, caller_in(request), selector):
                listed.append(listing.selector_entry(services, caller_in(request), name, selector))
        return Json({"object": "list", "data": listed})

    @api.get("/models/sse", summary="Changes of models' states, as they happen")
    async def follow_models() -> Response:
        return StreamingResponse(_model_events(services), media_type="text/event-stream", headers=SSE_HEADERS)

    @api.get("/v1/models/{name:path}", summary="One model, by name or alias")
    @api.get("/models/{name:path}", include_in_schema=False)
    async def show_model(request: Request, name: str) -> Response:
        return Json(listing.entry(services, operations.find(services, caller_in(request), name)))

    @api.post("/models/load", summary="Load a model", openapi_extra=_BODY)
    async def load_model(request: Request) -> Response:
        """Answers at once; with `"wait": true`, when the model is ready or has failed. It waits its turn in the queue
        like a request, and evicts what a request for it would evict."""
        administrator(request)
        wish = await _wish(request)
        model = operations.find(services, caller_in(request), wish.model)
        live = services.loop.state.models.get(model.name)
        if not wish.wait and live is not None and live.phase in ("ready", "loading"):
            raise errors.error(
                "model_already_loaded", f"model {model.name!r} is {live.phase} already", status=400, param="model"
            )
        done = await operations.load(services, model, wait=wish.wait)
        return Json({"success": True, "model": model.name, "outcome": done.outcome if done else "pending"})

    @api.post("/models/unload", summary="Unload a model", openapi_extra=_BODY)
    async def unload_model(request: Request) -> Response:
        """Running requests end first, and queued ones load it again in their turn; with `"force": true` running ones
        are cut."""
        by = administrator(request)
        wish = await _wish(request)
        model = operations.find(services, caller_in(request), wish.model)
        live = services.loop.state.models.get(model.name)
        if not wish.wait and (live is None or live.phase == "absent"):
            raise errors.error("model_not_loaded", f"model {model.name!r} is not loaded", status=400, param="model")
        done = await operations.unload(services, model, wait=wish.wait, force=wish.force, by=by)
        return Json({"success": True, "model": model.name, "outcome": done.outcome if done else "pending"})

    @api.post("/unload", summary="Unload every model once it is idle")
    @api.get("/unload", include_in_schema=False)
    @api.post("/api/models/unload", include_in_schema=False)
    async def unload_all(request: Request, wait: bool = Query(False), force: bool = Query(False)) -> Response:
        """With `force=true` running requests are cut, and what waits for a loaded model fails."""
        await operations.drain(services, wait=wait, force=force, by=administrator(request))
        return PlainTextResponse("OK")

    @api.post("/api/models/unload/{name:path}", summary="Unload a model, once idle, by its name in the path")
    async def unload_one(
        request: Request, name: str, wait: bool = Query(False), force: bool = Query(False)
    ) -> Response:
        by = administrator(request)
        model = operations.find(services, caller_in(request), name)
        await operations.unload(services, model, wait=wait, force=force, by=by)
        return PlainTextResponse("OK")

    return api


async def _wish(request: Request) -> Wish:
    body = await request.body()
    try:
        wish = msgspec.json.decode(body, type=Wish) if body else Wish()
    except (msgspec.DecodeError, RecursionError) as problem:
        raise errors.error("invalid_body", f"the body is not what is expected here: {problem}") from None
    query = request.query_params
    model = wish.model or query.get("model", "")
    if not model:
        raise errors.error("model_required", "'model' is missing: {\"model\": NAME}", status=422, param="model")
    wait = wish.wait or query.get("wait", "") in ("1", "true")
    force = wish.force or query.get("force", "") in ("1", "true")
    return Wish(model=model, wait=wait, force=force)


async def _model_events(services: Services) -> AsyncIterator[bytes]:
    """llama-server's `model_status` events. A reader too slow for them misses some: each tells the state as it is."""
    changed: asyncio.Queue[str] = asyncio.Queue()
    stopping = services.loop.state.stopping_at_us > 0
    models = {replica: seen.model for replica, seen in services.view.replicas.items()}

    def take(event: e.Event) -> None:
        nonlocal stopping
        name = ""
        match event:
            case e.RouterStopping():
                stopping = True
                changed.put_nowait("")
            case e.SwapBegun() | e.SwapAborted() | e.SwapFinished():
                name = event.target
            case e.ReplicaSpawnOrdered():
                name = models[event.replica] = event.model
            case e.ReplicaLoading():
                name = event.model or models.get(event.replica, "")
            case e.ReplicaReady() | e.ReplicaStopOrdered():
                name = models.get(event.replica, "")
            case e.ReplicaStopped() | e.ReplicaLoadFailed() | e.ReplicaCrashed():
                name = models.pop(event.replica, "")
        if name and changed.qsize() < SSE_BACKLOG:
            changed.put_nowait(name)

    unsubscribe = services.loop.subscribe(take)
    told: dict[str, Any] = {}
    try:
        while not stopping:
            try:
                async with asyncio.timeout(PING_S):
                    name = await changed.get()
            except TimeoutError:
                yield b": ping\n\n"
                continue
            model = services.config.models.get(name)
            if model is None:
                continue
            status = listing.status(services, model, services.view.model(name))
            data: dict[str, Any] = {"status": status["value"], "phase": status["phase"]}
            data |= {key: status[key] for key in ("progress", "exit_code", "failed") if key in status}
            if told.get(name) != data:
                told[name] = data
                frame = msgspec.json.encode({"model": name, "event": "model_status", "data": data})
                yield b"data: " + frame + b"\n\n"
    finally:
        unsubscribe()
