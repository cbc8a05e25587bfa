"""The scheduler's state: everything that a decision may depend on, as plain values.

`fold` (`fold.py` and the `fold_*.py` beside it) is the only writer. The rules read. All of it can be written to a
checkpoint and read back, indexes included, and `digest` is equal for equal states on every machine.

GPUs are bit masks here: bit 2 stands for GPU 2. Times are integer microseconds of the log's clock.
"""

import hashlib
from functools import cache
from typing import Literal

import msgspec

from eventlog.events import Carried, Cooldown, Orphan
from eventlog.settings import ModelSettings, SchedulerSettings
from router.scheduler.cache_state import Caches

Phase = Literal["absent", "loading", "ready", "draining", "stopping"]

CRASHES_MAX = 2
"""So many within the window, and the model cools down."""

CONVERSATIONS_MAX = 512
"""Conversations remembered per model for the choice of a replica."""
SUSPECTS_MAX = 64

GPUS_MAX = 1024
"""Most GPUs of a router; in a mask, what stands above them is of no GPU."""

EVERYWHERE = -1
"""A mask of all GPUs, and of none."""

Rank = tuple[int, int, int]
"""Place in the queue, smaller first: (0 if forced else 1, -priority, rid)."""


class Request(msgspec.Struct, kw_only=True):
    """A request or, with `op`, a wish: queued while `replica` is empty, else in flight there."""

    rid: int
    model: str
    arrived_us: int
    op: int = 0
    work: Literal["generation", "metadata"] = "generation"
    priority: int = 0
    key: str = ""
    conversation: str = ""
    slots_wanted: int = 1
    attempt: int = 1
    evicted: bool = False
    """Its replica left under it once; the next time it fails."""
    forced: bool = False
    head_since_us: int = -1
    """When it became the blocked head; -1 before."""
    held: tuple[str, bool, tuple[str, ...], tuple[str, ...]] | None = None
    """What the last RequestHeld said, to say it once per change: why, hard, victims, blocked_by."""
    replica: str = ""
    weight: int = 0
    stop_why: str = ""
    """Why its replica was stopped under it."""
    forced_stop: bool = False
    detached: bool = False
    prefix: list[str] = []
    """Keyed hashes of its growing prompt; kept while prompt caches are."""

    @property
    def rank(self) -> Rank:
        return (0 if self.forced else 1, -self.priority, self.rid)


class Lane(msgspec.Struct, kw_only=True):
    """The queue of one model: ranks in order, per API key that has a limit, and under "" those of all others."""

    by_key: dict[str, list[Rank]] = {}
    length: int = 0
    waits_since_us: int = 0
    """Since when its requests accrue waiting: its head is blocked; kept while a policy asks for it."""
    waits_from_us: int = 0
    """Sum over its requests of the moments from which they do: that one, or their later arrival."""


class Model(msgspec.Struct, kw_only=True):
    """One model; what its phase is follows from its replicas and swaps."""

    name: str
    mask: int
    gpus: tuple[int, ...] = ()
    """The same, ascending."""
    phase: Phase = "absent"
    replicas: list[str] = []
    """Ids, by index."""
    target_of: int = 0
    """Swap that loads it."""
    victim_of: int = 0
    """Swap that unloads it."""
    loaded_us: int = 0
    used_us: int = 0
    """Last dispatch, last end of a request, or the load itself."""
    in_flight: int = 0
    """Generations being made for somebody."""
    failures: int = 0
    cooldown_since_us: int = 0
    cooldown_until_us: int = 0
    """0: none; -1: until the configuration changes."""
    cooldown_reason: str = ""
    crashes: list[int] = []
    """Times of recent crashes that are not put down to a single request."""
    top_up_wanted: bool = False
    top_up_after_us: int = 0
    takes: dict[str, int] = {}
    """What its processes take of each pool, as configured when they were ordered."""
    stale: bool = False
    """Its configuration changed while it was loaded: it leaves, and comes back as now configured."""
    conversations: dict[str, str] = {}
    """Conversation to the replica that served it last, oldest first."""
    load_us: int = 0
    """Its last load, from the spawn to ready; kept while a policy asks for it."""
    uses: int = 0
    """Dispatches in units of `worth.USE`, decayed up to `uses_at_us`; kept while a policy asks for it."""
    uses_at_us: int = 0


class Replica(msgspec.Struct, kw_only=True):
    """One llama-server process."""

    id: str
    model: str
    index: int
    mask: int
    phase: Literal["loading", "ready", "stopping"] = "loading"
    slots: int = 0
    load: int = 0
    """Weight in flight or not yet let go."""
    in_flight: dict[int, int] = {}
    """rid to weight."""
    releasing: dict[int, int] = {}
    """Cancelled requests that the process may still work on: rid to weight."""
    alone: int = 0
    """rid of a request that must have the replica for itself."""
    suspect: bool = False
    """A connection to it broke: no dispatch before it is known to live."""
    blamed: bool = False
    """The broken connection was that of a request which had seen a crash before."""
    stalled: bool = False
    stop_why: str = ""
    forced_stop: bool = False
    pid: int = 0
    started_ticks: int = 0


class Swap(msgspec.Struct, kw_only=True):
    """An unload of victims, then a load of the target; either may be missing."""

    id: int
    target: str = ""
    cause_rid: int = 0
    why: str
    victims: list[str] = []
    """Those that are not yet gone."""
    mask: int = 0
    phase: Literal["draining", "stopping", "starting"] = "draining"
    op: int = 0
    to_spawn: list[int] = []
    """Indexes whose process is yet to be ordered."""
    loading: list[int] = []
    attempts: dict[int, int] = {}
    failed: dict[int, str] = {}
    """Index to the kind of its failure."""
    reason: str = ""
    ready: int = 0
    paid_out: bool = False
    cancelled: bool = False
    """One of its processes was stopped while it loaded: nothing is tried again, nothing is held against the model."""
    begun_us: int = 0
    drained_us: int = 0
    spawned_us: int = 0
    save_from_us: int = 0
    """Since when its victims are idle and caches are being saved; 0: nothing is."""
    save_us: int = 0
    """How long that held it up."""


class Lost(msgspec.Struct, kw_only=True):
    """An UpstreamLost that waits for its decision."""

    replica: str
    begun: bool
    detail: str = ""
    stop_why: str = ""
    """Why the replica had been told to stop; empty: it was not."""
    forced_stop: bool = False


class Refusal(msgspec.Struct, kw_only=True):
    """An arrival that cannot enter the queue."""

    model: str
    status: int
    code: str
    reason: str = ""


class AdminCall(msgspec.Struct, kw_only=True):
    """An unload, drain or GPU call on its way; done when `models` is empty."""

    op: int
    why: Literal["unload", "gpu_out"]
    models: list[str]
    force: bool = False


class Answer(msgspec.Struct, kw_only=True):
    """An operation whose AdminDone is due."""

    outcome: Literal["done", "already", "failed", "cancelled", "unknown"]
    code: str = ""
    reason: str = ""


class State(msgspec.Struct, kw_only=True):
    """The live projection."""

    settings: SchedulerSettings = SchedulerSettings()
    run: int = 0
    policy_version: int = 0
    """Of the rules that this run was begun under; no decision looks at it, but whoever verifies from here does."""
    now_us: int = 0
    last_rid: int = 0
    last_op: int = 0
    last_swap: int = 0
    last_spawn: int = 0
    requests: dict[int, Request] = {}
    lanes: dict[str, Lane] = {}
    """Only models with somebody waiting."""
    unforced: list[tuple[int, int]] = []
    """(arrived_us, rid), ascending, of all that wait and are not yet forced, and of some that have left meanwhile."""
    unforced_from: int = 0
    """Where its first who waits stands."""
    running: dict[str, int] = {}
    """API key to requests in flight."""
    models: dict[str, Model] = {}
    replicas: dict[str, Replica] = {}
    swaps: dict[int, Swap] = {}
    residents: list[list[str]] = []
    """Per GPU: models with a process on it or about to have one."""
    restless: dict[str, bool] = {}
    """Models for which `is_restless`: all others need no look when nobody asks for them."""
    cooling: dict[str, bool] = {}
    """Models for which `is_cooling`."""
    stalled: dict[str, bool] = {}
    """Replicas that hang."""
    ttls: dict[str, bool] = {}
    """Models that leave when they are idle."""
    reloaded: bool = True
    """In this run: fewer models may be allowed together than there are."""
    wide: dict[str, bool] = {}
    """Models on several GPUs: what ties GPUs together."""
    touched: int = 0
    """GPUs where the last fact, or a decision since, may have changed what the queue can do."""
    gpus_out: int = 0
    timers: dict[str, int] = {}
    """`kind:key` to due time."""
    stale_timers: list[str] = []
    lost: dict[int, Lost] = {}
    refused: dict[int, Refusal] = {}
    wishes: dict[int, int] = {}
    """op to rid of the wishes in the queue."""
    admin: dict[int, AdminCall] = {}
    answers: dict[int, Answer] = {}
    profile: str = ""
    suspects: list[str] = []
    """Conversations whose requests killed replicas twice, oldest first."""
    caches: Caches = msgspec.field(default_factory=Caches)
    """Empty while prompt caches are not kept."""
    stopping_at_us: int = 0
    """Deadline of the drain; 0 while serving."""
    stopped: bool = False


def mask_of(gpus: tuple[int, ...]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


@cache
def gpus_of(mask: int) -> tuple[int, ...]:
    return tuple([gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1])


def touch(state: State, model: Model) -> None:
    """The queue is to be looked at again on the GPUs of a model; a model without any may be anywhere."""
    state.touched |= model.mask or EVERYWHERE


def model_settings(state: State, name: str) -> ModelSettings:
    return state.settings.models[name]


def busy_mask(state: State) -> int:
    """GPUs that a running swap has."""
    mask = 0
    for swap in state.swaps.values():
        mask |= swap.mask
    return mask


def is_late(state: State) -> bool:
    """The router stops, and the time that was left for it is over."""
    return 0 < state.stopping_at_us <= state.now_us


def is_closing(state: State) -> bool:
    """The router stops and has nothing left to serve, or no time: no process is started any more."""
    return state.stopping_at_us > 0 and (is_late(state) or not state.requests)


def is_restless(model: Model) -> bool:
    """Something about it may want a decision although no request asks for one."""
    return len(model.crashes) >= CRASHES_MAX or model.top_up_wanted or model.stale


def is_cooling(state: State, model: Model) -> bool:
    return model.cooldown_until_us != 0 and (model.cooldown_until_us < 0 or state.now_us < model.cooldown_until_us)


def key_is_full(state: State, key: str) -> bool:
    limits = state.settings.keys.get(key)
    return limits is not None and 0 < limits.max_parallel <= state.running.get(key, 0)


def lane_key(state: State, key: str) -> str:
    """Which list of a lane a key's requests stand in."""
    limits = state.settings.keys.get(key)
    return key if limits is not None and limits.max_parallel else ""


def next_unforced(state: State) -> tuple[int, int] | None:
    """(arrived_us, rid) of who is forced next."""
    return state.unforced[state.unforced_from] if state.unforced else None


def first_of(lane: Lane) -> Rank:
    """The first of a lane, whatever its key."""
    return min([ranks[0] for ranks in lane.by_key.values()])


def head_of(state: State, lane: Lane) -> Rank | None:
    """The first of a lane that its key allows to run."""
    head: Rank | None = None
    for key, ranks in lane.by_key.items():
        if (head is None or ranks[0] < head) and not (key and key_is_full(state, key)):
            head = ranks[0]
    return head


def wanted_by(state: State, model: str) -> int:
    """Queued requests for a model, leaving out those whose key is at its limit."""
    lane = state.lanes.get(model)
    if lane is None:
        return 0
    wanted = lane.length
    for key, ranks in lane.by_key.items():
        if key and key_is_full(state, key):
            wanted -= len(ranks)
    return wanted


def dump(state: State) -> msgspec.Raw:
    """The state as it stands in a checkpoint."""
    return msgspec.Raw(msgspec.json.encode(state))


def restore(raw: msgspec.Raw) -> State:
    """The state of a checkpoint. Raises msgspec.ValidationError when it is none."""
    state = msgspec.json.decode(raw, type=State)
    reindex(state)
    return state


def reindex(state: State) -> None:
    """Indexes that follow from the rest, which a checkpoint of an older version does not have."""
    state.restless = {name: True for name, model in state.models.items() if is_restless(model)}
    state.cooling = {name: True for name, model in state.models.items() if is_cooling(state, model)}
    state.stalled = {replica.id: True for replica in state.replicas.values() if replica.stalled}
    state.ttls = {name: True for name, settings in state.settings.models.items() if settings.ttl_us}
    state.wide = {name: True for name, model in state.models.items() if len(model.gpus) > 1}


def settled(state: State) -> State:
    """What two equal states have in common, wherever they come from.

    Without `touched`, which says nothing once all is decided, and without the indexes that follow from the rest and
    whose order decides nothing.
    """
    return msgspec.structs.replace(
        state,
        touched=0,
        unforced=[],
        unforced_from=0,
        restless={},
        cooling={},
        stalled={},
        ttls={},
        wide={},
        reloaded=False,
    )


def digest(state: State) -> str:
    """Equal for equal states, whatever the machine, Python version or hash seed. The order of a dict counts."""
    return hashlib.blake2b(msgspec.json.encode(settled(state)), digest_size=16).hexdigest()


def carried_from(state: State) -> Carried:
    """What the next run must know of this one, whether it ended in order or not."""
    cooldowns = [
        Cooldown(
            model=model.name,
            remaining_us=-1 if model.cooldown_until_us < 0 else model.cooldown_until_us - state.now_us,
            failures=model.failures,
            reason=model.cooldown_reason,
        )
        for model in state.models.values()
        if is_cooling(state, model)
    ]
    orphans = [
        Orphan(replica=replica.id, model=replica.model, pid=replica.pid, started_ticks=replica.started_ticks)
        for replica in state.replicas.values()
        if replica.pid
    ]
    return Carried(
        orphans=orphans,
        cooldowns=cooldowns,
        suspects=list(state.suspects),
        profile=state.profile,
        next_rid=state.last_rid + 1,
        next_op=state.last_op + 1,
        next_swap=state.last_swap + 1,
        next_spawn=state.last_spawn + 1,
        ops=sorted({*state.wishes, *state.admin, *state.answers}),
        clean=state.stopped or not state.run,
    )
