"""The life and death of processes: orphans, deaf ones, wrappers, strangers, memory that comes back late."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.fixtures import FOLDER, STANDIN, Model, RouterProcess
from tests.standin.gpu import alive
from tests.standin.ledger import polls
from tests.standin.process import StandIn


def wrapped(folder: Path) -> tuple[list[str], dict[str, str]]:
    """llama-server through a shell wrapper without exec, on this Python."""
    binary = folder / "standin"
    binary.write_text(f'#!/bin/sh\nexec {" ".join(STANDIN)} "$@"\n')
    binary.chmod(0o755)
    return [str(FOLDER / "wrapper.sh")], {"STANDIN_BINARY": str(binary)}


def zombies_of(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state == "Z" and int(parent) == pid:
                found.append(int(entry))
    return found


@pytest.mark.parametrize("wrapper", [False, True], ids=["direct", "wrapped"])
def test_orphans_of_a_killed_router_are_gone_before_the_next_one_loads(tmp_path: Path, wrapper: bool) -> None:
    """kill -9 with two children, then a new start: the old ones are gone before a new one begins.

    None of them ever answers for the new router, and a llama-server that is somebody else's is left alone.
    """
    binary, env = wrapped(tmp_path) if wrapper else (STANDIN, {})
    models = [Model("a", gpus=[0]), Model("b", gpus=[1])]
    (tmp_path / "other").mkdir()
    with StandIn(tmp_path / "other").until_ready() as stranger:
        router = RouterProcess(tmp_path, models, binary=binary, env=env, gpu_cap=1, NUM_GPUS=2)
        with router:
            assert [router.chat(name).status for name in "ab"] == [200, 200]
            old = [line["pid"] for line in router.ledger.events("started")]
            router.kill()
            router.start()
            for name in "ab":
                call = router.chat(name)
                assert call.status == 200
                assert int(call.header("x-standin-pid")) not in old
            assert not any(alive(pid) for pid in old)
            assert router.memory.violations() == []
            assert stranger.process.poll() is None


def test_requests_of_a_killed_router_are_closed_in_its_log(tmp_path: Path) -> None:
    """What was open when it died is lost, once, and said so by the next run."""
    with routed(tmp_path, [Model("a", tokens=1000, gap_s=0.05)]) as router:
        call = router.chat("a", stream=True)
        next(call.chunks())
        assert "the run before" not in router.words()
        router.kill()
        router.start()
        lost = router.wait_event("RequestLost")
        assert "the run before was killed or broke down; requests lost: 1\n" in router.words()
        assert lost["rid"] == router.events("RequestArrived")[0]["rid"]


@pytest.mark.parametrize("kind", ["deaf", "wrapped and deaf", "grandchild"])
def test_a_process_that_does_not_leave_is_made_to(tmp_path: Path, kind: str) -> None:
    """SIGTERM is ignored by the server, by the server behind a wrapper, or by a child of it.

    The whole group is gone within the limit, the next load begins only then, and no zombie stays.
    """
    binary, env = wrapped(tmp_path) if kind.startswith("wrapped") else (STANDIN, {})
    deaf = Model("a", ignore_term=kind != "grandchild", grandchild=kind == "grandchild")
    settings = {"GRACEFUL_KILL_TIMEOUT": 0.5}
    with routed(tmp_path, [deaf, Model("b")], binary=binary, env=env, gpu_cap=1, **settings) as router:
        assert router.chat("a").status == 200
        old = [line["pid"] for line in router.ledger.events("started")]
        begun = time.monotonic()
        assert router.chat("b").status == 200
        assert time.monotonic() - begun < 20
        assert not any(alive(pid) for pid in old)
        assert router.memory.violations() == []
        assert router.process
        for _ in polls(2):
            if not zombies_of(router.process.pid):
                break
        assert zombies_of(router.process.pid) == []


def test_the_cap_of_a_gpu_holds_while_processes_leave_slowly(tmp_path: Path) -> None:
    """Each process needs most of a second to exit; residents, counted by the processes, never exceed the cap."""
    models = [Model("a", exit_delay_s=0.7), Model("b", exit_delay_s=0.7), Model("c", gpus=[0, 1])]
    with routed(tmp_path, models, gpu_cap=1, NUM_GPUS=2) as router:
        calls = [router.chat(name) for name in "abcab"]
        most = 0
        for call in calls:
            assert call.status == 200
            most = max(most, len(router.memory.residents(0)), len(router.memory.residents(1)))
        assert most == 1
        assert router.memory.violations() == []


def test_two_may_share_a_gpu_and_never_three(tmp_path: Path) -> None:
    """The same with room for two models per GPU."""
    models = [Model(name, exit_delay_s=0.3) for name in "abc"]
    with routed(tmp_path, models, gpu_cap=2, MAX_MODELS_PER_GPU=2) as router:
        for call in [router.chat(name) for name in "abcabc"]:
            assert call.status == 200
        assert router.memory.violations() == []


def test_memory_that_comes_back_after_the_exit_costs_a_retry_and_no_request(tmp_path: Path) -> None:
    """The process is gone, the driver still holds its memory: a load that fails for that is tried again in time."""
    models = [Model("a", gpu_lag_s=0.5), Model("b", gpu_lag_s=0.5)]
    with routed(tmp_path, models, gpu_cap=1, UNLOAD_POLL_TIMEOUT=1.0) as router:
        for name in "aba":
            assert router.chat(name).status == 200


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_stranger_that_answers_in_a_childs_place_is_not_believed(tmp_path: Path, transport: str) -> None:
    """A process that is none of the child's listens on the child's socket or port: it never sees a request."""
    imposter = tmp_path / "imposter"
    needs = f'STANDIN_LEDGER={tmp_path}/ledger LLAMA_API_KEY="$LLAMA_API_KEY"'
    imposter.write_text(f'#!/bin/sh\nenv -i {needs} setsid {" ".join(STANDIN)} "$@" &\nsleep 30\n')
    imposter.chmod(0o755)
    binary = tmp_path / "binary"
    binary.write_text(
        f'#!/bin/sh\ncase "$1" in --help|--version) exec {" ".join(STANDIN)} "$@";; esac\nexec {imposter} "$@"\n'
    )
    binary.chmod(0o755)
    settings: dict[str, Any] = {"LOAD_POLL_TIMEOUT": 2.0, "GRACEFUL_KILL_TIMEOUT": 0.5, "COOLDOWN_FIRST": 60}
    settings["CHILD_TRANSPORT"] = transport
    router = RouterProcess(tmp_path, [Model("a")], binary=[str(binary)], **settings)
    try:
        router.configure()
        router.start()
        call = router.chat("a")
        assert call.status == 502
        assert router.wait_event("ReplicaLoadFailed")["kind"] == "imposter"
        assert not router.ledger.events("request_start")
    finally:
        router.stop()
        router.kill_children()


def test_a_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    """`serve` on a taken port ends at once and says who has it."""
    router = RouterProcess(tmp_path, [Model("a")])
    router.configure()
    with socket.create_server(("127.0.0.1", router.port)):
        command = [sys.executable, "-m", "router.cli", "serve"]
        found = subprocess.run(command, env=router.env, capture_output=True, text=True, timeout=20, check=False)
    assert found.returncode == 1
    assert str(router.port) in found.stderr
    assert str(os.getpid()) in found.stderr


def test_stopping_the_router_leaves_nobody_behind(tmp_path: Path) -> None:
    """Children that ignore SIGTERM, one of them loading: all gone, and the exit code is 0."""
    models = [Model("a", gpus=[0], ignore_term=True), Model("b", gpus=[1], load_s=60.0, ignore_term=True)]
    settings: dict[str, Any] = {"GRACEFUL_KILL_TIMEOUT": 0.5, "SHUTDOWN_TIMEOUT": 0.5, "NUM_GPUS": 2}
    router = RouterProcess(tmp_path, models, **settings)
    with router:
        assert router.chat("a").status == 200
        waiting = router.chat("b")
        router.ledger.wait_for_count(2, "started")
        assert router.stop() == 0
        assert not router.children()
        assert waiting.status == 503


def test_a_child_that_was_killed_from_outside_is_loaded_again(tmp_path: Path) -> None:
    """kill -9 of an idle replica: the next request is served by a new process."""
    with routed(tmp_path, [Model("a")]) as router:
        first = router.chat("a")
        os.kill(int(first.header("x-standin-pid")), signal.SIGKILL)
        crashed = router.wait_event("ReplicaCrashed")
        assert crashed["signal"] == signal.SIGKILL
        assert router.chat("a").status == 200
        assert len(processes_of(router, "a")) == 2
