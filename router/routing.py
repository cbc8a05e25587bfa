"""`routing` of config.json: which models may be loaded together, and who is served first.

    "routing": {
      "router": {"use": "group", "scope": "instance", "settings": {"groups": {}, "matrix": {}, "capacity": {}}},
      "scheduler": {"use": "fifo", "settings": {"fifo": {"priority": {"a model": 10}, "priority_header": ["alice"]}}}
    }

All that is written is checked, whichever engine is used. Counterparts: `router.scheduler.engines`, which goes by it,
and `router.outlook`, which finds models that can never be loaded by it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eventlog.settings import Engine, GroupSettings, MatrixSet, ModelSettings, SchedulerSettings
from router.model_entry import PRIORITY, ObjectReader, names
from router.models import Draft
from router.outlook import kept_apart, never_loaded
from router.presets import canonical_name
from router.problems import Findings, Problem, nearest
from router.scheduler.matrix_language import NAME, VAR, expand
from router.selection import Selector
from router.settings import BadValue, Key, flag, integer, one_of

INT64_MAX = 2**63 - 1
ENGINES = ("residency", "group", "matrix", "capacity")

ROUTING_KEYS: Mapping[str, Key] = {
    "router.use": Key("the engine that says who may be loaded together", one_of(*ENGINES), "residency"),
    "router.scope": Key(
        "of `group` and `matrix`: rules for all models (`instance`), or only among those that share a GPU (`gpu`)",
        one_of("gpu", "instance"),
        "",
        shown="instance",
    ),
    "router.settings.groups": Key(
        "groups by name: `members`, `swap` (true), `exclusive` (true), `persistent` (false)", allowed="an object"
    ),
    "router.settings.matrix": Key("`vars`, `sets` and `evict_costs`", allowed="an object"),
    "router.settings.capacity": Key("`pools`: the limit of each by name", allowed="an object"),
    "scheduler.use": Key("the only one there is", one_of("fifo"), "fifo"),
    "scheduler.settings.fifo.priority": Key("priority by model", allowed='`{"a model": 10}`'),
    "scheduler.settings.fifo.priority_header": Key(
        "whose `X-Priority` counts: everybody's, nobody's, or that of some keys",
        shown="false",
        allowed="true, false or a list of keys",
    ),
}


def _under(path: str) -> tuple[str, ...]:
    """The keys that may stand in the object at this path."""
    below = (key.removeprefix(path).lstrip(".").split(".")[0] for key in ROUTING_KEYS if key.startswith(path))
    return tuple(dict.fromkeys(below))


def _take(reader: ObjectReader, path: str) -> Any:
    rule = ROUTING_KEYS[path]
    assert rule.check is not None, path
    return reader.take(path.rpartition(".")[2], rule.check, rule.default)


@dataclass(frozen=True, slots=True)
class Routing:
    """What `routing` says; the defaults are those of a file without it."""

    engine: Engine = "residency"
    scope: Literal["", "gpu", "instance"] = ""
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
    matrix: tuple[MatrixSet, ...] = ()
    matrix_evict_costs: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    """By model; they take the place of the model's own."""
    priority_header: bool | tuple[str, ...] = False
    """Whose `X-Priority` counts: nobody's, everybody's, or that of these keys."""
    notes: tuple[str, ...] = ()
    """For the log, at the start and at each reload."""


def read_routing(
    top: Mapping[str, Any],
    drafts: Sequence[Draft],
    keys: Sequence[str],
    file: str,
    findings: Findings,
) -> Routing:
    """`keys` are the names of the API keys."""
    whole = ObjectReader(top, file, "", findings).inner("routing", _under(""))
    if whole is not None:
        whole.path = "routing"
    models = [draft.name for draft in drafts]
    router = whole.inner("router", _under("router")) if whole else None
    engine: Engine = _take(router, "router.use") if router else "residency"
    scope: Literal["", "gpu", "instance"] = ""
    if router:
        scope = _take(router, "router.scope")
    settings = router.inner("settings", _under("router.settings")) if router else None
    groups = _groups(settings, drafts)
    matrix, costs, notes = _matrix(settings, models)
    pools = _pools(settings)
    _check_models(drafts, pools, costs, file, findings)
    if router is not None:
        _warn(router, engine, scope, settings, groups, models)
    priorities, header = _scheduler(whole, drafts, keys)
    return Routing(engine, scope, groups, matrix, costs, pools, priorities, header, tuple(notes))


def check_placement(
    drafts: Sequence[Draft],
    gpus: int,
    routing: Routing,
    cap: int,
    selectors: Mapping[str, Selector],
    known: Mapping[str, str],
    file: str,
    findings: Findings,
) -> None:
    """A model that can never be loaded under the engine is a mistake, and so are targets of a spillover that cannot be
    loaded together; under the cap alone, `check_gpus` and `check_together` find them. `known`: names to models."""
    if routing.engine == "residency":
        return
    settings = _settings(drafts, gpus, routing, cap)
    for name, reason in never_loaded(settings).items():
        message = f"this model can never be loaded under the engine {routing.engine}: {reason}"
        findings.add(Problem(message, file=file, section=f"LLM.{name}", key=PLACED_BY[routing.engine]))
    for name, selector in selectors.items():
        targets = [known[canonical_name(target)] for target in selector.targets if canonical_name(target) in known]
        reason = kept_apart(settings, targets) if selector.strategy == "spillover" else ""
        if reason:
            message = f"{', '.join(targets)} cannot be loaded together under the engine {routing.engine}: {reason}"
            findings.add(Problem(message, file=file, section=f"selectors.{name}", key="targets"))


def _settings(drafts: Sequence[Draft], gpus: int, routing: Routing, cap: int) -> SchedulerSettings:
    """As far as it matters for who is loaded beside whom."""
    return SchedulerSettings(
        models={
            draft.name: ModelSettings(
                gpus=tuple(sorted(draft.entry.pins.placed(gpus))),
                replicas=draft.entry.replicas,
                persistent=draft.entry.persistent,
                capacities=dict(draft.entry.capacities),
                evict_cost=draft.entry.evict_cost,
            )
            for draft in drafts
        },
        gpus=gpus,
        max_models_per_gpu=cap,
        engine=routing.engine,
        scope=routing.scope,
        groups=dict(routing.groups),
        matrix=routing.matrix,
        matrix_evict_costs=dict(routing.matrix_evict_costs),
        pools=dict(routing.pools),
    )


PLACED_BY = {"group": "gpus", "matrix": "gpus", "capacity": "capacities"}

# --- group ----------------------------------------------------------------------------------------------------------


def _groups(settings: ObjectReader | None, drafts: Sequence[Draft]) -> dict[str, GroupSettings]:
    if settings is None or settings.value.get("groups") is None:
        return {}
    raw = settings.value["groups"]
    if not isinstance(raw, dict):
        allowed = '{"small": {"swap": false, "exclusive": false, "members": ["a model"]}}'
        settings.findings.add(settings.problem("groups", "this holds groups by name", allowed=allowed))
        return {}
    reader = ObjectReader(raw, settings.file, f"{settings.path}.groups", settings.findings)
    groups: dict[str, GroupSettings] = {}
    owners: dict[str, str] = {}
    for title in raw:
        group = reader.inner(title, ("swap", "exclusive", "persistent", "members"))
        if not title:
            reader.findings.add(reader.problem(title, "a group has a name"))
        if group is None:
            continue
        members = _members(group, drafts)
        for member in list(members):
            if member in owners:
                whose = "in this group twice" if owners[member] == title else f"also in the group {owners[member]!r}"
                message = f"{member!r} is {whose}; a model belongs to one group"
                group.findings.add(group.problem("members", message))
            owners.setdefault(member, title)
        groups[title] = GroupSettings(
            members=members,
            swap=group.take("swap", flag, True),
            exclusive=group.take("exclusive", flag, True),
            persistent=group.take("persistent", flag, False),
        )
    return groups


def _members(group: ObjectReader, drafts: Sequence[Draft]) -> tuple[str, ...]:
    asked: tuple[str, ...] = group.take("members", names, ())
    if "members" not in group.value:
        group.findings.add(group.problem("members", "the models of this group are missing", allowed='["a model"]'))
    return tuple([name for name in (_real(group, "members", one, drafts) for one in asked) if name])


def _real(reader: ObjectReader, key: str, asked: str, drafts: Sequence[Draft]) -> str:
    """The model of this name; aliases are not taken, and said to be such. Empty, and a mistake, when there is none."""
    models = [draft.name for draft in drafts]
    name = asked if asked in models else canonical_name(asked)
    if name in models:
        return name
    owner = next((draft.name for draft in drafts if asked in draft.entry.aliases), "")
    message = f"{asked!r} is an alias; here stands the model itself" if owner else f"there is no model {asked!r}"
    near = owner or nearest(asked, models)
    reader.findings.add(reader.problem(key, message, allowed=", ".join(models), nearest=near))
    return ""


# --- matrix ---------------------------------------------------------------------------------------------------------


def _matrix(
    settings: ObjectReader | None, models: Sequence[str]
) -> tuple[tuple[MatrixSet, ...], dict[str, int], list[str]]:
    matrix = settings.inner("matrix", ("vars", "evict_costs", "sets")) if settings else None
    if matrix is None:
        return (), {}, []
    variables = _vars(matrix, models)
    costs = _evict_costs(matrix, variables, models)
    sets = _texts(matrix, "sets", '{"standard": "(a | b) & c"}')
    reader = ObjectReader(sets, matrix.file, f"{matrix.path}.sets", matrix.findings)
    for title in sets:
        if not re.fullmatch(rf"(?:{NAME}|:)+", title):
            message = "the name of a set cannot be written in a reference"
            reader.findings.add(reader.problem(title, message, allowed="letters, digits and . _ - :"))
    expanded = expand(sets, variables, models)
    for title, mistake in expanded.mistakes:
        reader.findings.add(reader.problem(title, str(mistake), nearest=mistake.nearest))
    return expanded.sets, costs, [expanded.note] if expanded.note and not expanded.mistakes else []


def _texts(matrix: ObjectReader, key: str, allowed: str) -> dict[str, str]:
    raw = matrix.value.get(key, {})
    if not isinstance(raw, dict) or not all(isinstance(text, str) and "\n" not in text for text in raw.values()):
        matrix.findings.add(matrix.problem(key, "this holds texts on one line by name", allowed=allowed))
        return {}
    return dict(raw)


def _vars(matrix: ObjectReader, models: Sequence[str]) -> dict[str, str]:
    raw = _texts(matrix, "vars", '{"g": "a model"}')
    reader = ObjectReader(raw, matrix.file, f"{matrix.path}.vars", matrix.findings)
    found: dict[str, str] = {}
    for var, asked in raw.items():
        name = asked if asked in models else canonical_name(asked)
        if not VAR.fullmatch(var):
            allowed = "1 to 32 letters, digits, dots and hyphens"
            reader.findings.add(reader.problem(var, "not a name for a var", allowed=allowed))
        elif name not in models:
            message, near = f"there is no model {asked!r}", nearest(asked, models)
            reader.findings.add(reader.problem(var, message, allowed=", ".join(models), nearest=near))
        else:
            found[var] = name
    return found


def _evict_costs(matrix: ObjectReader, variables: Mapping[str, str], models: Sequence[str]) -> dict[str, int]:
    raw = matrix.value.get("evict_costs", {})
    if not isinstance(raw, dict):
        matrix.findings.add(matrix.problem("evict_costs", "this holds costs by var or model", allowed='{"g": 30}'))
        return {}
    reader = ObjectReader(raw, matrix.file, f"{matrix.path}.evict_costs", matrix.findings)
    costs: dict[str, int] = {}
    for asked in raw:
        name = variables.get(asked) or (asked if asked in models else canonical_name(asked))
        if name not in models:
            known = [*variables, *models]
            message, near = f"there is no var and no model {asked!r}", nearest(asked, known)
            reader.findings.add(reader.problem(asked, message, allowed=", ".join(known), nearest=near))
        elif name in costs:
            reader.findings.add(reader.problem(asked, f"the cost of {name!r} is written twice"))
        else:
            costs[name] = reader.take(asked, integer(1, INT64_MAX), 1)
    return costs


# --- capacity -------------------------------------------------------------------------------------------------------


def _pools(settings: ObjectReader | None) -> dict[str, int]:
    capacity = settings.inner("capacity", ("pools",)) if settings else None
    if capacity is None:
        return {}
    raw = capacity.value.get("pools")
    if not isinstance(raw, dict):
        allowed = '{"ram": 64000, "gpu0": 24000}'
        capacity.findings.add(capacity.problem("pools", "this holds the limit of each pool by name", allowed=allowed))
        return {}
    reader = ObjectReader(raw, capacity.file, f"{capacity.path}.pools", capacity.findings)
    return {pool: reader.take(pool, integer(1, INT64_MAX), 1) for pool in raw}


def _check_models(
    drafts: Sequence[Draft], pools: Mapping[str, int], costs: Mapping[str, int], file: str, findings: Findings
) -> None:
    """What each model takes exists, and fits with all its replicas; no sum is too large to be a number in the log."""
    sums: dict[str, int] = {}
    cost = 0
    for draft in drafts:
        entry = draft.entry
        reader = ObjectReader(dict(entry.capacities), file, f"LLM.{draft.name}.capacities", findings)
        for pool, amount in entry.capacities.items():
            together = amount * entry.replicas
            sums[pool] = sums.get(pool, 0) + together
            if pool not in pools:
                message, near = "there is no such pool", nearest(pool, pools)
                allowed = ", ".join(pools) or "none is defined; see routing.router.settings.capacity.pools"
                findings.add(reader.problem(pool, message, allowed=allowed, nearest=near))
            elif together > pools[pool]:
                each = f"{entry.replicas} replicas take {together}" if entry.replicas > 1 else f"it takes {amount}"
                message = f"this model can never be loaded: {each} of {pool}"
                findings.add(reader.problem(pool, message, allowed=f"at most {pools[pool]}"))
        cost += costs.get(draft.name, entry.evict_cost or 0)
    for pool, total in sums.items():
        if total > INT64_MAX and pool in pools:
            message = f"all models together take {total} of {pool}, which is too large a number"
            findings.add(Problem(message, file=file, section="LLM", key="capacities", allowed=f"at most {INT64_MAX}"))
    if cost > INT64_MAX:
        message = f"the costs of all models together are {cost}, which is too large a number"
        findings.add(Problem(message, file=file, section="LLM", key="evict_cost", allowed=f"at most {INT64_MAX}"))


# --- what does nothing, or more than one thinks ---------------------------------------------------------------------


def _warn(
    router: ObjectReader,
    engine: Engine,
    scope: str,
    settings: ObjectReader | None,
    groups: Mapping[str, GroupSettings],
    models: Sequence[str],
) -> None:
    written = [] if settings is None else [key for key in settings.value if key in ("groups", "matrix", "capacity")]
    if written and "use" not in router.value:
        message = f"without `use` the cap per GPU decides, and {', '.join(written)} do nothing"
        router.findings.warn(router.problem("use", message, allowed=", ".join(ENGINES)))
    if scope and engine in ("residency", "capacity"):
        why = "the cap is one per GPU" if engine == "residency" else "pools say what is shared"
        router.findings.warn(router.problem("scope", f"this does nothing with {engine}: {why}"))
    wanted = {"group": "groups", "matrix": "matrix", "capacity": "capacity"}.get(engine, "")
    if wanted and wanted not in written and engine != "group":
        message = f"the settings of {engine} are missing: routing.router.settings.{wanted}"
        router.findings.add(router.problem("use", message))
    if engine == "group":
        _warn_of_groups_that_meet(router, groups, models)


def _warn_of_groups_that_meet(router: ObjectReader, groups: Mapping[str, GroupSettings], models: Sequence[str]) -> None:
    grouped = {member for group in groups.values() for member in group.members}
    exclusive = [name for name, group in groups.items() if group.exclusive]
    if any(model not in grouped for model in models):
        exclusive.append("models in no group")
    for name, group in groups.items():
        if not group.exclusive and exclusive:
            message = (
                f"loading a member of {name!r} (exclusive: false) evicts no other group, not even one that is "
                f"exclusive itself ({', '.join(exclusive)}): loaded in this order, they are loaded together"
            )
            place = ObjectReader({}, router.file, f"{router.path}.settings.groups", router.findings)
            router.findings.warn(place.problem(name, message))


# --- who is served first --------------------------------------------------------------------------------------------


def _scheduler(
    whole: ObjectReader | None, drafts: Sequence[Draft], keys: Sequence[str]
) -> tuple[dict[str, int], bool | tuple[str, ...]]:
    scheduler = whole.inner("scheduler", _under("scheduler")) if whole else None
    if scheduler is None:
        return {}, False
    _take(scheduler, "scheduler.use")
    settings = scheduler.inner("settings", _under("scheduler.settings"))
    fifo = settings.inner("fifo", _under("scheduler.settings.fifo")) if settings else None
    if fifo is None:
        return {}, False
    return _priorities(fifo, drafts), _header(fifo, keys)


def _priorities(fifo: ObjectReader, drafts: Sequence[Draft]) -> dict[str, int]:
    raw = fifo.value.get("priority", {})
    if not isinstance(raw, dict):
        fifo.findings.add(fifo.problem("priority", "this holds priorities by model", allowed='{"a model": 10}'))
        return {}
    reader = ObjectReader(raw, fifo.file, f"{fifo.path}.priority", fifo.findings)
    found: dict[str, int] = {}
    for asked in raw:
        name = _real(reader, asked, asked, drafts)
        priority = reader.take(asked, PRIORITY, 0)
        draft = next((draft for draft in drafts if draft.name == name), None)
        if draft is not None and draft.entry.priority not in (0, priority):
            message = f"LLM.{name} says another priority: {draft.entry.priority}"
            reader.findings.add(reader.problem(asked, message, allowed="one of the two"))
        if name:
            found[name] = priority
    return found


def _header(fifo: ObjectReader, keys: Sequence[str]) -> bool | tuple[str, ...]:
    value = fifo.value.get("priority_header", False)
    if isinstance(value, bool):
        return value
    try:
        asked = names(value)
    except BadValue:
        allowed = "true for everybody, false for nobody, or a list of keys"
        fifo.findings.add(fifo.problem("priority_header", "not a value for this key", allowed=allowed))
        return False
    for key in asked:
        if key not in keys:
            message, near = f"there is no API key {key!r}", nearest(key, keys)
            allowed = ", ".join(keys) or "none is defined; see keys"
            fifo.findings.add(fifo.problem("priority_header", message, allowed=allowed, nearest=near))
    return asked
