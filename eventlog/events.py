"""The vocabulary: every event that can stand in the log.

An event is a frozen value in the past tense. Its class says who speaks:

* `Fact`: the world. The scheduler folds facts.
* `Decision`: the scheduler. Made from facts alone, logged before it is acted on, carries its reason as data.
* `Observation`: something worth keeping that no decision may depend on; may be sampled or dropped.
* `LogEvent`: the log file itself.

The envelope (`seq`, `at_us`, `run`, `cause`) is stamped when an event enters the log:

* `seq`: one counter over all streams of a log, never reset.
* `at_us`: wall time at the start of the run + CLOCK_BOOTTIME elapsed since, so a stepped wall clock moves no timer.
  A decision has the time of its cause.
* `run`: counts the starts of the router on this log.
* `cause`: `seq` of the fact that led to a decision; 0 for anything else.

Words with one meaning each:

* request: one call of a client; `rid` counts requests (and wishes) over all runs, in order of their arrival.
* model: a section of presets.ini, by its real name, never by an alias.
* replica: one llama-server process that serves one model; its id is never used twice within a log.
* slot: a place in a replica for one generation. gpu: a GPU by its number.
* swap: a load together with the evictions that make room for it; also an unload, which is a swap without a target.
* wish: a load that no request asked for (admin, preload); it waits in the queue as a request does.
* hold: the head of a queue waits for its swap. grace: how long later requests may pass it.

On the wire the first key is `type`, the name of the class. Evolve by adding: new fields get defaults, a new meaning
gets a new type, stored lines are never rewritten. Units stand last in a name: `_us`, `_mib`, `_ms`.
"""

from typing import Any, Literal

import msgspec

from eventlog.settings import SchedulerSettings


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """The envelope; zero until the event is logged."""

    seq: int = 0
    at_us: int = 0
    run: int = 0
    cause: int = 0


class Fact(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The world speaks; the scheduler folds."""


class Decision(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The scheduler speaks; the shell acts."""


class Observation(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Never read by the scheduler."""


class LogEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Written by the log about itself."""


# --- parts of events ------------------------------------------------------------------------------------------------


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as NVML names it; `memory_mib` 0 when unknown."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_mib: int = 0


class PrefixBlock(msgspec.Struct, frozen=True, array_like=True):
    """A step of the growing prefix of a prompt: keyed hash of everything up to here, and the bytes up to here."""

    hash: str
    bytes: int


class Cooldown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that may not be loaded for a while; `remaining_us` -1 means until its configuration changes."""

    model: str
    remaining_us: int
    failures: int = 0
    reason: str = ""


class Orphan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child that an earlier run left behind, to be ended before this run loads anything."""

    replica: str
    model: str
    pid: int
    started_ticks: int
    """Start time of the process in clock ticks since boot, from /proc/PID/stat: with the pid it names a process."""


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What crosses from one run to the next."""

    orphans: list[Orphan] = []
    cooldowns: list[Cooldown] = []
    suspects: list[str] = []
    """Fingerprints of conversations whose requests killed replicas twice."""
    profile: str = ""
    next_rid: int = 1
    next_op: int = 1
    next_swap: int = 1
    next_spawn: int = 1
    ops: list[int] = []
    """Administrative calls and wishes that the earlier run left without an end."""
    clean: bool = True
    """Whether the earlier run ended by RouterStopped."""


class Victim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model chosen to leave, with the data it was chosen by, in the order of the key that chose it."""

    model: str
    wanted: int = 0
    """Requests queued for it."""
    in_flight: int = 0
    age_us: int = 0
    """Since its last use (lru) or since it was loaded (fifo)."""
    gpus: tuple[int, ...] = ()
    cost: int = 0
    """Of evicting it, where the engine goes by that."""
    worth: int = 0
    """Its decayed uses times its load time, in small units, where that is how the victim was chosen."""


class SlotTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """llama-server's own account of a generation; -1 where it did not say."""

    cache_n: int = -1
    prompt_n: int = -1
    prompt_us: int = -1
    predicted_n: int = -1
    predicted_us: int = -1
    draft_n: int = -1
    draft_accepted_n: int = -1


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one GPU: how much of it a process or a change takes."""

    gpu: int
    mib: int


# --- facts: the router itself ---------------------------------------------------------------------------------------


class RouterStarted(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A run begins: nothing of an earlier run is alive, and all that decisions depend on is in here."""

    config: SchedulerSettings
    effective: dict[str, Any] = {}
    """The whole configuration in force, for people; secrets as keyed hashes."""
    gpus: list[Gpu] = []
    gpu_count_from: Literal["config", "nvml", "pins"] = "pins"
    version: str = ""
    policy_version: int = 0
    llama_server: str = ""
    llama_build: str = ""
    carried: Carried = Carried()


class ConfigLoaded(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A new configuration took effect while running."""

    config: SchedulerSettings
    effective: dict[str, Any] = {}
    by: str = ""


class ProfileChanged(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Another named set of aliases is in force."""

    profile: str
    by: str = ""


class RouterStopping(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """No new requests; streams may end; what is still there at the deadline is cut."""

    reason: str
    deadline_us: int
    """`at_us` at which the drain ends."""


class RouterStopped(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The run ended in order: no child is left."""

    reason: str = ""


# --- facts: requests ------------------------------------------------------------------------------------------------


class RequestArrived(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A request is complete and asks for its place; what a simulation needs of it, without its text.

    Its place in the order is that of its headers: `rid` and `arrived_us` were taken then.
    """

    rid: int
    arrived_us: int
    model: str
    asked: str = ""
    """The name that the client used, where it is not `model`."""
    via: str = ""
    """What made a model of that name besides an alias: `profile NAME`, `selector NAME`, or both."""
    route: str = ""
    """Path without /v1, such as `/chat/completions`."""
    work: Literal["generation", "metadata"] = "generation"
    """Generations take slots; metadata (tokenize, count tokens, ...) only needs the model loaded."""
    stream: bool = False
    detached: bool = False
    priority: int = 0
    priority_from: Literal["", "header", "key"] = ""
    """Who says so; empty: nobody, or an older router, and then 0 means that of the model."""
    key: str = ""
    """Name of the API key."""
    client: str = ""
    """Keyed fingerprint of who asks (key, address)."""
    conversation: str = ""
    """Keyed fingerprint of the conversation, from its header or its first messages."""
    session: str = ""
    """Keyed fingerprint of a session header, if any."""
    after_rid: int = 0
    """The turn of the same conversation that this one follows; 0 for none."""
    slots_wanted: int = 1
    """Generations in one request: its `n`, or the length of an array of inputs."""
    body_bytes: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    """An estimate, from bytes."""
    max_tokens: int = 0
    """As asked; 0 when the client set no limit."""
    messages: int = 0
    tools: int = 0
    prefix: list[PrefixBlock] = []
    rewrote: list[str] = []
    """Parameters of the body that filters stripped or set; all else in here is about the body after that."""


class RequestSent(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The replica has taken the whole request."""

    rid: int
    replica: str
    connect_us: int = 0


class UpstreamLost(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The connection to the replica broke before its answer was complete; not yet an outcome."""

    rid: int
    replica: str
    begun: bool = False
    """Bytes of the replica's answer have reached the client: it cannot be sent again."""
    detail: str = ""
    bytes_out: int = 0


class SlotReleased(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """After a cancel: the replica has really let go of the request."""

    rid: int
    replica: str
    took_us: int = 0


class SlotHolds(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """What a slot holds, learned from /slots while a request runs. No conversation: nothing that is known."""

    replica: str
    slot: int
    conversation: str
    tokens: int = 0
    rid: int = 0
    """The request that works there, or did last."""


class RequestFinished(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The replica's answer is complete, whatever its status, and so is the request."""

    rid: int
    replica: str
    status: int = 200
    finish_reason: str = ""
    bytes_out: int = 0
    first_byte_us: int = -1
    """From the dispatch to the first byte of the answer."""
    first_token_us: int = -1
    """From the dispatch to the first data frame or, without streaming, to the first byte of the body."""
    took_us: int = 0
    """From the dispatch to the end."""
    frames: int = 0
    prompt_tokens: int = -1
    cached_tokens: int = -1
    completion_tokens: int = -1
    timing: SlotTiming = SlotTiming()
    error: str = ""
    """Excerpt of an error that the replica answered with; no prompt text."""


class RequestCancelled(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The client is gone, or somebody cancelled for it."""

    rid: int
    replica: str = ""
    """Where it was running; empty while it was queued."""
    by: Literal["client", "admin", "deadline", "shutdown", "delete", "fault"] = "client"
    """delete: by DELETE /v1/stream; fault: the router itself made a mistake."""
    bytes_out: int = 0
    frames: int = 0
    unread_frames: int = 0
    """Frames that the replica made after the client had left."""


class ClientDetached(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The client of a resumable stream is gone; the generation goes on."""

    rid: int


class ClientReattached(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A client reads a resumable stream again."""

    rid: int
    from_bytes: int = 0


class RequestLost(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier run ended with this request open; closes its account."""

    rid: int
    model: str = ""
    stage: Literal["queued", "dispatched"] = "queued"
    lost_run: int = 0


# --- facts: replicas and GPUs ---------------------------------------------------------------------------------------


class ReplicaSpawned(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The process exists; nothing is known of the model yet."""

    replica: str
    pid: int
    started_ticks: int = 0
    address: str = ""
    argv_hash: str = ""
    mask: str = ""


class ReplicaReady(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The child proved who it is and answers."""

    replica: str
    slots: int
    slot_ctx: int = 0
    load_us: int = 0
    build: str = ""
    model_path: str = ""
    vram: list[Memory] = []


class ReplicaAnswered(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A replica under suspicion (UpstreamLost) answered a probe: it lives."""

    replica: str


class ReplicaStalled(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A ready replica works on requests and makes no data, against its own norm."""

    replica: str
    silent_us: int
    norm_us: int
    rids: list[int] = []


LoadFailure = Literal[
    "missing_file",
    "bad_flag",
    "bad_model",
    "gpu_oom",
    "host_oom",
    "stall",
    "ceiling",
    "exit",
    "signal",
    "spawn",
    "imposter",
]
"""Why a load failed. The first three cannot get better by themselves."""


class ReplicaLoadFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The process is gone and the model was never ready."""

    replica: str
    kind: LoadFailure
    reason: str = ""
    """One sentence for the client, with the line of the child that says it."""
    exit_code: int | None = None
    signal: int | None = None
    took_us: int = 0
    last_lines: list[str] = []


ExitCause = Literal["planned", "exit", "signal", "gpu_oom", "host_oom", "stall", "killed"]


class ReplicaStopped(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A process that we were asked to stop is gone, confirmed."""

    replica: str
    exit_code: int | None = None
    signal: int | None = None
    took_us: int = 0
    escalated: bool = False
    """SIGTERM was not enough."""
    freed: list[Memory] = []


class ReplicaCrashed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A ready replica ended by itself."""

    replica: str
    cause_of_exit: ExitCause = "exit"
    exit_code: int | None = None
    signal: int | None = None
    uptime_us: int = 0
    reason: str = ""
    last_lines: list[str] = []
    vram: list[Memory] = []


class GpuMemorySettled(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """After a stop: the GPU's memory is back, or the wait for it ran out."""

    gpus: list[int]
    waited_us: int = 0
    settled: bool = True


class CacheSaved(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A slot's prompt cache is in a file."""

    replica: str
    slot: int
    conversation: str
    tokens: int
    bytes: int
    took_us: int


class CacheSaveFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A slot's prompt cache could not be saved; only the cache is lost."""

    replica: str
    slot: int
    conversation: str
    reason: str
    broke: bool = False
    """The connection broke: the process may have died over it."""


class CacheRestored(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A slot's prompt cache is back from a file."""

    replica: str
    slot: int
    conversation: str
    tokens: int
    bytes: int
    took_us: int


class CacheRestoreFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A slot's prompt cache could not be restored; only the cache is lost."""

    replica: str
    slot: int
    conversation: str
    reason: str
    broke: bool = False
    """The connection broke: the process may have died over it."""


class CacheFound(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A saved prompt cache of an earlier run is still there, whole."""

    model: str
    conversation: str
    tokens: int
    bytes: int
    prefix: str = ""
    """Keyed hash of the prompt that it begins with, as in RequestArrived."""
    shape: str = ""
    """`cache_shape` of the model that it was saved under."""
    used_us: int = 0
    """When the conversation last used it."""


class CacheDropped(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The file of a saved prompt cache is gone."""

    model: str
    conversation: str
    bytes: int = 0
    why: Literal["budget", "stale", "given_up", "gone"] = "budget"
    """budget: the least recently used made room; stale: its model is configured otherwise; given_up: those of its model
    bring nothing; gone: somebody else removed it."""


# --- facts: wishes, administration, time ----------------------------------------------------------------------------


class LoadWished(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody wants a model loaded; takes its place in the queue under `rid`. Ends in AdminDone{op}."""

    op: int
    rid: int
    model: str
    by: Literal["admin", "preload", "reload"] = "admin"


class AdminUnload(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Unload a model: drained first or, with `force`, at once."""

    op: int
    model: str
    force: bool = False
    by: str = ""


class AdminCancel(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """End a request in its client's place. The relay reports RequestCancelled{by: admin} for it."""

    op: int
    rid: int
    by: str = ""


class AdminDrain(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Unload every model: once idle or, with `force`, at once. Arrivals load them again."""

    op: int
    by: str = ""
    force: bool = False


class AdminGpu(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Take a GPU out of service (drain, unload what is on it) or back."""

    op: int
    gpu: int
    action: Literal["out", "in"]
    by: str = ""


class HistoryReset(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The history is to be told from here on: what had ended by now is not told any more. The log keeps it."""

    by: str = ""


class TimerFired(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A timer that a TimerSet asked for is due. Decisions look at the time, never at this event alone."""

    kind: str
    key: str
    due_us: int


# --- decisions ------------------------------------------------------------------------------------------------------


class RequestHeld(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The head of a queue waits, and for what; once per change."""

    rid: int
    model: str
    why: Literal["grace", "claimed", "swapping", "protected", "evicting", "gpu_out", "cooling"]
    """grace: later requests may pass; claimed: an earlier request has its GPUs; swapping: a swap has them;
    protected: an earlier request wants a victim; evicting: a victim cannot leave yet; gpu_out: out of service;
    cooling: cool-down."""
    head_since_us: int = 0
    hard: bool = False
    """Later requests for the victims wait too."""
    victims: list[str] = []
    footprint: tuple[int, ...] = ()
    blocked_by: list[str] = []
    """Models, or requests as `rid:N`, that it waits for."""


class RequestDispatched(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The request goes to this replica now."""

    rid: int
    replica: str
    attempt: int = 1
    waited_us: int = 0
    rule: Literal["least_busy", "affinity", "pay_out", "alone"] = "least_busy"
    """alone: a request that was in flight during a crash runs by itself the second time."""
    in_flight: int = 0
    """Weight on the replica before this one."""
    weight: int = 1
    overtook: int = 0
    """Earlier requests that are still queued and whose model would have needed this one's GPUs."""
    overtook_first: list[int] = []


class RequestRequeued(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The replica was lost before its answer began: back to its place."""

    rid: int
    replica: str
    attempt: int
    why: Literal["upstream_lost", "replica_gone"] = "upstream_lost"


class RequestFailed(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The router ends the request with an error."""

    rid: int
    status: int
    code: str
    reason: str = ""
    model: str = ""
    begun: bool = False
    suspect: bool = False
    retry_after_us: int = 0


class RequestRejected(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The request never entered the queue."""

    rid: int
    status: int
    code: str
    reason: str = ""
    model: str = ""


class SwapBegun(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Committed: the victims drain, then the target is spawned. `target` is empty for an unload."""

    swap: int
    target: str = ""
    cause_rid: int = 0
    why: Literal["idle", "grace_over", "forced", "wish", "top_up", "unload", "ttl", "gpu_out", "stale", "stopping"]
    """idle: nobody wanted the victims; grace_over: the head had waited its grace; forced: QUEUE_FORCE_LOAD_TIMEOUT."""
    victims: list[Victim] = []
    others: list[Victim] = []
    """Models on those GPUs that could have left instead, in the order of choice."""
    footprint: tuple[int, ...] = ()
    replicas: list[int] = []
    """Indexes to be spawned."""
    waited_us: int = 0
    head_since_us: int = 0
    engine: str = "residency"
    set_name: str = ""
    """matrix: the set whose combination is kept."""
    cost: int = 0
    """matrix, capacity: what the victims cost together."""
    nodes: int = 0
    """capacity: partial plans that were looked at."""
    search_limited: bool = False
    """capacity: there were too many of them, and another plan may be cheaper."""
    op: int = 0


class SwapAborted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Still draining when nobody wanted the target any more: the victims serve on."""

    swap: int
    target: str = ""
    why: Literal["unwanted", "stopping", "stale", "gpu_out"] = "unwanted"


class SwapFinished(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Every replica of the target is ready or has failed; or the unload is complete."""

    swap: int
    target: str = ""
    ok: bool = True
    drain_us: int = 0
    stop_us: int = 0
    load_us: int = 0
    ready: int = 0
    save_us: int = 0
    """How long it was held up for saves; part of `drain_us`."""


class ReplicaStopOrdered(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """End this process. `force`: although it is busy."""

    replica: str
    why: Literal["evict", "unload", "ttl", "gpu_out", "stale", "stalled", "stopping"]
    swap: int = 0
    force: bool = False


class ReplicaSpawnOrdered(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Start a process for this model on these GPUs, in the order of the mask."""

    replica: str
    model: str
    index: int
    gpus: tuple[int, ...] = ()
    swap: int = 0
    attempt: int = 1
    after: str = ""
    """Kind of the failure that this attempt follows; after gpu_oom the memory must be back first."""


class CacheSaveOrdered(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Save this slot's prompt cache before the replica is stopped. Ends in CacheSaved or CacheSaveFailed."""

    replica: str
    slot: int
    conversation: str
    tokens: int = 0
    swap: int = 0
    bytes: int = 0
    """Expected size; 0 before the first file of this model."""
    worth_us: int = 0
    """Prefill that it is expected to save: tokens x time per token x chance of return."""
    cost_us: int = 0
    """Expected time to save and to restore it."""
    chance_permille: int = 0
    """That the conversation goes on."""
    limit_us: int = 0
    """Nobody waits longer for it than this."""


class CacheRestoreOrdered(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Restore a conversation into this slot before the first dispatch. Ends in CacheRestored or CacheRestoreFailed."""

    replica: str
    slot: int
    conversation: str
    tokens: int = 0
    swap: int = 0
    rid: int = 0
    """The request that waits for it; 0: it was used lately."""
    worth_us: int = 0
    cost_us: int = 0
    limit_us: int = 0
    """Nobody waits longer for it than this."""


class CacheGivenUp(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """No prompt cache of this model is saved or restored any more, until its configuration changes."""

    model: str
    why: Literal["brings_nothing", "crash"]
    """brings_nothing: prompts were read anew after a restore; crash: a process died over a file."""
    restores: int = 0
    """Of this model so far."""


class ModelCooledDown(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The model failed for now: its queue fails; it is not loaded before `until_us` (-1: until a reload)."""

    model: str
    until_us: int
    failures: int = 1
    why: str = ""
    reason: str = ""


class AdminDone(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The one end of an admin call or wish."""

    op: int
    outcome: Literal["done", "already", "failed", "cancelled", "unknown"]
    code: str = ""
    reason: str = ""


class TimerSet(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Post TimerFired at `due_us`."""

    kind: Literal["grace", "force", "ttl", "cooldown", "drain", "cache"]
    key: str
    due_us: int


class TimerCancelled(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Nobody waits for this timer any more."""

    kind: Literal["grace", "force", "ttl", "cooldown", "drain", "cache"]
    key: str


# --- observations ---------------------------------------------------------------------------------------------------


class FirstByte(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """The replica began to answer."""

    rid: int
    status: int = 200
    after_us: int = 0
    """Since the dispatch."""


class TokensStreamed(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """Times between data frames of a stream, at most one of these per request and second."""

    rid: int
    gaps_us: list[int]
    """The first gap counts from the frame before, or from the dispatch."""


class PromptProgress(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """How far a prefill is, as llama-server tells with `return_progress`."""

    rid: int
    total: int
    cached: int = 0
    processed: int = 0


class ReplicaLoading(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """A load makes progress; `value` from 0 to 1, -1 when unknown. A download comes before any eviction for it."""

    replica: str = ""
    model: str = ""
    stage: str = ""
    value: float = -1.0
    bytes: int = 0


class ReplicaNote(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """Something about a replica that its owner should know."""

    replica: str
    code: str
    text: str = ""


class GpuSampled(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment, from NVML; -1 where the driver does not tell."""

    gpu: int
    utilisation_percent: int = -1
    used_mib: int = -1
    total_mib: int = -1
    temperature_c: int = -1
    power_mw: int = -1
    processes: dict[str, int] = {}
    """Replica id, or `pid:N` for a stranger, to MiB."""


class SlotsSampled(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """What the slots of a replica do."""

    replica: str
    busy: int
    slots: int
    context_used: list[int] = []


class MetricsSampled(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of a replica's own /metrics."""

    replica: str
    values: dict[str, float]


class ClockStepped(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """The wall clock jumped against CLOCK_BOOTTIME; no timer moved."""

    by_us: int


class LogLine(Observation, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the router's own diary, or of a child."""

    level: str
    text: str
    replica: str = ""


# --- the log about itself -------------------------------------------------------------------------------------------


NO_STATE = msgspec.Raw()
"""Instead of None: msgspec reads no union with Raw."""


class SegmentOpened(LogEvent, frozen=True, kw_only=True, omit_defaults=True):
    """First line of a segment: the chain goes on from here, and `state` is the scheduler's state at this point."""

    stream: Literal["events", "observations"]
    chain: str
    """Checksum of the last line of the segment before; of nothing, for the first."""
    schema: int = 1
    state: msgspec.Raw = NO_STATE
    """A checkpoint; empty where a segment had to be opened in the middle of a step."""


class LogTruncated(LogEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A torn tail was cut off: these bytes were never a complete event, or never reached the disk."""

    file: str
    offset: int
    bytes: int
    reason: str = ""
    next_chain: str = ""
    """After a repair that left a hole: `chain` of the segment behind the hole, which a checkpoint opens."""


FACTS: tuple[type[Fact], ...] = tuple(Fact.__subclasses__())
DECISIONS: tuple[type[Decision], ...] = tuple(Decision.__subclasses__())
OBSERVATIONS: tuple[type[Observation], ...] = tuple(Observation.__subclasses__())
LOG_EVENTS: tuple[type[LogEvent], ...] = tuple(LogEvent.__subclasses__())
ALL: tuple[type[Event], ...] = (*FACTS, *DECISIONS, *OBSERVATIONS, *LOG_EVENTS)
BY_NAME: dict[str, type[Event]] = {kind.__name__: kind for kind in ALL}
