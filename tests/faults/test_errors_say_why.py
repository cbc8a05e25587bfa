"""Every failure says what happened, to the client and in the log; kinds of ends are told apart; last words are kept."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import routed
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess

LOAD_FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "oom": ({"fail": "oom"}, "gpu_oom", "out of memory"),
    "missing": ({"fail": "missing"}, "missing_file", "No such file"),
    "magic": ({"fail": "magic"}, "bad_model", "magic"),
    "flag": ({"fail": "flag"}, "bad_flag", "--surprise"),
    "exit": ({"fail": "exit:3", "last_words": "no luck today"}, "exit", "no luck today"),
    "segv": ({"fail": "SIGSEGV"}, "signal", "SIGSEGV"),
    "abrt": ({"fail": "SIGABRT", "last_words": "GGML_ASSERT(n > 0) failed"}, "signal", "GGML_ASSERT"),
}


@pytest.mark.parametrize("name", LOAD_FAILURES)
def test_why_a_model_could_not_be_loaded_is_told_to_the_client_and_the_log(tmp_path: Path, name: str) -> None:
    """Never an empty 400 or a bare 500: a code, the reason in words, and the same kind in the log."""
    script, kind, words = LOAD_FAILURES[name]
    with routed(tmp_path, [Model("a", **script)]) as router:
        if name == "missing":
            (tmp_path / "a.gguf").unlink()
        call = router.chat("a")
        error = call.json()["error"]
        assert (call.status, error["code"]) == (502, "model_load_failed")
        assert words in error["message"]
        assert "'a'" in error["message"]
        failed = router.wait_event("ReplicaLoadFailed")
        assert failed["kind"] == kind
        assert failed["last_lines"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with routed(tmp_path_factory.mktemp("broken"), [Model("a", fail="oom")]) as router:
        yield router


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_every_route_tells_it_in_its_own_dialect(broken: RouterProcess, path: str, streaming: bool) -> None:
    """OpenAI's error object, or Anthropic's on its route; also while the model cools down."""
    call = broken.post(path, "a", stream=streaming)
    body = call.json()
    assert call.status in (502, 503)
    assert body["error"]["code"] in ("model_load_failed", "model_cooling_down")
    assert "out of memory" in body["error"]["message"]
    assert (body.get("type") == "error") == ("messages" in path)


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "segv": ({"die_on": "hello", "die": "SIGSEGV"}, {"cause_of_exit": "signal", "signal": 11}),
    "abrt": ({"die_on": "hello", "die": "SIGABRT"}, {"cause_of_exit": "signal", "signal": 6}),
    "exit": ({"die_on": "hello", "die": "exit:3"}, {"exit_code": 3}),
    "oom": (
        {"die_on": "hello", "die": "exit:1", "last_words": "CUDA error: out of memory"},
        {"cause_of_exit": "gpu_oom", "exit_code": 1},
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_ready_servers_are_told_apart(tmp_path: Path, name: str) -> None:
    """A signal, an exit code, memory: each by its own name in the log, with the last lines."""
    script, wanted = ENDS[name]
    with routed(tmp_path, [Model("a", **script)]) as router:
        assert router.chat("a").status == 502
        crashed = router.wait_event("ReplicaCrashed")
        assert {key: crashed.get(key, "exit") for key in wanted} == wanted
        if "last_words" in script:
            assert any(script["last_words"] in line for line in crashed["last_lines"])


def test_a_planned_unload_is_no_failure(tmp_path: Path) -> None:
    """It is stopped, not crashed, and nothing in the listing calls it failed."""
    with routed(tmp_path, [Model("a")]) as router:
        assert router.chat("a").status == 200
        assert router.call("POST", "/models/unload", {"model": "a"}).status == 200
        stopped = router.wait_event("ReplicaStopped")
        assert "signal" not in stopped
        assert not router.events("ReplicaCrashed", "ReplicaLoadFailed")
        listed = router.call("GET", "/v1/models").json()["data"][0]
        assert not listed["status"].get("failed")


def test_last_words_outlive_the_router(tmp_path: Path) -> None:
    """A server dies with a hundred lines on its lips; after a restart of the router they are still there, in order."""
    words = "\n".join(f"last word {n}" for n in range(100))
    models = [Model("a", die_on="hello", last_words=words), Model("b", gpus=[1])]
    with routed(tmp_path, models, NUM_GPUS=2) as router:
        assert router.chat("b").status == 200
        assert router.chat("a").status == 502
        router.wait_event("ReplicaCrashed")
        assert router.stop() == 0
        command = [sys.executable, "-m", "router.cli", "log", "cat", "--type", "ReplicaCrashed"]
        found = subprocess.run(command, env=router.env, capture_output=True, text=True, timeout=20, check=True)
        assert found.stdout.index('"last word 0"') < found.stdout.index('"last word 99"')
        router.start()
        follow, kept = router.call("GET", "/logs/a"), ""
        while "last word 99\n" not in kept:
            kept += follow.head.read1().decode()
        assert kept.index("last word 0\n") < kept.index("last word 99\n")
        assert "last word" not in router.call("GET", "/logs/b").head.read1().decode()
