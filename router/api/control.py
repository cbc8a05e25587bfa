"""Administration: what the router does and holds, GPUs in and out of service, start and stop, cancelling a request."""

from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from eventlog.events import AdminCancel, AdminGpu
from router import errors
from router.api import listing, operations
from router.api.access import administrator, caller_in
from router.api.lifecycle import Lifecycle
from router.api.reply import Json
from router.api.services import Services
from router.api.status import config_row, gpu_rows, request_rows
from router.scheduler.state import gpus_of


def routes(services: Services, lifecycle: Lifecycle) -> APIRouter:
    api = APIRouter(tags=["router"])
    wait_query = Query(False, description="answer when it is done")

    @api.get("/router", summary="The router at a glance")
    async def show_router() -> Response:
        return Json(_overview(services, lifecycle))

    @api.get("/router/models", summary="Every model with its replicas, as the scheduler sees it")
    async def show_models() -> Response:
        return Json({"models": [_model_row(services, name) for name in services.config.models]})

    @api.get("/router/gpu", summary="Every GPU: last sample, residents, what it does")
    async def show_gpus() -> Response:
        return Json({"gpus": gpu_rows(services, lifecycle.status), "problem": services.gpus.problem})

    @api.post("/router/gpus/{gpu}/{action}", summary="Take a GPU out of service (drain, then unload), or back in")
    async def move_gpu(request: Request, gpu: int, action: Literal["out", "in"], wait: bool = wait_query) -> Response:
        known = services.loop.state.settings.gpus
        if not 0 <= gpu < known:
            raise errors.error(
                "gpu_not_found", f"there is no GPU {gpu}; they are numbered from 0 to {known - 1}", param="gpu"
            )
        op = services.loop.next_op()
        call = AdminGpu(op=op, gpu=gpu, action=action, by=administrator(request))
        done = await operations.ask(services, op, call, wait=wait)
        return Json({"gpu": gpu, "action": action, "outcome": done.outcome if done else "pending"})

    @api.post("/router/start", summary="Take requests again")
    @api.get("/router/start", include_in_schema=False)
    async def start(request: Request) -> Response:
        await lifecycle.start(by=administrator(request))
        return Json({"status": lifecycle.status})

    @api.post("/router/stop", summary="Refuse new requests, let the others end, unload everything")
    @api.get("/router/stop", include_in_schema=False)
    async def stop(request: Request, wait: bool = wait_query) -> Response:
        await lifecycle.stop(by=administrator(request), wait=wait)
        return Json({"status": lifecycle.status})

    @api.post("/router/restart", summary="Stop, then start")
    @api.get("/router/restart", include_in_schema=False)
    async def restart(request: Request, wait: bool = wait_query) -> Response:
        await lifecycle.restart(by=administrator(request), wait=wait)
        return Json({"status": lifecycle.status})

    @api.post("/router/drain", summary="Unload every model once it is idle; arrivals load them again")
    async def drain(
        request: Request, wait: bool = wait_query, force: bool = Query(False, description="cut what runs")
    ) -> Response:
        done = await operations.drain(services, wait=wait, force=force, by=administrator(request))
        return Json({"outcome": done.outcome if done else "pending"})

    @api.post("/router/reload", summary="Read the configuration again, and say what changed or what is wrong with it")
    async def reload(request: Request) -> Response:
        """With a mistake in it the old one stays in force, and the answer is a 422 that says why."""
        by = administrator(request)
        if not services.loop.available:
            raise errors.of_decision(503, "log_unavailable", "")
        outcome = await services.reloader.reload(by)
        if outcome.problems:
            raise errors.error("invalid_config", "\n\n".join(map(str, outcome.problems)))
        return Json({"outcome": "done", **config_row(outcome)})

    @api.get("/router/inflight", summary="Every open request, queued or running")
    @api.get("/api/inflight", include_in_schema=False)
    async def in_flight(limit: int = Query(1000, ge=0, description="requests to list")) -> Response:
        return Json({"inflight": request_rows(services, limit)})

    @api.post("/router/inflight/{rid}/cancel", summary="End a request in its client's place")
    @api.post("/api/inflight/{rid}/cancel", include_in_schema=False)
    async def cancel(request: Request, rid: int) -> Response:
        caller = caller_in(request)
        found = services.loop.state.requests.get(rid)
        if found is None or found.op:
            raise errors.error("request_not_found", f"there is no open request {rid}", param="rid")
        # A key's owner may end what was asked with that key, even where it may not administer.
        by = caller.key if found.key == caller.key and caller.key else administrator(request)
        op = services.loop.next_op()
        answer = operations.begin(services, op, AdminCancel(op=op, rid=rid, by=by))
        services.relay.cancel(rid, by="admin")
        await operations.outcome(services, answer, wait=True)
        return Json({"cancelled": rid})

    return api


def _overview(services: Services, lifecycle: Lifecycle) -> dict[str, Any]:
    state = services.loop.state
    settings = state.settings
    return {
        "status": lifecycle.status,
        "gpu_status": {str(row["index"]): row["status"] for row in gpu_rows(services, lifecycle.status)},
        "ports": {"router": services.config.port},
        "instances": [_replica_row(services, replica) for replica in state.replicas],
        "num_gpus": settings.gpus,
        "num_gpus_from": services.config.gpu_count_from,
        "engine": settings.engine,
        "max_models_per_gpu": settings.max_models_per_gpu,
        "eviction_policy": settings.eviction,
        "model_gpus": {name: list(model.gpus) for name, model in services.config.models.items()},
        "queue_head_grace_us": settings.head_grace_us,
        "queue_force_load_us": settings.force_load_us,
        "queued": sum(lane.length for lane in state.lanes.values()),
        "in_flight": sum(len(replica.in_flight) for replica in state.replicas.values()),
        "version": services.started.version,
        "run": services.started.run,
        "started_us": services.started.at_us,
        "seq": services.view.seq,
        "warnings": list(services.config.warnings),
    }


def _model_row(services: Services, name: str) -> dict[str, Any]:
    state = services.loop.state
    model = services.config.models[name]
    live = state.models.get(name)
    lane = state.lanes.get(name)
    return {
        "name": name,
        "aliases": list(model.aliases),
        "gpus": list(model.gpus),
        "num_instance": model.replicas,
        "phase": live.phase if live is not None else "absent",
        "in_flight": live.in_flight if live is not None else 0,
        "queued": lane.length if lane is not None else 0,
        "loaded_us": (live.loaded_us if live is not None else 0) or None,
        "used_us": (live.used_us if live is not None else 0) or None,
        "instances": [_replica_row(services, replica) for replica in (live.replicas if live is not None else ())],
        "status": listing.status(services, model, services.view.model(name)),
    }


def _replica_row(services: Services, replica_id: str) -> dict[str, Any]:
    replica = services.loop.state.replicas[replica_id]
    seen = services.view.replicas.get(replica_id)
    return {
        "id": replica.id,
        "model": replica.model,
        "index": replica.index,
        "gpus": list(gpus_of(replica.mask)),
        "phase": replica.phase,
        "pid": replica.pid,
        "slots": replica.slots,
        "in_flight": len(replica.in_flight),
        "load": replica.load,
        "suspect": replica.suspect,
        "vram_mib": {str(part.gpu): part.mib for part in seen.vram} if seen is not None else {},
    }
