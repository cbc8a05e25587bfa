"""Real llama.cpp and a client that hangs up on an answer in one piece: nothing is written to it until its very end."""

from pathlib import Path

import pytest

from tests.real_router import RealRouter
from tests.standin.client import Call
from tests.weights.conftest import Weights

pytestmark = pytest.mark.weights


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_llama_cpp_gives_up_an_answer_in_one_piece(weights: Weights, tmp_path: Path, path: str) -> None:
    """It looks for its client only after a second in which it has heard nothing, of any request: the router must not
    keep it from that by asking what its slots do."""
    prompt = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    long = {"model": "m", **prompt, "max_tokens": 3000, "ignore_eos": True}
    with RealRouter(tmp_path, weights("smollm2"), {"m": {}}, parallel=1) as router:
        assert router.call("POST", path, {**long, "max_tokens": 1}).status == 200
        call = Call(router.address, "POST", path, long)
        router.wait_event("RequestSent", rid=2)
        call.close()
        cancelled = router.wait_event("RequestCancelled", rid=2)
        assert router.call("POST", path, {**long, "max_tokens": 1}).status == 200
        released = router.wait_event("SlotReleased", rid=2)
        assert released["at_us"] - cancelled["at_us"] < 6_000_000, "3,000 tokens take longer than that"
