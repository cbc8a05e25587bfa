"""Other settings for a run, by the names of config.json: `QUEUE_HEAD_GRACE=30`, `replicas.MODEL=2`.

Only what the scheduler sees can be tried; how long the world takes is the world's own (`costs`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.workload import WorkloadError


@dataclass(frozen=True)
class _Named:
    field: str
    read: Callable[[str], Any]
    right: str
    shown: Callable[[Any], str] = str


def _us(text: str) -> int:
    value = float(text)
    if value < 0:
        raise ValueError
    return round(value * 1_000_000)


def _shown_s(us: int) -> str:
    return f"{us / 1_000_000:g}"


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[text.casefold()]


def _shown_flag(value: bool) -> str:
    return "true" if value else "false"


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    return {word: word for word in words}.__getitem__


def _gpus(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(0)(part) for part in text.split("+")}))


_SECONDS = "seconds, 0 or more"
_FLAG = "true or false"

SETTINGS: dict[str, _Named] = {
    "NUM_GPUS": _Named("gpus", _count(1), "a whole number of 1 or more"),
    "MAX_MODELS_PER_GPU": _Named("max_models_per_gpu", _count(1), "a whole number of 1 or more"),
    "EVICTION_POLICY": _Named("eviction", _one_of("lru", "fifo", "worth"), "lru, fifo or worth"),
    "EVICT_PREFER_IDLE": _Named("prefer_idle", _flag, _FLAG, _shown_flag),
    "QUEUE_HEAD_GRACE": _Named("head_grace_us", _us, _SECONDS, _shown_s),
    "QUEUE_HEAD_GRACE_FROM": _Named("head_grace_from", _one_of("head", "arrival"), "head or arrival"),
    "QUEUE_HEAD_RELEASE": _Named("head_release", _one_of("grace", "accrued"), "grace or accrued"),
    "QUEUE_FORCE_LOAD_TIMEOUT": _Named("force_load_us", _us, _SECONDS, _shown_s),
    "DISPATCH_OVERCOMMIT": _Named("overcommit", _count(-1), "a whole number of -1 or more"),
    "CONVERSATION_AFFINITY": _Named("affinity", _flag, _FLAG, _shown_flag),
}
"""Names of config.json's ROUTER, and the fields of the scheduler's settings."""

MODEL_SETTINGS: dict[str, _Named] = {
    "replicas": _Named("replicas", _count(1), "a whole number of 1 or more"),
    "gpus": _Named("gpus", _gpus, "numbers of GPUs joined by +, such as 0+1"),
    "priority": _Named("priority", int, "a whole number"),
    "ttl": _Named("ttl_us", _us, _SECONDS, _shown_s),
    "persistent": _Named("persistent", _flag, _FLAG, _shown_flag),
}
"""As KEY.MODEL; `KEY.*` for every model."""


def changed(settings: SchedulerSettings, sets: Sequence[str]) -> SchedulerSettings:
    """These settings with each `KEY=VALUE` applied, in order. Raises WorkloadError."""
    for text in sets:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise WorkloadError(f"--set {text}: expected KEY=VALUE, such as QUEUE_HEAD_GRACE=30")
        kind, dot, model = key.partition(".")
        if dot and kind in MODEL_SETTINGS:
            settings = _change_models(settings, model, MODEL_SETTINGS[kind], text, value)
        elif key in SETTINGS:
            named = SETTINGS[key]
            settings = msgspec.structs.replace(settings, **{named.field: _read(named, text, value)})
        else:
            known = [*SETTINGS, *(f"{name}.MODEL" for name in MODEL_SETTINGS)]
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise WorkloadError(f"--set {text}: there is no setting {key} that a simulation knows; {hint}")
    used = [gpu for model in settings.models.values() for gpu in model.gpus]
    if used and max(used) >= settings.gpus:
        settings = msgspec.structs.replace(settings, gpus=max(used) + 1)
    return settings


def _change_models(settings: SchedulerSettings, model: str, named: _Named, text: str, value: str) -> SchedulerSettings:
    if model != "*" and model not in settings.models:
        raise WorkloadError(f"--set {text}: there is no model {model!r}; there are {', '.join(settings.models)}")
    fields = {named.field: _read(named, text, value)}
    models = {
        name: _changed_model(old, fields) if model in ("*", name) else old for name, old in settings.models.items()
    }
    return msgspec.structs.replace(settings, models=models)


def _changed_model(old: ModelSettings, fields: dict[str, Any]) -> ModelSettings:
    if fields.keys() & {"replicas", "gpus"}:
        fields = {**fields, "replica_gpus": (), "mask": ()}  # where each replica goes was said for the old number
    return msgspec.structs.replace(old, **fields)


def _read(named: _Named, text: str, value: str) -> Any:
    try:
        return named.read(value)
    except (ValueError, KeyError) as error:
        raise WorkloadError(f"--set {text}: {value!r} is not {named.right}") from error


def differences(before: SchedulerSettings, after: SchedulerSettings) -> list[str]:
    """`KEY=VALUE` for everything in which `after` differs, as `changed` reads it."""
    said = [
        f"{key}={named.shown(getattr(after, named.field))}"
        for key, named in SETTINGS.items()
        if getattr(before, named.field) != getattr(after, named.field)
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


def told(settings: SchedulerSettings) -> str:
    """The settings that matter most, in one line."""
    names = (
        "QUEUE_HEAD_GRACE",
        "QUEUE_HEAD_GRACE_FROM",
        "QUEUE_FORCE_LOAD_TIMEOUT",
        "EVICTION_POLICY",
        "MAX_MODELS_PER_GPU",
    )
    return " ".join(f"{name}={SETTINGS[name].shown(getattr(settings, SETTINGS[name].field))}" for name in names)


def config_lines(settings: SchedulerSettings, sets: Sequence[str]) -> str:
    """What to paste into config.json to have these settings."""
    router: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}
    for text in sets:
        key, _, value = text.partition("=")
        kind, dot, model = key.partition(".")
        if dot and kind in MODEL_SETTINGS:
            names = list(settings.models) if model == "*" else [model]
            for name in names:
                models.setdefault(name, {})[kind] = _as_json(kind, value)
        else:
            router[key] = _as_json(key, value)
    parts: dict[str, Any] = {}
    if models:
        parts["LLM"] = models
    if router:
        parts["ROUTER"] = router
    return msgspec.json.format(msgspec.json.encode(parts), indent=2).decode()


def _as_json(key: str, value: str) -> Any:
    if key == "gpus":
        return list(_gpus(value))
    if key in ("EVICTION_POLICY", "QUEUE_HEAD_GRACE_FROM", "QUEUE_HEAD_RELEASE"):
        return value
    named = SETTINGS.get(key) or MODEL_SETTINGS[key]
    if named.shown is _shown_flag:
        return _flag(value)
    return int(float(value)) if float(value).is_integer() else float(value)
