"""Calculations run as processes that give way, are limited, say how far they are, and are gone once unwanted."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dashboard import commands
from dashboard.commands import CommandFailed, Limits, run
from tests.projections.logs import unruly_log
from tests.standin.gpu import alive

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "log"
    unruly_log(folder, runs=1, requests=30)
    return folder


def test_what_it_prints_comes_back_and_its_progress_on_the_way(log: Path) -> None:
    told: list[dict[str, Any]] = []

    out = asyncio.run(run(["replay", "simulate", str(log), "--json", "--progress"], Limits(), told.append))

    assert out.startswith(b'{"source":')
    assert told[0]["stage"] == "reading the log"


def test_what_it_says_last_is_why_it_failed(log: Path) -> None:
    with pytest.raises(CommandFailed, match=r"^--set SPEED=9: there is no setting SPEED"):
        asyncio.run(run(["replay", "simulate", str(log), "--set=SPEED=9"]))


def test_it_may_not_take_longer_than_it_may(log: Path) -> None:
    with pytest.raises(CommandFailed, match=r"^it took longer than 0.05 s and was ended$"):
        asyncio.run(run(["replay", "simulate", str(log)], Limits(wall_s=0.05)))


def test_memory_is_limited_and_the_words_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to begin with, and not for what it needs then."""
    monkeypatch.setattr(commands, "COMMAND", ("-c", "bytearray(400 << 20)"))

    with pytest.raises(CommandFailed, match=r"^it needs more than 300 MiB of memory"):
        asyncio.run(run([], Limits(memory_mib=300)))


def test_what_is_cancelled_is_gone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it started."""
    pids: asyncio.Queue[int] = asyncio.Queue()
    create = asyncio.create_subprocess_exec

    async def noted(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*args, **options)
        pids.put_nowait(process.pid)
        return process

    monkeypatch.setattr(commands.asyncio, "create_subprocess_exec", noted)

    async def cancelled() -> int:
        task = asyncio.create_task(run(["replay", "tune", str(log)]))
        pid = await pids.get()
        task.cancel()
        await asyncio.wait({task})
        return pid

    assert not alive(asyncio.run(cancelled()))


def test_it_dies_with_the_process_that_wanted_it() -> None:
    """Even where that is killed and can end nothing itself."""
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'dashboard.bounded', str(os.getpid()), '512', '60',"
        " sys.executable, '-c', 'import os, time; print(os.nice(0), flush=True); time.sleep(60)'],"
        " stdout=subprocess.PIPE)\n"
        "print(child.pid, child.stdout.readline().decode().strip(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdin
    assert parent.stdout
    with parent.stdin, parent.stdout:
        pid, niceness = map(int, parent.stdout.readline().split())
        assert niceness >= 9
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        end_s = time.monotonic() + 10
        while alive(pid):
            assert time.monotonic() < end_s, "it lives on"
            time.sleep(0.02)
