"""A router without processes: the real loop, log, scheduler and HTTP routes; replicas and relay are played by the test.

`World.run(story)` gives an async story the world. Models are loaded at once when ordered, unless the story says
otherwise; what a llama-server or a client would do is one call here.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from eventlog.writer import LogWriter
from router.api.app import create_app
from router.api.services import Services, Started
from router.clock import RunClock
from router.config import Config, LogConfig, ModelConfig
from router.gpus import Sample
from router.loop import Loop
from router.reload import Reloader
from router.scheduler import State
from tests.api.streaming import Stream, open_stream

DEADLINE_S = 10.0


class Replicas:
    """Obeys orders. `loads` False: processes stay in their loading state until the story goes on with `ready`."""

    def __init__(self, loop: Loop) -> None:
        self.loads = True
        self.stops = True
        self.slots = 2
        self.printed: dict[str | None, list[bytes]] = {}
        self.missing: dict[str, asyncio.Future[None]] = {}
        """Models that have to be fetched; done when they are here, an exception when they could not be."""
        self._loop = loop
        loop.on(e.ReplicaSpawnOrdered, self._spawn)
        loop.on(e.ReplicaStopOrdered, self._stop)

    def _spawn(self, order: e.ReplicaSpawnOrdered) -> None:
        self._loop.post(e.ReplicaSpawned(replica=order.replica, pid=1000 + len(order.replica)))
        if self.loads:
            self.ready(order.replica)

    def ready(self, replica: str, **fields: Any) -> None:
        said: dict[str, Any] = {"slots": self.slots, "slot_ctx": 4096, "load_us": 2_000_000} | fields
        self._loop.post(e.ReplicaReady(replica=replica, **said))

    def _stop(self, order: e.ReplicaStopOrdered) -> None:
        if self.stops:
            self._loop.post(e.ReplicaStopped(replica=order.replica, exit_code=0, took_us=500_000))

    def needs_download(self, model: str) -> bool:
        return model in self.missing and not self.missing[model].done()

    async def ensure_downloaded(self, model: str) -> None:
        await self.missing[model]

    async def logs(self, model: str | None = None, *, history: bool = True) -> AsyncIterator[bytes]:
        if history:
            yield f"history of {model}\n".encode()
        for line in self.printed.get(model, []):
            yield line


class Relay:
    """Remembers what it was told to cancel, and reports it as the real one does."""

    def __init__(self, loop: Loop) -> None:
        self.cancelled: list[tuple[int, str]] = []
        self._loop = loop

    def cancel(self, rid: int, by: str) -> None:
        self.cancelled.append((rid, by))
        request = self._loop.state.requests[rid]
        self._loop.post(e.RequestCancelled(rid=rid, replica=request.replica, by="admin"))
        if request.replica:
            self._loop.post(e.SlotReleased(rid=rid, replica=request.replica))


class Gpus:
    """What NVML told last."""

    def __init__(self) -> None:
        self.topology = [e.Gpu(index=0, uuid="GPU-a", name="Card A", memory_mib=24576)]
        self.latest = {0: Sample(gpu=0, utilisation_percent=40, used_mib=1024, total_mib=24576, temperature_c=50)}
        self.problem = ""


def model(name: str, **fields: Any) -> ModelConfig:
    """A model as configuration gives it; on GPU 0 unless told otherwise."""
    return ModelConfig(name=name, **({"argv": ("--model", "/m.gguf"), "options": {"model": "/m.gguf"}} | fields))


class World:
    """One router and an HTTP client on it."""

    def __init__(self, directory: Path, models: list[ModelConfig], gpus: int) -> None:
        settings = SchedulerSettings(
            models={m.name: ModelSettings(gpus=m.gpus, replicas=m.replicas) for m in models}, gpus=gpus
        )
        self.config = Config(
            host="127.0.0.1",
            port=11434,
            models={m.name: m for m in models},
            scheduler=settings,
            llama_server=("llama-server",),
            llama_server_from="path",
            log_dir=directory,
            log=LogConfig(),
            run_dir=directory,
            state_dir=directory,
            history_db=directory / "history.duckdb",
            names={name: m.name for m in models for name in (m.name, *m.aliases)},
        )
        self.writer = LogWriter.open(directory, durability="never")
        self.loop = Loop(RunClock(), self.writer, State(), 1, lambda: None)
        self.seen: list[e.Event] = []
        self._news = asyncio.Event()
        self.loop.subscribe(self._see)
        self.replicas = Replicas(self.loop)
        self.relay = Relay(self.loop)
        self.gpus = Gpus()
        self.services = Services(
            loop=self.loop,
            config=self.config,
            relay=self.relay,
            replicas=self.replicas,
            gpus=self.gpus,
            started=Started(at_us=self.loop.clock.now_us(), run=1, version="0.1.0", llama_build="b9000"),
            reloader=Reloader(
                self.config,
                lambda: self.config,
                lambda config, by: None,
                loop=self.loop,
                now_us=self.loop.clock.now_us,
            ),
        )
        self.app = create_app(self.services)
        self.http: httpx.AsyncClient

    @staticmethod
    def run(
        story: "Callable[[World], Awaitable[None]]", *models: ModelConfig, gpus: int = 1, raises: bool = True
    ) -> None:
        """Play a story. `raises` False: an error inside a route is answered instead of failing the test."""

        async def play() -> None:
            with tempfile.TemporaryDirectory() as directory:
                async with World.open(Path(directory), list(models), gpus, raises=raises) as world:
                    await story(world)

        asyncio.run(play())

    @classmethod
    @asynccontextmanager
    async def open(
        cls, directory: Path, models: list[ModelConfig], gpus: int, *, raises: bool = True
    ) -> "AsyncIterator[World]":
        world = cls(directory, models or [model("alpha"), model("beta")], gpus)
        transport = httpx.ASGITransport(world.app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as world.http:
            await world.post(e.RouterStarted(config=world.config.scheduler, version="0.1.0"))
            try:
                yield world
            finally:
                world.writer.close()

    def _see(self, event: e.Event) -> None:
        self.seen.append(event)
        self._news.set()

    async def post(self, *facts: e.Fact) -> None:
        """Report facts and wait until they are logged, decided on, and everything that follows at once as well."""
        self.loop.post(*facts)
        for _ in range(8):
            await asyncio.sleep(0)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait for events until something holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not enough():
                self._news.clear()
                await self._news.wait()

    def happened(self, kind: type[e.Event]) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def arrive(self, model: str, **fields: Any) -> int:
        """A request comes; its number."""
        rid = self.loop.next_rid()
        now_us = self.loop.clock.now_us()
        said: dict[str, Any] = {"route": "/chat/completions", "stream": True} | fields
        await self.post(e.RequestArrived(rid=rid, arrived_us=now_us, model=model, **said))
        return rid

    async def finish(self, rid: int, **fields: Any) -> None:
        """A replica's answer is complete."""
        said: dict[str, Any] = {"took_us": 3_000_000, "completion_tokens": 7} | fields
        await self.post(e.RequestFinished(rid=rid, replica=self.loop.state.requests[rid].replica, **said))

    async def get(self, path: str, **options: Any) -> Any:
        """JSON of an answer that must be 200."""
        answer = await self.http.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, target: str, **headers: str) -> AbstractAsyncContextManager[Stream]:
        """Read an answer piece by piece; an underscore in a header's name stands for a dash."""
        return open_stream(self.app, target, {name.replace("_", "-"): value for name, value in headers.items()})
