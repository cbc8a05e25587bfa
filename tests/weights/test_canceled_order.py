"""A client that hangs up gives its slot back at once, not when the abandoned answer would have ended."""

from pathlib import Path

from tests.weights.conftest import Weights
from tests.weights.profile import Profile
from tests.weights.rig import Stream, recorded, wait_for


def test_requests_behind_a_dropped_one_finish_before_the_survivor(
    where: Profile, weights: Weights, tmp_path: Path
) -> None:
    """Both slots are taken by long answers; two trivial requests wait; one of the long ones hangs up mid-stream."""
    case = where.case("canceled")
    with recorded(
        tmp_path,
        {"0": where.models(weights)[0]},
        parallel=case.slots,
        context=case.context,
        where=where,
    ) as router:
        dropped = Stream(router, "0", case.prompt("Continue at length, gladly."), tokens=case.long_tokens)
        dropped.wait_for_tokens(1, where.deadline_s)
        survivor = Stream(router, "0", case.prompt("Continue at length, sadly."), tokens=case.long_tokens)
        survivor.wait_for_tokens(1, where.deadline_s)
        assert not dropped.is_over, "the first answer is too short for this machine: raise long_tokens"
        trivial = [Stream(router, "0", case.prompt(f"In a word ({n})."), tokens=case.short_tokens) for n in (1, 2)]
        wait_for(router, "RequestArrived", 4)
        dropped.leave()
        for stream in trivial:
            stream.wait_for_end(where.deadline_s)
        survivor.wait_for_end(where.deadline_s)
    assert [event["rid"] for event in router.events("RequestFinished")] == [3, 4, 2]
    cancelled = router.events("RequestCancelled")
    assert [(event["rid"], event.get("by", "client")) for event in cancelled] == [(1, "client")]
    released = router.events("SlotReleased", rid=1)
    assert len(released) == 1
    dispatched = {event["rid"]: event["at_us"] for event in router.events("RequestDispatched")}
    assert dispatched[3] == released[0]["at_us"]
    assert router.events("RequestFinished", rid=2)[0]["completion_tokens"] == case.long_tokens
    for stream in trivial:
        assert stream.token_at[-1] <= survivor.token_at[-1]
