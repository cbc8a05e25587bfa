"""`POST /translate`: what the replica is sent, what comes back, and that it is a request like any other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.client import CutShort
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

ASKED = {"model": "a", "source": "English", "target": "German", "text": "Good morning.\nHow are you?"}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    thinks = {"reasoning_effort": {"options": ["none", "high"], "default": "high", "disable": "none"}}
    models = [Model("a", tokens=5), Model("b", tokens=300, gap_s=0.02), Model("c", tokens=2, entry=thinks)]
    with RouterProcess(tmp_path_factory.mktemp("translate"), models, MAX_MODELS_PER_GPU=3) as running:
        yield running


def test_the_text_comes_back_alone(router: RouterProcess) -> None:
    answer = router.call("POST", "/translate", ASKED)
    told = answer.json()
    assert answer.status == 200
    assert told["text"] == "w1 w2 w3 w4 w5"
    assert (told["model"], told["finish_reason"]) == ("a", "stop")
    assert told["usage"]["completion_tokens"] == 5
    arrived = router.events("RequestArrived")[-1]
    assert (arrived["model"], arrived["route"], arrived["messages"]) == ("a", "/chat/completions", 2)
    assert answer.header("x-router-request") == str(arrived["rid"])


def test_a_stream_is_that_of_a_chat_completion(router: RouterProcess) -> None:
    answer = router.call("POST", "/translate", {**ASKED, "stream": True})
    frames, whole = answer.frames_to_the_end()
    assert whole
    assert answer.header("content-type").startswith("text/event-stream")
    assert frames[-1] == "data: [DONE]"
    assert len([frame for frame in frames if '"content"' in frame]) >= 5


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"target": "German"}, 400, "'text': Field required"),
        ({"text": "x"}, 400, "'target': Field required"),
        ({"text": "", "target": "German"}, 400, "'text': String should have at least 1 character"),
        ({"text": "x", "target": "y" * 201}, 400, "'target': String should have at most 200 characters"),
        ({"text": "x", "target": "German", "model": "aa"}, 404, "'aa'"),
        ({"text": "x", "target": "German"}, 400, "model"),
        (b"{", 400, "the body is not JSON: Expecting property name enclosed in double quotes"),
        ({"text": "x" * (5 << 20), "target": "German"}, 413, "takes a body of at most"),
    ],
)
def test_a_mistake_is_named(router: RouterProcess, body: Any, status: int, told: str) -> None:
    answer = router.call("POST", "/translate", body)
    assert answer.status == status
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_the_slot(router: RouterProcess, stream: bool) -> None:
    call = router.call("POST", "/translate", {**ASKED, "model": "b", "stream": stream})
    rid = max(event["rid"] for event in wait_running(router, "b"))
    call.close()
    assert router.wait_event("RequestCancelled", rid=rid).get("by", "client") == "client"


def wait_running(router: RouterProcess, model: str) -> list[Any]:
    for _ in polls(10):
        found = [each for each in router.status()["in_flight"] if each["model"] == model]
        if found:
            return found
    raise AssertionError("it never ran")


def test_an_error_of_the_replica_is_its_own_and_a_broken_answer_is_no_translation(tmp_path: Path) -> None:
    models = [Model("full", status=400), Model("dies", tokens=50, close_at_chunk=3, chunk_bytes=1)]
    with RouterProcess(tmp_path, models, MAX_MODELS_PER_GPU=2, CRASH_RETRIES=0) as router:
        answer = router.call("POST", "/translate", {**ASKED, "model": "full"})
        assert answer.status == 400
        assert "error" in answer.json()
        cut = router.call("POST", "/translate", {**ASKED, "model": "dies", "stream": True})
        frames: list[str] = []
        with pytest.raises(CutShort):
            frames += cut.frames()
        assert all("[DONE]" not in frame for frame in frames)
