"""A server that dies while it answers: its client is told, its neighbours are not harmed, and nobody is fooled."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.client import CutShort
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess

LAST_EVENTS = ("[DONE]", "message_stop", "response.completed", '"stop": true', "transcript.text.done")


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """A router that forgets crashes quickly, so that each test meets a model in good standing."""
    settings = {"COOLDOWN_FIRST": 0.05, "COOLDOWN_MAX": 0.05, "CRASH_WINDOW": 0.05}
    with routed(tmp_path_factory.mktemp("death"), [Model("a")], **settings) as router:
        yield router


def until_served(router: RouterProcess) -> None:
    """The model answers again."""
    for _ in range(50):
        if router.chat("a").status == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the model does not come back")


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGKILL", "exit:1", "fin", "rst"])
@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_whose_server_is_lost_ends_with_an_error_and_not_as_success(
    router: RouterProcess, path: str, how: str
) -> None:
    """Three tokens, then the process or only the connection is gone.

    The client gets the three, an error event in its dialect, and an end of the connection that no client takes for a
    complete answer: no last event, no [DONE], no proper end of the body.
    """
    until_served(router)
    fault = {"close_at_chunk": 4, "close": how} if how in ("fin", "rst") else {"die_at_chunk": 4, "die": how}
    seen, proper = router.post(path, "a", stream=True, standin=fault).frames_to_the_end()
    assert sum("w3 " in frame for frame in seen) == 1
    assert not proper
    assert not any(last in frame for frame in seen for last in LAST_EVENTS)
    error = json.loads(seen[-1].partition("data: ")[2])
    assert "error" in error or error.get("type") == "error"
    assert seen[-1].startswith("event: error") == ("messages" in path or "responses" in path)
    assert "upstream_crashed" in seen[-1]


@pytest.mark.parametrize(
    ("path", "streaming"), [(p, True) for p in ROUTES] + [(p, False) for p in ROUTES + WHOLE_ROUTES]
)
def test_a_request_that_had_not_begun_is_sent_again(router: RouterProcess, path: str, streaming: bool) -> None:
    """The server dies before the first byte: the router asks a new one, and the client sees an ordinary answer."""
    until_served(router)
    processes, requeued = len(processes_of(router, "a")), len(router.events("RequestRequeued"))
    call = router.post(path, "a", stream=streaming, standin={"die_once": f"{path} {streaming}"})
    assert call.status == 200
    assert call.read()
    assert len(processes_of(router, "a")) == processes + 1
    assert len(router.events("RequestRequeued")) == requeued + 1


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_that_stops_in_order_but_in_the_middle_is_no_success(router: RouterProcess, path: str) -> None:
    """A server that is told to stop ends its streams with a proper end of the body, and without their last event."""
    until_served(router)
    call = router.post(path, "a", stream=True, standin={"close_at_chunk": 4, "close": "clean"})
    seen, proper = call.frames_to_the_end()
    assert sum("w3 " in frame for frame in seen) == 1
    assert not proper
    assert "upstream_crashed" in seen[-1]


@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_half_of_an_answer_is_no_success(router: RouterProcess, path: str) -> None:
    """The head promises 4000 bytes and 2000 come: the client must notice, whatever was passed on already."""
    until_served(router)
    call = router.post(path, "a", standin={"close_at_chunk": 1, "close": "half"})
    with pytest.raises(CutShort):
        call.read()


@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_an_answer_in_one_piece_that_is_cut_is_an_error(router: RouterProcess, path: str) -> None:
    """Both tries are cut: 502 with a code, in the dialect of the API; never 200 with half a body."""
    until_served(router)
    call = router.post(path, "a", standin={"close_at_chunk": 1})
    assert call.status == 502
    body = call.json()
    assert body["error"]["code"] == "upstream_crashed"
    assert ("type" in body) == ("messages" in path)


@pytest.mark.parametrize("status", [400, 500, 503])
@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_an_error_of_the_server_reaches_the_client_as_it_is(router: RouterProcess, path: str, status: int) -> None:
    """Status and words are llama-server's own; the router neither hides nor retries an answer."""
    until_served(router)
    before = len(router.ledger.events("request_start"))
    call = router.post(path, "a", stream=True, standin={"status": status, "error": "too long by 7 tokens"})
    assert call.status == status
    assert call.json()["error"]["message"] == "too long by 7 tokens"
    assert len(router.ledger.events("request_start")) == before + 1


def test_a_poisoned_request_fails_alone(tmp_path: Path) -> None:
    """One body kills every process that reads it: two tries, then it fails with the reason.

    Its neighbours, in flight on the same process when it died, are answered; processes do not respawn in a loop.
    """
    model = Model("a", slots=4, die_on="POISON", first_byte_s=0.3)
    with routed(tmp_path, [model], COOLDOWN_FIRST=0.3, CRASH_WINDOW=60) as router:
        assert router.chat("a").status == 200
        neighbours = [router.chat("a", standin={"tag": "good"}) for _ in range(2)]
        router.ledger.wait_for_count(2, "slot_taken", tag="good")
        poison = router.chat("a", note="POISON")
        later = router.chat("a")
        assert poison.status == 502
        error = poison.json()["error"]
        assert error["code"] == "upstream_crashed"
        deaths = [line for line in router.ledger.events("exit") if line["how"] == "SIGSEGV"]
        assert len(deaths) <= 2
        assert [call.status for call in [*neighbours, later]] == [200] * 3
        until_served(router)
        assert router.events("RequestFailed")[0]["suspect"] is True
        assert len(processes_of(router, "a")) <= 4


def test_a_crash_loop_backs_off(tmp_path: Path) -> None:
    """A model that dies of every request: after two crashes it is left alone for a while, and clients are told."""
    with routed(tmp_path, [Model("a", die_on="hello"), Model("b", gpus=[1])], NUM_GPUS=2, COOLDOWN_FIRST=30) as router:
        assert router.chat("a").status == 502
        for _ in range(5):
            call = router.chat("a")
            assert call.status in (502, 503)
            assert 0 < int(call.header("retry-after")) <= 30
            assert "crashed twice" in call.json()["error"]["message"]
        assert len(processes_of(router, "a")) <= 3
        assert router.chat("b").status == 200
