"""Declared against measured: a model that takes more of a GPU than its `capacities` say.

A pool named `gpu0`, `gpu1`, ... is taken for the memory of that GPU in MiB. A limit far below what the GPU has is some
other unit, and is not compared. This is a warning and nothing else: the scheduler goes by what is declared.
"""

import re
from collections.abc import Mapping

from router.config import Config
from router.memory.measured import Measured

UNIT = 4
"""A limit of less than a quarter of the GPU's MiB is no number of MiB."""


def warnings(config: Config, measured: Measured, totals: Mapping[int, int]) -> dict[str, str]:
    """By model, a sentence for its owner. `totals` is MiB per GPU, as far as known."""
    found = {}
    for name, model in config.models.items():
        most = measured.most.get(name, {})
        wrong = []
        for pool, declared in model.capacities.items():
            gpu = _gpu(pool)
            limit = config.scheduler.pools.get(pool, 0)
            if gpu is None or limit * UNIT < totals.get(gpu, 0) or most.get(gpu, 0) <= declared:
                continue
            wrong.append(f"{most[gpu]:,} MiB on GPU {gpu} ({pool} {declared:,})")
        if wrong:
            found[name] = f"{name} takes more than it declares: {', '.join(wrong)}"
    return found


def _gpu(pool: str) -> int | None:
    named = re.fullmatch(r"gpu[ _-]?(\d{1,4})", pool, re.IGNORECASE)
    return int(named[1]) if named else None
