"""A router with GPUs, as far as NVML is concerned: it waits for memory before a load, measures, and compares.

The driver's library is the stub of `test_gpus`, told by a file what to answer.
"""

from pathlib import Path

import pytest

from tests.router.test_gpus import Driver, compile_stub
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

MIB = 1 << 20
TOTAL_MIB = 24_576


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("nvml"))


class Card:
    """One GPU of which a replica may hold something."""

    def __init__(self, file: Path) -> None:
        self.driver = Driver(file)
        self.driver.says(count=1, g0_total=TOTAL_MIB * MIB, g0_used=500 * MIB)

    def holds(self, pid: int, mib: int) -> None:
        self.driver.says(g0_used=(500 + mib) * MIB, **{f"g0_compute_{pid}": mib * MIB})

    def is_free_of(self, pid: int) -> None:
        self.driver.says(g0_used=500 * MIB, **{f"g0_compute_{pid}": None})


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card(tmp_path / "says")


def routed(tmp_path: Path, library: Path, models: list[Model], **settings: float) -> RouterProcess:
    env = {"LD_LIBRARY_PATH": str(library.parent), "NVML_STUB": str(tmp_path / "says")}
    return RouterProcess(tmp_path, models, env=env, **settings)


def until_seen(router: RouterProcess, pid: int) -> None:
    """Until a sample shows what the process holds."""
    for _ in polls(10.0, every_s=0.05):
        if any(event.get("processes") for event in router.events("GpuSampled")):
            return
    raise AssertionError(f"no sample shows process {pid}")


def test_the_next_load_waits_until_the_memory_of_the_last_one_is_back(
    tmp_path: Path, library: Path, card: Card
) -> None:
    """A's process is gone and the driver still counts its memory: B is not started before it does no more.

    What A held is measured on the way, and it is more than A declares.
    """
    router = routed(
        tmp_path, library, [Model("A", entry={"capacities": {"gpu0": 5000}}), Model("B")], UNLOAD_POLL_TIMEOUT=30
    )
    capacity = {"pools": {"gpu0": TOTAL_MIB}}
    router.settings["MAX_MODELS_PER_GPU"] = 1
    router.top["routing"] = {"router": {"use": "capacity", "settings": {"capacity": capacity}}}
    with router:
        assert router.asks("A") == 200
        assert router.status()["warnings"] == []
        pid = router.events("ReplicaSpawned")[0]["pid"]
        card.holds(pid, 6000)
        until_seen(router, pid)
        waiting = router.chat("B")
        router.wait_event("ReplicaSpawnOrdered", model="B")
        assert [event["freed"] for event in router.events("ReplicaStopped")] == [[[0, 6000]]]
        assert len(router.events("ReplicaSpawned")) == 1
        card.is_free_of(pid)
        assert waiting.status == 200
        waiting.close()
        status = router.status()
        assert status["warnings"] == ["A takes more than it declares: 6,000 MiB on GPU 0 (gpu0 5,000)"]
        assert [row["measured_mib"] for row in status["models"]] == [{"0": 6000}, None]
        [settled] = router.events("GpuMemorySettled")
        assert settled["gpus"] == [0]
        assert router.events("ReplicaSpawned")[1]["seq"] > settled["seq"]


def test_a_load_that_ran_out_of_memory_is_tried_again_when_it_is_really_back(
    tmp_path: Path, library: Path, card: Card
) -> None:
    """The first attempt ends for want of memory, and the card goes on counting what it held: no second one before."""
    models = [Model("A", load_s=1.0, fail="oom", faulty_loads=1)]
    with routed(tmp_path, library, models, UNLOAD_POLL_TIMEOUT=30) as router:
        waiting = router.chat("A")
        pid = router.wait_event("ReplicaSpawned")["pid"]
        card.holds(pid, 20_000)
        ordered = router.wait_event("ReplicaSpawnOrdered", attempt=2)
        assert ordered["after"] == "gpu_oom"
        until_seen(router, pid)
        assert len(router.events("ReplicaSpawned")) == 1
        card.is_free_of(pid)
        assert waiting.status == 200
        waiting.close()
        assert [event["kind"] for event in router.events("ReplicaLoadFailed")] == ["gpu_oom"]
        assert len(router.events("GpuMemorySettled")) == 1


def test_memory_that_does_not_come_back_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, library: Path, card: Card
) -> None:
    """The load begins all the same, and the log says that the wait ran out."""
    with routed(tmp_path, library, [Model("A"), Model("B")], UNLOAD_POLL_TIMEOUT=0.3) as router:
        assert router.asks("A") == 200
        pid = router.events("ReplicaSpawned")[0]["pid"]
        card.holds(pid, 6000)
        until_seen(router, pid)
        assert router.asks("B") == 200
        [settled] = router.events("GpuMemorySettled")
        assert settled["settled"] is False
        assert settled["waited_us"] >= 300_000


def test_without_nvml_nothing_is_waited_for_and_nothing_is_said(tmp_path: Path) -> None:
    with RouterProcess(tmp_path, [Model("A"), Model("B")]) as router:
        assert router.asks("A") == 200
        assert router.asks("B") == 200
        assert router.events("GpuMemorySettled") == []
