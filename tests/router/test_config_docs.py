"""docs/configuration.md and examples/ say what the code does, no more and no less."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from router.cache_settings import KeepConfig, read_keep
from router.model_entry import KeyConfig, ModelEntry, key_digest, read_entry, read_keys
from router.models import Draft
from router.presets import ALWAYS_ON, PRESET_ONLY, ROUTER_OWNED
from router.problems import Findings
from router.routing import Routing, read_routing
from router.settings import SETTINGS
from tests.router.config_desk import Desk

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "configuration.md").read_text()
QUOTED = set(re.findall(r"`([^`\n]+)`", DOC))


def test_the_tables_are_what_the_settings_and_keys_say() -> None:
    """Name, default, what it may be and what it means all come from the code; `make docs` writes them."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_is_documented() -> None:
    assert {setting.name for setting in SETTINGS} - QUOTED == set()


def test_every_default_is_one_that_may_be_written() -> None:
    """A copied default changes nothing. Those without a value are not written."""
    for setting in SETTINGS:
        if setting.default not in (None, "", ()):
            assert setting.check(setting.default) == setting.default, setting.name


def test_the_defaults_of_the_keys_are_those_of_what_is_read() -> None:
    """A model without an entry is one whose entry says nothing, and so are the others."""
    findings = Findings()
    assert read_entry({}, "m", "config.json", (), findings) == ModelEntry()
    drafts: list[Draft] = []
    assert read_routing({"routing": {"router": {}, "scheduler": {}}}, drafts, (), "config.json", findings) == Routing()
    keep = read_keep({"promptCache": {}}, "config.json", Path("/nowhere"), None, (), findings)
    assert replace(keep, directory=Path()) == KeepConfig()
    alice = read_keys({"alice": {"key": "a secret"}}, "config.json", {}, findings)["alice"]
    assert alice == KeyConfig(name="alice", sha256=key_digest("a secret"))
    assert not findings.problems


def test_the_keys_of_routing_have_examples() -> None:
    assert {"members", "swap", "exclusive", "persistent", "vars", "sets", "evict_costs", "pools"} <= QUOTED


ROUTING = (ROOT / "docs" / "routing.md").read_text()
EXAMPLES = re.findall(r"\n\n((?: {4}.*\n)+)", ROUTING)


@pytest.mark.parametrize("example", [each for each in EXAMPLES if '"routing"' in each])
def test_the_examples_of_routing_can_be_served(tmp_path: Path, example: str) -> None:
    top = json.loads("{" + example + "}")
    names = {"llama-70b", "qwen-32b", "embeddings", "reranker", "whisper", "gemma-4-26b", "qwen3-32b", "voxtral"}
    names |= {"qwen3-4b", "batch-model", "left-over"}
    desk = Desk(tmp_path)
    models = {**{name: {} for name in sorted(names)}, **top.get("LLM", {})}
    desk.models(**models).config({**top, "LLM": models, "keys": {"alice": "a secret"}})
    config = desk.load()
    assert config.scheduler.engine == top["routing"].get("router", {"use": "residency"})["use"]


def test_keys_that_never_reach_llama_server_are_documented() -> None:
    assert {option.name for option in PRESET_ONLY} | set(ROUTER_OWNED) | set(ALWAYS_ON) <= QUOTED


def test_the_examples_can_be_served_once_the_weights_are_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    presets = (ROOT / "examples" / "presets.ini").read_text()
    desk.presets(re.sub(r"/models/\S+", str(desk.weights), presets))
    desk.config((ROOT / "examples" / "config.json").read_text())
    config = desk.load()
    assert config.warnings == ()
    assert list(config.models) == ["gemma-4-26b", "qwen3-4b", "embeddinggemma"]
    assert config.models["gemma-4-26b"].options["cache-ram"] == "16384"


def test_the_examples_show_the_defaults(tmp_path: Path) -> None:
    """A copied example changes nothing by itself."""
    desk = Desk(tmp_path).models(m={})
    plain = desk.load()
    desk.config((ROOT / "examples" / "config.json").read_text().split('"promptCache"')[0] + '"LLM": {"m": {}}}')
    assert desk.load() == plain
