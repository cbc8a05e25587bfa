"""The benchmarks that users run against a router: what they print is what the router served."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_router import RealRouter
from tests.tiny_gguf import write_tiny_gguf

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

pytestmark = [pytest.mark.slow, pytest.mark.weights]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRouter]:
    folder = tmp_path_factory.mktemp("benchmarks")
    weights = write_tiny_gguf(folder / "tiny.gguf")
    with RealRouter(folder, weights, {"tiny": {"gpus": [0]}, "twin": {"gpus": [0]}}, parallel=2) as router:
        yield router


def run(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    kept = json.loads((folder / "outputs" / script.replace(".py", ".json")).read_text())
    assert printed == kept
    return printed


def test_throughput_has_a_row_for_one_request_and_one_for_all_slots(router: RealRouter, tmp_path: Path) -> None:
    """Both models, each loaded in its turn; more slots do not make the whole slower."""
    told = run("benchmark-throughput.py", tmp_path, "--host", router.base_url, "--prompt-tokens", "200")
    assert [(row["model"], row["concurrency"]) for row in told["models"]] == [
        ("tiny", 1),
        ("tiny", 2),
        ("twin", 1),
        ("twin", 2),
    ]
    assert all(row["prompt_tokens_per_s"] > 0 and row["answer_tokens_per_s"] > 0 for row in told["models"])


def test_the_prompt_cache_is_seen_to_help_and_to_be_switched_off(router: RealRouter, tmp_path: Path) -> None:
    arguments = ("--instance-url", router.base_url, "--model", "tiny", "--sentences", "4", "--conversations", "2")
    told = run("benchmark-prompt-cache.py", tmp_path, *arguments)
    steps = {row["step"]: row for row in told["steps"]}
    assert list(steps) == ["cold", "repeat", "next turn", "after others", "cache_prompt=false"]
    assert steps["repeat"]["cached_tokens"] > steps["repeat"]["read_tokens"]
    assert steps["next turn"]["cached_tokens"] > 0
    assert steps["cache_prompt=false"]["cached_tokens"] == 0
    assert steps["cold"]["read_tokens"] > steps["repeat"]["read_tokens"]
    assert told["capacity"]["conversations"] == 2


def test_concurrency_counts_every_request(router: RealRouter, tmp_path: Path) -> None:
    told = run("benchmark-concurrency.py", tmp_path, "--host", router.base_url, "-n", "12")
    assert (told["requests"], told["success_rate"]) == (12, 1.0)


def test_a_router_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "benchmark-throughput.py"), "--host", "127.0.0.1:9"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("http://127.0.0.1:9: URLError")
