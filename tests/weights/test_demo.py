"""`llama-router demo`, as somebody runs it who has just cloned the project."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from router import demo
from tests.weights.conftest import Weights

pytestmark = [pytest.mark.weights, pytest.mark.slow]


def run_demo(*more: str, folder: Path, weights: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """`demo --once`; with other weights than its own where they are given."""
    start = "import sys; from router import cli, demo\n"
    if weights is not None:
        start += f"from pathlib import Path; demo.demo_weights = lambda progress: Path({str(weights)!r})\n"
    command = [sys.executable, "-c", f"{start}sys.exit(cli.main())", "demo", "--once", *more]
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)


def test_the_demo_swaps_models_and_tells_from_the_log_what_happened(tmp_path: Path) -> None:
    """Six requests for three models on two GPUs: all answered in full, a row for each, at least three loads."""
    done = run_demo("-n", "6", folder=tmp_path)
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
    assert list(tmp_path.glob("llama-router-demo-*")) == [], "it leaves nothing behind"


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
    assert "taking a free one" in said
