"""Real weights answer, and what they say makes sense: the whole way, from a client to a model and back."""

from pathlib import Path

import pytest

from tests.weights.conftest import Weights
from tests.weights.rig import Stream, recorded

pytestmark = pytest.mark.weights

QUESTION = "What is the capital of France? Answer in one sentence."


def test_the_model_knows_the_capital_of_france(weights: Weights, tmp_path: Path) -> None:
    """At temperature 0, whole and streamed: the same sentence, and it names Paris."""
    with recorded(tmp_path, {"smol": weights("smollm2")}) as router:
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
        whole = router.call("POST", "/v1/chat/completions", {"model": "smol", **body}).json()
        said = whole["choices"][0]["message"]["content"]
        assert "Paris" in said
        stream = Stream(router, "smol", QUESTION, tokens=16, ignore_eos=False).wait_for_end()
        assert stream.text == said
