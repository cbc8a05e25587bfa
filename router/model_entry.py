"""One model's entry in config.json, under LLM: what the router says and does about it and never tells llama-server.

What llama-server is to be told stands in presets.ini. Both meet in `router.models`.
"""

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router.gpu_pins import ALLOWED, BadPin, Pins, read_pins
from router.presets import canonical_name
from router.problems import Findings, Problem, nearest
from router.rewrite import Filters
from router.settings import BadValue, Check, Key, flag, integer, number, text

FILTER_KEYS = ("stripParams", "setParams", "setParamsByID")
PRIORITY = integer(-1_000_000, 1_000_000)
"""Of a model, a key or a request; higher goes first."""

MASKS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)


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
class KeyConfig:
    """A client's API key; of the key itself only its SHA-256 is kept."""

    name: str
    sha256: str
    admin: bool = False
    """Whether it may change the router: load, unload, cancel what others asked, reload, stop."""
    models: tuple[str, ...] = ()
    """Real names of the models it may use; empty for all."""
    priority: int = 0
    max_parallel: int = 0
    rpm: int = 0
    tpm: int = 0
    """Requests and tokens within any 60 seconds; beyond them it gets 429. 0 is no limit."""
    variable: str = ""
    """The environment variable that it came from; empty for none."""
    expires_s: float = 0.0
    """Wall clock from which on it is not taken any more, in seconds since 1970; 0 for never."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What config.json says about one model; the defaults are those of a model that has no entry."""

    pins: Pins = field(default_factory=Pins)
    replicas: int = 1
    model: str = ""
    aliases: tuple[str, ...] = ()
    unlisted: bool = False
    priority: int = 0
    ttl_s: float | None = None
    persistent: bool = False
    capacities: Mapping[str, int] = field(default_factory=dict)
    """What one replica takes of each pool."""
    evict_cost: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    filters: Filters = field(default_factory=Filters)
    title: str = ""
    description: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    cost: Cost | None = None


@dataclass(slots=True)
class ObjectReader:
    """An object of config.json, key by key; mistakes are noted with their place and the default is taken."""

    value: Mapping[str, Any]
    file: str
    path: str
    findings: Findings

    def problem(self, key: str, message: str, *, allowed: str = "", nearest: str = "") -> Problem:
        """A mistake at this key."""
        value = self.value.get(key, "")
        shown = value if isinstance(value, str) else repr(value)
        return Problem(
            message, file=self.file, section=self.path, key=key, value=shown, allowed=allowed, nearest=nearest
        )

    def take(self, key: str, check: Check, default: Any) -> Any:
        """The value at `key` where it is there and right, else `default`."""
        if key not in self.value:
            return default
        try:
            return check(self.value[key])
        except BadValue as error:
            value = self.value[key]
            near = nearest(value, str(error).split(", ")) if isinstance(value, str) else ""
            self.findings.add(self.problem(key, "not a value for this key", allowed=str(error), nearest=near))
            return default

    def key(self, key: str, keys: Mapping[str, Key]) -> Any:
        """The same by what the table of this object's keys says of it."""
        rule = keys[key]
        assert rule.check is not None, key
        return self.take(key, rule.check, rule.default)

    def inner(self, key: str, keys: Collection[str]) -> "ObjectReader | None":
        """The object at `key`, in which only `keys` may stand; None where there is none."""
        value = self.value.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.findings.add(
                self.problem(key, "this holds several values", allowed=f"an object with {', '.join(keys)}")
            )
            return None
        reader = ObjectReader(value, self.file, f"{self.path}.{key}", self.findings)
        reader.only(keys)
        return reader

    def only(self, keys: Collection[str]) -> None:
        """Every key that is none of `keys` is a mistake."""
        for key in self.value:
            if key not in keys:
                near = nearest(key, keys)
                self.findings.add(self.problem(key, "there is no such key here", allowed=", ".join(keys), nearest=near))


def read_entry(value: Any, name: str, file: str, uuids: Sequence[str], findings: Findings) -> ModelEntry:
    """One value of LLM."""
    if not isinstance(value, dict):
        place = Problem("the entry of a model is an object", file=file, section="LLM", key=name, value=repr(value))
        findings.add(place)
        return ModelEntry()
    reader = ObjectReader(value, file, f"LLM.{name}", findings)
    for key in value:
        if key not in ENTRY_KEYS:
            message = "there is no such key here; an option of llama-server belongs into presets.ini, under this model"
            allowed = ", ".join(ENTRY_KEYS)
            findings.add(reader.problem(key, message, allowed=allowed, nearest=nearest(key, ENTRY_KEYS)))
    pins = _pins(reader, uuids)
    aliases: tuple[str, ...] = reader.key("aliases", ENTRY_KEYS)
    filters = _filters(reader)
    # A name that only has parameters of its own is a name all the same.
    aliases += tuple(key for key in filters.by_name if key not in (canonical_name(name), *aliases))
    return ModelEntry(
        pins=pins,
        replicas=_replicas(reader, pins),
        model=reader.key("model", ENTRY_KEYS),
        aliases=aliases,
        unlisted=reader.key("unlisted", ENTRY_KEYS),
        priority=reader.key("priority", ENTRY_KEYS),
        ttl_s=reader.key("ttl", ENTRY_KEYS),
        persistent=reader.key("persistent", ENTRY_KEYS),
        capacities=_capacities(reader),
        evict_cost=reader.key("evict_cost", ENTRY_KEYS),
        env=_env(reader),
        filters=filters,
        title=reader.key("name", ENTRY_KEYS),
        description=reader.key("description", ENTRY_KEYS),
        metadata=reader.key("metadata", ENTRY_KEYS),
        reasoning_effort=_reasoning_effort(reader),
        cost=_cost(reader),
    )


def _pins(reader: ObjectReader, uuids: Sequence[str]) -> Pins:
    value = reader.value.get("gpus")
    if value is None:
        return Pins()
    try:
        return read_pins(value, uuids)
    except BadPin as error:
        reader.findings.add(reader.problem("gpus", str(error), allowed=ALLOWED))
        return Pins()


def _replicas(reader: ObjectReader, pins: Pins) -> int:
    replicas: int = reader.take("num_instance", integer(1, 1000), len(pins.replicas) or 1)
    if pins.replicas and replicas != len(pins.replicas):
        message = f"`gpus` lists the GPUs of {len(pins.replicas)} replicas, one list each"
        reader.findings.add(reader.problem("num_instance", message, allowed=f"{len(pins.replicas)}, or nothing"))
        return len(pins.replicas)
    return replicas


def _capacities(reader: ObjectReader) -> dict[str, int]:
    value = reader.value.get("capacities", {})
    if not isinstance(value, dict):
        allowed = '{"ram": 10000, "gpu0": 6000}'
        reader.findings.add(reader.problem("capacities", "this holds what it takes of each pool", allowed=allowed))
        return {}
    inner = ObjectReader(value, reader.file, f"{reader.path}.capacities", reader.findings)
    return {pool: inner.take(pool, integer(0, 2**63 - 1), 0) for pool in value}


def _env(reader: ObjectReader) -> dict[str, str]:
    """Additions to the child's environment, from {"NAME": "value"} or ["NAME=value"]."""
    raw = reader.value.get("env")
    if raw is None:
        return {}
    if isinstance(raw, list) and all(isinstance(item, str) and "=" in item for item in raw):
        raw = dict(item.split("=", 1) for item in raw)
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        allowed = 'an object {"NAME": "value"} or a list ["NAME=value"]'
        reader.findings.add(reader.problem("env", "not an environment", allowed=allowed))
        return {}
    env: dict[str, str] = {}
    for name, value in raw.items():
        place = ObjectReader(raw, reader.file, f"{reader.path}.env", reader.findings)
        if name in MASKS:
            reader.findings.add(place.problem(name, "the router masks GPUs itself; write the GPUs into `gpus`"))
        elif name == "LLAMA_API_KEY":
            reader.findings.add(place.problem(name, "every child gets a random key of its own"))
        elif name.startswith("LLAMA_ARG_"):
            reader.findings.add(place.problem(name, "write this as a key of the model's section in presets.ini"))
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            reader.findings.add(place.problem(name, "this cannot stand in an environment"))
        else:
            env[name] = value
    return env


def _filters(reader: ObjectReader) -> Filters:
    inner = reader.inner("filters", FILTER_KEYS)
    if inner is None:
        return Filters()
    strip: tuple[str, ...] = inner.take("stripParams", _parameters, ())
    return Filters(
        strip=strip,
        set=inner.take("setParams", _settings, {}),
        by_name={canonical_name(key): value for key, value in inner.take("setParamsByID", _by_name, {}).items()},
    )


def _reasoning_effort(reader: ObjectReader) -> ReasoningEffort | None:
    inner = reader.inner("reasoning_effort", ("options", "default", "disable"))
    if inner is None:
        return None
    options: tuple[str, ...] = inner.take("options", names, ())
    default: str = inner.take("default", text, "")
    disable: str = inner.take("disable", text, "")
    if not options:
        inner.findings.add(inner.problem("options", "the levels that a client may ask for are missing"))
    elif default and default not in (*options, disable):
        message = "the default level is none of the options"
        allowed = ", ".join(options)
        inner.findings.add(inner.problem("default", message, allowed=allowed, nearest=nearest(default, options)))
    return ReasoningEffort(options, default, disable)


def _cost(reader: ObjectReader) -> Cost | None:
    inner = reader.inner("cost", ("input", "cached_input", "output"))
    if inner is None:
        return None
    for key in ("input", "output"):
        if key not in inner.value:
            inner.findings.add(inner.problem(key, "this price is missing", allowed="dollars per million tokens"))
    price: float = inner.take("input", number(0), 0.0)
    return Cost(price, inner.take("cached_input", number(0), price), inner.take("output", number(0), 0.0))


# --- API keys -------------------------------------------------------------------------------------------------------


def read_keys(value: Any, file: str, environ: Mapping[str, str], findings: Findings) -> dict[str, KeyConfig]:
    """`keys` of config.json: name to the key itself, or to an object with its limits."""
    if not isinstance(value, dict):
        findings.add(Problem("keys holds API keys by name", file=file, key="keys", allowed='{"alice": "secret"}'))
        return {}
    keys: dict[str, KeyConfig] = {}
    for name, raw in value.items():
        entry = raw if isinstance(raw, dict) else {"key": raw}
        # Kept apart, so that a mistake in the entry never shows the secret, under whatever name it was written.
        shown = {key: entry[key] if key in KEY_KEYS else "" for key in entry if key != "key"}
        reader = ObjectReader(shown, file, f"keys.{name}", findings)
        reader.only(KEY_KEYS)
        try:
            digest = _digest(entry.get("key"), Path(file).parent, environ)
        except BadValue as error:
            allowed = 'a text, "${env.NAME}", "${file.PATH}" or "sha256:..."'
            findings.add(reader.problem("key", str(error), allowed=allowed))
            continue
        twin = next((other.name for other in keys.values() if other.sha256 == digest), "")
        if twin:
            findings.add(reader.problem("key", f"this is also the key of {twin!r}"))
        keys[name] = KeyConfig(
            name=name,
            sha256=digest,
            variable=_variable(entry["key"]),
            admin=reader.key("admin", KEY_KEYS),
            models=reader.key("models", KEY_KEYS),
            priority=reader.key("priority", KEY_KEYS),
            max_parallel=reader.key("max_parallel", KEY_KEYS),
            rpm=reader.key("rpm", KEY_KEYS),
            tpm=reader.key("tpm", KEY_KEYS),
            expires_s=reader.key("expires", KEY_KEYS),
        )
    return keys


def _digest(key: Any, folder: Path, environ: Mapping[str, str]) -> str:
    if not isinstance(key, str) or not key:
        raise BadValue("the key itself is missing or no text")
    if key.startswith("sha256:"):
        digest = key.removeprefix("sha256:").lower()
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise BadValue("after sha256: there are 64 hexadecimal digits")
        return digest
    if variable := _variable(key):
        key = environ.get(variable, "")
        if not key:
            raise BadValue(f"the environment variable {variable} is not set")
    elif reference := re.fullmatch(r"\$\{file\.(.+)\}", key):
        key = key_in_file(folder / Path(reference[1]).expanduser())
    elif key.startswith("${"):
        raise BadValue("this would be the key itself; a reference is ${env.NAME} or ${file.PATH}")
    return key_digest(sendable(key))


def _variable(key: str) -> str:
    reference = re.fullmatch(r"\$\{env\.(\w+)\}", key)
    return reference[1] if reference else ""


def key_in_file(path: Path) -> str:
    """The key that is all there is in a file, as secrets of containers and services come. Raises BadValue."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadValue(f"no key can be read from {path}: {reason}") from None
    except ValueError:
        raise BadValue(f"no key can be read from {str(path)!r}: no file can have such a name") from None
    if not key or len(key.splitlines()) > 1:
        raise BadValue(f"{path} should hold one line, the key")
    return key


def sendable(key: str) -> str:
    """The same key. Raises BadValue for one that a client could not send, and so would never be taken."""
    if key != key.strip() or any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise BadValue("the key has a blank at an end or a control character in it, which no header carries")
    return key


def key_digest(key: str) -> str:
    """The form in which an API key is kept and compared. Raises BadValue for what no client could send."""
    try:
        return hashlib.sha256(os.fsencode(key)).hexdigest()
    except UnicodeEncodeError:
        raise BadValue("the key holds half of a character, as a lone \\ud800 in JSON is one") from None


# --- what a value may be --------------------------------------------------------------------------------------------


def some_text(value: Any) -> str:
    """A text on one line that is not empty."""
    if not text(value):
        raise BadValue("a text")
    return text(value)


def names(value: Any) -> tuple[str, ...]:
    """One name or a list of names."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise BadValue("a list of names")
    return tuple(items)


def instant(value: Any) -> float:
    """A day or a moment in ISO 8601, as seconds since 1970; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise BadValue('a day or a moment such as "2027-01-31" or "2027-01-31T18:00+01:00"')


def _parameters(value: Any) -> tuple[str, ...]:
    """A list of parameters, or a text with commas between them."""
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    allowed = 'a list such as ["temperature", "top_p"]; `model` cannot be stripped'
    if not isinstance(items, list) or not all(map(_is_parameter, items)):
        raise BadValue(allowed)
    return tuple(items)


def _settings(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(map(_is_parameter, value)):
        raise BadValue('an object such as {"temperature": 0.7}; `model` cannot be set')
    return dict(value)


def _by_name(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value):
        raise BadValue('an object such as {"m:high": {"temperature": 1}}')
    return {name: _settings(inner) for name, inner in value.items()}


def _is_parameter(name: Any) -> bool:
    # It is told in a header.
    return isinstance(name, str) and name != "model" and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def _ttl(value: Any) -> float | None:
    if value is None or (value == -1 and not isinstance(value, bool)):
        return None
    try:
        return number(0)(value)  # type: ignore[no-any-return]
    except BadValue:
        raise BadValue("seconds from 0 (never); -1 for GLOBAL_TTL") from None


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValue("a text")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadValue("an object")
    return dict(value)


# --- what may stand in them, for the readers above and for the reference --------------------------------------------

ENTRY_KEYS: Mapping[str, Key] = {
    "num_instance": Key(
        "replicas: llama-server processes of this model, each a full copy of the weights",
        integer(1, 1000),
        shown="1, or one for each list in `gpus`",
    ),
    "gpus": Key("GPUs it counts on and is masked to, see below", shown="0", allowed="see below"),
    "model": Key("the GGUF file, for a model without a section", some_text, ""),
    "aliases": Key("other names for it; each belongs to one model only", names, ()),
    "unlisted": Key("served by name, but not in `/v1/models`", flag, False),
    "priority": Key("higher goes first in the queue", PRIORITY, 0),
    "ttl": Key("seconds without use after which it is unloaded; 0 for never", _ttl, shown="-1, for `GLOBAL_TTL`"),
    "persistent": Key("never evicted for another model", flag, False),
    "capacities": Key(
        "what one replica takes of each pool, for the engine `capacity`", allowed='`{"ram": 10000}`', page="routing"
    ),
    "evict_cost": Key(
        "what it costs to evict it, for the engines `matrix` and `capacity`",
        integer(0, 2**63 - 1),
        shown="1 for `matrix`, 0 for `capacity`",
        page="routing",
    ),
    "env": Key(
        "additions to the environment of its processes; never the masks of GPUs",
        allowed='`{"NAME": "value"}` or `["NAME=value"]`',
    ),
    "filters": Key(
        "parameters that are stripped from its requests or set in them",
        allowed="an object with " + ", ".join(f"`{key}`" for key in FILTER_KEYS),
        page="models",
    ),
    "name": Key("told in `/v1/models`", text, ""),
    "description": Key("told in `/v1/models`", _prose, ""),
    "metadata": Key("told in `/v1/models`", _object, {}),
    "reasoning_effort": Key(
        "told in `/v1/models`: `options` (a list), `default` (one of them), `disable` (the level that turns thinking "
        "off)",
        allowed="an object",
    ),
    "cost": Key(
        "told in `/v1/models` as pricing: `input`, `cached_input`, `output` in dollars per million tokens",
        allowed="an object",
    ),
}

KEY_KEYS: Mapping[str, Key] = {
    "key": Key(
        "the key itself, where to find it (beside config.json, or absolute), or its SHA-256 in hexadecimal",
        allowed="a text, `${env.NAME}`, `${file.PATH}` or `sha256:...`",
    ),
    "admin": Key(
        "may load, unload, stop, reload, take GPUs out of service, cancel what others asked and read what "
        "llama-servers print",
        flag,
        False,
    ),
    "models": Key("names that it may use", names, (), shown="all"),
    "priority": Key(
        "of its requests; wins over the model's. `routing` says whose requests may say another one themselves",
        PRIORITY,
        0,
        page="routing",
    ),
    "max_parallel": Key("requests in flight at once; more wait, none is refused; 0 without limit", integer(0), 0),
    "rpm": Key("requests within any 60 seconds; beyond them a 429 with Retry-After; 0 without limit", integer(0), 0),
    "tpm": Key("the same for tokens, which count when an answer ends", integer(0), 0),
    "expires": Key("from when on it is not taken, UTC unless it says otherwise", instant, 0.0, shown="never"),
}
