"""The configuration in force: config.json, presets.ini and the environment, checked as a whole and frozen.

`load` reads all three and either returns a `Config` that can be served or raises `ConfigErrors` with every mistake; it
starts nothing and creates nothing. Who reads what: `router.settings` the settings of the router itself,
`router.models` the models, `router.presets` presets.ini, `router.llama_options` what llama-server understands.

The scheduler sees none of this except `Config.scheduler`. Times here are seconds (`_s`), as their owner wrote them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eventlog.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class ReasoningEffort:
    """What a client may ask for with `reasoning_effort`; only advertised, never applied here."""

    options: tuple[str, ...]
    default: str = ""
    disable: str = ""
    """The level that switches thinking off; empty when it cannot be switched off."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars per million tokens; advertised as pricing."""

    input: float
    cached_input: float
    output: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model: what its llama-server is started with, and what the router says and does about it."""

    name: str
    aliases: tuple[str, ...] = ()
    gpus: tuple[int, ...] = (0,)
    """GPUs on which the model counts, ascending; empty for a model that runs on the CPU."""
    mask: tuple[int, ...] = (0,)
    """`gpus` in the owner's order."""
    replica_gpus: tuple[tuple[int, ...], ...] = ()
    """GPUs of each replica, in mask order, where they differ; empty: every replica uses `mask`."""
    replicas: int = 1
    argv: tuple[str, ...] = ()
    """llama-server options from presets.ini; host, port, alias and key are added by whoever spawns."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the child's environment; may hold secrets."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Effective preset keys by their canonical long name, without dashes; secrets are left out."""
    model_path: str = ""
    """The GGUF file; empty when llama-server downloads it."""
    hf_repo: str = ""
    hf_file: str = ""
    slots_hint: int = 0
    """`parallel`, before the child has said how many slots there are; 0 when llama-server decides."""
    context_hint: int = 0
    """Tokens per request before the child has said; 0 when llama-server decides."""
    load_on_startup: bool = False
    stop_timeout_s: float = 5.0
    """From SIGTERM to SIGKILL."""
    ttl_s: float = 0.0
    """Idle time after which the model is unloaded; 0 for never."""
    persistent: bool = False
    priority: int = 0
    unlisted: bool = False
    """Served by name, but not in /v1/models."""
    title: str = ""
    description: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """A client's API key; of the key itself only its SHA-256 is kept."""

    name: str
    sha256: str
    max_parallel: int = 0
    priority: int = 0
    models: tuple[str, ...] = ()
    """Real names of the models it may use; empty for all."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the shell waits for the world, in seconds. None of it cuts a generation that makes progress."""

    health_check_interval_s: float = 1.0
    health_check_timeout_s: float = 30.0
    unload_poll_interval_s: float = 0.5
    unload_poll_timeout_s: float = 60.0
    """How long GPU memory may take to come back after a stop."""
    load_poll_interval_s: float = 1.0
    load_stall_s: float = 120.0
    """LOAD_POLL_TIMEOUT: a loading child that shows no progress for so long is given up."""
    load_ceiling_s: float = 1800.0
    """LOAD_TIMEOUT_CEILING: no load takes longer, progress or not."""
    start_retries: int = 3
    """How often a process that could not even be spawned is tried again."""
    graceful_kill_s: float = 5.0
    """GRACEFUL_KILL_TIMEOUT: from SIGTERM to SIGKILL where the model does not say."""
    shutdown_s: float = 30.0
    """SHUTDOWN_TIMEOUT: how long streams may go on after SIGTERM to the router."""
    connect_s: float = 5.0
    """CONNECT_TIMEOUT: for a connection to a child."""
    queue_comment_s: float = 15.0
    """QUEUE_COMMENT_INTERVAL: between comments on a stream that waits in the queue."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the router takes on; 0 is no limit unless said otherwise."""

    max_queue: int = 0
    """Requests that may wait; more are answered 503."""
    max_body_bytes: int = 1024 << 20
    """Of one request, after decoding."""
    body_memory_bytes: int = 64 << 20
    """Bodies of all waiting requests together; more spills to disk."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the event log is kept."""

    sync: Literal["group", "always", "never"] = "group"
    segment_bytes: int = 64 << 20
    keep_bytes: int = 0
    """Sealed segments beyond this are deleted, oldest first; 0 keeps all."""
    keep_days: float = 0.0


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the router runs by."""

    host: str
    port: int
    models: Mapping[str, ModelConfig]
    """By real name, in the order in which the owner wrote them."""
    scheduler: SchedulerSettings
    llama_server: tuple[str, ...]
    """The start of a child's argv: a binary, or a wrapper and its arguments."""
    llama_server_from: Literal["config", "path", "embedded"]
    log_dir: Path
    log: LogConfig
    run_dir: Path
    """Sockets and other things that end with the run; private to this user."""
    state_dir: Path
    history_db: Path
    """Where the dashboard keeps its disposable DuckDB file."""
    gpu_count_from: Literal["config", "nvml", "pins"] = "pins"
    default_model: str = ""
    include_aliases_in_list: bool = False
    timings: Timings = Timings()
    limits: Limits = Limits()
    keys: Mapping[str, KeyConfig] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Every name that a client may use, aliases included, to the model's real name."""
    config_path: Path | None = None
    presets_path: Path | None = None
    warnings: tuple[str, ...] = ()

    def resolve(self, asked: str) -> ModelConfig | None:
        """The model that a client means; names are case-sensitive, a quant tag after ":" is not."""
        raise NotImplementedError


def load(
    overrides: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    nvml_gpus: int | None = None,
    gpu_uuids: Sequence[str] = (),
    help_text: str | None = None,
    fingerprint_key: bytes = b"",
) -> Config:
    """Read and check everything. Raises `ConfigErrors` with all mistakes.

    `overrides` come from the command line, by the name of the setting: HOST, PORT, CONFIG_PATH, PRESETS_PATH, RUN_DIR,
    EVENT_LOG_DIR, QUEUE_HEAD_GRACE, ...; they win over LLAMA_ROUTER_* in `environ`, over ROUTER_HOST and its like, over
    the file. `nvml_gpus` is how many GPUs NVML sees, None without NVML; `gpu_uuids` their UUIDs by index. `help_text` is
    what `llama-server --help` prints; it is run when absent. `fingerprint_key` keys the models' fingerprints, which stay
    empty without one.
    """
    raise NotImplementedError
