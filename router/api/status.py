"""`/status`: what the router is doing, in one JSON; `/running`: the loaded models, in llama-swap's shape."""

import os
from typing import Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from router.api import listing
from router.api.lifecycle import Lifecycle
from router.api.reply import Json
from router.api.services import Services
from router.api.view import Open
from router.api.waiting import Wait, queue_of, waits
from router.memory import declared
from router.reload import Outcome
from router.scheduler.caches import holds_up
from router.scheduler.state import Request, Swap, gpus_of


def routes(services: Services, lifecycle: Lifecycle) -> APIRouter:
    api = APIRouter(tags=["status"])

    @api.get("/status", summary="GPUs, models, the queue with what each request waits for, and running requests")
    async def show_status(limit: int = Query(1000, ge=0, description="queued requests to list")) -> Response:
        now_us = services.loop.clock.now_us()
        state = services.loop.state
        queue = waits(state, services.view, now_us, limit)
        return Json(
            {
                "status": lifecycle.status,
                "version": services.started.version,
                "pid": os.getpid(),
                "run": services.started.run,
                "at_us": now_us,
                "uptime_us": now_us - services.started.at_us,
                "seq": services.view.seq,
                "log_available": services.loop.available,
                "profile": state.profile or None,
                "config": config_row(services.reloader.last) if services.reloader.last is not None else None,
                "gpus": gpu_rows(services, lifecycle.status),
                "models": [_model_row(services, name) for name in services.config.models],
                "warnings": list(memory_warnings(services).values()),
                "swaps": [_swap_row(services, swap, now_us) for swap in state.swaps.values()],
                "prompt_caches": _caches_row(services),
                "queued": sum(not request.replica for request in state.requests.values()),
                "queue": [_wait_row(services, wait, now_us) for wait in queue],
                "in_flight": [
                    _running_row(services, request, now_us) for request in state.requests.values() if request.replica
                ],
            }
        )

    @api.get("/running", summary="The loaded models")
    async def show_running() -> Response:
        return Json({"running": [row for name in services.config.models for row in _running_model(services, name)]})

    return api


def config_row(outcome: Outcome) -> dict[str, Any]:
    """The last reload. With `problems` the configuration before it stayed in force."""
    return {
        "at_us": outcome.at_us,
        "by": outcome.by,
        "problems": [str(problem) for problem in outcome.problems],
        "warnings": list(outcome.warnings),
        "added": list(outcome.added),
        "removed": list(outcome.removed),
        "changed": list(outcome.changed),
        "settings": list(outcome.settings),
        "needs_restart": list(outcome.needs_restart),
    }


def memory_warnings(services: Services) -> dict[str, str]:
    """Models that take more of a GPU than they declare."""
    totals = {gpu.index: gpu.memory_mib for gpu in services.gpus.topology}
    return declared.warnings(services.config, services.measured, totals)


def gpu_rows(services: Services, status: str) -> list[dict[str, Any]]:
    """Every GPU that the scheduler counts; figures are None where NVML does not tell."""
    state = services.loop.state
    rows = []
    for gpu in range(max(state.settings.gpus, len(state.residents))):
        sample = services.gpus.latest.get(gpu)
        found = services.gpus.topology[gpu] if gpu < len(services.gpus.topology) else None
        residents = state.residents[gpu] if gpu < len(state.residents) else []
        rows.append(
            {
                "index": gpu,
                "name": found.name if found else "",
                "uuid": found.uuid if found else "",
                "status": listing.gpu_status(state, gpu) if status == "active" else status,
                "out_of_service": bool(state.gpus_out >> gpu & 1),
                "utilisation_percent": _told(sample.utilisation_percent) if sample else None,
                "used_mib": _told(sample.used_mib) if sample else None,
                "total_mib": _told(sample.total_mib) if sample else None,
                "temperature_c": _told(sample.temperature_c) if sample else None,
                "power_mw": _told(sample.power_mw) if sample else None,
                "residents": [_resident(services, name, gpu) for name in residents],
            }
        )
    return rows


def _told(value: int) -> int | None:
    return value if value >= 0 else None


def _resident(services: Services, name: str, gpu: int) -> dict[str, Any]:
    model = services.loop.state.models[name]
    vram = [
        part.mib
        for replica in model.replicas
        if (seen := services.view.replicas.get(replica)) is not None
        for part in seen.vram
        if part.gpu == gpu
    ]
    return {
        "model": name,
        "phase": model.phase,
        "in_flight": model.in_flight,
        "vram_mib": sum(vram) if vram else None,
    }


def _caches_row(services: Services) -> dict[str, Any]:
    """Prompt caches that survive swaps. `saved_us`: prefill that this run was spared."""
    state = services.loop.state
    of_models = state.caches.models
    sizes = [file.bytes for caches in of_models.values() for file in caches.files.values()]
    return {
        "on": state.settings.keep_caches,
        "files": len(sizes),
        "bytes": sum(sizes),
        "budget_bytes": state.settings.keep_budget_mib << 20,
        "hits": state.caches.hits,
        "saved_us": state.caches.saved_us,
        "given_up": {name: caches.given_up for name, caches in of_models.items() if caches.given_up},
    }


def _model_row(services: Services, name: str) -> dict[str, Any]:
    state = services.loop.state
    live = state.models.get(name)
    lane = state.lanes.get(name)
    status = listing.status(services, services.config.models[name], services.view.model(name))
    return {
        "name": name,
        "phase": status["phase"],
        "gpus": list(services.config.models[name].gpus),
        "replicas": len(live.replicas) if live is not None else 0,
        "slots": sum(state.replicas[replica].slots for replica in live.replicas) if live is not None else 0,
        "in_flight": live.in_flight if live is not None else 0,
        "queued": lane.length if lane is not None else 0,
        "idle_us": _idle_us(services, name),
        "measured_mib": {str(gpu): mib for gpu, mib in services.measured.most.get(name, {}).items()} or None,
        "progress": status.get("progress"),
        "failure": status.get("failure"),
        "cooling_down": status.get("cooling_down"),
    }


def _idle_us(services: Services, name: str) -> int | None:
    live = services.loop.state.models.get(name)
    if live is None or not live.replicas or live.in_flight or not live.used_us:
        return None
    return max(0, services.loop.clock.now_us() - live.used_us)


def _phase(services: Services, swap: Swap) -> str:
    """Also `saving` and `restoring`, which are moments of draining and of starting."""
    state = services.loop.state
    if swap.phase == "draining" and swap.save_from_us:
        return "saving"
    if swap.phase == "starting" and swap.target and holds_up(state, state.models[swap.target]):
        return "restoring"
    return swap.phase


def _swap_row(services: Services, swap: Swap, now_us: int) -> dict[str, Any]:
    return {
        "swap": swap.id,
        "target": swap.target,
        "victims": swap.victims,
        "gpus": list(gpus_of(swap.mask)),
        "phase": _phase(services, swap),
        "why": swap.why,
        "cause_rid": swap.cause_rid or None,
        "since_us": max(0, now_us - swap.begun_us),
    }


def _wait_row(services: Services, wait: Wait, now_us: int) -> dict[str, Any]:
    request = wait.request
    row = _request_row(services.view.requests.get(request.rid), request)
    row |= {
        "position": wait.position,
        "waited_us": max(0, now_us - request.arrived_us),
        "blocked_by": {"why": wait.why, "by": wait.by},
        "eta_us": wait.eta_us,
        "forced": request.forced,
        "attempt": request.attempt,
    }
    return row


def _running_row(services: Services, request: Request, now_us: int) -> dict[str, Any]:
    seen = services.view.requests.get(request.rid)
    row = _request_row(seen, request)
    row |= {"replica": request.replica, "weight": request.weight, "attempt": request.attempt}
    if seen is not None and seen.dispatched_us >= 0:
        row |= {
            "waited_us": max(0, seen.dispatched_us - seen.arrived_us),
            "running_us": max(0, now_us - seen.dispatched_us),
            "first_byte_us": _told(seen.first_byte_us),
            "frames": seen.frames,
            "prompt_processed": _told(seen.prompt_processed),
            "prompt_total": _told(seen.prompt_total),
        }
    return row


def _request_row(seen: Open | None, request: Request) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rid": request.rid,
        "model": request.model,
        "kind": "wish" if request.op else request.work,
        "arrived_us": request.arrived_us,
        "priority": request.priority,
        "key": request.key,
        "detached": request.detached,
    }
    if seen is not None:
        row |= {
            "asked": seen.asked or seen.model,
            "route": seen.route,
            "stream": seen.stream,
            "body_bytes": seen.body_bytes,
            "prompt_tokens": seen.prompt_tokens,
            "max_tokens": seen.max_tokens or None,
        }
    return row


def request_rows(services: Services, limit: int) -> list[dict[str, Any]]:
    """Open requests, the running ones first, then the queue in its order; `id` is what cancel takes."""
    state = services.loop.state
    now_us = services.loop.clock.now_us()
    rows = []
    running = [request for request in state.requests.values() if request.replica]
    for request in [*running, *queue_of(state)][:limit]:
        row = _running_row(services, request, now_us) if request.replica else _queued_row(services, request, now_us)
        rows.append({"id": request.rid, "state": "running" if request.replica else "queued"} | row)
    return rows


def _queued_row(services: Services, request: Request, now_us: int) -> dict[str, Any]:
    row = _request_row(services.view.requests.get(request.rid), request)
    return row | {"waited_us": max(0, now_us - request.arrived_us)}


def _running_model(services: Services, name: str) -> list[dict[str, Any]]:
    live = services.loop.state.models.get(name)
    if live is None or not live.replicas:
        return []
    model = services.config.models[name]
    words = {"loading": "starting", "ready": "ready", "draining": "ready", "stopping": "stopping"}
    return [
        {
            "model": name,
            "state": words.get(live.phase, live.phase),
            "cmd": " ".join(listing.arguments(services, model)),
            "proxy": "",
            "ttl": int(model.ttl_s),
            "name": model.title or name,
            "description": model.description,
        }
    ]
