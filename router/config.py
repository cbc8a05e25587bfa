"""The configuration in force: config.json, presets.ini and the environment, checked as a whole and frozen.

`load` reads all three and either returns a `Config` that can be served or raises `ConfigErrors` with every mistake. It
starts nothing and creates nothing but a cache of llama-server's help text. Who reads what: `router.settings` the
settings of the router itself, `router.places` its directories, `router.models` the models, `router.presets` the file
presets.ini, `router.llama_server` which llama-server there is and what it understands.

The scheduler sees none of this except `Config.scheduler`. Times here are seconds (`_s`), as their owner wrote them.
"""

import hashlib
import hmac
import ipaddress
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from eventlog.settings import KeySettings, ModelSettings, SchedulerSettings
from router.cache_settings import SAVE_PATH, KeepConfig, read_keep, shape_of
from router.gpu_checks import check_gpus
from router.gpus import count_gpus
from router.llama_options import files_of
from router.llama_server import check_embedded, find_llama_server, read_options
from router.model_entry import Cost, KeyConfig, ReasoningEffort, key_digest, key_in_file, read_keys, sendable
from router.models import Draft, ModelConfig, finish, read_drafts
from router.places import find_places, may_be_there, place
from router.presets import Section, canonical_name, read_ini
from router.problems import ConfigErrors, Findings, Problem, nearest
from router.routing import Routing, check_placement, read_routing
from router.selection import Profile, Selector, check_together, read_profiles, read_selectors
from router.settings import NEVER_IN_ARGV, TOP_KEYS, BadValue, Key, Values, complete, read_outside
from router.strict_json import read_json

__all__ = [
    "Config",
    "ConfigErrors",
    "Cost",
    "DashboardConfig",
    "KeyConfig",
    "Limits",
    "LogConfig",
    "ModelConfig",
    "Problem",
    "ReasoningEffort",
    "Timings",
    "key_digest",
    "load",
]

TOP_OBJECTS: Mapping[str, Key] = {
    "LLM": Key("the models, see below", allowed="an object"),
    "ROUTER": Key("settings, see below", allowed="an object"),
    "routing": Key(
        "which models may be loaded together, and who is served first, see below", allowed="an object", page="routing"
    ),
    "promptCache": Key("llama-server options for all models, see below", allowed="an object"),
    "presetGlobals": Key("the same, any preset keys, see below", allowed='`{"ngl": 99, "jinja": true}`'),
    "keys": Key("API keys, see below", allowed="an object", page="security"),
    "profiles": Key(
        "sets of names that stand for other models while one set is in force", allowed="an object", page="models"
    ),
    "selectors": Key("names that stand for the best of several models", allowed="an object", page="models"),
}
WHOLE_OBJECTS = ("routing", "promptCache", "profiles", "selectors")
"""Those of which a reload says only that they changed; the others are models, settings and secrets."""


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
    stall_stream_s: float = 60.0
    """STALL_STREAM_TIMEOUT: a stream that has begun and makes no token for so long, or 10 times its own mean gap."""
    stall_first_s: float = 120.0
    """STALL_FIRST_TIMEOUT: no first token for so long, or 10 times what the prompt should take."""
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
    max_head_bytes: int = 1 << 20
    """Of the request line and the headers."""
    head_s: float = 30.0
    """HEAD_TIMEOUT: for a request's headers, from its first byte or from the connection."""
    body_s: float = 60.0
    """BODY_TIMEOUT: without a byte of a body that has been announced."""
    max_body_bytes: int = 1024 << 20
    """Of one request, after decoding."""
    body_memory_bytes: int = 64 << 20
    """Bodies of all waiting requests together; more spills to disk."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the event log is kept."""

    sync: Literal["group", "always", "never"] = "group"
    segment_bytes: int = 8 << 20
    keep_bytes: int = 2048 << 20
    """Sealed segments beyond this are deleted, oldest first; 0 keeps all."""
    keep_days: float = 0.0


@dataclass(frozen=True, slots=True)
class DashboardConfig:
    """The dashboard's process, and how much of the machine its questions may take."""

    on: bool = True
    memory_mib: int = 1024
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the router runs by."""

    host: str
    port: int
    """0 for any free one."""
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
    dashboard: DashboardConfig = DashboardConfig()
    config_path: Path | None = None
    presets_path: Path | None = None
    gpu_count_from: Literal["config", "nvml", "pins"] = "pins"
    default_model: str = ""
    """Real name of the model for requests that name none; empty for none."""
    cors_origins: tuple[str, ...] = ()
    """Pages of other hosts that may use the router from a browser."""
    include_aliases_in_list: bool = False
    watch_config: bool = False
    """Whether a change of the two files is a reload."""
    child_transport: Literal["unix", "tcp"] = "unix"
    """tcp: for a llama-server that cannot listen on a socket file."""
    timings: Timings = Timings()
    limits: Limits = Limits()
    keep: KeepConfig = field(default_factory=KeepConfig)
    """Prompt caches that survive swaps."""
    keys: Mapping[str, KeyConfig] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Every name of a model that a client may use, aliases included, to the model's real name."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    selectors: Mapping[str, Selector] = field(default_factory=dict)
    priority_header: bool | tuple[str, ...] = False
    """Whose `X-Priority` counts: nobody's, everybody's, or that of these keys."""
    notes: tuple[str, ...] = ()
    """For the log, at the start and at each reload."""
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings by name, secrets left out: for telling what a reload changed."""
    objects: Mapping[str, Any] = field(default_factory=dict)
    """`WHOLE_OBJECTS` as they were written, for the same."""

    def resolve(self, asked: str) -> ModelConfig | None:
        """The model that a client means; names are case-sensitive, a quantisation after ":" is not."""
        name = self.names.get(asked) or self.names.get(canonical_name(asked))
        return self.models[name] if name else None

    def listed_names(self) -> list[str]:
        """Names that a client may be told, aliases included: for the near misses of an unknown one."""
        return [name for name, real in self.names.items() if not self.models[real].unlisted]

    def key_for(self, secret: str) -> KeyConfig | None:
        """The API key that a client presented, if it is one of ours."""
        digest = key_digest(secret)
        # Every key is compared, and in full: the time taken tells nothing about any of them.
        found = [key for key in self.keys.values() if hmac.compare_digest(key.sha256, digest)]
        return found[0] if found else None

    def for_children(self, environ: Mapping[str, str]) -> dict[str, str]:
        """This environment without the variables that hold clients' keys, which are no child's business."""
        secret = {key.variable for key in self.keys.values()}
        return {name: value for name, value in environ.items() if name not in secret}

    def with_fingerprints(self, key: bytes) -> "Config":
        """The same, with a fingerprint per model over all that a child is started with, keyed by `key`.

        The key keeps secrets in the environment of a child from being guessed from the log.
        """
        identity = files_of(self.llama_server)
        models = {
            name: msgspec.structs.replace(
                settings,
                fingerprint=_fingerprint(key, self.llama_server, identity, self.models[name], self.keep),
                cache_shape=self._cache_shape(key, identity, self.models[name]),
            )
            for name, settings in self.scheduler.models.items()
        }
        return replace(self, scheduler=msgspec.structs.replace(self.scheduler, models=models))

    def _cache_shape(self, key: bytes, identity: list[str], model: ModelConfig) -> str:
        if not self.keep.on:
            return ""
        shape = shape_of(model, identity, embedded=self.llama_server_from == "embedded")
        return _keyed(key, json.dumps([list(self.llama_server), *shape], ensure_ascii=True))

    def effective(self, key: bytes) -> dict[str, Any]:
        """The whole configuration as plain data for RouterStarted; secrets as hashes keyed by `key`."""
        models: dict[str, Any] = {}
        for name, model in self.models.items():
            shown = asdict(model)
            shown["env"] = {variable: _keyed(key, value) for variable, value in model.env.items()}
            models[name] = shown
        return {
            "host": self.host,
            "port": self.port,
            "llama_server": list(self.llama_server),
            "llama_server_from": self.llama_server_from,
            "log_dir": str(self.log_dir),
            "log": asdict(self.log),
            "run_dir": str(self.run_dir),
            "history_db": str(self.history_db),
            "dashboard": asdict(self.dashboard),
            "config_path": str(self.config_path),
            "presets_path": str(self.presets_path),
            "default_model": self.default_model,
            "profiles": {name: asdict(profile) for name, profile in self.profiles.items()},
            "selectors": {name: asdict(selector) for name, selector in self.selectors.items()},
            "timings": asdict(self.timings),
            "limits": asdict(self.limits),
            "keep": {**asdict(self.keep), "directory": str(self.keep.directory)},
            "keys": {name: {**asdict(entry), "sha256": _keyed(key, entry.sha256)} for name, entry in self.keys.items()},
            "models": models,
        }


def load(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    nvml_gpus: int | None = None,
    gpu_uuids: Sequence[str] = (),
    help_text: str | None = None,
    fingerprint_key: bytes = b"",
) -> Config:
    """Read and check everything. Raises `ConfigErrors` with all mistakes.

    `overrides` come from the command line, by the name of the setting: HOST, PORT, CONFIG_PATH, PRESETS_PATH, RUN_DIR,
    EVENT_LOG_DIR, QUEUE_HEAD_GRACE, ...; None stands for not given. They win over LLAMA_ROUTER_* in `environ`, these
    over ROUTER_HOST and its like, these over the file. `nvml_gpus` is how many GPUs NVML sees, None without NVML;
    `gpu_uuids` their UUIDs by index. `help_text` is what `llama-server --help` prints; without it that is run, once per
    binary, and blocks meanwhile. `fingerprint_key` keys the models' fingerprints, which stay empty without one.
    """
    findings = Findings()
    outside = read_outside(overrides or {}, environ, findings)
    config_path, presets_path = find_places(outside, environ)
    top = _read_config(config_path, outside, findings)
    sections = _read_presets(presets_path, outside, findings)
    values = complete(outside, top, str(config_path), findings)
    places = place(values, config_path, presets_path, environ, findings)
    server, server_from = find_llama_server(values, environ, findings)
    table = read_options(server, server_from, places.state, help_text, findings)
    drafts = read_drafts(sections, top, table, str(config_path), str(presets_path), gpu_uuids, findings)
    if not drafts and not findings.problems:
        message = "no model is configured: write a section into presets.ini, or run `llama-router demo` for a first try"
        findings.add(Problem(message, file=f"{config_path} and {presets_path}"))
    if not top and sections and not may_be_there(config_path):
        findings.warn(Problem("there is no such file: every model has one replica on GPU 0", file=str(config_path)))
    if server_from == "embedded":
        check_embedded(drafts, table, findings)
    pinned = [gpu for draft in drafts for gpu in draft.entry.pins.named]
    gpus, count_from = count_gpus(values["NUM_GPUS"], nvml_gpus or 0, pinned)
    selectors = read_selectors(top.get("selectors", {}), _names(drafts), str(config_path), findings)
    profiles = read_profiles(top.get("profiles", {}), _names(drafts), list(selectors), str(config_path), findings)
    keys = _read_keys(top, values, drafts, str(config_path), environ, findings)
    known = len(findings.problems)
    routing = read_routing(top, drafts, list(keys), str(config_path), findings)
    cap = values["MAX_MODELS_PER_GPU"] if routing.engine == "residency" or values.given("MAX_MODELS_PER_GPU") else 0
    if len(findings.problems) > known:
        cap = 0  # what may be loaded together is not known
    check_gpus(drafts, gpus, count_from, values, nvml_gpus, cap, str(config_path), findings)
    if cap:
        placed = {draft.name: draft.entry.pins.placed(gpus) for draft in drafts}
        check_together(selectors, _names(drafts), placed, cap, str(config_path), findings)
    if len(findings.problems) == known:
        check_placement(drafts, gpus, routing, cap, selectors, _names(drafts), str(config_path), findings)
    default_model = _default_model(values, drafts, findings)
    with_own_path = [draft.name for draft in drafts if SAVE_PATH in draft.settings]
    keep = read_keep(top, str(config_path), places.state, table, with_own_path, findings)
    eviction = _eviction(values, findings)
    _warn_of_others(values, keys, findings)
    if findings.problems or table is None:
        raise ConfigErrors(findings.problems, findings.warnings)

    models = {
        draft.name: finish(
            draft,
            table,
            gpus,
            stop_timeout_s=values["GRACEFUL_KILL_TIMEOUT"],
            ttl_s=values["GLOBAL_TTL"],
        )
        for draft in drafts
    }
    config = Config(
        host=values["HOST"],
        port=values["PORT"],
        models=models,
        keep=keep,
        scheduler=_scheduler(values, models, keys, gpus, eviction, routing, cap, keep),
        llama_server=server,
        llama_server_from=server_from,
        log_dir=places.log,
        log=_log(values),
        run_dir=places.run,
        state_dir=places.state,
        child_transport=values["CHILD_TRANSPORT"],
        history_db=places.history_db,
        dashboard=DashboardConfig(
            on=values["DASHBOARD"], memory_mib=values["DASHBOARD_MEMORY_MIB"], threads=values["DASHBOARD_THREADS"]
        ),
        config_path=config_path,
        presets_path=presets_path,
        gpu_count_from=count_from,
        default_model=default_model,
        cors_origins=values["CORS_ORIGINS"],
        include_aliases_in_list=values["INCLUDE_ALIASES_IN_LIST"],
        watch_config=values["WATCH_CONFIG"],
        timings=_timings(values),
        limits=_limits(values),
        keys=keys,
        names=_names(drafts),
        profiles=profiles,
        selectors=selectors,
        priority_header=routing.priority_header,
        notes=routing.notes,
        warnings=tuple(dict.fromkeys(findings.warnings)),
        settings={name: value for name, value in values.by_name.items() if name not in NEVER_IN_ARGV},
        objects={name: top.get(name) for name in WHOLE_OBJECTS},
    )
    _check_writable(config, findings)
    return config.with_fingerprints(fingerprint_key) if fingerprint_key else config


def _check_writable(config: Config, findings: Findings) -> None:
    """All of it goes into the event log, which is UTF-8: a path may hold any bytes. Raises ConfigErrors."""
    try:
        msgspec.json.encode(config.effective(b"only to see"))
    except UnicodeEncodeError as error:
        message = "this holds bytes that are no UTF-8, and cannot be written into the event log"
        raise ConfigErrors([Problem(message, value=ascii(error.object)[1:-1])], findings.warnings) from None


def configured_names(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Every name of a model, aliases included, to its real name; empty where the two files have mistakes.

    From the files alone: no llama-server is run, so their options are not looked at.
    """
    findings = Findings()
    outside = read_outside({}, environ, findings)
    config_path, presets_path = find_places(outside, environ)
    top = _read_config(config_path, outside, findings)
    sections = _read_presets(presets_path, outside, findings)
    drafts = read_drafts(sections, top, None, str(config_path), str(presets_path), (), findings)
    return {} if findings.problems else _names(drafts)


# --- the two files --------------------------------------------------------------------------------------------------


def _read_config(path: Path, outside: Values, findings: Findings) -> dict[str, Any]:
    """The object in config.json; empty where there is no such file and nobody asked for it."""
    text = _read(path, findings) if may_be_there(path) or outside.given("CONFIG_PATH") else None
    if text is None:
        return {}
    top = read_json(text, str(path), findings)
    if not isinstance(top, dict):
        if not findings.problems:
            findings.add(Problem("config.json holds an object", file=str(path), allowed=", ".join(TOP_OBJECTS)))
        return {}
    allowed = (*TOP_OBJECTS, *TOP_KEYS)
    for key in top:
        if key not in allowed:
            near = nearest(key, allowed)
            message = "there is no such key at the top of config.json"
            findings.add(Problem(message, file=str(path), key=key, allowed=", ".join(allowed), nearest=near))
    return top


def _read_presets(path: Path, outside: Values, findings: Findings) -> dict[str, Section]:
    text = _read(path, findings) if may_be_there(path) or outside.given("PRESETS_PATH") else None
    return {} if text is None else read_ini(text, str(path), findings)


def _read(path: Path, findings: Findings) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        findings.add(Problem("this is not UTF-8", file=str(path), line=line))
    except OSError as error:
        findings.add(Problem(f"cannot be read: {error.strerror}", file=str(path)))
    return None


def _names(drafts: Sequence[Draft]) -> dict[str, str]:
    names = {draft.name: draft.name for draft in drafts}
    for draft in drafts:
        for alias in draft.entry.aliases:
            names.setdefault(alias, draft.name)
    return names


def _default_model(values: Values, drafts: Sequence[Draft], findings: Findings) -> str:
    asked: str = values["DEFAULT_MODEL"]
    names = _names(drafts)
    name = names.get(asked) or names.get(canonical_name(asked), "")
    if asked and not name:
        allowed = ", ".join(names)
        message = "there is no such model"
        findings.add(values.problem("DEFAULT_MODEL", message, allowed=allowed, nearest=nearest(asked, names)))
    return name


def _read_keys(
    top: Mapping[str, Any],
    values: Values,
    drafts: Sequence[Draft],
    file: str,
    environ: Mapping[str, str],
    findings: Findings,
) -> dict[str, KeyConfig]:
    keys = read_keys(top.get("keys", {}), file, environ, findings)
    default_key = _default_key(values, findings)
    if default_key:
        made = KeyConfig("default", key_digest(default_key), admin=True)
        if keys.setdefault("default", made).sha256 != made.sha256:
            message = "the key of LLAMA_ROUTER_API_KEY has this name, and is another one"
            findings.add(Problem(message, file=file, section="keys", key="default", allowed="another name"))
    names = _names(drafts)
    for key in list(keys.values()):
        real = []
        for asked in key.models:
            name = names.get(asked) or names.get(canonical_name(asked))
            if name:
                real.append(name)
            else:
                message, near = "there is no such model", nearest(asked, names)
                findings.add(Problem(message, file, 0, f"keys.{key.name}", "models", asked, ", ".join(names), near))
        keys[key.name] = replace(key, models=tuple(real))
    return keys


def _default_key(values: Values, findings: Findings) -> str:
    key: str = values["API_KEY"]
    if not key and values["API_KEY_FILE"]:
        try:
            return key_in_file(Path(values["API_KEY_FILE"]).expanduser())
        except BadValue as error:
            findings.add(values.problem("API_KEY_FILE", str(error)))
    try:
        key_digest(sendable(key))
    except BadValue as error:
        findings.add(values.problem("API_KEY", str(error)))
        return ""
    return key


def _eviction(values: Values, findings: Findings) -> Literal["lru", "fifo", "worth"]:
    asked: str = values["EVICTION_POLICY"]
    policies: dict[str, Literal["lru", "fifo", "worth"]] = {"lru": "lru", "fifo": "fifo", "worth": "worth"}
    if asked.casefold() not in policies:
        message = "there is no such policy; lru is used"
        near = nearest(asked, policies)
        findings.warn(values.problem("EVICTION_POLICY", message, allowed=", ".join(policies), nearest=near))
    return policies.get(asked.casefold(), "lru")


def _warn_of_others(values: Values, keys: Mapping[str, KeyConfig], findings: Findings) -> None:
    if values.given("LLM_BASE_PORT"):
        findings.warn(values.problem("LLM_BASE_PORT", "not used: children listen on UNIX sockets, not on ports"))
    host: str = values["HOST"]
    if not host or any(char.isspace() or char in "/,@" for char in host):
        findings.add(values.problem("HOST", "this is no address to listen on", allowed="a name or an IP address"))
    elif not keys and not is_loopback(host):
        message = "other machines can use every model without a key; write API keys into `keys`, or listen on 127.0.0.1"
        findings.warn(values.problem("HOST", message))
    for key in keys.values():
        if key.expires_s and key.expires_s <= time.time():
            findings.warn(Problem("this key has expired and is not taken any more", section="keys", key=key.name))
    if keys and not any(key.admin for key in keys.values()):
        message = "no key has the admin right, so nobody can load, unload, cancel or reload over HTTP"
        findings.warn(Problem(message, key="keys", allowed='"admin": true in one of them'))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


# --- what the parts are told ----------------------------------------------------------------------------------------


def _scheduler(
    values: Values,
    models: Mapping[str, ModelConfig],
    keys: Mapping[str, KeyConfig],
    gpus: int,
    eviction: Literal["lru", "fifo", "worth"],
    routing: Routing,
    cap: int,
    keep: KeepConfig,
) -> SchedulerSettings:
    return SchedulerSettings(
        models={
            name: ModelSettings(
                gpus=model.gpus,
                replica_gpus=model.replica_gpus,
                mask=() if model.mask == model.gpus else model.mask,
                replicas=model.replicas,
                priority=routing.priorities.get(name, model.priority),
                ttl_us=_us(model.ttl_s),
                persistent=model.persistent,
                capacities=dict(model.capacities),
                evict_cost=model.evict_cost,
            )
            for name, model in models.items()
        },
        gpus=gpus,
        max_models_per_gpu=cap,
        eviction=eviction,
        prefer_idle=values["EVICT_PREFER_IDLE"],
        head_grace_us=_us(values["QUEUE_HEAD_GRACE"]),
        head_grace_from=values["QUEUE_HEAD_GRACE_FROM"],
        head_release=values["QUEUE_HEAD_RELEASE"],
        force_load_us=_us(values["QUEUE_FORCE_LOAD_TIMEOUT"]),
        overcommit=values["DISPATCH_OVERCOMMIT"],
        affinity=values["CONVERSATION_AFFINITY"],
        crash_retries=values["CRASH_RETRIES"],
        load_retries=values["LOAD_RETRIES"],
        cooldown_first_us=_us(values["COOLDOWN_FIRST"]),
        cooldown_max_us=_us(values["COOLDOWN_MAX"]),
        crash_window_us=_us(values["CRASH_WINDOW"]),
        drain_us=_us(values["SHUTDOWN_TIMEOUT"]),
        engine=routing.engine,
        scope=routing.scope,
        groups=dict(routing.groups),
        matrix=routing.matrix,
        matrix_evict_costs=dict(routing.matrix_evict_costs),
        pools=dict(routing.pools),
        keys={name: KeySettings(max_parallel=key.max_parallel) for name, key in keys.items()},
        keep_caches=keep.on,
        keep_min_tokens=keep.min_tokens,
        keep_hold_us=_us(keep.hold_s),
        keep_budget_mib=keep.budget_mib,
        keep_persist=keep.persist,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _timings(values: Values) -> Timings:
    return Timings(
        health_check_interval_s=values["HEALTH_CHECK_INTERVAL"],
        health_check_timeout_s=values["HEALTH_CHECK_TIMEOUT"],
        unload_poll_interval_s=values["UNLOAD_POLL_INTERVAL"],
        unload_poll_timeout_s=values["UNLOAD_POLL_TIMEOUT"],
        load_poll_interval_s=values["LOAD_POLL_INTERVAL"],
        load_stall_s=values["LOAD_POLL_TIMEOUT"],
        load_ceiling_s=values["LOAD_TIMEOUT_CEILING"],
        stall_stream_s=values["STALL_STREAM_TIMEOUT"],
        stall_first_s=values["STALL_FIRST_TIMEOUT"],
        start_retries=values["START_RETRIES"],
        graceful_kill_s=values["GRACEFUL_KILL_TIMEOUT"],
        shutdown_s=values["SHUTDOWN_TIMEOUT"],
        connect_s=values["CONNECT_TIMEOUT"],
        queue_comment_s=values["QUEUE_COMMENT_INTERVAL"],
    )


def _limits(values: Values) -> Limits:
    return Limits(
        max_queue=values["MAX_QUEUE"],
        max_head_bytes=values["MAX_HEAD_KIB"] << 10,
        head_s=values["HEAD_TIMEOUT"],
        body_s=values["BODY_TIMEOUT"],
        max_body_bytes=values["MAX_BODY_MIB"] << 20,
        body_memory_bytes=values["BODY_MEMORY_MIB"] << 20,
    )


def _log(values: Values) -> LogConfig:
    return LogConfig(
        sync=values["EVENT_LOG_SYNC"],
        segment_bytes=values["EVENT_LOG_SEGMENT_MIB"] << 20,
        keep_bytes=values["EVENT_LOG_KEEP_MIB"] << 20,
        keep_days=values["EVENT_LOG_KEEP_DAYS"],
    )


def _fingerprint(
    key: bytes, server: Sequence[str], identity: Sequence[str], model: ModelConfig, keep: KeepConfig
) -> str:
    started_with = [
        *map(list, (server, identity, model.argv, sorted(model.env.items()))),
        model.mask,
        model.replica_gpus,
        *(["keeps caches"] if keep.on else []),
    ]
    return _keyed(key, json.dumps(started_with, ensure_ascii=True))


def _keyed(key: bytes, text: str) -> str:
    # blake2b takes at most 64 bytes of key.
    short = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=short, digest_size=16).hexdigest()
