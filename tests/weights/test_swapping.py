"""Many requests for more models than fit: every one is answered, and the log accounts for all of it."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.replayed import replayed
from tests.standin.client import Call
from tests.standin.fixtures import Event
from tests.weights.conftest import Weights
from tests.weights.rig import DEADLINE_S, Stream, recorded, wait_for

pytestmark = [pytest.mark.weights, pytest.mark.slow]

MODELS = ["a", "b", "c"]
SEED = 20


def test_100_requests_over_three_swapping_models_all_succeed(weights: Weights, tmp_path: Path) -> None:
    """One GPU that holds one of three models; 100 requests at once, in runs of a few for the same model.

    With a grace of 0 each run is a swap. Half of them stream.
    """
    draw = random.Random(SEED)
    order: list[str] = []
    while len(order) < 100:
        others = [model for model in MODELS if model != order[-1]] if order else MODELS
        order += [draw.choice(others)] * draw.randint(3, 7)
    del order[100:]
    with recorded(tmp_path, dict.fromkeys(MODELS, weights("tiny")), parallel=4, QUEUE_HEAD_GRACE=0) as router:
        calls = [
            router.chat(model, stream=bool(place % 2), max_tokens=24, ignore_eos=True)
            for place, model in enumerate(order)
        ]
        for call in calls:
            call.sock.settimeout(DEADLINE_S)
        assert Counter(call.status for call in calls) == {200: 100}
        for place, call in enumerate(calls):
            if place % 2:
                frames, proper = call.frames_to_the_end()
                assert proper
                assert frames[-1] == "data: [DONE]"
            else:
                assert call.json()["usage"]["completion_tokens"] == 24
    finished = router.events("RequestFinished")
    assert len(finished) == 100
    assert {(event.get("status", 200), event["completion_tokens"]) for event in finished} == {(200, 24)}
    loads = [event["model"] for event in router.events("ReplicaSpawnOrdered")]
    assert set(loads) == set(MODELS)
    assert len(loads) >= len(MODELS) + 3, "nothing was swapped out and in again"
    assert one_at_a_time(router.events())


def one_at_a_time(events: list[Event]) -> bool:
    """Whether no process was spawned before the one before it was gone: one model fits on the GPU."""
    alive: set[str] = set()
    for event in events:
        if event["type"] == "ReplicaSpawned":
            alive.add(event["replica"])
        elif event["type"] in ("ReplicaStopped", "ReplicaCrashed", "ReplicaLoadFailed"):
            alive.discard(event["replica"])
        if len(alive) > 1:
            return False
    return True


def test_checkpoints_of_a_live_run_are_the_replayed_states(weights: Weights, tmp_path: Path) -> None:
    """The log rolls while hundreds wait behind a long answer. The new segment opens with the state that the router had;
    replaying the facts from the beginning gives the same, to the byte. Then all who wait leave, but for one.
    """
    turns = [{"role": "user", "content": "and then?"}] * 64
    with recorded(tmp_path, dict.fromkeys("ab", weights("tiny")), context=16384, EVENT_LOG_SEGMENT_MIB=1) as router:
        busy = [Stream(router, "a", "hello", tokens=8000) for _ in range(2)]
        for stream in busy:
            stream.wait_for_tokens(1)
        waiting: list[Call] = []
        while len(list(router.log_dir.glob("events-*"))) < 2:
            assert len(waiting) < 2000, "so many arrivals fit into no segment"
            waiting += [router.chat("b", messages=turns, max_tokens=4, ignore_eos=True) for _ in range(200)]
            wait_for(router, "RequestArrived", 2 + len(waiting))
        last = waiting.pop()
        for call in waiting:
            call.close()
        wait_for(router, "RequestCancelled", len(waiting))
        for stream in busy:
            stream.leave()
        assert last.json()["usage"]["completion_tokens"] == 4
    replay = replayed(router.log_dir)
    assert replay.checkpoints == 1
    assert len(router.events("RequestArrived")) == 2 + len(waiting) + 1


def test_a_run_after_a_crash_of_the_router_replays_with_the_one_before(weights: Weights, tmp_path: Path) -> None:
    """kill -9 in the middle of a swap and of an answer; the next run ends what is left, serves, and the log of both
    follows from its facts.
    """
    with recorded(tmp_path, dict.fromkeys(MODELS, weights("tiny"))) as router:
        lost: list[Any] = [router.chat("a", max_tokens=8000, ignore_eos=True, stream=True)]
        next(lost[0].frames())
        lost += [router.chat("b", stream=True), router.chat("c", stream=True)]
        router.wait_event("RequestArrived", lambda event: event["model"] == "c", DEADLINE_S)
        router.kill()
        router.start(DEADLINE_S)
        for model in MODELS:
            assert router.chat(model, max_tokens=8, ignore_eos=True).json()["usage"]["completion_tokens"] == 8
    assert replayed(router.log_dir).runs == 2
    assert {event["rid"] for event in router.events("RequestLost")} == {1, 2, 3}
