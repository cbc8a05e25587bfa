"""A router with real weights for all tests of a client, and one on stand-ins for what real weights will not do."""

import sys
from collections.abc import Iterator

import pytest

from router.weights import demo_weights
from tests.standin.fixtures import Model, RouterProcess
from tests.tiny_gguf import write_tiny_gguf
from tests.weights.rig import recorded

SMOL = "smol"
ALIAS = "gpt-4o-mini"
EMBEDDER = "embedder"


@pytest.fixture(scope="session")
def weights_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """SmolLM2, also under a name that clients are shipped with, and a tiny model that embeds. Both stay loaded."""
    pytest.importorskip("xllamacpp", reason="the extra 'embedded' is not installed")
    folder = tmp_path_factory.mktemp("clients")
    with recorded(
        folder,
        {SMOL: demo_weights(), EMBEDDER: write_tiny_gguf(folder / "tiny.gguf")},
        entries={SMOL: {"gpus": [0], "aliases": [ALIAS]}, EMBEDDER: {"gpus": [1]}},
        sections={EMBEDDER: {"embeddings": "true", "pooling": "mean"}},
        NUM_GPUS=2,
    ) as router:
        yield router


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Model "a" answers every chat with a call of the first tool."""
    folder = tmp_path_factory.mktemp("calling")
    with RouterProcess(
        folder, [Model("a", tokens=3)], binary=[sys.executable, "-m", "tests.clients.tool_caller"]
    ) as router:
        yield router
