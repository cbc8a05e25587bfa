"""The end of a router: the first signal lets everybody finish, the second one nobody, and the log knows of all."""

import signal
import time
from pathlib import Path

import pytest

from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls


def until_not_ready(router: RouterProcess) -> None:
    for _ in polls(5, every_s=0.02):
        call = router.call("GET", "/ready")
        if call.status == 503:
            assert call.json()["error"]["code"] == "shutting_down"
            assert int(call.header("retry-after")) > 0
            return
    raise AssertionError("/ready stayed green")


def test_a_stop_lets_streams_end_and_serves_the_queue(tmp_path: Path) -> None:
    """Three streams and four queued requests, two of them for a model that must be loaded: all are answered.

    Whoever comes after the signal is told that the router stops; the exit code is 0 and no process is left.
    """
    models = [Model("a", tokens=20, gap_s=0.05, slots=3), Model("b", tokens=2)]
    with routed(tmp_path, models, SHUTDOWN_TIMEOUT=20) as router:
        streams = [router.chat("a", stream=True) for _ in range(3)]
        for stream in streams:
            next(stream.chunks())
        queued = [router.chat(name, standin={"tokens": 2}) for name in "aabb"]
        for _ in polls(5, every_s=0.02):
            if len(router.status()["queue"]) == 4:
                break
        assert router.process
        router.process.send_signal(signal.SIGTERM)
        until_not_ready(router)
        late = router.chat("a")
        assert (late.status, late.json()["error"]["code"]) == (503, "shutting_down")
        assert int(late.header("retry-after")) > 0
        for stream in streams:
            frames, complete = stream.frames_to_the_end()
            assert complete
            assert frames[-1] == "data: [DONE]"
        assert [call.status for call in queued] == [200] * 4
        assert router.process.wait(10) == 0
        assert router.children() == []
        assert router.events()[-1]["type"] == "RouterStopped"


def test_a_second_signal_waits_for_nobody(tmp_path: Path) -> None:
    """Running streams are cut with an error and no end, queued requests get a clear one; seconds later all is over."""
    with routed(tmp_path, [Model("a", tokens=10_000, gap_s=0.05), Model("b")], SHUTDOWN_TIMEOUT=60) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        queued = router.chat("b")
        for _ in polls(5, every_s=0.02):
            if router.status()["queue"]:
                break
        assert router.process
        router.process.send_signal(signal.SIGTERM)
        until_not_ready(router)
        begun = time.monotonic()
        router.process.send_signal(signal.SIGINT)
        frames, complete = stream.frames_to_the_end()
        assert not complete
        assert "data: [DONE]" not in frames
        assert (queued.status, queued.json()["error"]["code"]) == (503, "shutting_down")
        assert router.process.wait(10) == 0
        assert time.monotonic() - begun < 30
        assert router.children() == []


def test_a_second_signal_does_not_wait_for_a_child_that_does_not_end(tmp_path: Path) -> None:
    """A llama-server that has a minute to end, and ignores SIGTERM, is killed; also when the first signal's patience
    is over and only its end is waited for."""
    stubborn = Model("a", tokens=10_000, gap_s=0.05, ignore_term=True)
    with routed(tmp_path, [stubborn], SHUTDOWN_TIMEOUT=0.1, GRACEFUL_KILL_TIMEOUT=60) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        assert router.process
        router.process.send_signal(signal.SIGTERM)
        router.wait_event("ReplicaStopOrdered")
        begun = time.monotonic()
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(20) == 0
        assert time.monotonic() - begun < 15
        assert router.children() == []


@pytest.mark.parametrize("signals", [1, 2])
def test_a_client_that_never_reads_does_not_hold_up_the_end(tmp_path: Path, signals: int) -> None:
    """Its megabytes wait in the router; whether it is told to stop once or twice, it does not wait for that client."""
    flood = Model("a", tokens=1_000_000, gap_s=0.0, slots=2)
    with routed(tmp_path, [flood], SHUTDOWN_TIMEOUT=1 if signals == 1 else 60) as router:
        deaf = router.chat("a", stream=True)
        assert deaf.status == 200
        assert router.process
        router.wait_event("FirstByte")
        router.process.send_signal(signal.SIGTERM)
        until_not_ready(router)
        begun = time.monotonic()
        if signals == 2:
            router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(20) == 0
        assert time.monotonic() - begun < (12 if signals == 1 else 6)
        assert router.children() == []
        deaf.close()


def test_a_stop_does_not_wait_for_a_load_that_nobody_s_request_wants(tmp_path: Path) -> None:
    """An operator waits for a load of a minute, another model was to be loaded at the start: the router ends at once.

    Who waits is told why. A load that a request waits for as well is finished, and the request is served.
    """
    models = [
        Model("a", load_s=60),
        Model("b", gpus=[1], load_s=60, preset={"load-on-startup": "true"}),
        Model("c", gpus=[2], load_s=1, tokens=2),
    ]
    with routed(tmp_path, models, NUM_GPUS=3, SHUTDOWN_TIMEOUT=50, GRACEFUL_KILL_TIMEOUT=0.3) as router:
        asked = router.call("POST", "/models/load", {"model": "a", "wait": True})
        router.call("POST", "/models/load", {"model": "c"})
        client = router.chat("c")
        for model in "abc":
            router.wait_event("ReplicaSpawned", lambda event, model=model: event["replica"].startswith(model))
        router.wait_event("RequestArrived")
        begun = time.monotonic()
        assert router.process
        router.process.send_signal(signal.SIGTERM)
        assert client.status == 200
        assert (asked.status, asked.json()["error"]["code"]) == (503, "shutting_down")
        assert router.process.wait(20) == 0
        assert time.monotonic() - begun < 20
        assert router.children() == []
        assert {event["outcome"] for event in router.events("AdminDone")} == {"cancelled", "done"}


def test_queued_requests_get_a_clear_error_when_time_is_up(tmp_path: Path) -> None:
    """A stream outlasts the deadline, so what waits behind it cannot be served: both are told, and the log knows."""
    with routed(tmp_path, [Model("a", tokens=10_000, gap_s=0.05)], SHUTDOWN_TIMEOUT=1) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        queued = [router.chat("a"), router.chat("a", stream=True)]
        for _ in polls(5, every_s=0.02):
            if len(router.status()["queue"]) == 2:
                break
        assert router.process
        router.process.send_signal(signal.SIGTERM)
        frames, complete = stream.frames_to_the_end()
        assert not complete
        assert "error" in frames[-1]
        for call in queued:
            assert (call.status, call.json()["error"]["code"]) == (503, "shutting_down")
        assert router.process.wait(10) == 0
        assert router.children() == []
        assert router.events()[-1]["type"] == "RouterStopped"


def test_administrative_calls_of_a_killed_router_have_their_end_too(tmp_path: Path) -> None:
    """A load that a kill -9 has cut is said to be cancelled by the next run, once; nothing waits for it for ever."""
    with routed(tmp_path, [Model("a", load_s=60)], SHUTDOWN_TIMEOUT=1, GRACEFUL_KILL_TIMEOUT=0.3) as router:
        assert router.call("POST", "/models/load", {"model": "a"}).status == 200
        wish = router.wait_event("LoadWished")
        router.kill()
        router.start()
        done = router.wait_event("AdminDone", op=wish["op"])
        assert (done["outcome"], done["run"]) == ("cancelled", 2)
        assert len(router.events("AdminDone", op=wish["op"])) == 1
