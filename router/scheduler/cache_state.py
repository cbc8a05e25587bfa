"""What the scheduler knows of prompt caches: what slots hold, what is in files, what saving and restoring takes.

Part of the state; empty while `keep_caches` is off. `fold_caches.py` writes it, `caches.py` decides by it.
"""

import msgspec

TURNS_MAX = 256
"""Conversations whose turns are counted, per model."""
UNPLACED_MAX = 8
"""Ended requests per replica whose slot is still to be told."""


class Holding(msgspec.Struct, kw_only=True):
    """What a slot holds: a prompt and its answer."""

    conversation: str
    tokens: int = 0
    prefix: str = ""
    """Keyed hash of the whole prompt, as in RequestArrived; empty where it is not known."""
    rid: int = 0
    """The request that put it there."""
    used_us: int = 0


class File(msgspec.Struct, kw_only=True):
    """A saved prompt cache."""

    tokens: int
    bytes: int
    prefix: str = ""
    shape: str = ""
    used_us: int = 0
    """Last use of what it holds, not of the file."""


class Turns(msgspec.Struct, kw_only=True):
    """How a conversation comes and goes."""

    count: int = 1
    last_us: int = 0
    gap_us: int = 0
    """The longest time between two of its turns."""


class ModelCaches(msgspec.Struct, kw_only=True):
    """Of one model. Times per token are integer nanoseconds, running means; 0 while nothing is known."""

    files: dict[str, File] = {}
    """By conversation."""
    turns: dict[str, Turns] = {}
    """By conversation, the one that was quiet for longest first."""
    arrived: int = 0
    """Turns of all its conversations."""
    followed: int = 0
    """Those that followed another one."""
    prefill_ns: int = 0
    save_ns: int = 0
    restore_ns: int = 0
    token_bytes: int = 0
    restores: int = 0
    useless: int = 0
    """Restores in a row that brought nothing."""
    crashed: bool = False
    """A process died while it saved or restored."""
    given_up: str = ""
    """Why nothing is saved any more; empty: all is well."""


class Restored(msgspec.Struct, kw_only=True):
    """A cache that is back and has not been used since."""

    tokens: int
    prefix: str = ""


class ReplicaCaches(msgspec.Struct, kw_only=True):
    """Of one replica."""

    model: str
    shape: str = ""
    """`cache_shape` of its model when it was spawned."""
    slots: dict[int, Holding] = {}
    unplaced: dict[int, Holding] = {}
    """rid to what it left in some slot."""
    saving: dict[int, Holding] = {}
    """Ordered and not yet answered, by slot."""
    tried: list[int] = []
    """Slots whose save was ordered in swap `tried_in`."""
    tried_in: int = -1
    restoring: dict[int, str] = {}
    """Slot to the conversation that is ordered into it."""
    restore_from_us: int = 0
    """When its restores began; 0: they did not."""
    restore_until_us: int = 0
    """When nobody waits for them any more."""
    restored: dict[str, Restored] = {}
    """By conversation; those that nobody has come back for yet."""
    judges: dict[int, Restored] = {}
    """rid to the cache that it should find."""
    broke: bool = False
    """The connection broke over a save or a restore."""
    served: bool = False
    """Something was dispatched to it: nothing is restored any more."""


class Caches(msgspec.Struct, kw_only=True):
    """Of all."""

    models: dict[str, ModelCaches] = {}
    replicas: dict[str, ReplicaCaches] = {}
    saved_us: int = 0
    """Prefill that restores have saved in this run."""
    hits: int = 0
    """Requests that found their restored cache."""
    end_from_us: int = 0
    """When the saves before the end of the router began."""
