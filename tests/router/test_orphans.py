"""After `kill -9` of a router, the next one finds what is left of its children, ends it, and harms nobody else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import Orphan
from router import proc
from router.orphans import end_orphans, marker
from router.places import directory_id
from router.spawn import MARKER

ROUTER = """
import os, sys, time
from router.spawn import start
child = start(sys.argv[1:], dict(os.environ))
print(child.pid, flush=True)
os.set_blocking(child.output, True)
print(os.read(child.output, 100).decode(), flush=True)
time.sleep(600)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Whatever a test starts is gone after it."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run(
    started: list[subprocess.Popen[bytes]], *words: str, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that says a line when it is up; returns then."""
    process = subprocess.Popen(words, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, start_new_session=True)
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.alive


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.005)


def named(pid: int) -> Orphan:
    found = proc.stat(pid)
    assert found is not None
    return Orphan(replica="r7", model="m", pid=pid, started_ticks=found.started_ticks)


def test_a_child_dies_with_its_router_and_what_its_wrapper_started_is_ended_by_the_next(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """The shell that the router started dies with it; what the shell started ignores SIGTERM and lives on."""
    directory = directory_id(tmp_path)
    mine = {MARKER: marker(directory, 3, "r5")}
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    script = f"{sys.executable} {tmp_path}/stubborn.py & wait"
    router = subprocess.Popen(
        [sys.executable, "-c", ROUTER, "/bin/sh", "-c", script],
        env={**os.environ, **mine},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    started.append(router)
    assert router.stdout is not None
    wrapper = int(router.stdout.readline())
    grandchild = int(router.stdout.readline())
    router.kill()
    router.wait()
    wait_until_gone(wrapper)
    assert alive(grandchild)
    (ended,) = end_orphans([], directory, grace_s=0.2)
    assert (ended.pid, ended.replica, ended.killed, ended.gone) == (grandchild, "r5", True, True)
    assert not alive(grandchild)
    assert end_orphans([], directory) == []


def test_strangers_and_children_of_another_router_are_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Neither a program of the same name, nor a number from the log that now belongs to somebody else."""
    stranger = run(started, "/bin/sh", "-c", "echo up; exec sleep 600")
    other = run(
        started,
        "/bin/sh",
        "-c",
        "echo up; exec sleep 600",
        env={MARKER: marker(directory_id(tmp_path / "other"), 1, "r1")},
    )
    recycled = Orphan(replica="r1", model="m", pid=stranger.pid, started_ticks=named(stranger.pid).started_ticks - 1)
    assert end_orphans([recycled], directory_id(tmp_path)) == []
    assert stranger.poll() is None
    assert other.poll() is None


def test_a_child_that_the_log_names_is_ended_with_all_of_its_session(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """A wrapper may clear the environment, marker included; the log still has the pid and the start time."""
    wrapper = run(started, "/bin/sh", "-c", "env -i sleep 600 & echo up; wait")
    (inner,) = [one.pid for one in proc.every() if one.session == wrapper.pid and one.pid != wrapper.pid]
    ended = end_orphans([named(wrapper.pid)], directory_id(tmp_path))
    assert {one.pid for one in ended} == {wrapper.pid, inner}
    assert not any(one.killed for one in ended)
    assert wrapper.wait() == -signal.SIGTERM
    assert not alive(inner)
