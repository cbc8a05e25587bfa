"""The real nvidia-ml-py against a stub of the driver's library, compiled here and told by a file what to answer."""

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
from _ctypes import dlclose
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from eventlog.events import Gpu, GpuSampled, LogLine, Memory, Observation
from router.gpus import Gpus, Settled, count_gpus, inherited_mask

MIB = 1 << 20
NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 3, 9, 15, 999
NOT_AVAILABLE = (1 << 64) - 1


def compile_stub(folder: Path, *flags: str) -> Path:
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of the driver's library")
    shape = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *shape, "-O1", "-Wall", "-Werror", *flags, "-o", library, source], check=True)
    return library


@pytest.fixture(scope="module")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("nvml_old"), "-DOLD_DRIVER")


class Driver:
    """What the stub answers; changes take effect at its next call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._says: dict[str, int] = {"init": 0, "count": 1}
        self.says()

    def says(self, **values: int | None) -> None:
        """`says(g0_used=5)` writes `0.used 5`; None takes a line away."""
        for name, value in values.items():
            key = name.removeprefix("g").replace("_", ".") if name[:1] == "g" and name[1:2].isdigit() else name
            key = key.replace("driver_error", "driver.error")
            if value is None:
                self._says.pop(key, None)
            else:
                self._says[key] = value
        fresh = self._file.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self._says.items()))
        fresh.replace(self._file)


def preload(library: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> Iterator[Driver]:
    # A library that is loaded already answers to its soname: pynvml's own search then finds the stub. Forgotten again
    # afterwards, so that no other test meets it.
    handle = ctypes.CDLL(str(library))._handle
    monkeypatch.setenv("NVML_STUB", str(file))
    try:
        yield Driver(file)
    finally:
        if pynvml.nvmlLib is not None:
            dlclose(pynvml.nvmlLib._handle)
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()
        dlclose(handle)


@pytest.fixture
def driver(stub_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    yield from preload(stub_library, monkeypatch, tmp_path / "says")


@pytest.fixture
def old_driver(old_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    yield from preload(old_library, monkeypatch, tmp_path / "says")


class Diary:
    """Keeps what was noted, and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.noted: list[Observation] = []
        self._news = asyncio.Event()

    def note(self, observation: Observation) -> None:
        self.noted.append(observation)
        self._news.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not enough():
                self._news.clear()
                await self._news.wait()

    @property
    def samples(self) -> list[GpuSampled]:
        return [event for event in self.noted if isinstance(event, GpuSampled)]

    @property
    def lines(self) -> list[str]:
        return [event.text for event in self.noted if isinstance(event, LogLine)]


def watch(
    story: Callable[[Gpus, Diary], Awaitable[None]],
    *,
    replica_of: Callable[[int], str] = lambda pid: "",
    environ: dict[str, str] | None = None,
) -> None:
    """Run a story beside a watcher that samples 50 times a second and retries as often."""

    async def run() -> None:
        diary = Diary()
        gpus = Gpus(diary.note, replica_of, sample_s=0.02, retry_s=0.02, environ=environ or {})
        await gpus.start()
        try:
            await story(gpus, diary)
        finally:
            await gpus.stop()

    asyncio.run(run())


def test_topology_and_samples_are_what_nvml_tells(driver: Driver) -> None:
    """Two GPUs, one of them at work for a replica and for a stranger's process."""
    driver.says(count=2, g0_total=24576 * MIB, g1_total=12288 * MIB, g1_used=9000 * MIB, g1_utilisation=93)
    driver.says(g1_temperature=71, g1_power=250_000, g1_compute_4242=8000 * MIB, g1_compute_77=500 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        assert gpus.topology == [
            Gpu(index=0, uuid="GPU-00000000-stub", name="Stub 0", memory_mib=24576),
            Gpu(index=1, uuid="GPU-00000001-stub", name="Stub 1", memory_mib=12288),
        ]
        await diary.until(lambda: len(diary.samples) >= 2)
        idle, busy = diary.samples[:2]
        assert (idle.gpu, idle.used_mib, idle.total_mib, idle.processes) == (0, 0, 24576, {})
        assert busy == GpuSampled(
            gpu=1,
            utilisation_percent=93,
            used_mib=9000,
            total_mib=12288,
            temperature_c=71,
            power_mw=250_000,
            processes={"qwen#3": 8000, "pid:77": 500},
        )
        assert diary.lines == []

    watch(story, replica_of=lambda pid: "qwen#3" if pid == 4242 else "")


def test_a_field_that_the_driver_does_not_support_loses_no_other(driver: Driver) -> None:
    """Power and utilisation are not supported, the process list is forbidden: temperature and memory still come."""
    driver.says(g0_total=8192 * MIB, g0_used=100 * MIB, g0_temperature=44, g0_compute_9=50 * MIB)
    driver.says(g0_power_error=NOT_SUPPORTED, g0_utilisation_error=UNKNOWN, g0_compute_error=4)

    async def story(gpus: Gpus, diary: Diary) -> None:
        await diary.until(lambda: bool(diary.samples))
        assert diary.samples[0] == GpuSampled(gpu=0, used_mib=100, total_mib=8192, temperature_c=44)
        assert diary.lines == []

    watch(story)


def test_unified_memory_has_no_memory_figures_and_is_sampled_all_the_same(driver: Driver) -> None:
    """A GPU that shares the machine's memory answers Not Supported there; its name and its load are known."""
    driver.says(g0_memory_error=NOT_SUPPORTED, g0_utilisation=12)

    async def story(gpus: Gpus, diary: Diary) -> None:
        assert gpus.topology[0].memory_mib == 0
        sample = (await gpus.fresh())[0]
        assert (sample.used_mib, sample.total_mib, sample.utilisation_percent) == (-1, -1, 12)

    watch(story)


def test_an_old_driver_without_the_newer_calls_is_enough(old_driver: Driver) -> None:
    """No second version of the memory call, no third version of the process lists."""
    old_driver.says(g0_total=2048 * MIB, g0_used=10 * MIB, g0_compute_5=7 * MIB, g0_graphics_6=2 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        sample = (await gpus.fresh())[0]
        assert (sample.used_mib, sample.total_mib) == (10, 2048)
        assert sample.processes == {5: 7, 6: 2}

    watch(story)


def test_memory_of_a_replica_is_the_sum_over_its_processes(driver: Driver) -> None:
    """Compute and graphics lists name the same process once; a share that is not told counts as unknown."""
    driver.says(count=2, g0_compute_5=700 * MIB, g0_graphics_5=700 * MIB, g0_compute_6=100 * MIB)
    driver.says(g1_compute_5=30 * MIB, g1_compute_8=NOT_AVAILABLE)

    async def story(gpus: Gpus, diary: Diary) -> None:
        samples = await gpus.fresh()
        assert samples[1].processes == {5: 30, 8: -1}
        assert gpus.memory_of([5, 6]) == [Memory(0, 800), Memory(1, 30)]
        assert gpus.memory_of([8]) == []
        await diary.until(lambda: len(diary.samples) >= 2)
        assert diary.samples[1].processes == {"r1": 30}

    watch(story, replica_of=lambda pid: "r1")


def test_without_nvml_the_watcher_says_so_once_and_finds_it_when_it_comes(driver: Driver) -> None:
    """The driver is not loaded at first: one line, no sample. Then it is, and everything works."""
    driver.says(init=DRIVER_NOT_LOADED)

    async def story(gpus: Gpus, diary: Diary) -> None:
        assert gpus.topology == []
        assert await gpus.fresh() == {}
        assert not (await gpus.memory_settled([0], 5)).settled
        for _ in range(5):
            await gpus.fresh()
        assert len(diary.lines) == 1
        assert "Driver Not Loaded" in diary.lines[0]
        driver.says(init=0, g0_total=1024 * MIB)
        await diary.until(lambda: bool(diary.samples))
        assert gpus.problem == ""
        assert gpus.topology[0].memory_mib == 1024
        assert diary.lines[1:] == ["NVML answers again: 1 GPUs"]

    watch(story)


def test_a_driver_lost_while_running_is_noted_once_and_comes_back(driver: Driver) -> None:
    """Reloading the driver: every call fails for a while, then NVML is opened anew."""
    driver.says(g0_used=5 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        await diary.until(lambda: bool(diary.samples))
        driver.says(driver_error=DRIVER_NOT_LOADED, init=DRIVER_NOT_LOADED)
        await diary.until(lambda: bool(diary.lines))
        assert gpus.problem == "Driver Not Loaded"
        seen = len(diary.samples)
        assert await gpus.fresh() == {}
        driver.says(driver_error=None, init=0, g0_used=6 * MIB)
        await diary.until(lambda: len(diary.samples) > seen)
        assert diary.samples[-1].used_mib == 6
        assert len(diary.lines) == 2

    watch(story)


def test_one_gpu_off_the_bus_does_not_hide_the_others(driver: Driver) -> None:
    """GPU 0 is lost: said once; GPU 1 goes on being sampled under its own number."""
    driver.says(count=2, g1_utilisation=50)

    async def story(gpus: Gpus, diary: Diary) -> None:
        await diary.until(lambda: len(diary.samples) >= 2)
        driver.says(g0_error=GPU_IS_LOST)
        await diary.until(lambda: bool(diary.lines))
        for _ in range(3):
            assert list(await gpus.fresh()) == [1]
        assert diary.lines == ["GPU 0 does not answer any more"]

    watch(story)


def test_memory_settles_when_it_falls_no_more_and_the_process_is_gone(driver: Driver) -> None:
    """A stopped process gives its memory back in two steps; only then is the wait over."""
    driver.says(g0_used=9000 * MIB, g0_compute_7=8500 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        waiting = asyncio.create_task(gpus.memory_settled([0], 20, gone=[7]))
        seen = len(diary.samples)
        await diary.until(lambda: len(diary.samples) > seen + 5)
        assert not waiting.done()
        driver.says(g0_used=3000 * MIB)
        await gpus.fresh()
        driver.says(g0_used=500 * MIB, g0_compute_7=None)
        settled = await waiting
        assert settled.settled
        assert gpus.latest[0].used_mib == 500

    watch(story)


def test_waiting_for_memory_ends_at_its_limit(driver: Driver) -> None:
    """A zombie that keeps its memory must not keep us for ever."""
    driver.says(g0_used=9000 * MIB, g0_compute_7=8500 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        settled = await gpus.memory_settled([0], 0.3, gone=[7])
        assert not settled.settled
        assert 300_000 <= settled.waited_us < 3_000_000

    watch(story)


def test_a_model_without_gpus_has_nothing_to_wait_for(driver: Driver) -> None:
    """CPU models settle at once."""

    async def story(gpus: Gpus, diary: Diary) -> None:
        assert await gpus.memory_settled([], 5, gone=[7]) == Settled(True, 0)

    watch(story)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("2,0", ["Stub 2", "Stub 0"]),
        ("GPU-00000001-stub", ["Stub 1"]),
        ("GPU-00000002", ["Stub 2"]),
        ("1,7,0", ["Stub 1"]),
        ("1,-1,0", ["Stub 1"]),
        ("", []),
    ],
)
def test_an_inherited_mask_decides_which_gpus_are_ours(driver: Driver, mask: str, names: list[str]) -> None:
    """Whoever started the router left it some devices: our GPU 0 is the first of them."""
    driver.says(count=3)

    async def story(gpus: Gpus, diary: Diary) -> None:
        assert [gpu.name for gpu in gpus.topology] == names
        assert [gpu.index for gpu in gpus.topology] == list(range(len(names)))

    watch(story, environ={"CUDA_VISIBLE_DEVICES": mask})


def test_no_mask_means_every_device() -> None:
    """An unset variable is not an empty one."""
    assert inherited_mask({}) is None
    assert inherited_mask({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert inherited_mask({"CUDA_VISIBLE_DEVICES": " 1, GPU-x ,-1,3"}) == ("1", "GPU-x")


def test_the_gpu_count_is_the_owners_then_nvmls_then_that_of_the_pins() -> None:
    """A count in the configuration wins over NVML, NVML over the highest pinned id, and one is the least."""
    assert count_gpus(4, 2, [0]) == (4, "config")
    assert count_gpus(None, 2, [5]) == (2, "nvml")
    assert count_gpus(None, 0, [0, 2]) == (3, "pins")
    assert count_gpus(None, 0, []) == (1, "pins")


def test_the_library_is_found_where_pynvml_searches_and_no_cuda_is_loaded(stub_library: Path, tmp_path: Path) -> None:
    """In a process of its own, through the loader's path; a CUDA context would show as a mapped libcuda."""
    says = tmp_path / "says"
    Driver(says).says(count=2)
    script = """
import asyncio
from router.gpus import Gpus
async def main():
    gpus = Gpus(lambda observation: None)
    print(len(await gpus.start()), len(await gpus.fresh()))
    await gpus.stop()
asyncio.run(main())
print("libcuda" in open("/proc/self/maps").read())
"""
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    environ |= {"LD_LIBRARY_PATH": str(stub_library.parent), "NVML_STUB": str(says)}
    ran = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["2", "2", "False"], ran.stderr


def test_memory_that_is_all_back_has_settled_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process held by the last sample is free: no further looks are needed to see that it falls no more."""
    monkeypatch.setattr("router.gpus.SETTLE_STEP_S", 1.0)
    driver.says(g0_total=24576 * MIB, g0_used=9000 * MIB, g0_compute_7=6000 * MIB)

    async def story(gpus: Gpus, diary: Diary) -> None:
        await gpus.fresh()
        assert gpus.measures([0])
        assert not gpus.measures([5])
        waiting = asyncio.create_task(gpus.memory_settled([0], 20, gone=[7], every_s=1))
        await asyncio.sleep(0)
        driver.says(g0_used=3010 * MIB, g0_compute_7=None)
        settled = await waiting
        assert settled.settled
        assert settled.waited_us < 2_500_000

    watch(story)
