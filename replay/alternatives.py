"""Other settings for a run, by the names of config.json: `QUEUE_HEAD_GRACE=30`, `replicas.MODEL=2`,
`routing.router.use=capacity`. Rules of the engines are written as JSON.

Only what the scheduler sees can be tried; how long the world takes is the world's own (`costs`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

import msgspec

from eventlog.settings import Engine, GroupSettings, MatrixSet, ModelSettings, SchedulerSettings
from replay.workload import WorkloadError
from router.scheduler.matrix_language import expand
from router.scheduler.state import GPUS_MAX


@dataclass(frozen=True)
class _Named:
    field: str
    read: Callable[[str], Any]
    right: str
    shown: Callable[[Any], str] = str


_MOST = 2**31 - 1


def _us(text: str) -> int:
    value = float(text)
    if not 0 <= value <= _MOST:
        raise ValueError
    return round(value * 1_000_000)


def _shown_s(us: int) -> str:
    return f"{us / 1_000_000:.6f}".rstrip("0").rstrip(".")


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[text.casefold()]


def _shown_flag(value: bool) -> str:
    return "true" if value else "false"


def _count(least: int, most: int = _MOST) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    return {word: word for word in words}.__getitem__


def _gpus(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(0, GPUS_MAX - 1)(part) for part in text.split("+")}))


def _json(kind: Any) -> Callable[[str], Any]:
    return lambda text: msgspec.json.decode(text, type=kind, strict=True)


def _shown_json(value: Any) -> str:
    if isinstance(value, tuple):  # sets of a matrix
        value = {each.name: each.combinations for each in value}
    return msgspec.json.encode(value).decode()


def _capacities(text: str) -> dict[str, int]:
    pairs = [part.split(":") for part in text.split("+")] if text else []
    return {pool: _count(0)(amount) for pool, amount in pairs}


def _shown_capacities(value: dict[str, int]) -> str:
    return "+".join(f"{pool}:{amount}" for pool, amount in value.items())


def _cost(text: str) -> int | None:
    return None if text == "none" else _count(0)(text)


def _shown_cost(value: int | None) -> str:
    return "none" if value is None else str(value)


_SETS = "routing.router.settings.matrix.sets"
_SECONDS = "seconds, 0 or more and no more than 68 years"
_FLAG = "true or false"

SETTINGS: dict[str, _Named] = {
    "NUM_GPUS": _Named("gpus", _count(1, GPUS_MAX), f"a whole number from 1 to {GPUS_MAX}"),
    "MAX_MODELS_PER_GPU": _Named("max_models_per_gpu", _count(1), "a whole number of 1 or more"),
    "EVICTION_POLICY": _Named("eviction", _one_of("lru", "fifo", "worth"), "lru, fifo or worth"),
    "EVICT_PREFER_IDLE": _Named("prefer_idle", _flag, _FLAG, _shown_flag),
    "QUEUE_HEAD_GRACE": _Named("head_grace_us", _us, _SECONDS, _shown_s),
    "QUEUE_HEAD_GRACE_FROM": _Named("head_grace_from", _one_of("head", "arrival"), "head or arrival"),
    "QUEUE_HEAD_RELEASE": _Named("head_release", _one_of("grace", "accrued"), "grace or accrued"),
    "QUEUE_FORCE_LOAD_TIMEOUT": _Named("force_load_us", _us, _SECONDS, _shown_s),
    "DISPATCH_OVERCOMMIT": _Named("overcommit", _count(-1), "a whole number of -1 or more"),
    "CONVERSATION_AFFINITY": _Named("affinity", _flag, _FLAG, _shown_flag),
    "promptCache.keepAcrossSwaps": _Named("keep_caches", _flag, _FLAG, _shown_flag),
    "promptCache.keepMinTokens": _Named("keep_min_tokens", _count(1), "a whole number of 1 or more"),
    "promptCache.keepBudgetMiB": _Named("keep_budget_mib", _count(1), "a whole number of 1 or more"),
    "promptCache.keepMaxHoldSeconds": _Named("keep_hold_us", _us, _SECONDS, _shown_s),
    "routing.router.use": _Named("engine", _one_of(*get_args(Engine)), "residency, group, matrix or capacity"),
    "routing.router.scope": _Named("scope", _one_of("gpu", "instance"), "gpu or instance"),
    "routing.router.settings.groups": _Named(
        "groups", _json(dict[str, GroupSettings]), 'groups by name, such as {"small": {"members": ["a"]}}', _shown_json
    ),
    _SETS: _Named(
        "matrix",
        _json(dict[str, str | list[list[str]]]),
        'sets by name, such as {"one": "a & (b | c)"} or {"one": [["a", "b"], ["a", "c"]]}',
        _shown_json,
    ),
    "routing.router.settings.matrix.evict_costs": _Named(
        "matrix_evict_costs", _json(dict[str, int]), 'costs by model, such as {"a": 30}', _shown_json
    ),
    "routing.router.settings.capacity.pools": _Named(
        "pools", _json(dict[str, int]), 'limits by pool, such as {"ram": 64000}', _shown_json
    ),
}
"""Names of config.json, those of ROUTER without it, and the fields of the scheduler's settings."""

MODEL_SETTINGS: dict[str, _Named] = {
    "replicas": _Named("replicas", _count(1), "a whole number of 1 or more"),
    "gpus": _Named("gpus", _gpus, f"numbers of GPUs below {GPUS_MAX} joined by +, such as 0+1"),
    "priority": _Named("priority", _count(-1_000_000, 1_000_000), "a whole number from -1000000 to 1000000"),
    "ttl": _Named("ttl_us", _us, _SECONDS, _shown_s),
    "persistent": _Named("persistent", _flag, _FLAG, _shown_flag),
    "capacities": _Named(
        "capacities", _capacities, "pools and amounts, such as ram:10000+gpu0:6000", _shown_capacities
    ),
    "evict_cost": _Named("evict_cost", _cost, "a whole number of 0 or more, or none", _shown_cost),
}
"""As KEY.MODEL; `KEY.*` for every model."""

_ENTRY_KEYS = {"replicas": "num_instance"}
"""What config.json calls them in a model's entry, where that is another name."""


def changed(settings: SchedulerSettings, sets: Sequence[str]) -> SchedulerSettings:
    """These settings with each `KEY=VALUE` applied, in order. Raises WorkloadError."""
    after = change_of(settings, sets)(settings)
    _check_rules(after, sets)
    return after


def change_of(settings: SchedulerSettings, sets: Sequence[str]) -> Callable[[SchedulerSettings], SchedulerSettings]:
    """What each `KEY=VALUE` makes of these settings, and of what a reload makes of them: a model that is not there any
    more has nothing to be changed. Raises WorkloadError."""
    changes: list[tuple[str, dict[str, Any]]] = []
    """A model, `*` for each of them or "" for none, and the fields that are changed."""
    for text in sets:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise WorkloadError(f"--set {text}: expected KEY=VALUE, such as QUEUE_HEAD_GRACE=30")
        kind, dot, model = key.partition(".")
        if dot and kind in MODEL_SETTINGS:
            if model != "*" and model not in settings.models:
                there = ", ".join(settings.models)
                raise WorkloadError(f"--set {text}: there is no model {model!r}; there are {there}")
            named = MODEL_SETTINGS[kind]
            changes.append((model, {named.field: _read(named, text, value)}))
        elif key in SETTINGS:
            named = SETTINGS[key]
            read = _read(named, text, value)
            changes.append(("", {named.field: _sets(settings, text, read) if key == _SETS else read}))
        else:
            known = [*SETTINGS, *(f"{name}.MODEL" for name in MODEL_SETTINGS)]
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise WorkloadError(f"--set {text}: there is no setting {key} that a simulation knows; {hint}")
    return partial(_apply, changes)


def _apply(changes: Sequence[tuple[str, dict[str, Any]]], settings: SchedulerSettings) -> SchedulerSettings:
    engine = settings.engine
    for model, fields in changes:
        if model:
            models = {
                name: _changed_model(old, fields) if model in ("*", name) else old
                for name, old in settings.models.items()
            }
            settings = msgspec.structs.replace(settings, models=models)
        else:
            settings = msgspec.structs.replace(settings, **fields)
    if settings.engine != engine and not any("max_models_per_gpu" in fields for _, fields in changes):
        # As when config.json says nothing of the cap: it is the rule of one engine, and none of the others'.
        settings = msgspec.structs.replace(settings, max_models_per_gpu=int(settings.engine == "residency"))
    if settings.keep_caches:
        settings = _with_shapes(settings)
    used = [gpu for model in settings.models.values() for gpu in model.gpus]
    if used and max(used) >= settings.gpus:
        settings = msgspec.structs.replace(settings, gpus=max(used) + 1)
    return settings


def _with_shapes(settings: SchedulerSettings) -> SchedulerSettings:
    """Where prompt caches were not kept, nobody has said what shapes them: a model's are taken to fit themselves."""
    models = {
        name: model if model.cache_shape else msgspec.structs.replace(model, cache_shape=model.fingerprint or name)
        for name, model in settings.models.items()
    }
    return msgspec.structs.replace(settings, models=models)


def _sets(settings: SchedulerSettings, text: str, read: dict[str, str | list[list[str]]]) -> tuple[MatrixSet, ...]:
    expressions = {name: each for name, each in read.items() if isinstance(each, str)}
    expanded = expand(expressions, {}, list(settings.models))
    for name, mistake in expanded.mistakes:
        raise WorkloadError(f"--set {text}: set {name!r}: {mistake}")
    combinations = {each.name: each.combinations for each in expanded.sets}
    combinations |= {name: tuple(map(tuple, each)) for name, each in read.items() if not isinstance(each, str)}
    return tuple(MatrixSet(name=name, combinations=combinations[name]) for name in read)


def _check_rules(settings: SchedulerSettings, sets: Sequence[str]) -> None:
    """Rules name models and pools that exist."""
    said = f"--set {', '.join(sets)}"
    named = [name for group in settings.groups.values() for name in group.members]
    named += [name for each in settings.matrix for combination in each.combinations for name in combination]
    for name in (*named, *settings.matrix_evict_costs):
        if name not in settings.models:
            raise WorkloadError(f"{said}: there is no model {name!r}; there are {', '.join(settings.models)}")
    for name, model in settings.models.items() if settings.engine == "capacity" else ():
        for pool in model.capacities:
            if pool not in settings.pools:
                raise WorkloadError(f"{said}: {name!r} takes of {pool!r}, which is no pool")


def _changed_model(old: ModelSettings, fields: dict[str, Any]) -> ModelSettings:
    if fields.keys() & {"replicas", "gpus"}:
        fields = {**fields, "replica_gpus": (), "mask": ()}  # where each replica goes was said for the old number
    return msgspec.structs.replace(old, **fields)


def _read(named: _Named, text: str, value: str) -> Any:
    try:
        return named.read(value)
    except (ValueError, KeyError, OverflowError) as error:
        raise WorkloadError(f"--set {text}: {value!r} is not {named.right}") from error


def differences(before: SchedulerSettings, after: SchedulerSettings) -> list[str]:
    """`KEY=VALUE` for everything in which `after` differs, as `changed` reads it."""
    said = [
        f"{key}={named.shown(getattr(after, named.field))}"
        for key, named in SETTINGS.items()
        if getattr(before, named.field) != getattr(after, named.field) and (getattr(after, named.field) or key != _CAP)
    ]
    for name, model in after.models.items():
        old = before.models.get(name, ModelSettings())
        said += [
            f"{key}.{name}={_shown_model(named, getattr(model, named.field))}"
            for key, named in MODEL_SETTINGS.items()
            if getattr(old, named.field) != getattr(model, named.field)
        ]
    return said


def _shown_model(named: _Named, value: Any) -> str:
    return "+".join(map(str, value)) if named.field == "gpus" else named.shown(value)


_CAP = "MAX_MODELS_PER_GPU"
"""0 where another engine has taken its place, which is said by the engine."""


def told(settings: SchedulerSettings) -> str:
    """The settings that matter most, in one line."""
    names = (
        "QUEUE_HEAD_GRACE",
        "QUEUE_HEAD_GRACE_FROM",
        "QUEUE_FORCE_LOAD_TIMEOUT",
        "EVICTION_POLICY",
        _CAP if settings.max_models_per_gpu else "routing.router.use",
    )
    return " ".join(f"{name}={SETTINGS[name].shown(getattr(settings, SETTINGS[name].field))}" for name in names)


def config_lines(settings: SchedulerSettings, sets: Sequence[str]) -> str:
    """What to paste into config.json to have these settings."""
    router: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}
    parts: dict[str, Any] = {}
    for text in sets:
        key, _, value = text.partition("=")
        kind, dot, model = key.partition(".")
        if dot and kind in MODEL_SETTINGS:
            names = list(settings.models) if model == "*" else [model]
            for name in names:
                models.setdefault(name, {})[_ENTRY_KEYS.get(kind, kind)] = _as_json(kind, value)
        elif "." in key:
            inner = parts
            *path, last = key.split(".")
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = _as_json(key, value)
        else:
            router[key] = _as_json(key, value)
    if models:
        parts["LLM"] = models
    if router:
        parts["ROUTER"] = router
    return msgspec.json.format(msgspec.json.encode(parts), indent=2).decode()


_WORDS = (
    "EVICTION_POLICY",
    "QUEUE_HEAD_GRACE_FROM",
    "QUEUE_HEAD_RELEASE",
    "routing.router.use",
    "routing.router.scope",
)


def _expression(sets: str | list[list[str]]) -> str:
    return sets if isinstance(sets, str) else " | ".join(" & ".join(combination) for combination in sets)


def _as_json(key: str, value: str) -> Any:
    if key == "gpus":
        return list(_gpus(value))
    if key in _WORDS:
        return value
    if key == "capacities":
        return _capacities(value)
    if key == "evict_cost":
        return _cost(value)
    if key == _SETS:
        return {name: _expression(each) for name, each in msgspec.json.decode(value).items()}
    if key.startswith("routing."):
        return msgspec.json.decode(value)
    named = SETTINGS.get(key) or MODEL_SETTINGS[key]
    if named.shown is _shown_flag:
        return _flag(value)
    return int(float(value)) if float(value).is_integer() else float(value)
