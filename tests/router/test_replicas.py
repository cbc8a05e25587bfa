"""A replica's life against a stand-in llama-server that does everything wrong that a process can do wrong.

Each test tells one life. The loop only remembers; what the scheduler would order, the test orders.
"""

import asyncio
import errno
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eventlog.events import (
    GpuMemorySettled,
    Memory,
    ReplicaAnswered,
    ReplicaCrashed,
    ReplicaLoadFailed,
    ReplicaLoading,
    ReplicaNote,
    ReplicaReady,
    ReplicaSpawned,
    ReplicaStalled,
    ReplicaStopped,
)
from router import proc, replica, spawn
from router.config import Timings
from router.gpus import Settled
from router.upstream import Endpoint, fetch
from tests.router.replica_world import STANDIN, TIMINGS, World, play


def alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.alive


def family(pid: int) -> list[int]:
    return [one.pid for one in proc.every() if one.session == pid and one.alive]


async def ready(world: World, replica: str = "r1", **order: Any) -> tuple[ReplicaSpawned, ReplicaReady]:
    world.spawn(replica, **order)
    spawned = await world.loop.sees(ReplicaSpawned, int(replica[1:]))
    return spawned, await world.loop.sees(ReplicaReady, int(replica[1:]))


def test_a_replica_is_spawned_proves_ready_and_is_stopped(tmp_path: Path) -> None:
    """The whole of a good life: three facts, and nothing left of it."""

    async def story(world: World) -> None:
        world.model("m")
        spawned, is_ready = await ready(world)
        assert (is_ready.slots, is_ready.slot_ctx, is_ready.build) == (2, 4096, "b0-standin")
        assert is_ready.model_path == world.models["m"].model_path
        assert 0 < is_ready.load_us < 10_000_000
        stat = proc.stat(spawned.pid)
        assert stat is not None
        assert (stat.started_ticks, stat.session, stat.group) == (spawned.started_ticks, spawned.pid, spawned.pid)
        assert world.replicas.replica_of(spawned.pid) == "r1"
        assert world.replicas.replica_of(os.getpid()) == ""
        endpoint = world.replicas.endpoint("r1")
        assert (await fetch(endpoint, "GET", "/props", timeout_s=5)).status == 200
        world.stop()
        stopped = await world.loop.sees(ReplicaStopped)
        assert (stopped.exit_code, stopped.escalated) == (0, False)
        assert world.loop.story == ["ReplicaSpawned", "ReplicaReady", "ReplicaStopped"]
        assert proc.stat(spawned.pid) is None
        assert list((tmp_path / "run").iterdir()) == []
        with pytest.raises(KeyError):
            world.replicas.endpoint("r1")

    play(tmp_path, story)


def test_a_child_sees_its_gpus_its_key_and_nothing_of_the_router_s_own_settings(tmp_path: Path) -> None:
    """Masks in the owner's order; the key in the environment only, so that `ps` shows it to nobody."""
    environ = {**os.environ, "LLAMA_ARG_PORT": "1", "LLAMA_API_KEY": "mine", "NOTIFY_SOCKET": "/run/notify"}
    environ.pop("CUDA_VISIBLE_DEVICES", None)

    async def story(world: World) -> None:
        world.model("-rf")
        world.amend("-rf", env={"CUDA_VISIBLE_DEVICES": "7", "LLAMA_API_KEY": "theirs", "TUNED": "yes"})
        spawned, _ = await ready(world, model="-rf", gpus=(2, 0))
        env = proc.environment(spawned.pid)
        key = world.replicas.endpoint("r1").key
        assert (env["CUDA_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"], spawned.mask) == ("2,0", "2,0", "2,0")
        assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert (env["LLAMA_API_KEY"], env["TUNED"]) == (key, "yes")
        assert len(key) >= 32
        assert not {"LLAMA_ARG_PORT", "NOTIFY_SOCKET"} & env.keys()
        command = proc.command(spawned.pid)
        assert command[command.index("--alias") + 1] == "-rf"
        assert not any(key in word for word in command)
        assert key not in repr(world.loop.facts) + repr(world.loop.notes)
        assert (
            await fetch(Endpoint(path=world.replicas.endpoint("r1").path), "GET", "/props", timeout_s=5)
        ).status == 401

    play(tmp_path, story, environ=environ)


@pytest.mark.parametrize(
    ("gpus", "inherited", "mask"),
    [
        ((2, 0), None, "2,0"),
        ((), None, ""),
        ((0,), "3,5", "3"),
        ((1, 0), "3,5", "5,3"),
        ((1,), "GPU-aaaa, GPU-bbbb", "GPU-bbbb"),
        ((0,), "", ""),
        ((0,), "4,-1,5", "4"),
    ],
)
def test_gpus_are_counted_within_the_mask_that_the_router_inherited(
    gpus: tuple[int, ...], inherited: str | None, mask: str
) -> None:
    """What a scheduler of batch jobs left to the router is all that its children may see."""
    assert spawn.mask(gpus, inherited) == mask


def test_a_gpu_beyond_the_inherited_mask_fails_the_load_with_the_numbers(tmp_path: Path) -> None:
    """Silently running on another GPU, or on none, would be worse."""

    async def story(world: World) -> None:
        world.model("m")
        world.spawn(gpus=(2,))
        failed = await world.loop.sees(ReplicaLoadFailed)
        assert failed.kind == "spawn"
        assert "GPU 2 is not visible" in failed.reason
        assert "CUDA_VISIBLE_DEVICES=3,5" in failed.reason
        assert world.loop.story == ["ReplicaLoadFailed"]

    play(tmp_path, story, environ={**os.environ, "CUDA_VISIBLE_DEVICES": "3,5"})


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        ({"fail": "oom"}, "gpu_oom", "cudaMalloc failed: out of memory"),
        ({"fail": "missing"}, "missing_file", "No such file or directory"),
        ({"fail": "magic"}, "bad_model", "invalid magic"),
        ({"fail": "flag"}, "bad_flag", "--surprise"),
        ({"fail": "exit:3"}, "exit", "exit code 3"),
        ({"fail": "SIGSEGV"}, "signal", "SIGSEGV"),
        ({"fail": "SIGABRT"}, "signal", "SIGABRT"),
        ({"fail": "SIGKILL"}, "signal", "SIGKILL"),
    ],
)
def test_a_load_that_fails_fails_at_once_and_says_why(
    tmp_path: Path, script: dict[str, Any], kind: str, says: str
) -> None:
    """Nobody waits for a timeout to learn that a file is missing; the child's own line is in the reason."""

    async def story(world: World) -> None:
        world.model("m", **script)
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        assert failed.kind == kind
        assert says in failed.reason
        assert failed.took_us < 10_000_000
        assert any("load_model" in line for line in failed.last_lines)
        assert world.loop.story == ["ReplicaSpawned", "ReplicaLoadFailed"]

    play(tmp_path, story)


def test_a_program_that_is_not_there_is_said_by_name(tmp_path: Path) -> None:
    """Before anything is spawned."""

    async def story(world: World) -> None:
        world.model("m")
        object.__setattr__(world.config, "llama_server", ("/opt/no/llama-server",))
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        assert (failed.kind, "/opt/no/llama-server" in failed.reason) == ("spawn", True)

    play(tmp_path, story)


def test_a_process_that_the_system_has_no_room_for_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """START_RETRIES times; a stop in between is a stop."""
    monkeypatch.setattr(replica, "SPAWN_AGAIN_S", 0.01)
    start, refused = subprocess.Popen, [errno.EAGAIN, errno.EMFILE]

    def no_room_yet(*given: Any, **more: Any) -> Any:
        if refused:
            raise OSError(refused[0] if len(refused) > 2 else refused.pop(), "no room")
        return start(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", no_room_yet)

    async def story(world: World) -> None:
        world.model("m")
        await ready(world)
        assert world.loop.story == ["ReplicaSpawned", "ReplicaReady"]
        refused.extend([errno.ENOMEM] * 3)
        world.spawn("r2")
        failed = await world.loop.sees(ReplicaLoadFailed)
        assert (failed.kind, "no room" in failed.reason) == ("spawn", True)
        monkeypatch.setattr(replica, "SPAWN_AGAIN_S", 30.0)
        world.spawn("r3")
        world.stop("r3")
        assert (await world.loop.sees(ReplicaStopped)).replica == "r3"
        refused.clear()

    play(tmp_path, story)


def test_a_load_that_is_slow_but_moves_is_left_in_peace(tmp_path: Path) -> None:
    """Longer than the stall limit, with a line now and then: it becomes ready, and its progress is told meanwhile."""

    async def story(world: World) -> None:
        world.model("m", load_s=4.0, load_progress=True)
        _, is_ready = await ready(world)
        assert is_ready.load_us > 3_500_000
        stages = [note for note in world.loop.notes if isinstance(note, ReplicaLoading)]
        assert stages[-1].stage == "weights"
        assert len(stages) < 60

    play(tmp_path, story, timings=Timings(load_stall_s=2.5))


def test_a_load_without_any_sign_of_life_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    """It answers the health probe and does nothing else: that is no progress."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0)
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        assert failed.kind == "stall"
        assert "has not moved for 1.5 s" in failed.reason
        assert "loading model" in failed.reason
        assert 1_500_000 < failed.took_us < 5_000_000

    play(tmp_path, story, timings=Timings(load_stall_s=1.5))


def test_a_load_that_moves_for_ever_ends_at_the_ceiling(tmp_path: Path) -> None:
    """Progress is no excuse without end."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0, load_cpu=True)
        world.spawn()
        assert (await world.loop.sees(ReplicaLoadFailed)).kind == "ceiling"

    play(tmp_path, story, timings=Timings(load_stall_s=1.0, load_ceiling_s=2.0))


def test_a_stop_ordered_while_it_loads_ends_the_load(tmp_path: Path) -> None:
    """One fact, and it is not a failure."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0)
        world.spawn()
        await world.loop.sees(ReplicaSpawned)
        world.stop()
        await world.loop.sees(ReplicaStopped)
        assert world.loop.story == ["ReplicaSpawned", "ReplicaStopped"]

    play(tmp_path, story)


def test_a_stop_ordered_before_there_is_a_process_needs_none(tmp_path: Path) -> None:
    """While it still waits for memory after a failed attempt."""

    async def story(world: World) -> None:
        world.model("m")
        world.spawn(after="gpu_oom")
        world.stop()
        await world.loop.sees(ReplicaStopped)
        assert world.loop.story == ["ReplicaStopped"]

    play(tmp_path, story)


class Memories:
    """GPUs whose memory comes back when the test says so."""

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.asked: list[tuple[list[int], int]] = []
        """GPUs, and how many processes are gone."""

    async def fresh(self) -> None:
        return None

    def memory_of(self, pids: Any) -> list[Memory]:
        return [Memory(0, 100 * len(pids))]

    def measures(self, gpus: Any) -> bool:
        return True

    async def memory_settled(self, gpus: Any, timeout_s: float, *, gone: Any = (), every_s: float = 0) -> Settled:
        self.asked.append((list(gpus), len(gone)))
        await self.back.wait()
        return Settled(settled=True, waited_us=1)


def test_after_a_want_of_gpu_memory_the_next_attempt_waits_until_it_is_back(tmp_path: Path) -> None:
    """The driver takes its time after a process is gone; an attempt before that would only fail again."""

    async def story(world: World) -> None:
        world.model("m")
        world.model("large", fail="oom")
        memory: Memories = world.replicas._memory  # type: ignore[assignment]
        world.spawn("r0", "large")
        assert (await world.loop.sees(ReplicaLoadFailed)).kind == "gpu_oom"
        world.spawn(after="gpu_oom")
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.loop.story == ["ReplicaSpawned", "ReplicaLoadFailed"]
        memory.back.set()
        is_ready = await world.loop.sees(ReplicaReady)
        settled = await world.loop.sees(GpuMemorySettled)
        assert (settled.gpus, settled.settled) == ([0], True)
        assert world.loop.story[2:] == ["GpuMemorySettled", "ReplicaSpawned", "ReplicaReady"]
        assert is_ready.vram == [Memory(0, 100)]
        world.stop()
        assert (await world.loop.sees(ReplicaStopped)).freed == [Memory(0, 100)]

    play(tmp_path, story, memory=Memories())


def test_after_a_stop_the_next_load_on_that_gpu_waits_and_others_do_not(tmp_path: Path) -> None:
    """Also where the load that waits is stopped before it has begun."""

    async def story(world: World) -> None:
        world.model("m")
        memory: Memories = world.replicas._memory  # type: ignore[assignment]
        world.spawn("r0", gpus=(0, 1))
        await world.loop.sees(ReplicaReady)
        world.stop("r0")
        await world.loop.sees(ReplicaStopped)
        world.spawn("r1", gpus=(1,))
        world.spawn("r2", gpus=(1, 2))
        world.spawn("r3", gpus=(2,))
        world.spawn("r4", gpus=())
        for count in (2, 3):
            assert (await world.loop.sees(ReplicaReady, count)).replica in ("r3", "r4")
        world.stop("r2")
        assert (await world.loop.sees(ReplicaStopped, 2)).replica == "r2"
        memory.back.set()
        assert (await world.loop.sees(ReplicaReady, 4)).replica == "r1"
        assert memory.asked == [([0, 1], 1)]
        assert [fact.gpus for fact in world.loop.facts if isinstance(fact, GpuMemorySettled)] == [[0, 1]]

    play(tmp_path, story, memory=Memories())


def test_without_a_limit_of_patience_no_load_waits(tmp_path: Path) -> None:
    """UNLOAD_POLL_TIMEOUT 0 switches it off."""

    async def story(world: World) -> None:
        world.model("m")
        world.spawn("r0")
        await world.loop.sees(ReplicaReady)
        world.stop("r0")
        world.spawn("r1")
        await world.loop.sees(ReplicaReady, 2)

    play(tmp_path, story, memory=Memories(), timings=replace(TIMINGS, unload_poll_timeout_s=0.0))


def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path) -> None:
    """And the fact says that it had to be."""

    async def story(world: World) -> None:
        world.model("m", ignore_term=True, stop_timeout_s=0.5)
        spawned, _ = await ready(world)
        world.stop()
        stopped = await world.loop.sees(ReplicaStopped)
        assert (stopped.signal, stopped.escalated) == (signal.SIGKILL, True)
        assert 500_000 <= stopped.took_us < 3_000_000
        assert proc.stat(spawned.pid) is None

    play(tmp_path, story)


def test_a_slow_exit_within_its_time_is_waited_for(tmp_path: Path) -> None:
    """The next load must not begin while the last one still holds the GPU."""

    async def story(world: World) -> None:
        world.model("m", exit_delay_s=1.0)
        spawned, _ = await ready(world)
        world.stop()
        stopped = await world.loop.sees(ReplicaStopped)
        assert (stopped.exit_code, stopped.escalated) == (0, False)
        assert stopped.took_us > 900_000
        assert not alive(spawned.pid)

    play(tmp_path, story)


def test_a_wrapper_and_what_it_started_go_together(tmp_path: Path) -> None:
    """A shell script without exec, a server that ignores SIGTERM: all of the group is gone before the fact."""

    async def story(world: World) -> None:
        world.model("m", ignore_term=True, stop_timeout_s=0.5)
        spawned, _ = await ready(world)
        pids = family(spawned.pid)
        assert len(pids) == 2
        world.stop()
        assert (await world.loop.sees(ReplicaStopped)).escalated
        assert not any(proc.stat(pid) for pid in pids)

    play(tmp_path, story, wrapper=True)


def test_a_grandchild_that_outlives_the_child_is_not_left_behind(tmp_path: Path) -> None:
    """The child obeys SIGTERM; what it forked does not."""

    async def story(world: World) -> None:
        world.model("m", grandchild=True, stop_timeout_s=0.5)
        spawned, _ = await ready(world)
        pids = family(spawned.pid)
        assert len(pids) == 2
        world.stop()
        stopped = await world.loop.sees(ReplicaStopped)
        assert (stopped.exit_code, stopped.escalated) == (0, True)
        assert not any(alive(pid) for pid in pids)

    play(tmp_path, story)


def test_a_child_that_left_its_session_is_found_by_its_marker(tmp_path: Path) -> None:
    """A wrapper may daemonise what it starts: another session, another group, the same environment."""

    async def story(world: World) -> None:
        world.model("m", stop_timeout_s=0.5)
        escape = tmp_path / "escape.sh"
        escape.write_text(f'#!/bin/sh\nsetsid sleep 600 &\nexec {STANDIN}/llama-server "$@"\n')
        escape.chmod(0o755)
        object.__setattr__(world.config, "llama_server", (str(escape),))
        spawned, _ = await ready(world)
        marker = proc.environment(spawned.pid)[spawn.MARKER]
        pids = [one.pid for one in proc.members(spawned.pid, spawn.MARKER, marker)]
        assert len(pids) == 2
        world.stop()
        await world.loop.sees(ReplicaStopped)
        assert not any(alive(pid) for pid in pids)

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "killed"), (signal.SIGSEGV, "signal"), (signal.SIGTERM, "exit")]
)
def test_a_ready_replica_that_dies_is_a_crash_with_its_cause(
    tmp_path: Path, number: signal.Signals, cause: str
) -> None:
    """Nobody ordered it; the last lines are in the event, and the file outlives the process."""

    async def story(world: World) -> None:
        world.model("m")
        spawned, _ = await ready(world)
        os.kill(spawned.pid, number)
        crashed = await world.loop.sees(ReplicaCrashed)
        assert crashed.cause_of_exit == cause
        assert crashed.uptime_us > 0
        assert any("model loaded" in line for line in crashed.last_lines)
        assert world.replicas.child_logs.last_lines("m")[1:] == crashed.last_lines
        with pytest.raises(KeyError):
            world.replicas.endpoint("r1")
        world.stop()  # an order that crosses the crash changes nothing
        assert world.loop.story == ["ReplicaSpawned", "ReplicaReady", "ReplicaCrashed"]

    play(tmp_path, story)


def test_a_crash_of_the_wrapper_takes_the_server_with_it(tmp_path: Path) -> None:
    """A server without its wrapper would hold the GPU and answer to nobody."""

    async def story(world: World) -> None:
        world.model("m")
        spawned, _ = await ready(world)
        pids = family(spawned.pid)
        os.kill(spawned.pid, signal.SIGKILL)
        await world.loop.sees(ReplicaCrashed)
        assert not any(alive(pid) for pid in pids)

    play(tmp_path, story, wrapper=True)


def test_a_replica_under_suspicion_that_answers_is_cleared(tmp_path: Path) -> None:
    """A broken connection need not mean a broken replica."""

    async def story(world: World) -> None:
        world.model("m")
        await ready(world)
        world.replicas.suspect("r1")
        world.replicas.suspect("r1")
        await world.loop.sees(ReplicaAnswered)
        assert world.loop.story.count("ReplicaAnswered") == 1
        world.replicas.suspect("nobody")

    play(tmp_path, story)


def test_a_replica_under_suspicion_that_lives_and_does_not_answer_is_stalled(tmp_path: Path) -> None:
    """Stopped by a debugger or hung in a driver: the process is there and that is all."""

    async def story(world: World) -> None:
        world.model("m", stop_timeout_s=0.2)
        spawned, _ = await ready(world)
        os.kill(spawned.pid, signal.SIGSTOP)
        world.replicas.suspect("r1")
        stalled = await world.loop.sees(ReplicaStalled)
        assert stalled.silent_us > stalled.norm_us == 1_000_000
        world.stop()
        assert (await world.loop.sees(ReplicaStopped)).signal == signal.SIGKILL

    play(tmp_path, story, timings=Timings(health_check_timeout_s=1.0))


def test_a_crash_under_suspicion_is_a_crash(tmp_path: Path) -> None:
    """The relay saw the connection break before anybody saw the process end."""

    async def story(world: World) -> None:
        world.model("m")
        spawned, _ = await ready(world)
        os.kill(spawned.pid, signal.SIGSEGV)
        world.replicas.suspect("r1")
        await world.loop.sees(ReplicaCrashed)
        assert world.loop.story[2:] == ["ReplicaCrashed"]

    play(tmp_path, story)


def test_a_stranger_on_the_socket_never_becomes_the_replica(tmp_path: Path) -> None:
    """Whoever listens there is asked for its pid by the kernel, not for its word."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0, load_silent_socket=True)
        world.spawn()
        await world.loop.sees(ReplicaSpawned)
        async with asyncio.timeout(10):
            path = world.replicas.endpoint("r1").path
            server = await asyncio.start_unix_server(healthy, path)
        failed = await world.loop.sees(ReplicaLoadFailed)
        server.close()
        assert failed.kind == "imposter"
        assert f"process {os.getpid()} listens" in failed.reason

    play(tmp_path, story)


def test_a_stranger_on_the_port_never_becomes_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the port between our choice and the child's; it says that it is healthy, and takes any key."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0, load_silent_socket=True)
        server = await asyncio.start_server(healthy, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr(spawn, "tcp_endpoint", lambda: Endpoint(port=port, key="k" * 32))
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        server.close()
        assert failed.kind == "imposter"
        assert "another process" in failed.reason

    play(tmp_path, story, transport="tcp")


def test_without_a_look_at_the_table_of_sockets_the_key_tells_the_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some sandboxes hide it; whoever takes a wrong key is not the child that was given one."""

    async def story(world: World) -> None:
        world.model("m", load_s=60.0, load_silent_socket=True)
        monkeypatch.setattr(proc, "listener_inodes", lambda port: set())
        server = await asyncio.start_server(healthy, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr(spawn, "tcp_endpoint", lambda: Endpoint(port=port, key="abc"))
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        server.close()
        assert (failed.kind, "takes any key" in failed.reason) == ("imposter", True)

    play(tmp_path, story, transport="tcp")


async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stranger that answers everything with 200."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    await writer.drain()
    writer.close()


def test_a_server_that_knows_no_socket_files_is_reached_by_tcp(tmp_path: Path) -> None:
    """On the loopback interface only, with the same proofs."""

    async def story(world: World) -> None:
        world.model("m")
        spawned, is_ready = await ready(world)
        endpoint = world.replicas.endpoint("r1")
        assert (endpoint.path, endpoint.host, is_ready.slots) == (None, "127.0.0.1", 2)
        assert spawned.address == f"127.0.0.1:{endpoint.port}"
        with socket.create_connection(("127.0.0.1", endpoint.port)):
            pass

    play(tmp_path, story, transport="tcp")


def test_a_socket_path_that_is_too_long_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The kernel would cut it off."""

    async def story(world: World) -> None:
        world.model("m")
        object.__setattr__(world.config, "run_dir", tmp_path / ("x" * 90))
        world.spawn()
        assert "set RUN_DIR" in (await world.loop.sees(ReplicaLoadFailed)).reason

    play(tmp_path, story)


def test_a_run_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Somebody could put a socket of theirs in the place of the child's."""

    async def story(world: World) -> None:
        world.model("m")
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(0o777)
        world.spawn()
        assert "mode 0700" in (await world.loop.sees(ReplicaLoadFailed)).reason

    play(tmp_path, story)


def test_a_flooding_child_neither_grows_memory_nor_holds_up_the_others(tmp_path: Path) -> None:
    """Its output is read at a bounded pace and kept within bounds; another model loads meanwhile."""

    async def story(world: World) -> None:
        world.model("m")
        flood = tmp_path / "flood.sh"
        flood.write_text("#!/bin/sh\nyes 'a line that says nothing at all, again and again'\n")
        flood.chmod(0o755)
        binary = world.config.llama_server
        object.__setattr__(world.config, "llama_server", (str(flood),))
        world.spawn("r1")
        await world.loop.sees(ReplicaSpawned)
        object.__setattr__(world.config, "llama_server", binary)
        begun = asyncio.get_running_loop().time()
        world.spawn("r2")
        await world.loop.sees(ReplicaReady)
        seconds = asyncio.get_running_loop().time() - begun
        assert world.replicas.child_logs.live["r1"].bytes < (seconds + 0.5) * 4_000_000
        assert len(world.replicas.child_logs.live["r1"].last_lines) <= 201
        world.stop("r1")
        await world.loop.sees(ReplicaStopped)

    play(tmp_path, story)


def test_what_llama_server_says_about_cache_reuse_becomes_a_note(tmp_path: Path) -> None:
    """The owner set cache-reuse and would otherwise wonder why nothing is reused."""

    async def story(world: World) -> None:
        world.model("m")
        script = tmp_path / "says.sh"
        script.write_text(
            "#!/bin/sh\necho 'W srv load_model: cache_reuse is not supported by this context, it will be disabled'\n"
            f'exec {STANDIN}/llama-server "$@"\n'
        )
        script.chmod(0o755)
        object.__setattr__(world.config, "llama_server", (str(script),))
        await ready(world)
        note = await world.loop.sees(ReplicaNote)
        assert (note.replica, note.code) == ("r1", "cache_reuse_unsupported")

    play(tmp_path, story)


def test_two_replicas_are_two_processes_and_a_shutdown_ends_them_all(tmp_path: Path) -> None:
    """One loading, one ready; each ends in its one fact."""

    async def story(world: World) -> None:
        world.model("m")
        world.model("slow", load_s=60.0)
        first, _ = await ready(world, "r1")
        world.spawn("r2", "slow")
        second = await world.loop.sees(ReplicaSpawned, 2)
        assert first.pid != second.pid
        assert first.address != second.address
        await world.replicas.stop_all()
        assert world.loop.story.count("ReplicaStopped") == 2
        assert not alive(first.pid)
        assert not alive(second.pid)

    play(tmp_path, story)


def test_a_mistake_of_the_router_itself_still_ends_in_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the scheduler would wait for ever, and the GPU with it."""

    async def story(world: World) -> None:
        world.model("m")
        monkeypatch.setattr("router.probe.properties", None)
        world.spawn()
        failed = await world.loop.sees(ReplicaLoadFailed)
        spawned = await world.loop.sees(ReplicaSpawned)
        assert "an error of the router" in failed.reason
        assert not alive(spawned.pid)

    play(tmp_path, story)
