"""The verbs that ask a running router, at a real one on stand-ins: what they print, what they do, how they end."""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router import admin_commands
from router.cli import main
from tests.mortal import mortal
from tests.standin.fixtures import Model, RouterProcess, free_port
from tests.standin.ledger import polls


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Two models on GPU 0, one on GPU 1; answers take as long as a test lets them."""
    models = [Model("alpha", tokens=2, slots=2), Model("beta", tokens=2), Model("gamma", tokens=2, gpus=[1])]
    with RouterProcess(tmp_path_factory.mktemp("router"), models, NUM_GPUS=2) as running:
        yield running


def told(capsys: pytest.CaptureFixture[str], router: RouterProcess, *words: str) -> str:
    """What a command prints; it must succeed."""
    assert main([*words, "--url", router.base_url]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], router: RouterProcess, *words: str) -> str:
    """What a command says on stderr; it must end with 1."""
    assert main([*words, "--url", router.base_url]) == 1
    return capsys.readouterr().err


def test_models_are_loaded_listed_and_unloaded(capsys: pytest.CaptureFixture[str], router: RouterProcess) -> None:
    """Each verb says what it did; the list shows it."""
    assert told(capsys, router, "load", "alpha", "--wait") == "alpha is loaded\n"
    table = [line.split() for line in told(capsys, router, "models").splitlines()]
    assert table[0] == ["MODEL", "STATUS", "CONTEXT", "ALIASES"]
    assert [row[:2] for row in table[1:]] == [["alpha", "loaded"], ["beta", "unloaded"], ["gamma", "unloaded"]]
    assert json.loads(told(capsys, router, "models", "--json"))["data"][0]["id"] == "alpha"
    assert told(capsys, router, "unload", "alpha") == "alpha is unloaded\n"
    assert told(capsys, router, "load", "gamma", "--wait") == "gamma is loaded\n"
    assert told(capsys, router, "unload", "--all") == "every model is unloaded\n"
    assert {row["phase"] for row in router.status()["models"]} == {"absent"}


def test_status_shows_who_runs_and_who_waits_for_what(
    capsys: pytest.CaptureFixture[str], router: RouterProcess
) -> None:
    """alpha streams, beta waits for it to leave: GPUs, models, the swap, the running and the waiting request."""
    stream = router.chat("alpha", stream=True, standin={"tokens": 1000, "gap_s": 0.05})
    next(stream.chunks())
    waiting = router.chat("beta")
    for _ in polls(10, every_s=0.02):
        if router.status()["queue"]:
            break
    text = told(capsys, router, "status")
    blocks = {block.split()[0]: [line.split() for line in block.splitlines()] for block in text.split("\n\n")}
    assert blocks["llama-router"][0][2:5] == ["active", "at", f"{router.base_url},"]
    assert blocks["GPU"][1][:3] == ["0", "swapping", "alpha"]
    assert [row[:2] for row in blocks["MODEL"][1:3]] == [["alpha", "draining"], ["beta", "loading"]]
    assert blocks["SWAP"][1][1:4] == ["beta", "alpha", "draining"]
    running, queued = blocks["RUNNING"][1], blocks["WAITING"][1]
    assert (running[1], queued[2]) == ("alpha", "beta")
    assert json.loads(told(capsys, router, "status", "--json"))["queue"][0]["model"] == "beta"
    assert told(capsys, router, "cancel", running[0]) == f"request {running[0]} is cancelled\n"
    assert not stream.frames_to_the_end()[1]
    assert waiting.status == 200
    assert router.wait_event("RequestCancelled")["by"] == "admin"


def test_after_a_restart_the_log_tells_how_long_a_swap_will_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first request that waits in a new run has an estimate already."""
    with RouterProcess(tmp_path, [Model("alpha", tokens=2), Model("beta", tokens=2)]) as router:
        assert [router.chat(name).status for name in ("alpha", "beta", "alpha")] == [200, 200, 200]
        router.stop()
        router.start()
        stream = router.chat("alpha", stream=True, standin={"tokens": 1000, "gap_s": 0.05})
        next(stream.chunks())
        waiting = router.chat("beta")
        for _ in polls(10, every_s=0.02):
            if any(row["eta_us"] for row in router.status()["queue"]):
                break
        assert router.status()["queue"][0]["eta_us"] > 0
        # However long: a stream without a limit may go on for minutes, and a machine that is busy makes more of them.
        assert told(capsys, router, "status").splitlines()[-1].split()[-1] in ("ms", "s", "min")
        stream.close()
        assert waiting.status == 200


def test_a_gpu_goes_out_of_service_and_comes_back(capsys: pytest.CaptureFixture[str], router: RouterProcess) -> None:
    """What is on it leaves; who asks for it waits, and is served when it is back."""
    assert told(capsys, router, "load", "gamma", "--wait")
    assert told(capsys, router, "gpu", "out", "1") == "GPU 1 is out of service\n"
    assert router.status()["gpus"][1]["out_of_service"] is True
    assert router.status()["gpus"][1]["residents"] == []
    assert "out of service" in told(capsys, router, "status")
    waiting = router.chat("gamma")
    for _ in polls(10, every_s=0.02):
        if router.status()["queue"]:
            break
    assert told(capsys, router, "gpu", "in", "1") == "GPU 1 is in service\n"
    assert waiting.status == 200


@pytest.mark.parametrize("words", [("unload", "gamma"), ("unload", "--all"), ("gpu", "out", "1")])
def test_who_waits_for_requests_is_told_how_many(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], router: RouterProcess
) -> None:
    """Once, on stderr; what is on another GPU is not counted, and an idle model is not waited for."""
    assert told(capsys, router, "load", "gamma", "--wait")
    other = router.chat("alpha", stream=True, standin={"tokens": 20, "gap_s": 0.05})
    stream = router.chat("gamma", stream=True, standin={"tokens": 20, "gap_s": 0.05})
    next(stream.chunks())
    assert main([*words, "--url", router.base_url]) == 0
    number = "2 requests" if "--all" in words else "1 request"
    assert capsys.readouterr().err == f"waiting for {number}\n"
    assert other.status == 200
    other.read()
    assert main([*words, "--url", router.base_url]) == 0
    assert capsys.readouterr().err == ""
    if words[0] == "gpu":
        told(capsys, router, "gpu", "in", "1")


def test_everything_is_unloaded_by_force(capsys: pytest.CaptureFixture[str], router: RouterProcess) -> None:
    """What runs on either GPU is cut, and nobody is waited for."""
    streams = [router.chat(name, stream=True, standin={"tokens": 1000, "gap_s": 0.05}) for name in ("alpha", "gamma")]
    for stream in streams:
        next(stream.chunks())
    assert main(["unload", "--all", "--force", "--url", router.base_url]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("every model is unloaded\n", "")
    assert {row["phase"] for row in router.status()["models"]} == {"absent"}
    assert not any(stream.frames_to_the_end()[1] for stream in streams)
    assert router.events("AdminDrain")[-1]["force"] is True


def test_no_profiles_are_said_to_be_none(capsys: pytest.CaptureFixture[str], router: RouterProcess) -> None:
    assert told(capsys, router, "profile") == "no profiles are configured (`profiles` in config.json)\n"


def test_what_cannot_be_done_ends_with_1_and_says_why(
    capsys: pytest.CaptureFixture[str], router: RouterProcess
) -> None:
    """Unknown models with the near miss, requests and GPUs that are not there, nothing named, nobody listening."""
    assert "'alpha'" in refused(capsys, router, "load", "alpa")
    assert "no open request 999999" in refused(capsys, router, "cancel", "999999")
    assert "no GPU 7; they are numbered from 0 to 1" in refused(capsys, router, "gpu", "out", "7")
    assert "--all" in refused(capsys, router, "unload")
    assert main(["status", "--url", f"127.0.0.1:{free_port()}"]) == 1
    assert "is `llama-router serve` running?" in capsys.readouterr().err


def test_a_wrong_command_line_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["gpu", "sideways", "1"], ["nonsense"], ["load"], []):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_status_can_be_watched_until_it_is_interrupted(router: RouterProcess, tmp_path: Path) -> None:
    """It is shown again and again; Ctrl-C ends it without a traceback."""
    command = [sys.executable, "-m", "router.cli", "status", "--watch", "--url", router.base_url]
    with subprocess.Popen(
        mortal(command), env=router.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        shown = b""
        until = time.monotonic() + 20
        while shown.count(b"llama-router 0.") < 2 and time.monotonic() < until:
            if select.select([watching.stdout], [], [], 1)[0]:
                shown += os.read(watching.stdout.fileno(), 65536)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 130
        assert watching.stderr.read() == b""
    assert shown.count(b"MODEL") >= 2


def test_without_an_address_it_is_the_configured_router_that_is_asked(
    capsys: pytest.CaptureFixture[str], router: RouterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the port in config.json; a key may have any letters."""
    monkeypatch.delenv("LLAMA_ROUTER_URL", raising=False)
    monkeypatch.setenv("ROUTER_CONFIG_PATH", router.env["ROUTER_CONFIG_PATH"])
    monkeypatch.setenv("LLAMA_ROUTER_API_KEY", "schlüssel")
    assert main(["status"]) == 0
    assert f" at {router.base_url}," in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words", "said"),
    [
        (b'404 Not Found\r\n\r\n{"error": "model is required"}', ["load", "a"], "answered 404; is that llama-router?"),
        (b"200 OK\r\n\r\n[]", ["status"], "it is not llama-router that answers"),
        (b"200 OK\r\n\r\n<html>", ["models"], "something that is not JSON"),
    ],
)
def test_whoever_else_answers_is_told_from_a_router(
    capsys: pytest.CaptureFixture[str], answer: bytes, words: list[str], said: str
) -> None:
    """Ollama, say, whose port is the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.0 " + answer)

        serving = threading.Thread(target=serve)
        serving.start()
        assert main([*words, "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        serving.join()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:port"])
def test_what_is_no_address_is_told(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["status", "--url", url]) == 1
    assert "is no address" in capsys.readouterr().err


def test_whoever_waits_for_a_load_at_a_terminal_sees_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one line, which is gone at the end; a failure is told as ever."""
    monkeypatch.setattr(admin_commands, "LOOK_S", 0.01)
    gate = tmp_path / "gate"
    models = [Model("slow", load_gate=str(gate)), Model("broken", gpus=(1,), fail="missing")]
    with RouterProcess(tmp_path, models) as router:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        shown: list[str] = []
        how_far = admin_commands._how_far

        def look(args: argparse.Namespace) -> str:
            shown.append(how_far(args))
            if len(set(shown)) > 1 or len(shown) > 200:
                gate.touch()
            return shown[-1]

        monkeypatch.setattr(admin_commands, "_how_far", look)
        assert told(capsys, router, "load", "slow", "--wait") == "slow is loaded\n"
        assert {"starting", "weights"} & {text.split()[0] for text in shown}
        said = refused(capsys, router, "load", "broken", "--wait")
        assert said.startswith("\r\x1b[K")
        assert "is missing" in said
