"""Filters in front of real llama.cpp: what is set counts for it, and changes by a reload without a new process."""

from pathlib import Path

import pytest

from tests.real_router import RealRouter
from tests.weights.conftest import Weights

pytestmark = pytest.mark.weights


def test_parameters_that_are_set_count_for_llama_cpp_and_change_with_a_reload(weights: Weights, tmp_path: Path) -> None:
    """The client asks for 50 tokens and gets as many as the owner sets; a variant of the name has its own."""
    filters = {"setParams": {"max_tokens": 5, "ignore_eos": True}, "setParamsByID": {"m:long": {"max_tokens": 9}}}
    with RealRouter(tmp_path, weights("tiny"), {"m": {"filters": filters}}) as router:

        def tokens(name: str) -> int:
            call = router.call("POST", "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 50})
            assert call.status == 200
            return int(call.json()["usage"]["completion_tokens"])

        assert (tokens("m"), tokens("m:long")) == (5, 9)
        filters["setParams"]["max_tokens"] = 7
        router.configure()
        assert router.call("POST", "/router/reload").json()["changed"] == ["m"]
        assert tokens("m") == 7
        assert len(router.events("ReplicaSpawned")) == 1
