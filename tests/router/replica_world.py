"""What the tests of replicas stand on: a loop that only remembers, and configurations of the stand-in llama-server."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from eventlog.events import Event, Fact, Observation, ReplicaSpawnOrdered, ReplicaStopOrdered
from eventlog.settings import SchedulerSettings
from router.clock import RunClock
from router.config import Config, LogConfig, ModelConfig, Timings
from router.replicas import Replicas

E = TypeVar("E", bound=Event)
STANDIN = Path(__file__).parent.parent / "standin"
TIMINGS = Timings(load_stall_s=20.0, health_check_timeout_s=5.0)


class RecordingLoop:
    """Takes facts and observations, and lets a test wait for one."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.notes: list[Observation] = []
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._news = asyncio.Event()

    def post(self, *facts: Fact) -> None:
        self.facts += facts
        self._news.set()

    def note(self, observation: Observation) -> None:
        self.notes.append(observation)
        self._news.set()

    def on(self, kind: type[Any], handler: Callable[[Any], None]) -> None:
        self._handlers[kind] = handler

    def decide(self, decision: Any) -> None:
        self._handlers[type(decision)](decision)

    async def sees(self, kind: type[E], count: int = 1) -> E:
        """The `count`-th event of this type, as soon as it is there."""
        async with asyncio.timeout(30):
            while True:
                found = [event for event in (*self.facts, *self.notes) if type(event) is kind]
                if len(found) >= count:
                    return found[count - 1]
                self._news.clear()
                await self._news.wait()

    @property
    def story(self) -> list[str]:
        return [type(fact).__name__ for fact in self.facts]


class World:
    """A Replicas on the stand-in, and short words for what the scheduler would order."""

    def __init__(self, tmp_path: Path, *, wrapper: bool = False, timings: Timings = TIMINGS, **more: Any) -> None:
        self.loop = RecordingLoop()
        self.tmp_path = tmp_path
        self.models: dict[str, ModelConfig] = {}
        self.config = config(tmp_path, self.models, STANDIN / ("wrapper.sh" if wrapper else "llama-server"), timings)
        self.replicas = Replicas(self.loop, RunClock(), self.config, run=1, **more)

    def model(self, name: str, *, stop_timeout_s: float = 5.0, **script: Any) -> None:
        """Configure a model whose file tells the stand-in what to do wrong."""
        path = self.tmp_path / f"{len(self.models)}.gguf"
        path.write_text(json.dumps(script))
        argv = ("--model", str(path), "--parallel", "2", "--ctx-size", "8192")
        self.models[name] = ModelConfig(
            name=name, argv=argv, model_path=str(path), stop_timeout_s=stop_timeout_s, env={"STANDIN_TAG": "t"}
        )

    def spawn(self, replica: str = "r1", model: str = "m", gpus: tuple[int, ...] = (0,), after: str = "") -> None:
        self.loop.decide(ReplicaSpawnOrdered(replica=replica, model=model, index=0, gpus=gpus, after=after))

    def stop(self, replica: str = "r1") -> None:
        self.loop.decide(ReplicaStopOrdered(replica=replica, why="evict"))

    def amend(self, name: str, **changes: Any) -> None:
        self.models[name] = replace(self.models[name], **changes)


def config(tmp_path: Path, models: dict[str, ModelConfig], binary: Path, timings: Timings) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        models=models,
        scheduler=SchedulerSettings(),
        llama_server=(str(binary),),
        llama_server_from="config",
        child_transport="unix",
        log_dir=tmp_path / "log",
        log=LogConfig(),
        run_dir=tmp_path / "run",
        state_dir=tmp_path,
        history_db=tmp_path / "history.duckdb",
        timings=timings,
    )


def play(tmp_path: Path, story: Callable[[World], Coroutine[Any, Any, None]], **world: Any) -> None:
    """Tell a story in a fresh world; whatever it started is ended."""

    async def told() -> None:
        scene = World(tmp_path, **world)
        try:
            await story(scene)
        finally:
            await scene.replicas.stop_all()

    asyncio.run(told())
