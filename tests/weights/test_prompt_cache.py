"""Prompts whose beginning a replica has processed before are not processed again; an eviction ends that.

The cache is llama.cpp's. The router's part is to leave requests as they are, to send a conversation back to where it
was, and to say in the log how much was reused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.weights.conftest import Weights
from tests.weights.profile import Profile
from tests.weights.rig import WeightsRouter, recorded


@pytest.mark.parametrize("asked", [{}, {"cache_prompt": True}], ids=["unasked", "asked"])
def test_the_same_prompt_is_reused_until_its_model_is_evicted(
    asked: dict[str, Any], where: Profile, weights: Weights, tmp_path: Path
) -> None:
    """The second time nearly all of it comes from the cache, whether or not the client asks for that.

    Then another model takes the GPU: the process is gone, and with it everything that it held.
    """
    case = where.case("cache")
    zero, one = where.models(weights)
    with recorded(tmp_path, {"0": zero, "1": one}, parallel=1, context=case.context, where=where) as router:

        def reused(model: str, **more: Any) -> int:
            """Tokens of the essay that this request found in the cache; what the reply says, the log says too."""
            return cached_tokens(router, model, case.prompt("Continue."), max_tokens=case.tokens, **more)

        assert reused("0", **asked) == 0
        prompt_tokens = router.wait_event("RequestFinished")["prompt_tokens"]
        assert reused("0", **asked) > 0.9 * prompt_tokens
        assert reused("0", cache_prompt=False) == 0
        assert reused("0", **asked) > 0.9 * prompt_tokens
        assert reused("1", **asked) == 0
        assert reused("0", **asked) == 0


@pytest.mark.weights
def test_a_round_of_more_conversations_than_fit_reuses_nothing(weights: Weights, tmp_path: Path) -> None:
    """The host's cache holds two conversations of 2 MiB each. Three in turn always miss, and not just every third time;
    two of the same three are found every time.
    """
    prompts = [f"{letter} " * 250 for letter in "abc"]
    alike = len("<user: ")
    with recorded(
        tmp_path,
        {"0": weights("tiny")},
        sections={"0": {"cache-ram": "5"}},
        parallel=1,
    ) as router:
        three = [cached_tokens(router, "0", prompt, max_tokens=1) for prompt in prompts * 3]
        two = [cached_tokens(router, "0", prompt, max_tokens=1) for prompt in prompts[:2] * 3]
    assert max(three) <= alike
    assert min(two[2:]) >= len(prompts[0])


def cached_tokens(router: WeightsRouter, model: str, prompt: str, **body: Any) -> int:
    """How much of the prompt this request found in the cache, by llama-server's word; the log must say the same."""
    reply = router.call(
        "POST",
        "/v1/chat/completions",
        {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, **body},
    )
    number = int(reply.header("x-router-request"))
    answer = json.loads(reply.read())
    cached = int(answer["timings"]["cache_n"])
    finished = router.wait_event("RequestFinished", rid=number)
    assert finished["timing"]["cache_n"] == cached
    assert finished["cached_tokens"] == cached == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached
