"""`/metrics` for Prometheus: the router's own counters, what it holds now, and what was last sampled elsewhere.

A scrape never touches a child or a GPU: figures of llama-server and of NVML are the last samples.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from eventlog.segments import STREAMS, list_segments
from router.api.exposition import CONTENT_TYPE, Family, Histogram, Kind, is_name, text_of
from router.api.services import Services

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["status"])

    @api.get("/metrics", summary="Everything that can be counted, in Prometheus' text format")
    async def metrics() -> Response:
        log_bytes = await asyncio.to_thread(_log_bytes, services.config.log_dir)
        page = text_of([*families(services, log_bytes), *_children(services)])
        return Response(page, headers={"content-type": CONTENT_TYPE})

    return api


def families(services: Services, log_bytes: Family) -> list[Family | Histogram]:
    """All that the page shows. docs/metrics.md describes them; llama-server's own come besides."""
    return [
        *services.counters.families,
        services.counters.events(),
        log_bytes,
        *_now(services),
        *_gpus(services),
        *_process(),
    ]


def _now(services: Services) -> Iterator[Family]:
    """Gauges, read from the scheduler's state at the time of the scrape."""
    state = services.loop.state
    info = Family("llama_router_info", "gauge", "Always 1; what runs here.", ("version", "llama_server", "llama_build"))
    info.set(services.started.version, services.started.llama_server, services.started.llama_build, to=1)
    yield info
    yield _single("llama_router_run", "Which run of the router on this log this is.", services.started.run)
    yield _single("llama_router_start_time_seconds", "When this run began.", services.started.at_us / 1e6)
    yield _single("llama_router_log_available", "Whether the event log can be written.", services.loop.available)
    yield _single("llama_router_log_last_seq", "Number of the last event.", services.view.seq)
    yield _single("llama_router_swaps_running", "Swaps under way.", len(state.swaps))
    caches = state.caches
    size = sum(file.bytes for each in caches.models.values() for file in each.files.values())
    yield _single("llama_router_kept_cache_bytes", "Prompt caches that survive swaps, all files together.", size)
    yield _single("llama_router_kept_cache_hits", "Requests of this run that found theirs again.", caches.hits)
    yield _single(
        "llama_router_kept_cache_saved_seconds",
        "Time to read prompts that they have spared this run.",
        caches.saved_us / 1e6,
    )
    queued = Family("llama_router_queued", "gauge", "Requests that wait, wishes included.", ("model",))
    running = Family("llama_router_in_flight", "gauge", "Requests that a replica works on.", ("model",))
    slots = Family("llama_router_slots", "gauge", "Places for generations in ready replicas.", ("model",))
    replicas = Family("llama_router_replicas", "gauge", "Processes by state.", ("model", "phase"))
    for name in services.config.models:
        lane = state.lanes.get(name)
        queued.set(name, to=lane.length if lane is not None else 0)
        running.set(name, to=0)
        slots.set(name, to=0)
        replicas.set(name, "ready", to=0)
    for replica in state.replicas.values():
        running.add(replica.model, by=len(replica.in_flight))
        replicas.add(replica.model, replica.phase)
        if replica.phase == "ready":
            slots.add(replica.model, by=replica.slots)
    yield from (queued, running, slots, replicas)


def _gpus(services: Services) -> Iterator[Family]:
    labels = ("gpu",)
    used = Family("llama_router_gpu_memory_used_bytes", "gauge", "Used memory, as NVML last told.", labels)
    total = Family("llama_router_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", labels)
    busy = Family("llama_router_gpu_utilisation_ratio", "gauge", "Share of time with work, 0 to 1.", labels)
    heat = Family("llama_router_gpu_temperature_celsius", "gauge", "Temperature.", labels)
    power = Family("llama_router_gpu_power_watts", "gauge", "Power drawn.", labels)
    out = Family("llama_router_gpu_out_of_service", "gauge", "Whether an owner took it out of service.", labels)
    residents = Family("llama_router_gpu_models", "gauge", "Models resident, or about to be.", labels)
    resident = Family("llama_router_gpu_resident", "gauge", "Always 1; who is resident where.", ("gpu", "model"))
    running = Family("llama_router_gpu_in_flight", "gauge", "Requests that its replicas work on.", labels)
    state = services.loop.state
    for gpu, names in enumerate(state.residents):
        out.set(str(gpu), to=state.gpus_out >> gpu & 1)
        residents.set(str(gpu), to=len(names))
        running.set(str(gpu), to=0)
        for name in names:
            resident.set(str(gpu), name, to=1)
    for replica in state.replicas.values():
        for gpu in range(len(state.residents)):
            if replica.mask >> gpu & 1:
                running.add(str(gpu), by=len(replica.in_flight))
    for sample in services.gpus.latest.values():
        for family, value, unit in (
            (used, sample.used_mib, MIB),
            (total, sample.total_mib, MIB),
            (busy, sample.utilisation_percent, 0.01),
            (heat, sample.temperature_c, 1),
            (power, sample.power_mw, 0.001),
        ):
            if value >= 0:
                family.set(str(sample.gpu), to=value * unit)
    yield from (used, total, busy, heat, power, out, residents, resident, running)


def _children(services: Services) -> Iterator[Family]:
    """llama-server's own metrics under their own names, with the model and the replica as labels."""
    families: dict[str, Family] = {}
    for replica, seen in services.view.replicas.items():
        for name, value in seen.metrics.items():
            if not is_name(name):
                continue
            family = families.get(name)
            if family is None:
                kind: Kind = "counter" if name.endswith("_total") else "gauge"
                text = "As the llama-server last told."
                family = families[name] = Family(name, kind, text, ("model", "replica"))
            family.set(seen.model, replica, to=value)
    yield from families.values()


def _log_bytes(directory: Path) -> Family:
    """Read from the disk, because sealing and retention change it besides what is written."""
    family = Family("llama_router_log_bytes", "gauge", "Size of the log's files.", ("stream",))
    for stream in STREAMS:
        total = 0
        for segment in list_segments(directory, stream):
            with suppress(FileNotFoundError):  # sealed or removed a moment ago
                total += segment.path.stat().st_size
        family.set(stream, to=total)
    return family


def _process() -> Iterator[Family]:
    """The router's own process, under the names that Prometheus' client libraries use."""
    with open("/proc/self/stat", "rb") as file:
        # The name of the program may hold anything, closing brackets included.
        fields = file.read().rpartition(b")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    cpu = Family("process_cpu_seconds_total", "counter", "CPU time of the router.")
    cpu.set(to=cpu_s)
    yield cpu
    yield _single("process_resident_memory_bytes", "Memory of the router.", int(fields[21]) * PAGE_BYTES)
    yield _single("process_open_fds", "Open descriptors of the router.", len(os.listdir("/proc/self/fd")))


def _single(name: str, text: str, value: float) -> Family:
    family = Family(name, "gauge", text)
    family.set(to=float(value))
    return family
