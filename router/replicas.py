"""The llama-servers of a run: orders of the scheduler become lives, and lives can be asked about.

`replica.py` is one life, from its spawn to its one last fact. This keeps them by their ids, hands orders on, and
answers the relay (where is it? does it still live?), the GPU sampler (whose process is this?) and the API (what did it
print?). It decides nothing: whether a replica is started, stopped or tried again is the scheduler's word.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from eventlog.events import ReplicaLoadFailed, ReplicaSpawnOrdered, ReplicaStopOrdered
from router.child_log import ChildLogs
from router.config import Config
from router.download import Downloads
from router.logs_command import children_dir
from router.places import directory_id
from router.process import adopt_orphans
from router.replica import Replica
from router.settling import Settling
from router.spawn import remove_stale_sockets
from router.surroundings import Clock, GpuMemory, Shell, Surroundings
from router.upstream import Endpoint

log = logging.getLogger("llama_router.replicas")


class Loop(Shell, Protocol):
    """The part of `router.loop.Loop` that is needed here."""

    def on(self, kind: type[Any], handler: Callable[[Any], None]) -> None: ...


class Replicas:
    """Belongs to the event loop's thread, which has to be the main thread: a child dies with the thread that made it.

    Before the first one is made, the orphans of earlier runs must be gone (`orphans.end_orphans`).
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        config: Config,
        *,
        run: int,
        memory: GpuMemory | None = None,
        transport: Literal["unix", "tcp"] = "unix",
        environ: Mapping[str, str] = os.environ,
        slot_save_path: Callable[[], Path | None] = lambda: None,
    ) -> None:
        """`run` as in the envelope of events. `memory` is the GPU sampler, if there is one.

        `slot_save_path` says where a process that is spawned now may save its slots.
        """
        self.child_logs = ChildLogs(children_dir(config.log_dir))
        self._loop = loop
        self._clock = clock
        self._config = config
        self._run = run
        self._memory = memory
        self._transport = transport
        self._environ = environ
        self._settling = Settling(loop, memory)
        self._slot_save_path = slot_save_path
        self._downloads = Downloads(self._surroundings)
        self._replicas: dict[str, Replica] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._closing = False
        self._hurried = False
        adopt_orphans()
        remove_stale_sockets(config.run_dir, directory_id(config.log_dir))
        loop.on(ReplicaSpawnOrdered, self._spawn)
        loop.on(ReplicaStopOrdered, self._stop)

    # --- for the relay and the API ---

    def endpoint(self, replica: str) -> Endpoint:
        """Where it listens. KeyError when it is gone, or has no process yet."""
        endpoint = self._replicas[replica].endpoint
        if endpoint is None:
            raise KeyError(replica)
        return endpoint

    def suspect(self, replica: str) -> None:
        """A connection to it broke. ReplicaAnswered, ReplicaStalled or ReplicaCrashed follows."""
        if (found := self._replicas.get(replica)) is not None:
            found.doubt()

    def stalled(self, replica: str, silent_us: int, norm_us: int, rids: list[int]) -> None:
        """It has been found to make no data: ReplicaStalled, once."""
        if (found := self._replicas.get(replica)) is not None:
            found.stalled(silent_us, norm_us, rids)

    def replica_of(self, pid: int) -> str:
        """The replica that a process belongs to; empty for a stranger."""
        try:
            leader = os.getsid(pid)
        except OSError:
            return ""
        return next((replica.id for replica in self._replicas.values() if replica.pid == leader), "")

    def logs(self, model: str | None = None, *, history: bool = True) -> AsyncIterator[bytes]:
        """What the replicas of a model (or all) printed lately, then print; whole lines, until the reader leaves."""
        return self.child_logs.stream(model, history=history)

    def needs_download(self, model: str) -> bool:
        """Whether a request for this model has to wait for `ensure_downloaded` first. Costs nothing."""
        return self._downloads.needed(self._config.models[model])

    async def ensure_downloaded(self, model: str) -> None:
        """Have a model that comes from a hub on disk, before anything is evicted for it. Raises DownloadFailed."""
        await self._downloads.ensure(self._config.models[model])

    # --- for whoever starts and ends the router ---

    def reconfigure(self, config: Config) -> None:
        """Later spawns are made by this; what runs, runs on."""
        self._config = config

    def hurry(self) -> None:
        """From now on every stop, those under way included, is a kill: a second signal waits for nobody."""
        self._hurried = True
        for replica in self._replicas.values():
            replica.hurry()

    async def stop_all(self) -> None:
        """End every replica, orders or not; returns when all are gone and have posted their last fact."""
        self._closing = True
        for replica in self._replicas.values():
            replica.stop()
        await self._downloads.stop()
        while self._lives:
            await asyncio.wait(self._lives)
        self.child_logs.shut()

    # --- orders ---

    def _spawn(self, order: ReplicaSpawnOrdered) -> None:
        model = self._config.models.get(order.model)
        if model is None:  # a reload took it away between the decision and now
            reason = f"model {order.model!r} is not configured any more"
            self._loop.post(ReplicaLoadFailed(replica=order.replica, kind="spawn", reason=reason))
            return
        replica = Replica(order, model, self._surroundings())
        self._replicas[replica.id] = replica
        if self._hurried:
            replica.hurry()
        if self._closing:  # the order was under way; its life ends before it has a process
            replica.stop()
        life = asyncio.get_running_loop().create_task(self._live(replica), name=f"replica-{replica.id}")
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(self, replica: Replica) -> None:
        try:
            await replica.live()
        finally:
            del self._replicas[replica.id]

    def _stop(self, order: ReplicaStopOrdered) -> None:
        replica = self._replicas.get(order.replica)
        if replica is not None:  # otherwise its last fact is already under way
            replica.stop()

    def _surroundings(self) -> Surroundings:
        config = self._config
        return Surroundings(
            loop=self._loop,
            clock=self._clock,
            logs=self.child_logs,
            llama_server=config.llama_server,
            run_dir=config.run_dir,
            directory=directory_id(config.log_dir),
            run=self._run,
            timings=config.timings,
            settling=self._settling,
            transport=self._transport,
            memory=self._memory,
            slot_save_path=self._slot_save_path(),
            environ=config.for_children(self._environ),
        )
