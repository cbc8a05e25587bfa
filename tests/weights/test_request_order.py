"""The order of arrival is the order of the answers, swaps or not, as long as nobody is given any grace."""

from pathlib import Path

import pytest

from tests.weights.conftest import Weights
from tests.weights.profile import Profile
from tests.weights.rig import Stream, recorded, wait_for

OUT_OF_REACH_S = 1_000_000


def test_requests_for_0_1_0_are_answered_in_that_order(where: Profile, weights: Weights, tmp_path: Path) -> None:
    """Model 0 makes a long answer; a request for model 1 arrives, then another for model 0.

    A slot of model 0 is free all the while, and still the third may not pass the second, which waits for a swap. The
    grace is 0 and the forced load is out of reach: this can only come from the order, not from a timer.
    """
    case = where.case("order")
    streams = []
    with recorded(
        tmp_path,
        dict(zip(("0", "1"), where.models(weights), strict=True)),
        context=case.context,
        where=where,
        QUEUE_HEAD_GRACE=0,
        QUEUE_FORCE_LOAD_TIMEOUT=OUT_OF_REACH_S,
    ) as router:
        streams.append(Stream(router, "0", case.prompt("Continue at length."), tokens=case.long_tokens))
        streams[0].wait_for_tokens(1, where.deadline_s)
        for place, model in enumerate("10", 2):
            closing = f"Continue with a sentence ({place})."
            streams.append(Stream(router, model, case.prompt(closing), tokens=case.short_tokens))
            wait_for(router, "RequestArrived", place, case.gap_s)
        for stream in streams:
            stream.wait_for_end(where.deadline_s)
    assert [event["rid"] for event in router.events("RequestFinished")] == [1, 2, 3]
    assert [event["model"] for event in router.events("ReplicaSpawnOrdered")] == ["0", "1", "0"]
    assert not router.events("TimerFired")
    first, second, third = streams
    assert first.token_at[-1] <= second.token_at[0]
    assert second.token_at[-1] <= third.token_at[0]
    assert all(len(stream.token_at) > 1 for stream in streams)
    arrived = [event["arrived_us"] for event in router.events("RequestArrived")]
    assert arrived[2] - arrived[1] >= case.gap_s * 1e6


@pytest.mark.weights
def test_with_a_grace_the_third_passes_the_second(weights: Weights, tmp_path: Path) -> None:
    """The same arrivals with a grace that never ends: what the order above is made of, is the grace of 0."""
    with recorded(
        tmp_path,
        dict.fromkeys(("0", "1"), weights("tiny")),
        QUEUE_HEAD_GRACE=OUT_OF_REACH_S,
        QUEUE_FORCE_LOAD_TIMEOUT=OUT_OF_REACH_S,
    ) as router:
        first = Stream(router, "0", "hello", tokens=1500)
        first.wait_for_tokens(1)
        second = Stream(router, "1", "hello", tokens=8)
        wait_for(router, "RequestArrived", 2)
        third = Stream(router, "0", "hello", tokens=8)
        for stream in (first, second, third):
            stream.wait_for_end()
    assert [event["rid"] for event in router.events("RequestFinished")] == [3, 1, 2]
    assert [event["model"] for event in router.events("ReplicaSpawnOrdered")] == ["0", "1"]
