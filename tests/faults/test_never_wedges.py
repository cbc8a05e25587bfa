"""The scheduler always gets on: a slow exit, traffic that does not pause, a model that cannot fit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.fixtures import Model, RouterProcess


def test_a_request_during_an_idle_unload_is_served_by_a_new_process(tmp_path: Path) -> None:
    """The model is unloaded for idleness, its process takes long to exit, and a request comes in between.

    It waits for the exit and is served by a new process; so are the next ones.
    """
    with routed(tmp_path, [Model("a", exit_delay_s=1.0)], gpu_cap=1, GLOBAL_TTL=0.3) as router:
        assert router.chat("a").status == 200
        old = router.ledger.wait_for("sigterm")["pid"]
        call = router.chat("a")
        assert call.status == 200
        assert int(call.header("x-standin-pid")) != old
        for _ in range(5):
            assert router.chat("a").status == 200
        exit_ = router.ledger.wait_for("exit", pid=old)
        assert processes_of(router, "a")[1]["mono_us"] >= exit_["mono_us"]
        assert router.memory.violations() == []


def test_a_victim_that_keeps_getting_traffic_still_makes_room(tmp_path: Path) -> None:
    """B is asked for while A always has somebody waiting: A is drained, not fed, and B is loaded."""
    with routed(tmp_path, [Model("a", tokens=5, gap_s=0.02), Model("b")], gpu_cap=1) as router:
        assert router.chat("a").status == 200
        queue = [router.chat("a") for _ in range(3)]
        other = router.chat("b", standin={"tag": "b"})
        served = 0
        while not router.ledger.events("request_end", tag="b"):
            assert queue.pop(0).status == 200
            queue.append(router.chat("a"))
            served += 1
            assert served < 50, "B is never loaded"
        assert other.status == 200
        assert [call.status for call in queue] == [200] * 3


NEVER: dict[str, tuple[list[Model], dict[str, Any]]] = {
    "gpus that do not exist": ([Model("wide", gpus=[0, 1, 2])], {"NUM_GPUS": 2}),
    "a gpu that is kept by another": ([Model("kept", entry={"persistent": True}), Model("wide")], {}),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_model_that_can_never_fit_is_a_mistake_before_anything_starts(tmp_path: Path, name: str) -> None:
    """There is no room for it and never will be: said at once and by name, and nobody is evicted for it."""
    models, settings = NEVER[name]
    router = RouterProcess(tmp_path, models, **settings)
    router.configure()
    for verb in ("check", "serve"):
        command = [sys.executable, "-m", "router.cli", verb]
        found = subprocess.run(command, env=router.env, capture_output=True, text=True, timeout=20, check=False)
        assert found.returncode == 1
        assert "wide" in found.stdout + found.stderr
        assert "gpus" in found.stdout + found.stderr
    assert not router.ledger.lines()


def test_health_stays_green_only_because_requests_are_served(tmp_path: Path) -> None:
    """One GPU has a load that hangs; the other serves on as if nothing were."""
    gate = tmp_path / "gate"
    hangs = Model("hangs", gpus=[0], load_gate=str(gate))
    with routed(tmp_path, [hangs, Model("b", gpus=[1])], NUM_GPUS=2) as router:
        slow = router.chat("hangs")
        router.ledger.wait_for("started")
        for _ in range(5):
            assert router.chat("b").status == 200
        assert not router.ledger.events("ready", model="hangs.gguf")
        gate.touch()
        assert slow.status == 200
