"""The models: what config.json says of each and what presets.ini tells its llama-server, put together and checked.

Layers of llama-server options, later ones winning: promptCache < presetGlobals < `[*]` < promptCache.ramMiBPerModel <
the model's own section. A section without an entry in LLM gets the defaults, so that a plain preset file works alone.

Names are case-sensitive and may hold anything but commas and control characters. No name ever becomes part of a command
line here, and whoever makes a file for a model does not name it by the model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router.llama_options import TRUE_WORDS, OptionTable
from router.model_entry import Cost, ModelEntry, ObjectReader, ReasoningEffort, read_entry
from router.model_files import SOURCES, check_settings, whole_number
from router.presets import DEFAULT, GLOBAL, SKIPPED, Entry, Section, Setting, canonical_name, merge, read_layer, to_argv
from router.problems import Findings, Problem, at, nearest
from router.rewrite import Filters
from router.settings import Key, flag, integer, number

SECRETS = {"hf-token": "HF_TOKEN"}
"""Options that go into the environment, since everybody on the machine can read a command line."""


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
    filters: Filters = field(default_factory=Filters)
    """What is stripped from the bodies of its requests, or set in them."""
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
    """Never evicted for another model."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """What one replica takes of each pool, for the engine `capacity`."""
    evict_cost: int | None = None
    priority: int = 0
    unlisted: bool = False
    """Served by name, but not in /v1/models."""
    title: str = ""
    description: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    cost: Cost | None = None


@dataclass(slots=True)
class Draft:
    """A model before the number of GPUs is known."""

    name: str
    entry: ModelEntry
    settings: Mapping[str, Setting]
    place: Problem
    """A Problem without a message: where the model is written."""


def read_drafts(
    sections: Mapping[str, Section],
    top: Mapping[str, Any],
    table: OptionTable | None,
    config_file: str,
    presets_file: str,
    uuids: Sequence[str],
    findings: Findings,
) -> list[Draft]:
    """Every model of both files. Without a table (llama-server could not be asked) options are not looked at."""
    entries = _read_entries(top.get("LLM", {}), config_file, uuids, findings)
    own = [name for name in sections if name != GLOBAL and not _is_preamble(sections[name])]
    names = list(dict.fromkeys([*entries, *own]))
    below, above = _shared_layers(sections, top, table, config_file, names, findings)
    drafts = []
    for name in names:
        entry = entries.get(name)
        section = sections.get(name)
        if section is None:
            place = Problem("", file=config_file, section="LLM", key=name)
        else:
            place = Problem("", file=presets_file, line=section.line, section=name)
        _check_name(name, place, findings)
        if entry is None and "LLM" in top:
            message = f"this model has no entry in LLM of {config_file}: one replica on GPU 0"
            findings.warn(at(place, message))
        if section is None and entry is not None and not entry.model:
            message = f"this model has no section in {presets_file} and no `model` here, so there is nothing to load"
            findings.add(at(place, message, nearest=nearest(name, own)))
            continue
        written = list(section.entries) if section else []
        settings: dict[str, Setting] = {}
        if table is not None:
            if entry is not None and entry.model:
                written.append(Entry("model", entry.model, config_file, f"LLM.{name}"))
            layers = [*below, above.get(name, {}), read_layer(written, table, findings)]
            settings = merge(layers)
            check_settings(name, settings, table, place, findings)
        drafts.append(Draft(name, entry or ModelEntry(), settings, place))
    _check_names(drafts, config_file, findings)
    return drafts


def _is_preamble(section: Section) -> bool:
    """Whether this is only `version = 1` before the first header, which is no model."""
    return section.name == DEFAULT and section.line == 0 and all(entry.key == SKIPPED for entry in section.entries)


def _read_entries(value: Any, file: str, uuids: Sequence[str], findings: Findings) -> dict[str, ModelEntry]:
    if not isinstance(value, dict):
        findings.add(Problem("LLM holds the models by name", file=file, key="LLM", allowed="an object"))
        return {}
    entries: dict[str, ModelEntry] = {}
    for written, raw in value.items():
        name = canonical_name(written)
        place = Problem("", file=file, section="LLM", key=written)
        if name == GLOBAL:
            findings.add(at(place, "options for all models stand in presetGlobals or in [*] of presets.ini"))
        elif name in entries:
            findings.add(at(place, f"this is {name!r} again, since a quantisation is written in capitals"))
        else:
            entries[name] = read_entry(raw, written, file, uuids, findings)
    return entries


# --- names ----------------------------------------------------------------------------------------------------------


def _check_name(name: str, place: Problem, findings: Findings) -> None:
    why = _bad_name(name)
    if why:
        findings.add(at(place, f"a model's name {why}"))


def _bad_name(name: str) -> str:
    if not name.strip():
        return "cannot be empty"
    if "," in name:
        return "cannot hold a comma: llama-server splits names there"
    if name != name.strip():
        return "cannot begin or end with a blank"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return "cannot hold control characters"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "must be text"
    return ""


def _check_names(drafts: Sequence[Draft], config_file: str, findings: Findings) -> None:
    """An alias belongs to one model and is no other model's name."""
    owners: dict[str, str] = {draft.name: draft.name for draft in drafts}
    for draft in drafts:
        for alias in draft.entry.aliases:
            place = Problem("", file=config_file, section=f"LLM.{draft.name}", key="aliases", value=alias)
            if why := _bad_name(alias):
                findings.add(at(place, f"an alias {why}"))
            elif alias == draft.name:
                findings.add(at(place, "this is the model's own name"))
            elif alias in owners and owners[alias] == draft.name:
                findings.add(at(place, f"{alias!r} is written twice"))
            elif alias in owners:
                whose = "is the name of" if alias == owners[alias] else "is also an alias of"
                findings.add(at(place, f"the alias {alias!r} of {draft.name!r} {whose} the model {owners[alias]!r}"))
            else:
                owners[alias] = draft.name


# --- options --------------------------------------------------------------------------------------------------------


def _shared_layers(
    sections: Mapping[str, Section],
    top: Mapping[str, Any],
    table: OptionTable | None,
    file: str,
    names: Iterable[str],
    findings: Findings,
) -> tuple[list[dict[str, Setting]], dict[str, dict[str, Setting]]]:
    """The layers below every model's own, and the one between for those in ramMiBPerModel."""
    cache, cache_defaults, per_model = _prompt_cache(top, file, list(names), findings)
    global_entries = _preset_globals(top.get("presetGlobals"), file, findings)
    if table is None:
        return [], {}
    defaults = read_layer(cache_defaults, table, findings, optional=True)
    star = sections[GLOBAL].entries if GLOBAL in sections else []
    below = [defaults, *(read_layer(entries, table, findings) for entries in (cache, global_entries, star))]
    _check_globals(merge(below), table, findings)
    return below, {name: read_layer(entries, table, findings) for name, entries in per_model.items()}


def _check_globals(shared: Mapping[str, Setting], table: OptionTable, findings: Findings) -> None:
    for source in SOURCES:
        setting = shared.get(table.canonical(source))
        if setting:
            findings.warn(setting.entry.problem("every model without weights of its own would load these"))


PROMPT_CACHE_KEYS: Mapping[str, Key] = {
    "ramMiB": Key(
        "`cache-ram`: most MiB for conversations that are in no slot, per process. A cap, not an allocation; "
        "-1 without limit, 0 for none",
        integer(-1),
        8192,
    ),
    "ramMiBPerModel": Key("the same for single models", allowed='`{"a model": 32768}`'),
    "enable": Key("`cache-prompt`", flag, True),
    "reuseChunk": Key("`cache-reuse`; most recent models do not support it", integer(0)),
    "checkpoints": Key("`ctx-checkpoints`", integer(0, or_none=True)),
    "checkpointMinStep": Key("`checkpoint-min-step`", integer(0, or_none=True)),
}
KEEP_KEYS: Mapping[str, Key] = {
    "keepAcrossSwaps": Key(
        "save the slots of a process before it is stopped, and restore them after the next load of its model. Off, "
        "because the files hold what was said",
        flag,
        False,
    ),
    "keepDirectory": Key(
        "each router makes a directory of its own in it",
        shown="`/dev/shm` where there is one and `persist` is off, else `prompt-caches` in the state directory",
        allowed="an absolute path",
    ),
    "keepBudgetMiB": Key("size of all files together; the least recently used goes first", integer(1), 2048),
    "keepMinTokens": Key("shorter conversations are not saved", integer(1), 512),
    "keepMaxHoldSeconds": Key(
        "the longest that saving and restoring together may hold up one swap; 0: nothing that anybody would wait for",
        number(0, 3600),
        2.0,
    ),
    "persist": Key("the files outlive a clean end of the router", flag, False),
}
"""Of the same object, and read by `router.cache_settings`."""


def _prompt_cache(
    top: Mapping[str, Any], file: str, names: Sequence[str], findings: Findings
) -> tuple[list[Entry], list[Entry], dict[str, list[Entry]]]:
    """promptCache as preset keys: what was written, what holds by default, and what holds for single models."""
    value = top.get("promptCache")
    if value is None:
        return [], [], {}
    reader = ObjectReader({"promptCache": value}, file, "", findings).inner(
        "promptCache", (*PROMPT_CACHE_KEYS, *KEEP_KEYS)
    )
    if reader is None:
        return [], [], {}
    written: list[Entry] = []
    defaults: list[Entry] = []

    def put(key: str, option: str) -> None:
        taken = reader.key(key, PROMPT_CACHE_KEYS)
        if taken is not None:
            shown = str(taken).lower() if isinstance(taken, bool) else str(taken)
            (written if key in reader.value else defaults).append(Entry(option, shown, file, f"promptCache.{key}"))

    put("ramMiB", "cache-ram")
    put("enable", "cache-prompt")
    put("reuseChunk", "cache-reuse")
    put("checkpoints", "ctx-checkpoints")
    put("checkpointMinStep", "checkpoint-min-step")
    return written, defaults, _ram_per_model(reader, names)


def _ram_per_model(reader: ObjectReader, names: Sequence[str]) -> dict[str, list[Entry]]:
    value = reader.value.get("ramMiBPerModel")
    if value is None:
        return {}
    if not isinstance(value, dict):
        allowed = '{"a model": 16384}'
        reader.findings.add(reader.problem("ramMiBPerModel", "this holds MiB by model", allowed=allowed))
        return {}
    inner = ObjectReader(value, reader.file, "promptCache.ramMiBPerModel", reader.findings)
    entries: dict[str, list[Entry]] = {}
    for written in value:
        name = canonical_name(written)
        if name not in names:
            allowed = ", ".join(names)
            inner.findings.add(
                inner.problem(written, "there is no such model", allowed=allowed, nearest=nearest(name, names))
            )
        mib = inner.take(written, integer(-1), None)
        if mib is not None:
            entries[name] = [Entry("cache-ram", str(mib), reader.file, inner.path)]
    return entries


def _preset_globals(value: Any, file: str, findings: Findings) -> list[Entry]:
    if value is None:
        return []
    if not isinstance(value, dict):
        place = Problem("presetGlobals holds preset keys for all models", file=file, key="presetGlobals")
        findings.add(at(place, place.message, allowed='{"ngl": 99, "jinja": true}'))
        return []
    entries = []
    for key, raw in value.items():
        if raw is None:
            continue
        shown = str(raw).lower() if isinstance(raw, bool) else str(raw)
        entry = Entry(key, shown, file, "presetGlobals")
        if isinstance(raw, dict | list) or "\n" in shown or "\0" in shown:
            findings.add(
                entry.problem("a preset key has one value", allowed="a text on one line, a number, true or false")
            )
        else:
            entries.append(entry)
    return entries


# --- one model ------------------------------------------------------------------------------------------------------


def finish(draft: Draft, table: OptionTable, gpus: int, *, stop_timeout_s: float, ttl_s: float) -> ModelConfig:
    """The model as it runs where there are `gpus` GPUs; the times are those of models that do not say."""
    entry, settings = draft.entry, draft.settings

    def get(key: str) -> str:
        setting = settings.get(table.canonical(key))
        return setting.value if setting else ""

    mask = entry.pins.placed(gpus)
    visible = {name: setting for name, setting in settings.items() if name not in SECRETS}
    secret = {SECRETS[name]: setting.value for name, setting in settings.items() if name in SECRETS}
    stop_timeout = get("stop-timeout")
    return ModelConfig(
        name=draft.name,
        aliases=entry.aliases,
        gpus=tuple(sorted(mask)),
        mask=mask,
        replica_gpus=entry.pins.replicas,
        replicas=entry.replicas,
        argv=to_argv(visible),
        env={**secret, **entry.env},
        filters=entry.filters,
        options={name: setting.value for name, setting in visible.items()},
        model_path=get("model"),
        hf_repo=get("hf-repo"),
        hf_file=get("hf-file"),
        slots_hint=max(0, whole_number(get("parallel"))),
        context_hint=_context(get),
        load_on_startup=get("load-on-startup") in TRUE_WORDS,
        stop_timeout_s=float(stop_timeout) if stop_timeout else stop_timeout_s,
        ttl_s=ttl_s if entry.ttl_s is None else entry.ttl_s,
        persistent=entry.persistent,
        capacities=entry.capacities,
        evict_cost=entry.evict_cost,
        priority=entry.priority,
        unlisted=entry.unlisted,
        title=entry.title,
        description=entry.description,
        metadata=entry.metadata,
        reasoning_effort=entry.reasoning_effort,
        cost=entry.cost,
    )


def _context(get: Callable[[str], str]) -> int:
    """Tokens for one request: the pool where all slots share it (auto slots do), else its share; 0 when not written."""
    per_slot = whole_number(get("kv-unified-per-slot"))
    if per_slot > 0:
        return per_slot
    size, slots = max(0, whole_number(get("ctx-size"))), whole_number(get("parallel"))
    shared = get("kv-unified") == "true" or slots <= 0
    return size if shared else size // slots
