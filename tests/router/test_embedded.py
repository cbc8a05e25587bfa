"""The embedded server is llama.cpp's server: real weights (tiny ones), real sockets, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.embedded_server import LISTENING, LOADING, EmbeddedServer, embedded_server
from tests.mortal import mortal
from tests.tiny_gguf import write_tiny_gguf

pytest.importorskip("xllamacpp", reason="the extra 'embedded' is not installed")
pytestmark = pytest.mark.weights

HELLO = [{"role": "user", "content": "hello"}]
END_S_MAX = 4.0
"""It takes a small part of a second, but for a machine that is busy; the long answer takes twice as long as this."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server for all tests that only ask."""
    path = tmp_path_factory.mktemp("run") / "llama.sock"
    with embedded_server(model, path, "--alias", "tiny", "-np", "2", "-c", "4096") as running:
        yield running


@pytest.fixture
def stuck_model(tmp_path: Path) -> Path:
    """A model whose load never ends: a pipe that nobody writes to."""
    pipe = tmp_path / "stuck.gguf"
    os.mkfifo(pipe)
    return pipe


def test_it_answers_that_it_loads_before_it_is_ready(stuck_model: Path, tmp_path: Path) -> None:
    """The socket listens before the model is read, as llama-server's does."""
    with embedded_server(stuck_model, tmp_path / "s.sock", ready=LOADING) as server:
        answer = server.client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["error"] == {"message": "Loading model", "type": "unavailable_error", "code": 503}


def test_ready_it_is_healthy_and_tells_what_it_is(server: EmbeddedServer) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    props = server.client.get("/props").json()
    assert (props["total_slots"], props["model_alias"]) == (2, "tiny")
    assert [slot["is_processing"] for slot in server.client.get("/slots").json()] == [False, False]
    assert server.client.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_chat_has_usage_and_timings_and_the_length_that_was_asked(server: EmbeddedServer) -> None:
    """Without ignore_eos a model ends when it likes; with it, it goes on for as long as it is told."""
    answer = server.client.post(
        "/v1/chat/completions", json={"messages": HELLO, "max_tokens": 500, "ignore_eos": True}
    ).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 500
    assert answer["timings"]["predicted_n"] == 500


def test_a_stream_has_one_event_for_each_token(server: EmbeddedServer) -> None:
    body = {"messages": HELLO, "max_tokens": 64, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    said = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert len([text for text in said if text]) == 64
    assert chunks[-1]["timings"]["predicted_n"] == 64


def test_the_web_ui_is_served(server: EmbeddedServer) -> None:
    page = server.client.get("/", headers={"accept-encoding": "gzip"})
    assert page.status_code == 200
    assert page.headers["content-encoding"] == "gzip"
    assert "<html" in page.text


def test_metrics_and_embeddings_are_served_only_when_asked_for(
    server: EmbeddedServer, model: Path, tmp_path: Path
) -> None:
    question = {"input": "hello"}
    assert server.client.get("/metrics").status_code == 501
    assert server.client.post("/v1/embeddings", json=question).status_code == 501
    with embedded_server(model, tmp_path / "s.sock", "--metrics", "--embeddings", "--pooling", "mean") as other:
        assert "llamacpp:prompt_tokens_total" in other.client.get("/metrics").text
        vector = other.client.post("/v1/embeddings", json=question).json()["data"][0]["embedding"]
        assert len(vector) == 256


def test_the_key_from_the_environment_guards_everything_but_health(model: Path, tmp_path: Path) -> None:
    with embedded_server(model, tmp_path / "s.sock", env={"LLAMA_API_KEY": "secret"}) as server:
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/props").status_code == 401
        assert server.client.get("/props", headers={"authorization": "Bearer secret"}).status_code == 200


def test_it_listens_on_tcp_too(model: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "router.embedded", "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(mortal(argv), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(LISTENING in line for line in process.stderr)
            assert httpx.get(f"http://127.0.0.1:{port}/health").json() == {"status": "ok"}
        finally:
            process.kill()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("phase", ["loading", "idle", "generating"])
def test_a_signal_ends_it_cleanly_in_every_phase(
    phase: str, sent: signal.Signals, model: Path, stuck_model: Path, tmp_path: Path
) -> None:
    """Exit code 0, and soon. A load that holds the interpreter, or a long answer, does not delay it."""
    path = tmp_path / "s.sock"
    with embedded_server(
        stuck_model if phase == "loading" else model,
        path,
        "-c",
        "8192",
        ready=LOADING if phase == "loading" else LISTENING,
    ) as server:
        if phase == "generating":
            body = {"messages": HELLO, "max_tokens": 8000, "ignore_eos": True, "stream": True}
            with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.iter_raw()
                next(chunks)
                seconds = end(server, sent)
                with pytest.raises(httpx.RemoteProtocolError):
                    for _ in chunks:
                        pass
        else:
            seconds = end(server, sent)
        assert server.process.returncode == 0
        assert seconds < END_S_MAX


def end(server: EmbeddedServer, sent: signal.Signals) -> float:
    """Send the signal and return how many seconds the process took to be gone."""
    began = time.monotonic()
    server.process.send_signal(sent)
    server.process.wait(timeout=30)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        (b"", "failed to load model"),
        (b"not a model at all", "invalid magic characters"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "failed to load model"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(
    content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    """Missing, empty, foreign and damaged files: exit code 1, the reason and the file on stderr, soon."""
    broken = tmp_path / "broken.gguf"
    if content is not None:
        broken.write_bytes(content)
    refused = fails_to_start(broken, tmp_path / "s.sock")
    assert complaint in refused
    assert str(broken) in refused


def test_a_truncated_model_ends_it_with_the_reason(model: Path, tmp_path: Path) -> None:
    """The header is whole, the weights are not: a download that was cut."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-1_000_000])
    refused = fails_to_start(cut, tmp_path / "s.sock")
    assert "failed to load model" in refused
    assert str(cut) in refused


def test_a_socket_file_that_exists_is_never_taken_over(model: Path, tmp_path: Path) -> None:
    """llama-server fails the same way; that is why the router uses a fresh path for each replica."""
    path = tmp_path / "s.sock"
    path.touch()
    assert "couldn't bind HTTP server socket" in fails_to_start(model, path)


def fails_to_start(model: Path, path: Path) -> str:
    """What it says on stderr while it ends with exit code 1."""
    argv = [sys.executable, "-m", "router.embedded", "-m", str(model), "--host", str(path)]
    refused = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    return refused.stderr


def test_the_tiny_model_is_the_same_file_for_the_same_seed(model: Path, tmp_path: Path) -> None:
    assert write_tiny_gguf(tmp_path / "again.gguf").read_bytes() == model.read_bytes()
    assert write_tiny_gguf(tmp_path / "other.gguf", seed=1).read_bytes() != model.read_bytes()
