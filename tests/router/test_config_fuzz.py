"""Whatever stands in the files, loading ends in a Config or in ConfigErrors that can be read."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import TOP_OBJECTS, Config
from router.model_entry import ENTRY_KEYS
from router.models import KEEP_KEYS, PROMPT_CACHE_KEYS
from router.settings import ROUTER_KEYS, TOP_KEYS
from tests.router.config_desk import Desk

pytestmark = pytest.mark.timeout(600)
"""It makes up much and waits for nothing: a busy machine only makes it slow."""
FUZZ = 50

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["a", "b:q4_0", "all", "-1", "none", "GPU-", "lru", "${env.HOME}", "sha256:", "options", "input", "\ud800"]
    ),
)
KEYS = st.sampled_from(
    [*ENTRY_KEYS, *PROMPT_CACHE_KEYS, *KEEP_KEYS, "a", "b:q4_0", "options", "default", "input", "output", "key"]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
)
TOP = st.dictionaries(st.sampled_from([*TOP_OBJECTS, *TOP_KEYS, "x"]), VALUES, max_size=4)
ENTRIES = st.dictionaries(st.sampled_from(sorted(ENTRY_KEYS)), VALUES, max_size=4)
ROUTER = st.dictionaries(st.sampled_from(sorted(ROUTER_KEYS)), VALUES, max_size=4)


def _load(top: Any, presets: str) -> Config | None:
    """The Config, or None where mistakes were told."""
    with tempfile.TemporaryDirectory() as home:
        desk = Desk(Path(home)).presets(presets).config(top)
        problems = desk.mistakes(fingerprint_key=b"k")
        assert all(str(problem).strip() for problem in problems)
        return None if problems else desk.load(fingerprint_key=b"k")


@settings(max_examples=FUZZ, deadline=None)
@given(TOP)
def test_no_config_json_makes_loading_fail(top: dict[str, Any]) -> None:
    _load(top, "[a]\nmodel = $W\n[b:q4_0]\nmodel = $W\n")


@settings(max_examples=FUZZ, deadline=None)
@given(ENTRIES, ROUTER)
def test_no_entry_and_no_setting_makes_loading_fail(entry: dict[str, Any], router: dict[str, Any]) -> None:
    config = _load({"LLM": {"a": entry}, "ROUTER": router}, "[a]\nmodel = $W\n")
    if config is not None:
        model = config.models["a"]
        assert model.gpus == tuple(sorted(set(model.mask) | {gpu for group in model.replica_gpus for gpu in group}))
        assert all(0 <= gpu < config.scheduler.gpus for gpu in model.gpus)
        assert "a" in config.names


@settings(max_examples=FUZZ, deadline=None)
@given(st.text(), st.text(alphabet='{}[]",:# /*\n0123456789.eEalmL', max_size=40))
def test_no_text_makes_loading_fail(presets: str, config: str) -> None:
    _load(config, presets.encode("utf-8", "replace").decode())
