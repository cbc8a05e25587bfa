"""The router's life: recover the log, end what an earlier run left, serve, drain, stop. Wires every part once.

Order at the start: the log is locked and read, the state of the last run is folded from it, its orphans are ended, the
new run is logged, and only then is a request taken.
"""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any

import uvicorn

from eventlog.events import (
    AdminCancel,
    ClockStepped,
    ConfigLoaded,
    Event,
    Fact,
    Gpu,
    Observation,
    ProfileChanged,
    RequestLost,
    RouterStarted,
    RouterStopped,
    RouterStopping,
)
from eventlog.writer import LogWriter
from router.api import operations
from router.api.front import Front
from router.api.services import Gate, Services, Started
from router.api.view import View
from router.cache_keeper import CacheKeeper
from router.client import ClientProtocol
from router.client import Patience as ClientPatience
from router.clock import RunClock
from router.config import Config
from router.dashboard import Dashboard
from router.gpus import Gpus
from router.loop import Loop
from router.memory.measured import measure
from router.orphans import end_orphans
from router.places import directory_id
from router.relay import Relay
from router.reload import Reloader
from router.replicas import Replicas
from router.sampler import Sampler
from router.scheduler import POLICY_VERSION, State, carried_from, dump, fold, restore
from router.slot_watch import SlotWatch
from router.wedge import Patience, WedgeWatch

CLOCK_CHECK_S = 10.0
KEEP_ALIVE_S = 75
STARTED_S = 3.0
"""By then everything has been imported."""
FLUSH_S = 30.0
"""After the last answer: how long a client may take to read it before its connection is cut."""
READS_NOTHING_S = 5.0
"""And how long without taking a byte."""
BEGUN_AGAIN_S = 1.0
STOP_LOOK_S = 0.1
"""Between looks at what still runs, or is still read."""
EXIT_UNLOGGED = 1
EXIT_BROKEN = 70
"""A rule of the scheduler broke an invariant (sysexits: internal software error)."""
OPEN_FILES = 65_536

log = logging.getLogger("llama_router")


class Router:
    """Everything that runs. `run` serves until it has been told to stop and nothing is left."""

    def __init__(
        self, config: Config, gpus: Gpus, salt: bytes, read_config: Callable[[], Config], llama_build: str = ""
    ) -> None:
        """Opens the log and ends orphans. Blocks; nothing is served yet. `read_config` reads it again, for a reload.

        Raises what `LogWriter.open` raises. Belongs to the main thread and its running event loop.
        """
        self._config = config
        self._gpus = gpus
        self._clock = RunClock()
        self._state = State()
        self._asyncio = asyncio.get_running_loop()
        self._exit_code = 0
        self._stop_signals = 0
        self._stop_by_s = 0.0
        """On the event loop's clock: when a stop waits for nobody any more."""
        self._done = asyncio.Event()
        self._writer = LogWriter.open(
            config.log_dir,
            durability=config.log.sync,
            segment_bytes=config.log.segment_bytes,
            keep_bytes=config.log.keep_bytes,
            keep_us=round(config.log.keep_days * 86_400e6),
            checkpoint=lambda: dump(self._state),
            on_failure=self._log_failed,
        )
        before = self._last_state()
        self._view = View()
        self._view.remember(self._writer.recovered.events)
        self._measured = measure(self._writer.recovered.events)
        self._writer.recovered.events.clear()  # tens of thousands, and nobody needs them any more
        carried = carried_from(before)
        lost = list(_lost(before))
        if not carried.clean:
            log.warning("the run before was killed or broke down; requests lost: %d", len(lost))
        for ended in end_orphans(carried.orphans, directory_id(config.log_dir)):
            if ended.gone:  # the others are told of where they are found
                log.warning("ended process %d, left by an earlier run (%s)", ended.pid, ended.replica or "unnamed")
        self._state.last_rid, self._state.last_op = carried.next_rid - 1, carried.next_op - 1
        self._loop = Loop(self._clock, self._writer, self._state, self._writer.last_run + 1, on_broken=self._broke)
        self._caches = CacheKeeper(self._loop, config, lambda replica: self._replicas.endpoint(replica))
        self._replicas = Replicas(
            self._loop,
            self._clock,
            config,
            run=self._loop.run,
            memory=gpus,
            transport=config.child_transport,
            slot_save_path=lambda: self._caches.directory,
        )
        self._first_facts: list[Fact] = [
            RouterStarted(
                config=config.scheduler,
                effective=config.effective(salt),
                gpus=gpus.topology or [Gpu(index=index) for index in range(config.scheduler.gpus)],
                gpu_count_from=config.gpu_count_from,
                version=version("llama-router"),
                policy_version=POLICY_VERSION,
                llama_server=" ".join(config.llama_server),
                llama_build=llama_build,
                carried=carried,
            ),
            *lost,
            *_profile_gone(carried.profile, config, "start"),
            *self._caches.found(),
        ]
        started = Started(
            at_us=self._clock.now_us(),
            run=self._loop.run,
            version=version("llama-router"),
            llama_server=" ".join(config.llama_server),
            llama_build=llama_build,
        )
        self._salt = salt
        self._started = started
        self._dashboard = Dashboard(config, self._loop.run) if config.dashboard.on else None
        self._reloader = Reloader(config, read_config, self._reconfigure, loop=self._loop, now_us=self._clock.now_us)
        self._background: list[asyncio.Task[None]] = []
        self._relay: Relay
        self._services: Services
        self._wedges: WedgeWatch
        self._protocol = ClientProtocol.with_patience(self._client_patience())

    def _last_state(self) -> State:
        """What the last run left, folded from the log alone."""
        recovered = self._writer.recovered
        state = restore(recovered.state) if recovered.state is not None else State()
        for event in recovered.events:
            fold(state, event)
        return state

    # --- serve ---

    async def run(self, sock: socket.socket) -> int:
        """Serve on a listening socket; returns the exit code once everything has ended."""
        raise_descriptor_limit()
        front = Front(self._config.cors_origins, self._salt)
        server = _Server(
            uvicorn.Config(
                front,
                http=self._protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                # A proxy in front counts as the client: looking for its headers would cost every request.
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        serving = asyncio.create_task(server.serve([sock]))
        gate = Gate()
        relay = self._relay = Relay(self._loop, self._replicas, self._config, self._salt, gate=gate)
        services = self._services = Services(
            self._loop,
            self._config,
            relay,
            self._replicas,
            self._gpus,
            self._started,
            self._reloader,
            gate,
            self._view,
            measured=self._measured,
            dashboard=self._dashboard.endpoint if self._dashboard is not None else None,
        )
        self._wedges = WedgeWatch(self._loop, self._clock, self._replicas, relay.flights, patience=self._patience())
        self._loop.subscribe(self._watch)
        self._loop.post(*self._first_facts)
        operations.preload(services)
        front.serve(services, relay)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._asyncio.add_signal_handler(number, self._stop_signal, number)
        self._asyncio.add_signal_handler(signal.SIGHUP, self._reloader.ask, "SIGHUP")
        self._background += [
            asyncio.create_task(_again_and_again(work))
            for work in (
                self._watch_clock,
                Sampler(self._loop, self._replicas.endpoint).run,
                self._wedges.run,
                self._reloader.watch,
                *([self._dashboard.run] if self._dashboard is not None else []),
            )
        ]
        slot_watch = SlotWatch(self._loop, self._replicas.endpoint)
        self._asyncio.call_later(STARTED_S, freeze_what_stays, lambda: not self._loop.state.requests)
        await self._done.wait()
        for task in self._background:
            task.cancel()
        await self._replicas.stop_all()
        slot_watch.stop()
        await self._caches.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        relay.close()
        server.should_exit = True
        await self._flush(server, serving)
        await self._gpus.stop()
        self._say_goodbye()
        return self._exit_code

    async def _flush(self, server: uvicorn.Server, serving: "asyncio.Task[None]") -> None:
        """Until every client has read its answer, or does not read any more."""
        now = self._asyncio.time
        give_up_s, moved_s, left = now() + FLUSH_S, now(), -1
        while not serving.done() and now() < give_up_s:
            connections: Iterable[Any] = server.server_state.connections
            before, left = left, sum(one.transport.get_write_buffer_size() for one in connections)
            if left != before:
                moved_s = now()
            elif now() - moved_s >= (READS_NOTHING_S if self._stop_signals < 2 else STOP_LOOK_S):
                log.warning("some clients do not read the end of their answers: their connections are cut")
                return
            await asyncio.wait([serving], timeout=STOP_LOOK_S)

    def _client_patience(self) -> ClientPatience:
        limits = self._config.limits
        return ClientPatience(limits.max_head_bytes, limits.head_s, limits.body_s)

    def _patience(self) -> Patience:
        timings = self._config.timings
        return Patience(stream_us=round(timings.stall_stream_s * 1e6), first_us=round(timings.stall_first_s * 1e6))

    # --- while it runs ---

    def note(self, observation: Observation) -> None:
        self._loop.note(observation)

    def replica_of(self, pid: int) -> str:
        return self._replicas.replica_of(pid)

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_CHECK_S)
            stepped_us = self._clock.step_us()
            if stepped_us:
                log.warning("the wall clock was set by %.1f s; no timer moves", stepped_us / 1e6)
                self._loop.note(ClockStepped(by_us=stepped_us))

    def _log_failed(self) -> None:
        """Called by the log's own thread."""
        self._asyncio.call_soon_threadsafe(self._loop.log_failed)

    def _reconfigure(self, config: Config, by: str) -> None:
        """What is decided by the old settings is carried out by them, and what is decided by the new ones by these:
        the fact alone may have a model loaded that waited for a setting."""
        config = config.with_fingerprints(self._salt)
        self._loop.turn()
        self._loop.post(
            ConfigLoaded(config=config.scheduler, effective=config.effective(self._salt), by=by),
            *_profile_gone(self._state.profile, config, "reload"),
        )
        self._config = config
        self._caches.reconfigure(config)
        self._replicas.reconfigure(config)
        self._relay.reconfigure(config)
        self._wedges.reconfigure(self._patience())
        self._protocol.patience = self._client_patience()
        before, self._services.config = self._services.config, config
        self._loop.turn()
        operations.load_after_reload(self._services, before)

    # --- stop ---

    def _stop_signal(self, number: int) -> None:
        """The first one drains, the second one does not wait. Loads that nobody's request wants are called off."""
        self._stop_signals += 1
        now_us = self._clock.now_us()
        patience_s = self._config.timings.shutdown_s if self._stop_signals == 1 else 0.0
        log.warning("%s: stopping within %g s; once more to stop at once", signal.Signals(number).name, patience_s)
        self._stop_by_s = self._asyncio.time() + patience_s
        if self._stop_signals == 1:
            self._background.append(asyncio.create_task(self._end_without_log()))
        else:
            self._replicas.hurry()
        if not self._loop.available:
            # Nothing is decided without a log, so nobody would decide that the router may end.
            self._asyncio.call_later(patience_s, self._done.set)
        name = signal.Signals(number).name
        self._loop.post(
            *(AdminCancel(op=self._loop.next_op(), rid=rid, by=name) for rid in self._state.wishes.values()),
            RouterStopping(reason=name, deadline_us=now_us + round(patience_s * 1e6)),
        )

    async def _end_without_log(self) -> None:
        """While the log takes nothing, the scheduler cannot say when all is done: end when nothing runs any more."""
        running = self._relay.flights
        while self._loop.available or (any(running()) and self._asyncio.time() < self._stop_by_s):  # noqa: ASYNC110
            await asyncio.sleep(STOP_LOOK_S)
        log.error("the event log takes no end of this run; the next run will close its account")
        self._relay.cancel_all("shutdown")
        self._exit_code = EXIT_UNLOGGED
        self._done.set()

    def _watch(self, event: Event) -> None:
        state = self._state
        if state.stopping_at_us and not state.requests and not state.replicas:
            self._done.set()

    def _broke(self) -> None:
        self._exit_code = EXIT_BROKEN
        self._done.set()

    def _say_goodbye(self) -> None:
        self._loop.flush_observations()
        if not self._exit_code:
            self._loop.post(RouterStopped(reason="stopped"))
            self._loop.turn()
        self._loop.close()
        self._writer.close()


async def _again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. A mistake in one round, which nobody waits for, must not end all that would follow."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s broke down and is begun again", getattr(work, "__qualname__", work))
            await asyncio.sleep(BEGUN_AGAIN_S)


class _Server(uvicorn.Server):
    """uvicorn without its own signals: a signal is a fact here, and the scheduler says when all is done."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _profile_gone(profile: str, config: Config, by: str) -> Iterable[Fact]:
    """The profile in force is not configured any more: none is."""
    if profile and profile not in config.profiles:
        yield ProfileChanged(profile="", by=by)


def _lost(before: State) -> Iterable[Fact]:
    """Requests that the last run left open: their account is closed here."""
    for request in before.requests.values():
        if not request.op:
            yield RequestLost(
                rid=request.rid,
                model=request.model,
                stage="dispatched" if request.replica else "queued",
                lost_run=before.run,
            )


def freeze_what_stays(is_idle: Callable[[], bool]) -> None:
    """What the start has made lives as long as the process: the garbage collector need not walk through it again.

    Not while requests are there: what is frozen is never collected, and theirs would stay for ever.
    """
    if is_idle():
        gc.collect()
        gc.freeze()
    else:
        asyncio.get_running_loop().call_later(STARTED_S, freeze_what_stays, is_idle)


def raise_descriptor_limit() -> None:
    """A waiting client costs a descriptor; the soft limit of a shell is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
