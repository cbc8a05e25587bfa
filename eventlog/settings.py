"""What the scheduler is told about the world before traffic comes: part of RouterStarted and ConfigLoaded.

Times are integer microseconds, as everywhere in the log. A field that is added later gets a default, so that
old logs keep their meaning.
"""

from typing import Literal

import msgspec

FORCED_NEVER_US = 0
"""`force_load_us` of 0 switches the last resort off."""


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model as the scheduler sees it."""

    gpus: tuple[int, ...] = (0,)
    """GPUs on which the model counts, ascending; empty for a model that runs on the CPU."""
    replica_gpus: tuple[tuple[int, ...], ...] = ()
    """GPUs of each replica, in the order of its mask, where they differ; empty: every replica uses `gpus`."""
    mask: tuple[int, ...] = ()
    """`gpus` in the owner's order, which is the order of the mask; empty: ascending."""
    replicas: int = 1
    priority: int = 0
    ttl_us: int = 0
    """Idle time after which the model is unloaded; 0 for never."""
    persistent: bool = False
    """Never evicted for another model."""
    fingerprint: str = ""
    """Keyed hash over all that a child is started with; a change means that its replicas are stale."""


class KeySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one API key; its name is the key of the dict that holds it."""

    max_parallel: int = 0
    """Requests in flight at once; more are skipped over, never refused; 0 for no limit."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a decision may depend on besides what happens."""

    models: dict[str, ModelSettings] = {}
    gpus: int = 1
    max_models_per_gpu: int = 1
    eviction: Literal["lru", "fifo", "worth"] = "lru"
    """Who leaves first: the longest unused, the longest loaded, or what is worth least (`router.scheduler.worth`)."""
    prefer_idle: bool = True
    """Among victims, an idle one goes before a busy one."""
    head_grace_us: int = 0
    head_grace_from: Literal["head", "arrival"] = "head"
    head_release: Literal["grace", "accrued"] = "grace"
    """What ends the patience of a blocked head: its grace, or the waiting that its model's requests have accrued; then
    a grace above 0 is the most that it lasts."""
    force_load_us: int = 300_000_000
    overcommit: int = 0
    """Generations sent to a replica beyond its slots; -1 for no limit."""
    affinity: bool = True
    """Ties between replicas go to the one that served the conversation last."""
    crash_retries: int = 1
    load_retries: int = 1
    cooldown_first_us: int = 10_000_000
    cooldown_max_us: int = 300_000_000
    crash_window_us: int = 60_000_000
    drain_us: int = 30_000_000
    keys: dict[str, KeySettings] = {}
    engine: Literal["residency"] = "residency"
