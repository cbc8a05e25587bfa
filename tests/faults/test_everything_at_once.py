"""Random traffic, random faults, random departures: whatever happens, the rules hold and every model serves again."""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import routed
from tests.standin.client import Call, CutShort
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess

SECONDS = 7
CLIENTS = 8
CAP = 2
MODELS = [
    Model("a", gpus=[0], slots=2, exit_delay_s=0.1),
    Model("b", gpus=[0], load_s=0.1),
    Model("c", gpus=[0, 1], slots=2),
    Model("d", gpus=[1], slots=2, exit_delay_s=0.2),
    Model("e", gpus=[1], ignore_term=True),
]
HURRIED: dict[str, Any] = {
    "MAX_MODELS_PER_GPU": CAP,
    "NUM_GPUS": 2,
    "COOLDOWN_FIRST": 0.2,
    "COOLDOWN_MAX": 0.5,
    "GRACEFUL_KILL_TIMEOUT": 0.3,
    "STALL_STREAM_TIMEOUT": 1.0,
    "STALL_FIRST_TIMEOUT": 1.0,
    "GLOBAL_TTL": 0.7,
    "QUEUE_HEAD_GRACE": 0.3,
}
FAULTS: list[dict[str, Any]] = [
    {"die_at_chunk": 1, "die": "SIGSEGV"},
    {"die_at_chunk": 3, "die": "SIGKILL"},
    {"die_at_chunk": 2, "die": "exit:1"},
    {"close_at_chunk": 2, "close": "fin"},
    {"close_at_chunk": 1, "close": "rst"},
    {"close_at_chunk": 2, "close": "half"},
    {"silent_at_chunk": 2},
    {"stuck": True},
    {"status": 500},
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_wedged_or_broken(tmp_path: Path, seed: int) -> None:
    """Eight clients ask five models on two GPUs for everything there is; a quarter of it goes wrong in some way.

    Afterwards: no GPU ever held more than its cap, no server more than its slots, every request has one outcome,
    nobody got a 429 or a bare 500, no child is left, and each model answers within seconds.
    """
    seen: Counter[str] = Counter()
    with routed(tmp_path, MODELS, gpu_cap=CAP, **HURRIED) as router:
        end = time.monotonic() + SECONDS
        crowd = [threading.Thread(target=client, args=(router, seed * 100 + n, end, seen)) for n in range(CLIENTS)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert time.monotonic() - end < 30, "somebody waits for ever"
        for model in MODELS:
            begun = time.monotonic()
            while router.chat(model.name).status != 200:
                assert time.monotonic() - begun < 20, f"{model.name} does not come back"
        assert router.memory.violations() == []
    assert seen["200"] > seen.total() / 2, seen
    assert not seen.keys() - {"200", "cut", "left", "500", "502", "503"}, seen


def client(router: RouterProcess, seed: int, end: float, seen: Counter[str]) -> None:
    """One client: asks, reads or leaves, asks again."""
    rng = random.Random(seed)
    while time.monotonic() < end:
        orders = {"tokens": rng.randint(1, 8), "gap_s": rng.choice([0.0, 0.01, 0.03])}
        if rng.random() < 0.2:
            orders |= rng.choice(FAULTS)
        path = rng.choice(ROUTES + WHOLE_ROUTES)
        call = router.post(path, rng.choice(MODELS).name, stream=rng.random() < 0.6, standin=orders)
        if rng.random() < 0.1:
            time.sleep(rng.random() * 0.3)
            rng.choice([Call.close, Call.reset, Call.half_close])(call)
            seen["left"] += 1
            continue
        try:
            status = str(call.status)
            call.read()
        except CutShort:
            status = "cut"
        seen[status] += 1


@pytest.mark.slow
def test_requests_that_meet_an_idle_unload_are_all_served(tmp_path: Path) -> None:
    """Requests come just as the model is unloaded for idleness, again and again, a little earlier or later."""
    rng = random.Random(7)
    with routed(tmp_path, [Model("a", exit_delay_s=0.05)], gpu_cap=1, GLOBAL_TTL=0.1) as router:
        for _ in range(24):
            assert router.chat("a", standin={"tokens": 1}).status == 200
            time.sleep(0.09 + rng.random() * 0.08)
        assert router.memory.violations() == []
        assert len(router.ledger.events("started")) > 5
