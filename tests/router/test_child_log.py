"""What llama-servers print is kept per replica, bounded, and can be followed live and after a restart."""

import argparse
import asyncio
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router import child_log, logs_command
from router.child_log import ChildLog, ChildLogs, slug, tail
from router.logs_command import add_logs_command
from tests.mortal import mortal
from tests.router.config_desk import Desk


def opened(logs: ChildLogs, model: str, replica: str, secret: str = "") -> ChildLog:
    return logs.open(model, replica, secret, lambda lines: None)


async def until(stream: AsyncIterator[bytes], text: bytes) -> bytes:
    """Read on until the text has come."""
    seen = b""
    async with asyncio.timeout(10):
        while text not in seen:
            seen += await anext(stream)
    return seen


def test_the_last_lines_are_at_hand_and_the_file_has_them_all(tmp_path: Path) -> None:
    """A crash is told with 200 lines; the file is for whoever wants to know what came before."""
    log = ChildLog(tmp_path / "a.log", model="m", replica="r1")
    log.feed(b"".join(b"line %d\n" % n for n in range(1000)) + b"last wor")
    log.feed(b"ds")
    assert log.last_lines[-2:] == ["line 999", "last words"]
    assert len(log.last_lines) == 201
    log.close()
    assert tail(tmp_path / "a.log", 1 << 20).splitlines()[1:3] == [b"line 0", b"line 1"]
    assert tail(tmp_path / "a.log", 25) == b"line 999\nlast words\n"


def test_a_flood_costs_neither_memory_nor_more_than_the_agreed_disk(tmp_path: Path) -> None:
    """Two parts of a file at most, and lines without an end are cut in memory."""
    log = ChildLog(tmp_path / "a.log", model="m", replica="r1", limit_bytes=100_000)
    for _ in range(100):
        log.feed(b"x" * 50_000)
    log.feed(b"\nthe end\n")
    log.close()
    assert max(len(line) for line in log.last_lines) <= child_log.LINE_LIMIT
    assert log.last_lines[-1] == "the end"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 250_000


def test_the_key_of_a_child_is_in_no_line(tmp_path: Path) -> None:
    """Even when the child prints it, and even in a line that has no end yet."""
    log = ChildLog(tmp_path / "a.log", model="m", replica="r1", secret="sesame")
    log.feed(b"my key is sesame\nagain: sesame")
    assert log.last_lines == ["my key is ***", "again: ***"]
    log.close()
    assert b"sesame" not in (tmp_path / "a.log").read_bytes()


def test_a_full_disk_takes_the_file_and_not_the_replica(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last lines stay at hand for the event log."""
    log = ChildLog(Path("/dev/full"), model="m", replica="r1")
    log.feed(b"still here\n")
    assert log.last_lines == ["still here"]
    assert "is not kept any more" in caplog.text
    log.close()


@pytest.mark.parametrize("model", ["../../etc/passwd", "-rf", "a/b:c d", "Ünïcode 模型", "", "x" * 500, "a\nb"])
def test_no_name_of_a_model_escapes_its_directory(tmp_path: Path, model: str) -> None:
    """A model may be called anything; a file is called something tame, and two models never share one."""
    logs = ChildLogs(tmp_path / "children")
    opened(logs, model, "r1").feed(b"hello\n")
    logs.close("r1")
    (path,) = logs.files(model)
    assert path.parent == tmp_path / "children"
    assert not path.name.startswith("-")
    assert len(path.name) < 100
    assert slug(model) != slug(model + "2")
    assert logs.last_lines(model)[-1] == "hello"


def test_a_follower_gets_the_past_then_the_present_then_the_next_replica(tmp_path: Path) -> None:
    """Whoever watches a model goes on watching when it is loaded anew."""

    async def story() -> None:
        logs = ChildLogs(tmp_path)
        first = opened(logs, "m", "r1")
        first.feed(b"before\n")
        stream = logs.stream("m")
        assert (await until(stream, b"before")).endswith(b"before\n")
        first.feed(b"now, in two ")
        first.feed(b"pieces\n")
        assert await until(stream, b"now") == b"now, in two pieces\n"
        first.feed(b"famous last words")
        logs.close("r1")
        opened(logs, "other", "r2").feed(b"not for you\n")
        opened(logs, "m", "r3").feed(b"risen\n")
        assert await until(stream, b"risen") == b"famous last words\nrisen\n"
        logs.shut()
        assert [chunk async for chunk in stream] == []

    asyncio.run(story())


def test_without_history_only_what_comes_is_told(tmp_path: Path) -> None:
    """`?no-history`."""

    async def story() -> None:
        logs = ChildLogs(tmp_path)
        log = opened(logs, "m", "r1")
        log.feed(b"before\n")
        stream = logs.stream("m", history=False)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        log.feed(b"after\n")
        assert await first == b"after\n"
        await stream.aclose()

    asyncio.run(story())


def test_replicas_side_by_side_are_told_apart(tmp_path: Path) -> None:
    """Each line says whose it is, from the moment that there are two."""

    async def story() -> None:
        logs = ChildLogs(tmp_path)
        one = opened(logs, "m", "r1")
        stream = logs.stream("m", history=False)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        one.feed(b"alone\n")
        assert await first == b"alone\n"
        two = opened(logs, "m", "r2")
        one.feed(b"a\nb\n")
        two.feed(b"c\n")
        assert await until(stream, b"c\n") == b"[r1] a\n[r1] b\n[r2] c\n"
        await stream.aclose()

    asyncio.run(story())


def test_a_follower_that_does_not_read_loses_lines_and_is_told_how_many(tmp_path: Path) -> None:
    """It can neither hold up the child nor fill the memory."""

    async def story() -> None:
        logs = ChildLogs(tmp_path)
        log = opened(logs, "m", "r1")
        stream = logs.stream("m", history=False)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for _ in range(100):
            log.feed(b"y" * 9_999 + b"\n")
        text = await first
        assert len(text) <= child_log.BACKLOG_BYTES + 100
        assert text.endswith(b"... 74 lines left out: read faster ...\n")
        await stream.aclose()

    asyncio.run(story())


def test_old_logs_go_and_the_newest_of_each_model_stay(tmp_path: Path) -> None:
    """A model that is swapped all day does not push out the last words of one that crashed last week."""
    logs = ChildLogs(tmp_path)
    opened(logs, "rare", "r0").feed(b"once\n")
    logs.close("r0")
    for n in range(1, 30):
        opened(logs, "busy", f"r{n}")
        logs.close(f"r{n}")
    assert logs.last_lines("rare")[-1] == "once"
    assert len(logs.files("busy")) <= child_log.KEEP_PER_MODEL + 1
    assert logs.files("busy")[-1].name.endswith(".r29.log")


def run_logs(tmp_path: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    add_logs_command(parser.add_subparsers(), lambda: tmp_path)
    args = parser.parse_args(["logs", *words])
    code: int = args.run(args)
    return code


def test_the_command_shows_the_newest_replica_and_lists_what_there_is(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It reads files alone: no configuration, no router."""
    logs = ChildLogs(tmp_path / "children")
    for replica in ("r1", "r2"):
        opened(logs, "m", replica).feed(b"first\nsecond of " + replica.encode() + b"\n")
        logs.close(replica)
    assert run_logs(tmp_path, "m", "-n", "1") == 0
    assert capfdbinary.readouterr().out == b"second of r2\n"
    assert run_logs(tmp_path) == 0
    assert b"replica r1 of model 'm'" in capfdbinary.readouterr().out
    assert run_logs(tmp_path, "unheard") == 1
    assert b"no log of model 'unheard'" in capfdbinary.readouterr().err


def test_the_command_tells_a_model_that_has_not_run_from_one_that_is_not_there(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of the configuration; an alias finds the log of its model."""
    Desk(tmp_path / "home").models(qwen={}, llama={"aliases": ["small"]}).move_in(monkeypatch)
    logs = ChildLogs(tmp_path / "children")
    opened(logs, "llama", "r1").feed(b"hello\n")
    logs.close("r1")
    assert run_logs(tmp_path, "qwen") == 1
    assert capfdbinary.readouterr().err.startswith(b"llama-router: model 'qwen' has not run yet: ")
    for follow in ([], ["-f"]):
        assert run_logs(tmp_path, "qwem", *follow) == 1
        assert capfdbinary.readouterr().err == b"llama-router: there is no model 'qwem'; did you mean 'qwen'?\n"
    assert run_logs(tmp_path, "small", "-n", "1") == 0
    assert capfdbinary.readouterr().out == b"hello\n"


def test_the_command_follows_across_a_new_part_of_the_file_and_a_new_replica(tmp_path: Path) -> None:
    """`-f` in another process, while the router begins the file anew and starts the next replica."""
    logs = ChildLogs(tmp_path / "children")
    log = opened(logs, "m", "r1")
    log.feed(b"one\n")
    script = (
        "import argparse; from pathlib import Path; from router.logs_command import add_logs_command\n"
        "parser = argparse.ArgumentParser()\n"
        f"add_logs_command(parser.add_subparsers(), lambda: Path({str(tmp_path)!r}))\n"
        "args = parser.parse_args(['logs', 'm', '-f']); args.run(args)"
    )
    with subprocess.Popen(mortal([sys.executable, "-c", script]), stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().startswith(b"# replica r1")
        assert reader.stdout.readline() == b"one\n"
        log.feed(b"two\n")
        log._limit = 0  # the next line begins a new part
        log.feed(b"three\n")
        opened(logs, "m", "r2").feed(b"four\n")
        lines = [reader.stdout.readline() for _ in range(5)]
        reader.kill()
    assert [line for line in lines if not line.startswith(b"#")] == [b"two\n", b"three\n", b"four\n"]


def test_the_command_lets_go_of_files_that_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is loaded all day leaves no descriptor for each of its processes; a file may vanish in between."""
    logs = ChildLogs(tmp_path)
    out = io.BytesIO()
    opened_files: list[int] = []
    rounds = iter(range(5))

    def next_replica(seconds: float) -> None:
        n = next(rounds, None)
        if n is None:
            raise KeyboardInterrupt
        opened_files.append(len(os.listdir("/proc/self/fd")))
        for path in logs.files("m"):
            path.unlink(missing_ok=True)
        log = opened(logs, "m", f"r{n}")
        log.feed(b"line %d\n" % n)
        logs.close(f"r{n}")

    monkeypatch.setattr(logs_command.time, "sleep", next_replica)
    files = logs.files
    monkeypatch.setattr(logs, "files", lambda model=None: [*files(model), tmp_path / "vanished.log"])
    with pytest.raises(KeyboardInterrupt):
        logs_command._follow(logs, "m", 10, out)
    assert [line for line in out.getvalue().splitlines() if line.startswith(b"line")] == [
        b"line %d" % n for n in range(5)
    ]
    assert len(set(opened_files[1:])) == 1
