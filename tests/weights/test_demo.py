"""`llama-router demo`, as somebody runs it who has just cloned the project."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from router import demo, proc
from tests.mortal import mortal
from tests.standin.ledger import polls
from tests.weights.conftest import Weights

pytestmark = [pytest.mark.weights, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="lr-") as folder:
        yield Path(folder)


def demo_command(*more: str, weights: Path | None = None) -> list[str]:
    """`demo`; with other weights than its own where they are given."""
    start = "import sys; from router import cli, demo\n"
    if weights is not None:
        start += f"from pathlib import Path; demo.demo_weights = lambda progress: Path({str(weights)!r})\n"
    return [sys.executable, "-c", f"{start}sys.exit(cli.main())", "demo", *more]


def run_demo(*more: str, folder: Path, weights: Path | None = None) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "TMPDIR": str(folder)}
    command = demo_command("--once", *more, weights=weights)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)


def test_the_demo_swaps_models_and_tells_from_the_log_what_happened(folder: Path) -> None:
    """Six requests for three models on two GPUs: all answered in full, a row for each, at least three loads."""
    done = run_demo("-n", "6", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r"\d+ +smol-", line)]
    assert len(rows) == 6
    assert {row[1] for row in rows} == set(demo.MODELS)
    assert {row[-1] for row in rows} == {"200"}
    assert all(float(row[-2]) > 0 for row in rows), "tokens/s"
    loads = re.search(r"^(\d+) loads", done.stdout, re.MULTILINE)
    assert loads is not None
    assert int(loads.group(1)) >= 3
    assert "6 of 6 requests were answered in full" in done.stdout
    assert list(folder.glob("llama-router-demo-*")) == [], "it leaves nothing behind"


def test_the_demo_fails_when_a_request_is_not_answered(tmp_path: Path, weights: Weights) -> None:
    """Its exit code is the word of a check: weights that cannot be loaded are no success."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(weights("tiny").read_bytes()[:4096])
    done = run_demo("-n", "2", folder=tmp_path, weights=broken)
    assert done.returncode == 1
    assert "0 of 2 requests were answered in full" in done.stdout


def test_a_taken_port_is_named_and_a_free_one_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """11434 is Ollama's too."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        monkeypatch.setattr(demo, "DEFAULT_PORT", port)
        free = demo._free_port()
    assert free not in (0, port)
    said = capsys.readouterr().err
    assert str(port) in said
    assert str(os.getpid()) in said
    assert said.strip().endswith(f"using {free}")
    assert "stop it" not in said, "nobody is to do what is done already"


@pytest.mark.parametrize("is_on_path", [False, True])
def test_what_it_says_to_export_also_leads_to_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_on_path: bool
) -> None:
    """Somebody who has typed no more than `make demo` has it in .venv/bin, and not on PATH."""
    (tmp_path / "llama-router").write_text("#!/bin/sh\n")
    (tmp_path / "llama-router").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path if is_on_path else ''}:/usr/bin:/bin")
    ours = {f"LLAMA_ROUTER_{name}": "/x" for name in ("EVENT_LOG_DIR", "HISTORY_DB_PATH", "RUN_DIR")}
    line = demo._export("http://127.0.0.1:1", ours).splitlines()[-1]
    found = subprocess.run(["sh", "-c", f"{line}\ncommand -v llama-router"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(tmp_path / "llama-router")
    assert ("PATH=" in line.replace("DB_PATH=", "")) == (not is_on_path)


def offspring(pid: int) -> set[int]:
    """Every process that came from this one."""
    found: set[int] = set()
    for process in proc.every():
        if process.parent == pid:
            found |= {process.pid, *offspring(process.pid)}
    return found


def lives(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_demo_takes_its_router_with_it_and_leaves_the_users_own_files_alone(
    number: signal.Signals, folder: Path, weights: Weights
) -> None:
    """A user who has a router already, whose settings and files it must not touch; then a terminal that goes away."""
    own = folder / "own"
    own.mkdir()
    theirs = {
        "HISTORY_DB_PATH": str(own / "history.duckdb"),
        "EVENT_LOG_DIR": str(own / "events"),
        "LLAMA_ROUTER_EVENT_LOG_DIR": str(own / "more"),
        "ROUTER_CONFIG_PATH": str(own / "config.json"),
        "XDG_STATE_HOME": str(own / "state"),
        "XDG_RUNTIME_DIR": str(own),
        "TMPDIR": str(folder),
    }
    command = demo_command("-n", "1", weights=weights("tiny"))
    with subprocess.Popen(mortal(command), env={**os.environ, **theirs}, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = ""
        for line in running.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        family = offspring(running.pid)
        exported = dict(part.split("=") for line in said.splitlines() if "export" in line for part in line.split()[1:])
        status = subprocess.run(
            [sys.executable, "-m", "router.cli", "status"],
            env={**os.environ, **exported},
            capture_output=True,
            text=True,
            check=False,
        )
        running.send_signal(number)
        code = running.wait(timeout=60)
    assert "smol-" in status.stdout, status.stdout + status.stderr
    assert Path(exported["LLAMA_ROUTER_EVENT_LOG_DIR"]).parent.parent == folder
    assert code == (-number if number == signal.SIGKILL else 130)
    assert len(family) >= 2, "a router, a dashboard"
    for _ in polls(30):
        if not any(map(lives, family)):
            break
    assert list(own.iterdir()) == []
    if number != signal.SIGKILL:
        assert list(folder.glob("llama-router-demo-*")) == []
