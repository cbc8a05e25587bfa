"""docs/configuration.md and examples/ say what the code does, no more and no less."""

import json
import re
from pathlib import Path

import pytest

from router.cache_settings import KeepConfig
from router.config import TOP_OBJECTS
from router.model_entry import ENTRY_KEYS, KEY_KEYS
from router.models import KEEP_KEYS, PROMPT_CACHE_KEYS
from router.presets import ALWAYS_ON, PRESET_ONLY, ROUTER_OWNED
from router.settings import ROUTER_KEYS, SETTINGS, TOP_KEYS
from tests.router.config_desk import Desk

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "configuration.md").read_text()
QUOTED = set(re.findall(r"`([^`\n]+)`", DOC))


def _rows(heading: str) -> dict[str, str]:
    """The tables under a heading: each key in the first column with the text of the second."""
    part = re.split(r"\n##+ ", DOC.split(f"{heading}\n", 1)[1])[0]
    rows: dict[str, str] = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| `") else []
        keys = re.findall(r"`([^`]+)`", cells[0]) if cells else []
        defaults = [part.strip() for part in cells[1].split(",")] if cells else []
        defaults = defaults if len(defaults) == len(keys) else ["", *[""] * len(keys)]
        rows |= dict(zip(keys, defaults, strict=False))
    return rows


def test_every_setting_is_documented() -> None:
    assert {setting.name for setting in SETTINGS} - QUOTED == set()


def test_the_table_of_router_holds_exactly_the_keys_there_are() -> None:
    assert set(_rows("### ROUTER")) == set(ROUTER_KEYS)


@pytest.mark.parametrize("name", sorted(ROUTER_KEYS))
def test_documented_defaults_are_the_real_ones(name: str) -> None:
    assert _rows("### ROUTER")[name] == _shown(ROUTER_KEYS[name].default)


def _shown(default: object) -> str:
    match default:
        case None | ():
            return ""
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
    return str(default)


def test_keys_at_the_top_and_in_each_object_are_documented() -> None:
    assert set(_rows("## config.json")) == {*TOP_OBJECTS, *TOP_KEYS}
    assert set(_rows("### LLM")) - {"1", "[0, 2]"} >= set(ENTRY_KEYS)
    assert set(_rows("### promptCache and presetGlobals")) == set(PROMPT_CACHE_KEYS)
    assert set(_rows("### Prompt caches that survive swaps")) == set(KEEP_KEYS)
    assert set(_rows("### keys")) == set(KEY_KEYS)


def test_the_keys_of_routing_are_documented() -> None:
    """In the table, and each engine with an example in docs/routing.md that can be served."""
    rows = set(_rows("### routing"))
    assert {"router.use", "router.scope", "scheduler.use", "scheduler.settings.fifo"} <= rows
    assert {f"router.settings.{name}" for name in ("groups", "matrix", "capacity")} <= rows
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


def test_the_defaults_of_kept_prompt_caches_are_the_real_ones() -> None:
    rows, keep = _rows("### Prompt caches that survive swaps"), KeepConfig()
    shown = [rows[key] for key in KEEP_KEYS if key != "keepDirectory"]
    assert shown == [_shown(value) for value in (keep.on, keep.budget_mib, keep.min_tokens, keep.hold_s, keep.persist)]


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
