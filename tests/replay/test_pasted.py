"""What `tune` recommends can be pasted into config.json: the router reads there what was simulated."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.alternatives import MODEL_SETTINGS, SETTINGS, changed, config_lines, differences
from tests.router.config_desk import HELP, Desk

BEFORE = SchedulerSettings(models={"a": ModelSettings(), "b": ModelSettings()}, gpus=3)
WITH_SLOTS = f"{HELP}\n--slot-save-path PATH                   where slots are saved (default: disabled)\n"

SAMPLES: list[list[str]] = [
    ["NUM_GPUS=2"],
    ["MAX_MODELS_PER_GPU=2"],
    ["EVICTION_POLICY=worth"],
    ["EVICT_PREFER_IDLE=false"],
    ["QUEUE_HEAD_GRACE=2.5", "QUEUE_HEAD_GRACE_FROM=arrival"],
    ["QUEUE_HEAD_RELEASE=accrued"],
    ["QUEUE_FORCE_LOAD_TIMEOUT=20"],
    ["DISPATCH_OVERCOMMIT=-1"],
    ["CONVERSATION_AFFINITY=false"],
    ["promptCache.keepAcrossSwaps=true", "promptCache.keepMinTokens=9", "promptCache.keepBudgetMiB=7"],
    ["promptCache.keepAcrossSwaps=true", "promptCache.keepMaxHoldSeconds=0.5"],
    ["routing.router.use=group", "routing.router.scope=gpu", 'routing.router.settings.groups={"g":{"members":["a"]}}'],
    ["routing.router.use=matrix", 'routing.router.settings.matrix.sets={"s":"a & b"}'],
    ["routing.router.use=matrix", 'routing.router.settings.matrix.evict_costs={"a":3}', "evict_cost.b=2"],
    ["routing.router.use=capacity", 'routing.router.settings.capacity.pools={"ram":12}', "capacities.a=ram:3"],
    ["replicas.a=2", "gpus.b=1+2", "priority.a=7", "ttl.b=90.5", "persistent.b=true"],
]


def test_there_is_a_sample_of_each_setting() -> None:
    keys = [text.partition("=")[0] for sets in SAMPLES for text in sets]
    assert {key if key in SETTINGS else key.partition(".")[0] for key in keys} == {*SETTINGS, *MODEL_SETTINGS}


@pytest.mark.parametrize("sets", SAMPLES, ids=" ".join)
def test_the_router_reads_what_was_simulated(tmp_path: Path, sets: list[str]) -> None:
    """Without a mistake, and with the same settings for the scheduler."""
    after = changed(BEFORE, sets)
    pasted: dict[str, Any] = msgspec.json.decode(config_lines(BEFORE, differences(BEFORE, after)))
    desk = Desk(tmp_path).models(a={}, b={})
    desk.config({**pasted, "LLM": {"a": {}, "b": {}, **pasted.get("LLM", {})}})

    read = desk.load(help_text=WITH_SLOTS).scheduler

    for text in sets:
        key = text.partition("=")[0]
        if key in SETTINGS:
            field = SETTINGS[key].field
            assert getattr(read, field) == getattr(after, field), key
        else:
            kind, _, model = key.partition(".")
            field = MODEL_SETTINGS[kind].field
            assert getattr(read.models[model], field) == getattr(after.models[model], field), key
