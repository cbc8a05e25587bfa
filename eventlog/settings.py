"""What the scheduler is told about the world before traffic comes: part of RouterStarted and ConfigLoaded.

Times are integer microseconds, as everywhere in the log. A field that is added later gets a default, so that
old logs keep their meaning.
"""

from typing import Literal

import msgspec

Engine = Literal["residency", "group", "matrix", "capacity"]

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
    capacities: dict[str, int] = {}
    """What one replica takes of each pool, for the engine `capacity`; of pools that are not named, nothing."""
    evict_cost: int | None = None
    """What it costs to evict the model, for `matrix` (1 where nobody says) and `capacity` (0)."""
    cache_shape: str = ""
    """Keyed hash over what shapes a prompt cache: a saved one is of use only under the same. Empty: none is saved."""


class KeySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one API key; its name is the key of the dict that holds it."""

    max_parallel: int = 0
    """Requests in flight at once; more are skipped over, never refused; 0 for no limit."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One group of the engine `group`."""

    members: tuple[str, ...] = ()
    swap: bool = True
    """One member at a time; else all may be loaded together."""
    exclusive: bool = True
    """Loading a member evicts every other group."""
    persistent: bool = False
    """Other groups never evict this one."""


class MatrixSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One set of the engine `matrix`, as its expression was expanded: models that may be loaded together."""

    name: str
    combinations: tuple[tuple[str, ...], ...] = ()
    """In the order of the expression, from left to right; names within one are sorted."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a decision may depend on besides what happens."""

    models: dict[str, ModelSettings] = {}
    gpus: int = 1
    max_models_per_gpu: int = 1
    """The whole rule of the engine `residency`; with another engine a second rule beside its own, 0 for none."""
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
    keep_caches: bool = False
    """Prompt caches are saved before a process is stopped, and restored after the next load."""
    keep_min_tokens: int = 512
    """Smaller ones are not worth a file."""
    keep_hold_us: int = 2_000_000
    """The longest that saving and restoring together may hold up one swap."""
    keep_budget_mib: int = 2048
    """Size of all files together."""
    keep_persist: bool = False
    """They also outlive a clean end of the router."""
    engine: Engine = "residency"
    """Who says which models may be loaded together; the settings of the others may stand here too."""
    scope: Literal["", "gpu", "instance"] = ""
    """Of `group` and `matrix`: whether models compete wherever they are, or only where they share a GPU; empty:
    instance."""
    groups: dict[str, GroupSettings] = {}
    matrix: tuple[MatrixSet, ...] = ()
    matrix_evict_costs: dict[str, int] = {}
    """By model; wins over the model's own `evict_cost` there."""
    pools: dict[str, int] = {}
    """Limit of each pool of the engine `capacity`."""
    search_nodes: int = 100_000
    """Partial plans that `capacity` looks at before it takes the best that it has."""
