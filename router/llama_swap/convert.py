"""llama-swap's configuration as config.json and presets.ini, and the list of what could not come along.

Everything that changes what a user sees is carried over or noted, with what to do about it. What only llama-swap needs
(ports, health checks, its own logs) goes without a word. What the result means is not judged here: `check` does that.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from router.llama_options import OptionTable
from router.llama_swap.command import Command, NotLlamaServer, read_command
from router.llama_swap.document import Document
from router.model_entry import MASKS
from router.scheduler.matrix_language import Either, ExpressionError, Leaf, Node, Reference, Together, parse

MASK_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

NOT_NEEDED = (
    "startPort",
    "healthCheckTimeout",
    "logLevel",
    "logRequests",
    "logTimeFormat",
    "logToStdout",
    "metricsMaxInMemory",
    "performance",
    "store",
    "ui",
    "compat",
)
"""Keys at the top that say how llama-swap itself works."""

MODEL_NOT_NEEDED = ("cmd", "proxy", "checkEndpoint", "healthCheckTimeout", "useModelName", "timeouts")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is not as it was: `changed` works in another way, `lost` does not work until somebody acts."""

    kind: Literal["changed", "lost"]
    where: str
    """Its place in config.yaml."""
    message: str
    advice: str = ""


@dataclass(slots=True)
class Conversion:
    """The two files as values, and the report."""

    config: dict[str, Any] = field(default_factory=dict)
    presets: dict[str, dict[str, str]] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Models that are not there any more."""

    def changed(self, where: str, message: str, advice: str = "") -> None:
        self.items.append(Item("changed", where, message, advice))

    def lost(self, where: str, message: str, advice: str = "") -> None:
        self.items.append(Item("lost", where, message, advice))


def convert(document: Document, table: OptionTable) -> Conversion:
    """Never fails: a model that cannot be carried over is left out and noted."""
    result = Conversion()
    commands = _commands(document, table, result)
    program = _program(commands, result)
    entries = {name: _entry(name, document.models[name], commands[name], table, result) for name in commands}
    top = document.top
    # What is preloaded comes first: here the order of the models is that of their preload.
    order = _preloaded(top, entries, result)
    for name in order:
        result.presets[name]["load-on-startup"] = "true"
    order += [name for name in entries if name not in order]
    result.config = {
        **({"llama-server-executable": program} if program else {}),
        "LLM": {name: entries[name] for name in order},
        **_settings(top, result),
        **_keys(top, result),
        **_routing(top, entries, result),
        **_selectors(top, entries, result),
    }
    result.config |= _profiles(top, result)
    result.presets = {name: result.presets[name] for name in order}
    _note_the_rest(top, result)
    return result


# --- commands -------------------------------------------------------------------------------------------------------


def _commands(document: Document, table: OptionTable, result: Conversion) -> dict[str, Command]:
    commands: dict[str, Command] = {}
    for name, body in document.models.items():
        where = f"models.{name}"

        def note(shown: str, became: str, advice: str = "", *, lost: bool = True, where: str = where) -> None:
            tell = result.lost if lost else result.changed
            tell(f"{where}.cmd", f"`{shown}` {became}", advice)

        try:
            if bad := _bad_name(name):
                raise NotLlamaServer(bad)
            commands[name] = read_command(str(body.get("cmd", "")), table, note)
        except NotLlamaServer as reason:
            result.left_out.append(name)
            result.lost(
                where, f"the model was left out: {reason}", "keep llama-swap for it, or write a section by hand"
            )
    return commands


def _bad_name(name: str) -> str:
    if "," in name or "]" in name or name != name.strip() or not name or name == "*":
        return "its id cannot be the name of a section: no comma, no `]`, no blank around it"
    return ""


def _program(commands: Mapping[str, Command], result: Conversion) -> str | list[str]:
    """What starts llama-server for all of them; nothing where that is whatever stands on PATH."""
    programs = [command.program for command in commands.values()]
    if not programs:
        return ""
    usual = max(dict.fromkeys(programs), key=programs.count)
    for name, command in commands.items():
        if command.program != usual:
            own, shared = " ".join(command.program), " ".join(usual)
            result.changed(
                f"models.{name}.cmd", f"it was started with {own}, and is now, like all others, with {shared}"
            )
    if usual == ("llama-server",):
        return ""
    return usual[0] if len(usual) == 1 else list(usual)


# --- one model ------------------------------------------------------------------------------------------------------


def _entry(
    name: str, body: Mapping[str, Any], command: Command, table: OptionTable, result: Conversion
) -> dict[str, Any]:
    where = f"models.{name}"
    keys = result.presets[name] = dict(command.keys)
    entry: dict[str, Any] = {}
    env = _env(body.get("env"), where, result)
    for variable in [variable for variable in env if variable.startswith("LLAMA_ARG_")]:
        value = env.pop(variable)
        option = table.by_key.get(variable)
        if option is None or option.name in keys:
            result.changed(
                f"{where}.env", f"{variable} was left out: the command line says otherwise, or no option has it"
            )
        else:
            keys[option.name] = value
    entry["gpus"] = _gpus(env, command, where, result)
    for variable in MASKS:
        env.pop(variable, None)
    if aliases := _aliases(body.get("aliases"), where, result):
        entry["aliases"] = aliases
    for key in ("unlisted", "name", "description"):
        if body.get(key):
            entry[key] = body[key]
    if body.get("ttl") not in (None, -1):
        entry["ttl"] = body["ttl"]
    for key in ("metadata", "capacities", "evict_cost"):
        if body.get(key):
            entry[key] = body[key]
    if env:
        entry["env"] = env
    if body.get("unloadTimeout"):
        keys["stop-timeout"] = str(body["unloadTimeout"])
    if filters := _filters(body.get("filters"), where, result):
        entry["filters"] = filters
    _note_the_rest_of_a_model(body, where, result)
    return entry


def _filters(value: Any, where: str, result: Conversion) -> dict[str, Any]:
    filters: dict[str, Any] = {}
    for key, content in _mapping(value).items():
        if key == "stripParams":
            names = [part.strip() for part in str(content).split(",")]
            filters[key] = [name for name in names if name and name != "model"]
        elif key == "setParams" and isinstance(content, dict):
            filters[key] = {name: setting for name, setting in content.items() if name != "model"}
        elif key == "setParamsByID" and isinstance(content, dict):
            filters[key] = content
        else:
            result.lost(f"{where}.filters", f"`{key}` was left out: there is no such filter here")
    return {key: content for key, content in filters.items() if content}


def _env(value: Any, where: str, result: Conversion) -> dict[str, str]:
    env: dict[str, str] = {}
    for item in _list(value):
        variable, equals, content = str(item).partition("=")
        if not equals:
            result.lost(f"{where}.env", f"`{item}` was left out: it is no NAME=value")
        else:
            env[variable.strip()] = content
    return env


def _gpus(env: Mapping[str, str], command: Command, where: str, result: Conversion) -> Any:
    """As `gpus` of config.json: what the mask and llama-server's own options leave to it."""
    mask = next((env[variable] for variable in MASK_VARIABLES if variable in env), None)
    visible: list[Any] | None = None
    if mask is not None:
        visible = [int(part) if part.isdecimal() else part for part in map(str.strip, mask.split(",")) if part]
        if not visible or visible[0] in ("-1", "none", "NoDevFiles"):
            return "none"
    device = command.places.get("device", "")
    if device == "none":
        return "none"
    if device:
        numbers = [re.fullmatch(r"(?:CUDA|ROCm|HIP)(\d+)", part) for part in device.split(",")]
        chosen = [int(found[1]) for found in numbers if found]
        if len(chosen) == len(numbers) and (visible is None or max(chosen) < len(visible)):
            visible = chosen if visible is None else [visible[number] for number in chosen]
        else:
            result.lost(
                f"{where}.cmd", f"`--device {device}` was left out", "write the numbers of its GPUs into `gpus`"
            )
    if command.places.get("split-mode") == "none":
        number = int(command.places.get("main-gpu", "0")) if command.places.get("main-gpu", "0").isdecimal() else 0
        visible = [number] if visible is None else visible[number : number + 1] or visible[:1]
    elif "main-gpu" in command.places:
        result.changed(f"{where}.cmd", "`--main-gpu` was left out: the first of its `gpus` is the main one")
    return "all" if visible is None else visible


def _aliases(value: Any, where: str, result: Conversion) -> list[str]:
    aliases = []
    for item in _list(value):
        if isinstance(item, dict):
            aliases.append(str(item.get("id", "")))
            if item.get("name") or item.get("unlisted"):
                message = f"the alias {aliases[-1]!r} has no display name of its own, and is listed as all aliases are"
                result.changed(f"{where}.aliases", message, "INCLUDE_ALIASES_IN_LIST lists aliases, or none")
        else:
            aliases.append(str(item))
    return [alias for alias in aliases if alias]


def _note_the_rest_of_a_model(body: Mapping[str, Any], where: str, result: Conversion) -> None:
    if body.get("cmdStop"):
        message = "`cmdStop` was left out: the process and all that it started get SIGTERM, then SIGKILL"
        result.changed(where, message, "`stop-timeout` in presets.ini says how long it may take in between")
    if body.get("concurrencyLimit"):
        message = "`concurrencyLimit` was left out: requests wait here and none is refused"
        result.changed(
            where, message, "`parallel` says how many run at once, `max_parallel` of a key how many of a client"
        )
    for key in ("sendLoadingState", "capabilities"):
        if body.get(key):
            result.lost(where, f"`{key}` was left out: there is no such thing here")
    known = (
        *MODEL_NOT_NEEDED,
        *("aliases", "unlisted", "ttl", "name", "description", "metadata", "capacities", "evict_cost", "env"),
        *("filters", "unloadTimeout", "cmdStop", "concurrencyLimit", "sendLoadingState", "capabilities"),
    )
    for key in body:
        if key not in known:
            result.lost(where, f"`{key}` was left out: it is not known here")


# --- what stands at the top -----------------------------------------------------------------------------------------


def _preloaded(top: Mapping[str, Any], entries: Mapping[str, Any], result: Conversion) -> list[str]:
    wanted = _mapping(_mapping(top.get("hooks")).get("on_startup")).get("preload")
    found = []
    for name in map(str, _list(wanted)):
        if name in entries:
            found.append(name)
        else:
            result.lost("hooks.on_startup.preload", f"{name!r} was left out: there is no such model any more")
    return list(dict.fromkeys(found))


def _settings(top: Mapping[str, Any], result: Conversion) -> dict[str, Any]:
    router: dict[str, Any] = {}
    for theirs, ours in (
        ("globalTTL", "GLOBAL_TTL"),
        ("unloadTimeout", "GRACEFUL_KILL_TIMEOUT"),
        ("includeAliasesInList", "INCLUDE_ALIASES_IN_LIST"),
    ):
        if top.get(theirs):
            router[ours] = top[theirs]
    patience = top.get("healthCheckTimeout")
    if isinstance(patience, int) and patience > 1800:
        router["LOAD_TIMEOUT_CEILING"] = patience
    if top.get("sendLoadingState"):
        message = "`sendLoadingState` was left out: a stream that waits gets comments with its place in the queue"
        result.changed("sendLoadingState", message, "QUEUE_COMMENT_INTERVAL says how often")
    return {"ROUTER": router} if router else {}


def _keys(top: Mapping[str, Any], result: Conversion) -> dict[str, Any]:
    keys = top.get("apiKeys")
    if not isinstance(keys, list) or not keys:
        return {}
    if any(not str(key).startswith("${env.") for key in keys):
        message = "API keys stand in config.json as they stood in config.yaml"
        result.changed(
            "apiKeys", message, 'keep the file private, or write "sha256:..." or "${env.NAME}" in their place'
        )
    message = "every key may administer, as it could before"
    result.changed("apiKeys", message, 'take "admin" away from those that need not load, unload or reload')
    return {"keys": {f"key-{number}": {"key": str(key), "admin": True} for number, key in enumerate(keys, start=1)}}


def _routing(top: Mapping[str, Any], entries: Mapping[str, dict[str, Any]], result: Conversion) -> dict[str, Any]:
    routing = _mapping(top.get("routing"))
    router = _mapping(routing.get("router"))
    settings = dict(_mapping(router.get("settings")))
    for legacy in ("groups", "matrix"):
        if top.get(legacy) is not None:
            settings.setdefault(legacy, top[legacy])
    together = {name: members for name, members in _mapping(top.get("profiles")).items() if isinstance(members, list)}
    for name, members in together.items():
        # What profiles were long ago: models that are loaded together.
        result.changed(f"profiles.{name}", "a list of models is a group here, whose members may be loaded together")
        groups = dict(_mapping(settings.get("groups")))
        settings["groups"] = {name: {"swap": False, "members": members}, **groups}
    _priorities(routing, entries, result)
    use = router.get("use") or ("matrix" if "matrix" in settings else "group")
    kept: dict[str, Any] = {}
    if settings.get("groups"):
        kept["groups"] = _groups(settings["groups"], entries, result)
    if settings.get("matrix"):
        kept["matrix"] = _matrix(settings["matrix"], result)
    if settings.get("capacity"):
        kept["capacity"] = settings["capacity"]
    if use == "group" and not kept.get("groups"):
        message = "one model at a time was the rule; now it is one model at a time per GPU"
        advice = 'the old rule is {"routing": {"router": {"use": "group"}}} in config.json'
        result.changed("routing", message, advice)
        return {}
    return {"routing": {"router": {"use": use, "settings": kept}}}


def _priorities(routing: Mapping[str, Any], entries: Mapping[str, dict[str, Any]], result: Conversion) -> None:
    settings = _mapping(_mapping(routing.get("scheduler")).get("settings"))
    for name, priority in _mapping(_mapping(settings.get("fifo")).get("priority")).items():
        if name in entries:
            entries[name]["priority"] = priority
        else:
            message = f"the priority of {name!r} was left out: there is no such model any more"
            result.lost("routing.scheduler.settings.fifo.priority", message)


def _groups(groups: Any, entries: Mapping[str, Any], result: Conversion) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, raw in _mapping(groups).items():
        group = _mapping(raw)
        members = [member for member in map(str, _list(group.get("members"))) if member in entries]
        if members:
            flags = {key: group[key] for key in ("swap", "exclusive", "persistent") if key in group}
            kept[str(name)] = {**flags, "members": members}
        else:
            result.lost(f"groups.{name}", "the group was left out: none of its members is there any more")
    return kept


def _matrix(matrix: Any, result: Conversion) -> dict[str, Any]:
    """Without the models that are left out: a set allows any part of itself, so the rest of it still holds."""
    kept = {key: dict(_mapping(_mapping(matrix).get(key))) for key in ("vars", "evict_costs", "sets")}
    gone = set(result.left_out)
    gone |= {var for var, name in kept["vars"].items() if str(name) in gone}
    kept["vars"] = {var: name for var, name in kept["vars"].items() if var not in gone}
    kept["evict_costs"] = {name: cost for name, cost in kept["evict_costs"].items() if name not in gone}
    sets = {str(name): str(expression) for name, expression in kept["sets"].items()}
    emptied: set[str] = set()
    while True:
        rest = {name: _without(expression, gone, emptied) for name, expression in sets.items()}
        if {name for name, expression in rest.items() if not expression} == emptied:
            break
        emptied = {name for name, expression in rest.items() if not expression}
    for name, expression in sets.items():
        where = f"matrix.sets.{name}"
        if not rest[name]:
            result.lost(where, "the set was left out: none of its models is there any more")
        elif rest[name] != expression:
            result.changed(where, f"models that are left out are not in it any more: {rest[name]}")
    kept["sets"] = {name: expression for name, expression in rest.items() if expression}
    return {key: value for key, value in kept.items() if value}


def _without(expression: str, gone: Collection[str], emptied: Collection[str]) -> str:
    """What is left of an expression; itself where nothing goes or it cannot be read, empty where nothing is left."""
    try:
        tree = parse(expression)
    except ExpressionError:
        return expression
    left = _pruned(tree, gone, emptied)
    return expression if left == tree else _written(left) if left is not None else ""


def _pruned(node: Node, gone: Collection[str], emptied: Collection[str]) -> Node | None:
    match node:
        case Leaf():
            return None if node.name in gone else node
        case Reference():
            return None if node.name in emptied else node
        case Together() | Either():
            parts = [left for part in node.parts if (left := _pruned(part, gone, emptied)) is not None]
            return type(node)(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


def _written(node: Node) -> str:
    match node:
        case Leaf():
            return node.name
        case Reference():
            return f"+{node.name}"
        case Together():
            return " & ".join(
                f"({_written(part)})" if isinstance(part, Either) else _written(part) for part in node.parts
            )
        case Either():
            return " | ".join(map(_written, node.parts))


def _selectors(top: Mapping[str, Any], entries: Mapping[str, dict[str, Any]], result: Conversion) -> dict[str, Any]:
    known = _names(entries)
    kept: dict[str, Any] = {}
    for name, raw in _mapping(top.get("selectors")).items():
        selector, where = _mapping(raw), f"selectors.{name}"
        targets = [str(target) for target in _list(selector.get("targets"))]
        here = [target for target in targets if target in known]
        for target in targets:
            if target not in known:
                result.lost(where, f"its target {target!r} was left out: there is no such model here")
        if not here:
            result.lost(where, "the selector was left out: none of its targets is here")
            continue
        settings = _mapping(selector.get("settings") or selector.get("balance"))
        strategy = "spillover" if selector.get("strategy") == "balance" else selector.get("strategy")
        told = {key: selector[key] for key in ("name", "description", "unlisted", "metadata") if selector.get(key)}
        spillover = {"spillover": settings["spillover"]} if "spillover" in settings else {}
        kept[str(name)] = {"strategy": strategy, "targets": here, **spillover, **told}
    return {"selectors": kept} if kept else {}


def _profiles(top: Mapping[str, Any], result: Conversion) -> dict[str, Any]:
    known = _names(result.config["LLM"]) | set(result.config.get("selectors", {}))
    kept: dict[str, Any] = {}
    for name, raw in _mapping(top.get("profiles")).items():
        if isinstance(raw, list):
            continue
        profile = _mapping(raw)
        pins: dict[str, Any] = {}
        for asked, target in _mapping(profile.get("pins")).items():
            if target in (None, "") or str(target) in known:
                pins[str(asked)] = target or None
            else:
                message = f"what stands for {asked!r} was left out: there is no model {target!r} here"
                result.lost(f"profiles.{name}", message)
        description = {"description": profile["description"]} if profile.get("description") else {}
        kept[str(name)] = {**description, "pins": pins}
    return {"profiles": kept} if kept else {}


def _names(entries: Mapping[str, dict[str, Any]]) -> set[str]:
    names = set(entries)
    for entry in entries.values():
        names |= {*entry.get("aliases", ()), *entry.get("filters", {}).get("setParamsByID", {})}
    return names


def _note_the_rest(top: Mapping[str, Any], result: Conversion) -> None:
    for name in _mapping(top.get("peers")):
        message = "the peer was left out: the router serves models of this machine only"
        result.lost(f"peers.{name}", message, "keep a gateway in front for it")
    if top.get("captureBuffer"):
        result.changed(
            "captureBuffer", "it was left out: requests and answers are not kept, only what happened to them"
        )
    known = (
        *NOT_NEEDED,
        *("globalTTL", "unloadTimeout", "includeAliasesInList", "sendLoadingState", "captureBuffer", "apiKeys"),
        *("hooks", "groups", "matrix", "routing", "peers", "profiles", "selectors"),
    )
    for key in top:
        if key not in known:
            result.lost(key, "it was left out: it is not known here")


def _mapping(value: Any) -> Mapping[Any, Any]:
    """What should be a mapping; empty where it is something else, which `check` would not know either."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- the files ------------------------------------------------------------------------------------------------------


def presets_text(presets: Mapping[str, Mapping[str, str]]) -> str:
    """presets.ini."""
    parts = ["version = 1\n"]
    for name, keys in presets.items():
        parts.append("\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in keys.items())]) + "\n")
    return "\n".join(parts)
