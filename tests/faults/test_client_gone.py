"""A client that leaves takes its work with it: in every phase, on every route, however it hangs up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import routed
from tests.standin.client import Call
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess

HANG_UPS = {"fin": Call.close, "rst": Call.reset, "half-close": Call.half_close}
MODES = [(path, True) for path in ROUTES] + [(path, False) for path in ROUTES + WHOLE_ROUTES]
NAMES = [f"{path} {'streaming' if streaming else 'whole'}" for path, streaming in MODES]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """One model with one slot: a slot that leaks is missed by the next test."""
    with routed(tmp_path_factory.mktemp("gone"), [Model("a")]) as router:
        assert router.chat("a").status == 200
        yield router


def is_freed_long_before_its_end(router: RouterProcess, tag: str) -> None:
    """The server sees the end of the connection, frees the slot, and the slot serves somebody else. The answer would
    have taken a minute or more."""
    router.ledger.wait_for("disconnect_seen", tag=tag)
    router.ledger.wait_for("slot_freed", tag=tag)
    assert router.chat("a", standin={"tokens": 1}).status == 200


@pytest.mark.parametrize("how", HANG_UPS)
@pytest.mark.parametrize(("path", "streaming"), MODES, ids=NAMES)
def test_leaving_before_the_first_byte_frees_the_slot(
    router: RouterProcess, path: str, streaming: bool, how: str
) -> None:
    """The server is still reading the prompt; nothing was sent, so nothing tells that the client is gone but TCP."""
    tag = f"prefill {path} {streaming} {how}"
    call = router.post(path, "a", stream=streaming, standin={"tag": tag, "first_byte_s": 60})
    router.ledger.wait_for("slot_taken", tag=tag)
    HANG_UPS[how](call)
    is_freed_long_before_its_end(router, tag)


@pytest.mark.parametrize("how", HANG_UPS)
@pytest.mark.parametrize("path", ROUTES)
def test_leaving_in_the_middle_of_a_stream_frees_the_slot(router: RouterProcess, path: str, how: str) -> None:
    """Three tokens were read, ten thousand are to come."""
    tag = f"stream {path} {how}"
    call = router.post(path, "a", stream=True, standin={"tag": tag, "tokens": 10_000, "gap_s": 0.02})
    chunks = call.chunks()
    for _ in range(3):
        next(chunks)
    HANG_UPS[how](call)
    is_freed_long_before_its_end(router, tag)


@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_leaving_while_an_answer_in_one_piece_is_made_frees_the_slot(router: RouterProcess, path: str) -> None:
    """Tokens are made and none is sent: the whole answer would be thrown away."""
    tag = f"whole {path}"
    call = router.post(path, "a", standin={"tag": tag, "tokens": 10_000, "gap_s": 0.02})
    router.ledger.wait_for("slot_taken", tag=tag)
    call.close()
    is_freed_long_before_its_end(router, tag)


@pytest.mark.parametrize(("path", "streaming"), MODES, ids=NAMES)
def test_leaving_the_queue_costs_nobody_anything(router: RouterProcess, path: str, streaming: bool) -> None:
    """One works, one waits behind it and leaves, a third waits behind both.

    The first delivers everything, the second never reaches the server, the third is served. A request that was
    cancelled in the queue must not harm the one that runs.
    """
    name = f"{path} {streaming}"
    gate = router.folder / name.replace("/", "-")
    running = router.chat("a", stream=True, standin={"tokens": 20, "gate": str(gate), "tag": f"first {name}"})
    router.ledger.wait_for("first_chunk", tag=f"first {name}")
    last = router.events("RequestArrived")[-1]["rid"]
    leaving = router.post(path, "a", stream=streaming, standin={"tag": f"left {name}"})
    left = router.wait_event("RequestArrived", lambda event: event["rid"] > last)["rid"]
    third = router.post(path, "a", stream=streaming, standin={"tag": f"third {name}"})
    leaving.close()
    assert router.wait_event("RequestCancelled", rid=left).get("replica", "") == ""
    gate.touch()
    assert len(list(running.chunks())) == 20
    assert third.status == 200
    assert third.read()
    assert not router.ledger.events("request_start", tag=f"left {name}")


def test_the_log_says_who_left_and_when_the_slot_was_free(tmp_path: Path) -> None:
    """Cancelled by the client, in the phase it was in; the slot is counted as free only once the server let go."""
    with routed(tmp_path, [Model("a", release_delay_s=0.3)]) as router:
        call = router.chat("a", stream=True, standin={"tokens": 10_000, "gap_s": 0.02})
        next(call.chunks())
        call.close()
        cancelled = router.wait_event("RequestCancelled")
        released = router.wait_event("SlotReleased", rid=cancelled["rid"])
        assert cancelled.get("by", "client") == "client"
        assert released["at_us"] - cancelled["at_us"] >= 200_000
        follower = router.chat("a", standin={"tokens": 1, "tag": "next"})
        assert follower.status == 200
        freed = router.ledger.events("slot_freed")[0]
        assert router.ledger.events("request_start", tag="next")[0]["mono_us"] >= freed["mono_us"]


def test_a_slot_is_not_free_while_the_server_has_yet_to_look_at_the_request(tmp_path: Path) -> None:
    """The client leaves at once, and the server is slow to take up what it was sent: no slot works, but one will."""
    with routed(tmp_path, [Model("a")]) as router:
        assert router.chat("a").status == 200
        call = router.post("/embedding", "a", standin={"tag": "unread", "take_s": 1.0, "first_byte_s": 60})
        router.wait_event("RequestSent", rid=2)
        call.close()
        follower = router.chat("a", standin={"tag": "next", "first_byte_s": 1.5})
        assert follower.status == 200
        given_up = router.ledger.wait_for("disconnect_seen", tag="unread")
        assert router.ledger.events("request_start", tag="next")[0]["mono_us"] > given_up["mono_us"]


def test_a_slot_is_not_free_because_another_request_has_yet_to_take_its_own(tmp_path: Path) -> None:
    """Two slots: one is still at the batch of a client that left, the other is promised to a request that the server
    has not looked at. One slot works and one request is alive, and yet there is no room for a third."""
    with routed(tmp_path, [Model("a", slots=2)]) as router:
        assert router.chat("a").status == 200
        leaving = router.chat("a", standin={"tag": "left", "first_byte_s": 60, "release_delay_s": 1.0})
        router.ledger.wait_for("slot_taken", tag="left")
        slow = router.chat("a", standin={"tag": "slow", "take_s": 0.5, "first_byte_s": 1.5})
        router.wait_event("RequestDispatched", lambda event: event["rid"] == 3)
        leaving.close()
        router.wait_event("RequestCancelled", rid=2)
        third = router.chat("a", standin={"tag": "third"})
        assert (slow.status, third.status) == (200, 200)
        freed = router.ledger.wait_for("slot_freed", tag="left")
        assert router.ledger.events("request_start", tag="third")[0]["mono_us"] > freed["mono_us"]
