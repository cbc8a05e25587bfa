"""GPUs as NVML sees them: what there is at the start, then a sample of each once a second.

Its counterpart is `eventlog.events.GpuSampled`; the scheduler never reads any of it, or a replay would need the GPUs.
NVML is called from one thread of its own, because a call into a driver that is busy or wedged can take seconds.
Nothing here opens a CUDA context: NVML needs none, and a context would cost hundreds of MiB on every GPU.

Every field stands for itself: what a driver does not support is -1 and takes nothing else with it. Without NVML the
router runs as well; that is said once, and tried again now and then. AMD GPUs are not seen (they have no NVML).
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eventlog.events import Gpu, GpuSampled, LogLine, Memory, Observation

log = logging.getLogger("llama_router.gpus")

MIB = 1 << 20
SAMPLE_S = 1.0
RETRY_S = 30.0
"""After NVML was not there or was lost; loading it is cheap, but a missing driver seldom appears."""
SETTLE_STEP_S = 0.1
SETTLE_STEPS = 3
"""Memory that has not fallen for this many samples in a row has settled."""
SETTLE_NOISE_MIB = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU at one moment; -1 where the driver does not tell. `processes`: pid to MiB."""

    gpu: int
    utilisation_percent: int = -1
    used_mib: int = -1
    total_mib: int = -1
    temperature_c: int = -1
    power_mw: int = -1
    processes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """How a wait for GPU memory ended. `settled` is False when time ran out or nobody could measure."""

    settled: bool
    waited_us: int


def count_gpus(
    configured: int | None, found: int, pinned: Iterable[int]
) -> tuple[int, Literal["config", "nvml", "pins"]]:
    """How many GPUs the scheduler counts, and who says so: the owner, then NVML, then the highest pin, then one."""
    if configured is not None:
        return configured, "config"
    if found > 0:
        return found, "nvml"
    return max(pinned, default=0) + 1, "pins"


def inherited_mask(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The devices that whoever started the router left to it, as written; None when all of them.

    Our GPU 0 is the first of these. As CUDA does it, the list ends at the first entry that names nothing.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return tuple(entries)


class Gpus:
    """Samples the GPUs from a thread and hands each sample to `note`, on the event loop that called `start`."""

    def __init__(
        self,
        note: Callable[[Observation], None],
        replica_of: Callable[[int], str] = lambda pid: "",
        *,
        sample_s: float = SAMPLE_S,
        retry_s: float = RETRY_S,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`replica_of(pid)` names the replica that a process belongs to, or is empty for a stranger."""
        self.topology: list[Gpu] = []
        """The GPUs found by NVML; empty without it."""
        self.latest: dict[int, Sample] = {}
        self.problem = ""
        """Why NVML does not answer at present; empty when it does."""
        self._note = note
        self._replica_of = replica_of
        self._sample_s = sample_s
        self._retry_s = retry_s
        self._mask = inherited_mask(environ)
        self._handles: list[Any] = []
        self._absent: set[int] = set()
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[dict[int, Sample]]] = []
        self._kick = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None]

    # --- for the event loop -------------------------------------------------------------------------------------

    async def start(self, timeout_s: float = 5.0) -> list[Gpu]:
        """Begin to sample; the GPUs found, or none if NVML has not answered within the limit."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        first = self._ask()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()
        done, _ = await asyncio.wait([first], timeout=timeout_s)
        if not done:
            log.warning("NVML has not answered within %g s: going on without it for now", timeout_s)
        return list(self.topology)

    async def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; one that hangs in the driver is left behind (it does not keep the process alive)."""
        if self._thread is None:
            return
        self._stopping = True
        self._kick.set()
        await asyncio.wait([self._ended], timeout=timeout_s)

    async def fresh(self) -> dict[int, Sample]:
        """Samples taken after this call; empty without NVML."""
        if self._thread is None or self._stopping:
            return {}
        waiter = self._ask()
        self._kick.set()
        return await waiter

    def memory_of(self, pids: Collection[int]) -> list[Memory]:
        """What these processes together hold on each GPU, as of the last sample."""
        return [
            Memory(gpu, sum(mib))
            for gpu, sample in sorted(self.latest.items())
            if (mib := [sample.processes[pid] for pid in pids if sample.processes.get(pid, 0) > 0])
        ]

    def measures(self, gpus: Collection[int]) -> bool:
        """Whether the memory of one of these GPUs is known."""
        return any(gpu in self.latest and self.latest[gpu].used_mib >= 0 for gpu in gpus)

    async def memory_settled(
        self, gpus: Collection[int], timeout_s: float, *, gone: Collection[int] = (), every_s: float = SETTLE_STEP_S
    ) -> Settled:
        """Wait until the used memory of these GPUs falls no more and none of the pids in `gone` holds any.

        It is over at once when all that those held, by the last sample, is free. The driver gives memory back only some
        time after a process has ended. Where nothing can be measured the answer comes at once, with `settled` False.
        It is looked often at first, then every `every_s`.
        """
        if not gpus:
            return Settled(True, 0)
        begun = time.monotonic()
        wanted = self._used_without(gone)
        lowest: dict[int, int] = {}
        still = 0
        pause_s = min(SETTLE_STEP_S, every_s)

        def waited_us() -> int:
            return int((time.monotonic() - begun) * 1e6)

        while (left_s := timeout_s - (time.monotonic() - begun)) > 0:
            try:
                async with asyncio.timeout(left_s):
                    samples = await self.fresh()
            except TimeoutError:
                break
            mine = [samples[gpu] for gpu in sorted(gpus) if gpu in samples and samples[gpu].used_mib >= 0]
            if not mine:
                return Settled(False, waited_us())
            fell = False
            for sample in mine:
                if sample.used_mib < lowest.get(sample.gpu, 1 << 62) - SETTLE_NOISE_MIB:
                    lowest[sample.gpu] = sample.used_mib
                    fell = True
            held = any(pid in sample.processes for sample in mine for pid in gone)
            if not held and wanted and all(sample.used_mib <= wanted.get(sample.gpu, -1) for sample in mine):
                return Settled(True, waited_us())
            still = 0 if fell or held else still + 1
            if still >= SETTLE_STEPS:
                return Settled(True, waited_us())
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, every_s)
        return Settled(False, waited_us())

    def _used_without(self, pids: Collection[int]) -> dict[int, int]:
        """MiB in use on each GPU once these processes are gone, as far as the last sample shows what they hold."""
        without: dict[int, int] = {}
        for gpu, sample in self.latest.items():
            held = [sample.processes[pid] for pid in pids if sample.processes.get(pid, 0) > 0]
            if held and sample.used_mib >= 0:
                without[gpu] = sample.used_mib - sum(held) + SETTLE_NOISE_MIB
        return without

    def _ask(self) -> "asyncio.Future[dict[int, Sample]]":
        waiter: asyncio.Future[dict[int, Sample]] = self._loop.create_future()
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def _take(
        self, samples: dict[int, Sample], waiters: "list[asyncio.Future[dict[int, Sample]]]", regular: bool
    ) -> None:
        self.latest = samples
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(samples)
        if not regular:
            return
        for sample in samples.values():
            self._note(
                GpuSampled(
                    gpu=sample.gpu,
                    utilisation_percent=sample.utilisation_percent,
                    used_mib=sample.used_mib,
                    total_mib=sample.total_mib,
                    temperature_c=sample.temperature_c,
                    power_mw=sample.power_mw,
                    processes=self._by_owner(sample.processes),
                )
            )

    def _by_owner(self, processes: Mapping[int, int]) -> dict[str, int]:
        owners: dict[str, int] = {}
        for pid, mib in sorted(processes.items()):
            owner = self._replica_of(pid) or f"pid:{pid}"
            before = owners.get(owner, -1)
            # Several processes of one replica add up; an unknown share must not swallow a known one.
            owners[owner] = mib if before < 0 else before + max(mib, 0)
        return owners

    def _tell(self, level: Literal["info", "warning"], text: str) -> None:
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)
        self._note(LogLine(level=level, text=text))

    # --- for the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        # Imported here: it takes 25 ms that the start of the router need not wait for.
        import pynvml  # type: ignore[import-untyped]

        due = time.monotonic()
        open_ = False
        while not self._stopping:
            self._kick.clear()
            with self._lock:
                waiters, self._waiters = self._waiters, []
            now = time.monotonic()
            regular = now >= due
            samples: dict[int, Sample] = {}
            try:
                if not open_ and regular:
                    self._open(pynvml)
                    open_ = True
                if open_:
                    samples = self._read_all(pynvml)
            except Exception as error:  # whatever the driver or its binding does, this thread goes on
                if open_:
                    self._close(pynvml)
                    open_ = False
                self._lost(str(error) or type(error).__name__)
            if regular:
                # A machine that slept or a driver that hung must not be followed by a burst of samples.
                due = max(due + self._sample_s, now) if open_ else now + self._retry_s
            self._post(self._take, samples, waiters, regular)
            self._kick.wait(max(0.0, due - time.monotonic()))
        if open_:
            self._close(pynvml)
        with self._lock:
            waiters, self._waiters = self._waiters, []
        self._post(self._take, {}, waiters, False)
        self._post(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            self._stopping = True

    def _open(self, nvml: Any) -> None:
        nvml.nvmlInit()
        try:
            every = [_field(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(nvml.nvmlDeviceGetCount())]
            handles = self._visible(nvml, every)
            topology = [_describe(nvml, index, handle) for index, handle in enumerate(handles)]
        except Exception:
            self._close(nvml)
            raise
        self._handles = handles
        self._absent = set()
        self.topology = topology
        if self.problem:
            self.problem = ""
            self._post(self._tell, "info", f"NVML answers again: {len(topology)} GPUs")

    def _visible(self, nvml: Any, handles: list[Any]) -> list[Any]:
        """The devices behind an inherited mask, in its order."""
        if self._mask is None:
            return handles
        uuids = [_field(nvml, nvml.nvmlDeviceGetUUID, handle) or "" if handle is not None else "" for handle in handles]
        chosen = []
        for entry in self._mask:
            if entry.isdecimal():
                found = handles[int(entry) : int(entry) + 1]
            else:
                found = [h for h, uuid in zip(handles, uuids, strict=True) if uuid.startswith(entry)][:1]
            if not found:
                break
            chosen += found
        return chosen

    def _close(self, nvml: Any) -> None:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            log.debug("nvmlShutdown failed", exc_info=True)

    def _lost(self, why: str) -> None:
        if self.problem:
            return
        self.problem = why
        text = f"no GPU samples: NVML does not answer ({why}); trying again every {self._retry_s:g} s"
        self._post(self._tell, "warning", text)

    def _read_all(self, nvml: Any) -> dict[int, Sample]:
        samples = {}
        for index, handle in enumerate(self._handles):
            sample = _read(nvml, index, handle)
            if sample is not None:
                samples[index] = sample
                self._absent.discard(index)
            elif index not in self._absent:
                # One GPU fell off the bus: the others are sampled on.
                self._absent.add(index)
                self._post(self._tell, "warning", f"GPU {index} does not answer any more")
        return samples


def _dead(nvml: Any) -> tuple[type[Exception], ...]:
    """Errors after which no GPU says anything until NVML is opened again."""
    return (nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_LibRmVersionMismatch)


def _field(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """One answer, or None where this GPU or driver has none."""
    try:
        return ask(*args)
    except _dead(nvml):
        raise
    except nvml.NVMLError:
        return None


def _describe(nvml: Any, index: int, handle: Any) -> Gpu:
    if handle is None:
        return Gpu(index=index)
    memory = _field(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        uuid=_field(nvml, nvml.nvmlDeviceGetUUID, handle) or "",
        name=_field(nvml, nvml.nvmlDeviceGetName, handle) or "",
        memory_mib=memory.total // MIB if memory is not None else 0,
    )


def _read(nvml: Any, index: int, handle: Any) -> Sample | None:
    """None when the GPU says nothing at all."""
    if handle is None:
        return None
    utilisation = _field(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    # Version 2 counts what the driver keeps for itself apart, as nvidia-smi does; older drivers have only version 1.
    memory = _field(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is None:
        memory = _field(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    temperature = _field(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    power = _field(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    if utilisation is None and memory is None and temperature is None and power is None:
        return None
    return Sample(
        gpu=index,
        utilisation_percent=utilisation.gpu if utilisation is not None else -1,
        used_mib=memory.used // MIB if memory is not None else -1,
        total_mib=memory.total // MIB if memory is not None else -1,
        temperature_c=temperature if temperature is not None else -1,
        power_mw=power if power is not None else -1,
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> dict[int, int]:
    """MiB by pid. CUDA makes compute processes, Vulkan graphics ones; one that does both is in both lists."""
    found: dict[int, int] = {}
    for newer, older in (
        (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    ):
        listed = _field(nvml, newer, handle)
        if listed is None:  # drivers before 510 have no version 3
            listed = _field(nvml, older, handle) or ()
        for process in listed:
            mib = -1 if process.usedGpuMemory is None else process.usedGpuMemory // MIB
            found[process.pid] = max(mib, found.get(process.pid, -1))
    return found
