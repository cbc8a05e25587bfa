"""On real llama.cpp: conversations of several slots survive a swap, and their answers are what they would have been."""

from pathlib import Path
from typing import Any

import pytest

from tests.real_router import RealRouter
from tests.tiny_gguf import write_tiny_gguf

KEEP = {"promptCache": {"keepAcrossSwaps": True, "keepMinTokens": 300}}
MODELS: dict[str, dict[str, Any]] = {"a": {"gpus": [0]}, "b": {"gpus": [0]}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "tiny.gguf")


def router_of(folder: Path, weights: Path, **settings: Any) -> RealRouter:
    folder.mkdir()
    keep = {"promptCache": {**KEEP["promptCache"], "keepDirectory": str(folder / "caches")}}
    return RealRouter(folder, weights, MODELS, {"DASHBOARD": False, **settings}, context=8192, top=keep)


class Conversation:
    """Some hundred tokens of text to begin with (a token is a byte), and the answers so far."""

    def __init__(self, name: str) -> None:
        words = " ".join(f"{name} {number} " for number in range(110))
        self.messages = [{"role": "user", "content": words}]

    def ask(self, router: RealRouter) -> dict[str, Any]:
        answer = router.chat("a", messages=self.messages, max_tokens=40, temperature=0, ignore_eos=True).json()
        self.messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
        timings: dict[str, Any] = answer["timings"]
        return timings


def test_two_conversations_come_back_with_what_they_left_and_answer_the_same(tmp_path: Path, weights: Path) -> None:
    """A serves both, B takes the GPU, A comes back; next to it a router in which A never leaves."""
    with (
        router_of(tmp_path / "swaps", weights) as swaps,
        router_of(tmp_path / "stays", weights, MAX_MODELS_PER_GPU=2) as stays,
    ):
        here, there = [Conversation("one"), Conversation("two")], [Conversation("one"), Conversation("two")]
        for mine, other in zip(here, there, strict=True):
            assert mine.ask(swaps)["cache_n"] < 100
            other.ask(stays)
        assert swaps.chat("b", max_tokens=2).status == 200
        for mine, other in zip(here, there, strict=True):
            held = len(mine.messages[0]["content"])
            timings = mine.ask(swaps)
            assert timings["cache_n"] > held
            assert timings["prompt_n"] < 100
            other.ask(stays)
        assert [mine.messages for mine in here] == [other.messages for other in there]
        assert swaps.status()["prompt_caches"]["hits"] == 2
        restored = swaps.events("CacheRestored")
    assert sorted(event["slot"] for event in restored) == [0, 1]
    assert not list((tmp_path / "swaps" / "caches").glob("*/*"))
