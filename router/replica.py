"""The life of one llama-server: spawn, prove ready, watch, stop, reap.

    wait for memory ──> spawned ──> loading ──> ready ──> stopping ──> ReplicaStopped
           │               │           │          └─────────────────> ReplicaCrashed
           └───────────────┴───────────┴────────────────────────────> ReplicaLoadFailed | ReplicaStopped

Every life posts exactly one of the facts on the right, whatever happens, and only when no process of it is left.
Counterparts: `replicas.py` begins lives and passes orders on; `process.py` is the process, `probe.py` asks it,
`exits.py` says why it ended.
"""

import asyncio
import glob
import hashlib
import logging
import time
from pathlib import Path

from eventlog.events import (
    Fact,
    GpuMemorySettled,
    LogLine,
    Memory,
    ReplicaAnswered,
    ReplicaCrashed,
    ReplicaLoadFailed,
    ReplicaLoading,
    ReplicaNote,
    ReplicaReady,
    ReplicaSpawned,
    ReplicaSpawnOrdered,
    ReplicaStalled,
    ReplicaStopped,
)
from router import exits, orphans, probe, proc, progress, spawn
from router.config import ModelConfig
from router.exits import LoadVerdict
from router.process import Process
from router.surroundings import Surroundings
from router.upstream import Endpoint, UpstreamError
from router.waits import first, first_of, tasks_of, within

log = logging.getLogger("llama_router.replica")

POLL_FIRST_S, POLL_LAST_S = 0.02, 0.25
"""Between questions whether a load is done; a line of the child that sounds like it asks at once."""
DOUBT_FIRST_S = 0.05
"""Between the first questions whether it lives."""
SPAWN_AGAIN_S = 0.5
"""After a process that could not be made for want of something that may come back."""
SAMPLE_S = 1.0
"""Between looks at the progress of a load."""
FAMILY_EVERY = 10
"""Samples between looks for processes that the child has started meanwhile."""
FRESH_S = 0.2
"""How long readiness may be held up to learn how much GPU memory the model takes."""
UNMEASURED_S = 2.0
"""Where nobody can measure GPU memory, a retry after its want is made so long after the failure."""
READY_SIGNS = (b"listening on", b"model loaded")
STAGES = (
    (b"load_model: loading model", "weights"),
    (b"load_tensors", "weights"),
    (b"threadpool init", "context"),
    (b"llama_context", "context"),
    (b"warming up", "warm-up"),
)
"""What llama-server prints on its way, and what it is then at."""
CACHE_REUSE_UNSUPPORTED = b"cache_reuse is not supported by this context"


class Replica:
    """One life. `live()` is all of it; the other methods may be called at any time from the event loop."""

    def __init__(self, order: ReplicaSpawnOrdered, model: ModelConfig, around: Surroundings) -> None:
        self.id = order.replica
        self.model = model.name
        self.endpoint: Endpoint | None = None
        """Once there is a process."""
        self.pid = 0
        self._order = order
        self._config = model
        self._around = around
        self._marker = orphans.marker(around.directory, around.run, order.replica)
        self._stop = asyncio.Event()
        self._nudge = asyncio.Event()
        self._hurried = False
        self._process: Process | None = None
        self._pids: list[int] = []
        self._stage = ""
        self._ready_at_us = -1
        self._began_us = 0
        self._stalled = False
        self._doubts = 0
        self._doubting: asyncio.Task[None] | None = None
        self._oom_kills = 0

    # --- what others call ---

    def stop(self) -> None:
        """End it, whatever it is doing."""
        self._stop.set()

    def hurry(self) -> None:
        """Its end, begun or not, has no patience any more."""
        self._hurried = True
        if self._process is not None:
            self._process.hurry()

    def doubt(self) -> None:
        """A connection to it broke: ask whether it lives, and post the answer."""
        self._doubts += 1
        if self._ready_at_us >= 0 and (self._doubting is None or self._doubting.done()):
            self._doubting = asyncio.create_task(self._dispel(), name=f"doubt-{self.id}")

    def stalled(self, silent_us: int, norm_us: int, rids: list[int]) -> None:
        """It is found to make no data; said once."""
        if not self._stalled and self._ready_at_us >= 0:
            self._stalled = True
            self._around.loop.post(ReplicaStalled(replica=self.id, silent_us=silent_us, norm_us=norm_us, rids=rids))

    async def live(self) -> None:
        """From the order to the end. Never raises."""
        self._began_us = self._around.clock.now_us()
        try:
            end = await self._live()
        except Exception as error:  # a mistake of ours must not leave the scheduler waiting for ever
            log.exception("replica %s is ended for an error of the router", self.id)
            await self._clean_up(0.0)
            end = self._ended_by_itself(f"an error of the router: {error!r}")
        self._forget()
        if self._process is not None:
            around = self._around
            around.settling.ended(self._order.gpus, self._pids, around.timings)
        self._around.loop.post(end)

    # --- the life ---

    async def _live(self) -> Fact:
        around = self._around
        await first(self._memory_is_back(), self._stop.wait())
        if self._stop.is_set():
            return ReplicaStopped(replica=self.id)
        try:
            process = await self._spawn()
        except spawn.SpawnError as error:
            return ReplicaLoadFailed(replica=self.id, kind="spawn", reason=str(error), took_us=self._age_us())
        if process is None:
            return ReplicaStopped(replica=self.id)
        found = await self._load(process)
        if found is None or process.exited.is_set() or self._stop.is_set():
            return await self._finish(process)
        if isinstance(found, LoadVerdict):
            await self._clean_up(self._config.stop_timeout_s)
            return self._load_failed(process, found)
        self._ready_at_us = around.clock.now_us()
        around.loop.post(await self._ready(process, found))
        await first(process.exited.wait(), self._stop.wait())
        return await self._finish(process)

    async def _spawn(self) -> Process | None:
        """None when it is to be stopped before there is a process."""
        around = self._around
        endpoint = (
            spawn.tcp_endpoint() if around.transport == "tcp" else spawn.unix_endpoint(around.run_dir, around.directory)
        )
        argv = spawn.command(around.llama_server, self._config.argv, endpoint, self.model, around.slot_save_path)
        env = spawn.environment(around.environ, self._config.env, self._order.gpus, endpoint.key, self._marker)
        child_log = around.logs.open(self.model, self.id, endpoint.key, self._on_lines)
        child = await self._start(argv, env)
        if child is None:
            return None
        self._process = process = Process(child, self._marker, child_log.feed)
        if self._hurried:
            process.hurry()
        self.endpoint = endpoint
        self.pid = child.pid
        self._pids = [child.pid]
        around.loop.post(
            ReplicaSpawned(
                replica=self.id,
                pid=child.pid,
                started_ticks=child.started_ticks,
                address=str(endpoint),
                argv_hash=_hash((*around.llama_server, *self._config.argv)),
                mask=env["CUDA_VISIBLE_DEVICES"],
            )
        )
        return process

    async def _start(self, argv: tuple[str, ...], env: dict[str, str]) -> spawn.Child | None:
        """Raises SpawnError when trying again does not help, or has not."""
        for left in range(self._around.timings.start_retries, -1, -1):
            self._oom_kills = proc.oom_kills()
            self._began_us = self._around.clock.now_us()
            try:
                return spawn.start(argv, env)
            except spawn.SpawnError as error:
                if not error.may_pass or not left:
                    raise
                log.warning("replica %s: %s; trying again", self.id, error)
            await within(SPAWN_AGAIN_S, self._stop.wait())
            if self._stop.is_set():
                break
        return None

    async def _load(self, process: Process) -> probe.Properties | LoadVerdict | None:
        """What the child has once it is ready, or why it is given up; None when it ended or is to be stopped."""
        proving = asyncio.create_task(self._prove_ready(process))
        watching = asyncio.create_task(self._watch_load(process))
        await first_of({proving, watching, *tasks_of(process.exited.wait(), self._stop.wait())})
        for task in (proving, watching):
            if not task.cancelled():
                return task.result()
        return None

    async def _prove_ready(self, process: Process) -> probe.Properties | LoadVerdict:
        endpoint, timeout_s = self._where(), self._around.timings.health_check_timeout_s
        poll_s = POLL_FIRST_S
        while True:
            try:
                if probe.socket_exists(endpoint) and await probe.health(endpoint, timeout_s) == "ready":
                    await probe.prove(endpoint, process.pid, self._marker)
                    return await probe.properties(endpoint, timeout_s)
            except probe.Imposter as imposter:
                return LoadVerdict("imposter", str(imposter))
            except (UpstreamError, TimeoutError, OSError) as error:
                log.debug("replica %s: %s", self.id, error)  # it was ready a moment ago: its end comes, or it answers
            self._nudge.clear()
            await within(poll_s, self._nudge.wait())
            poll_s = min(poll_s * 1.3, POLL_LAST_S, self._around.timings.load_poll_interval_s)

    async def _watch_load(self, process: Process) -> LoadVerdict:
        """Returns when the load has not moved for too long, or takes longer than any load may.

        The time is that of a clock which stands still while the machine sleeps, as the child does.
        """
        timings, child_log = self._around.timings, self._around.logs.live[self.id]
        size = _model_bytes(self._config.model_path)
        began_us = _awake_us()
        stall = progress.Stall(began_us)
        count = 0
        while True:
            await asyncio.sleep(min(SAMPLE_S, timings.load_stall_s / 5))
            if count % FAMILY_EVERY == 0:
                self._pids = await process.pids()
            count += 1
            sample = await asyncio.to_thread(progress.measure, self._pids)
            now_us = _awake_us()
            stall.feed(now_us, sample, child_log.bytes)
            self._tell_stage(max(sample.bytes_read, sample.resident_bytes), size)
            last = child_log.last_lines[-1:]
            said = f"; its last line: {last[0][:300]}" if last else ""
            if stall.still_us(now_us) > timings.load_stall_s * 1e6:
                which = "no output, CPU time, page faults, reads or writes"
                return LoadVerdict("stall", f"the load has not moved for {timings.load_stall_s:g} s: {which}{said}")
            if now_us - began_us > timings.load_ceiling_s * 1e6:
                return LoadVerdict("ceiling", f"the load took longer than {timings.load_ceiling_s:g} s{said}")

    async def _ready(self, process: Process, found: probe.Properties) -> ReplicaReady:
        self._pids = await process.pids()
        memory = self._around.memory
        if memory is not None:
            await within(FRESH_S, memory.fresh())
        return ReplicaReady(
            replica=self.id,
            slots=found.slots,
            slot_ctx=found.slot_ctx,
            load_us=self._age_us(),
            build=found.build,
            model_path=found.model_path,
            vram=self._vram(),
        )

    async def _finish(self, process: Process) -> Fact:
        """It has ended by itself, or is to be stopped: the one fact about it, when nothing of it is left."""
        vram = self._vram()
        was_told = self._stop.is_set()
        began = time.monotonic()
        killed = await self._clean_up(self._config.stop_timeout_s)
        if not was_told and not self._stop.is_set():
            return self._ended_by_itself("", vram)
        return ReplicaStopped(
            replica=self.id,
            exit_code=process.exit.code,
            signal=process.exit.signal,
            took_us=int((time.monotonic() - began) * 1e6),
            escalated=killed and was_told,
            freed=vram,
        )

    def _ended_by_itself(self, fault: str, vram: list[Memory] | None = None) -> Fact:
        how = self._process.exit if self._process is not None else exits.Exit()
        lines = self._last_lines()
        oom_killed = proc.oom_kills() > self._oom_kills
        if self._ready_at_us < 0:
            verdict = exits.load_failure(how, lines, oom_killed=oom_killed)
            return ReplicaLoadFailed(
                replica=self.id,
                kind="spawn" if fault else verdict.kind,
                reason=fault or verdict.reason,
                exit_code=how.code,
                signal=how.signal,
                took_us=self._age_us(),
                last_lines=lines,
            )
        crash = exits.crash(how, lines, oom_killed=oom_killed)
        return ReplicaCrashed(
            replica=self.id,
            cause_of_exit=crash.cause,
            exit_code=how.code,
            signal=how.signal,
            uptime_us=self._around.clock.now_us() - self._ready_at_us,
            reason=fault or crash.reason,
            last_lines=lines,
            vram=vram or [],
        )

    def _load_failed(self, process: Process, verdict: LoadVerdict) -> ReplicaLoadFailed:
        return ReplicaLoadFailed(
            replica=self.id,
            kind=verdict.kind,
            reason=verdict.reason,
            exit_code=process.exit.code,
            signal=process.exit.signal,
            took_us=self._age_us(),
            last_lines=self._last_lines(),
        )

    # --- parts of it ---

    async def _memory_is_back(self) -> None:
        """Until what others held on these GPUs is free again; after a want of memory also where nobody can measure."""
        around, gpus = self._around, self._order.gpus
        await around.settling.over(gpus)
        if self._order.after == "gpu_oom" and (around.memory is None or not around.memory.measures(gpus)):
            began_us = around.clock.now_us()
            await asyncio.sleep(UNMEASURED_S)
            waited_us = around.clock.now_us() - began_us
            around.loop.post(GpuMemorySettled(gpus=list(gpus), waited_us=waited_us, settled=False))

    async def _dispel(self) -> None:
        """Post ReplicaAnswered for the doubts so far; without an answer for too long, ReplicaStalled."""
        around, process = self._around, self._process
        assert process is not None
        began_us = around.clock.now_us()
        limit_us = int(around.timings.health_check_timeout_s * 1e6)
        pause_s = DOUBT_FIRST_S
        while not process.exited.is_set() and not self._stop.is_set():
            doubts = self._doubts
            answer = await probe.health(self._where(), min(5.0, around.timings.health_check_timeout_s))
            if process.exited.is_set() or self._stop.is_set():
                return
            if answer == "ready" and doubts == self._doubts:
                around.loop.post(ReplicaAnswered(replica=self.id))
                return
            silent_us = around.clock.now_us() - began_us
            if answer != "ready" and silent_us > limit_us:
                self.stalled(silent_us, limit_us, [])
                return
            await within(pause_s, process.exited.wait())
            pause_s = min(pause_s * 2, around.timings.health_check_interval_s)

    async def _clean_up(self, grace_s: float) -> bool:
        """End every process of this life; whether SIGKILL was needed."""
        if self._process is None:
            return False
        ending = asyncio.ensure_future(self._process.end(grace_s))
        while not (await asyncio.wait({ending}, timeout=grace_s + 10.0))[0]:
            text = f"replica {self.id} (process {self.pid}) does not end, not even by SIGKILL: its GPUs stay taken"
            log.error(text)
            self._around.loop.note(LogLine(level="error", text=text, replica=self.id))
        return ending.result()

    def _forget(self) -> None:
        if self._doubting is not None:
            self._doubting.cancel()
        self._around.logs.close(self.id)
        if self.endpoint is not None and self.endpoint.path is not None:
            Path(self.endpoint.path).unlink(missing_ok=True)

    def _on_lines(self, lines: bytes) -> None:
        if CACHE_REUSE_UNSUPPORTED in lines:
            text = "the context of this model does not support cache-reuse; llama-server has switched it off"
            self._around.loop.note(ReplicaNote(replica=self.id, code="cache_reuse_unsupported", text=text))
        if self._ready_at_us >= 0:
            return
        if any(sign in lines for sign in READY_SIGNS):
            self._nudge.set()
        stage = next((name for sign, name in reversed(STAGES) if sign in lines), self._stage)
        if stage != self._stage:
            self._stage = stage
            self._tell_stage(0, 0)

    def _tell_stage(self, taken: int, size: int) -> None:
        value = round(min(taken / size, 0.99), 2) if size and taken else -1.0
        self._around.loop.note(
            ReplicaLoading(replica=self.id, model=self.model, stage=self._stage, value=value, bytes=taken)
        )

    def _last_lines(self) -> list[str]:
        live = self._around.logs.live.get(self.id)
        return live.last_lines if live is not None else []

    def _vram(self) -> list[Memory]:
        return self._around.memory.memory_of(self._pids) if self._around.memory is not None else []

    def _where(self) -> Endpoint:
        assert self.endpoint is not None
        return self.endpoint

    def _age_us(self) -> int:
        return self._around.clock.now_us() - self._began_us


def _model_bytes(path: str) -> int:
    """Size of a model file with all of its parts (`...-00001-of-00003.gguf`); 0 when unknown."""
    whole = Path(path)
    head, mark, rest = whole.name.rpartition("-00001-of-")
    parts = sorted(whole.parent.glob(f"{glob.escape(head)}-*-of-{glob.escape(rest)}")) if mark else [whole]
    try:
        return sum(part.stat().st_size for part in parts) if path else 0
    except OSError:
        return 0


def _hash(words: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]


def _awake_us() -> int:
    return time.monotonic_ns() // 1000
