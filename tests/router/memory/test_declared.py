"""Declared against measured: who is warned of, and who is not."""

from pathlib import Path
from typing import Any

import pytest

from eventlog import events as e
from router.memory.declared import warnings
from router.memory.measured import Measured, measure
from tests.router.config_desk import Desk


def held(**mib: int) -> Measured:
    """What replicas of these models held on GPU 0."""
    events: list[e.Event] = []
    for model, size in mib.items():
        events.append(e.ReplicaSpawnOrdered(replica=f"{model}#0", model=model, index=0))
        events.append(e.ReplicaReady(replica=f"{model}#0", slots=1, vram=[e.Memory(0, size)]))
    return measure(events)


def config(tmp_path: Path, pools: dict[str, int], **capacities: dict[str, int]) -> Any:
    desk = Desk(tmp_path)
    entries = {name: {"capacities": taken} for name, taken in capacities.items()}
    desk.models(**entries)
    routing = {"router": {"use": "capacity", "settings": {"capacity": {"pools": pools}}}}
    return desk.config({"LLM": entries, "routing": routing}).load()


@pytest.mark.parametrize(
    ("pools", "declared", "measured", "warned"),
    [
        ({"gpu0": 24_000}, {"gpu0": 6000}, 6001, True),
        ({"gpu0": 24_000}, {"gpu0": 6000}, 6000, False),
        ({"GPU 0": 24_000}, {"GPU 0": 6000}, 6001, True),
        ({"gpu0": 24}, {"gpu0": 6}, 6001, False),
        ({"gpu1": 24_000}, {"gpu1": 6000}, 6001, False),
        ({"ram": 24_000}, {"ram": 6000}, 6001, False),
        ({"gpu0": 24_000}, {}, 6001, False),
    ],
)
def test_a_model_is_warned_of_that_takes_more_of_a_gpu_than_it_declares(
    tmp_path: Path, pools: dict[str, int], declared: dict[str, int], measured: int, warned: bool
) -> None:
    """By a pool of the GPU's name, in MiB: a pool of 24 for a card of 24,576 MiB counts in another unit."""
    found = warnings(config(tmp_path, pools, a=declared), held(a=measured), {0: 24_576})
    assert list(found) == (["a"] if warned else [])
    if warned:
        assert "a takes more than it declares: 6,001 MiB on GPU 0" in found["a"]
