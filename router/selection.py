"""Names that stand for a model only when they are asked for: profiles and selectors, as config.json gives them.

A *profile* is a named set of replacements; one of them, or none, is in force, and that is switched while serving. A
*selector* is a name of its own that picks one of several models for each request. `router.naming` applies both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from router.model_entry import ObjectReader, names, some_text
from router.presets import canonical_name
from router.problems import Findings, Problem, nearest
from router.settings import BadValue, flag, integer, one_of, text

PROFILE_KEYS = ("description", "pins")
SELECTOR_KEYS = ("strategy", "targets", "spillover", "name", "description", "unlisted", "metadata")

Strategy = Literal["warm", "pin", "spillover"]


@dataclass(frozen=True, slots=True)
class Profile:
    """`pins`: a name to the name that takes its place, or to nothing: then it is not served."""

    pins: Mapping[str, str]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Selector:
    """`targets` are names of models or aliases, in the order of preference."""

    strategy: Strategy
    targets: tuple[str, ...]
    spillover: int = 1
    """Requests that a loaded target takes before the next one is loaded."""
    title: str = ""
    description: str = ""
    unlisted: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_selectors(value: Any, known: Mapping[str, str], file: str, findings: Findings) -> dict[str, Selector]:
    """`selectors` of config.json; `known` is every name of a model to its real one."""
    selectors: dict[str, Selector] = {}
    for name, reader in _objects(value, "selectors", SELECTOR_KEYS, file, findings):
        if canonical_name(name) in known:
            findings.add(_at(file, "selectors", name, "a model has this name or alias already"))
        targets: tuple[str, ...] = reader.take("targets", names, ())
        strategy = reader.take("strategy", one_of("warm", "pin", "spillover"), "")
        if "strategy" not in reader.value:
            findings.add(reader.problem("strategy", "how it picks is missing", allowed="warm, pin, spillover"))
        if not targets:
            findings.add(reader.problem("targets", "the models to pick from are missing", allowed="a list of names"))
        for target in targets:
            if canonical_name(target) not in known:
                wrong = "a selector cannot pick another selector" if target in value else "there is no such model"
                near = nearest(target, known)
                findings.add(reader.problem("targets", f"{target!r}: {wrong}", allowed=", ".join(known), nearest=near))
        real = [known.get(canonical_name(target), target) for target in targets]
        for twice in dict.fromkeys(name for name in real if real.count(name) > 1):
            findings.add(reader.problem("targets", f"the model {twice!r} is there twice"))
        selectors[name] = Selector(
            strategy=strategy or "pin",
            targets=targets,
            spillover=reader.take("spillover", integer(1), 1),
            title=reader.take("name", text, ""),
            description=reader.take("description", _prose, ""),
            unlisted=reader.take("unlisted", flag, False),
            metadata=reader.take("metadata", _object, {}),
        )
    return selectors


def check_together(
    selectors: Mapping[str, Selector],
    known: Mapping[str, str],
    gpus: Mapping[str, Sequence[int]],
    cap: int,
    file: str,
    findings: Findings,
) -> None:
    """Targets of a spillover must be able to be loaded together; `gpus` of each model, `cap` models on one GPU."""
    for name, selector in selectors.items():
        if selector.strategy != "spillover":
            continue
        real = [known[canonical_name(target)] for target in selector.targets if canonical_name(target) in known]
        for gpu in sorted({gpu for target in real for gpu in gpus.get(target, ())}):
            there = [target for target in real if gpu in gpus.get(target, ())]
            if len(there) > cap:
                message = f"{', '.join(there)} cannot be loaded together: GPU {gpu} takes {cap} (MAX_MODELS_PER_GPU)"
                findings.add(_at(file, f"selectors.{name}", "targets", message))
                break


def read_profiles(
    value: Any, known: Mapping[str, str], selectors: Sequence[str], file: str, findings: Findings
) -> dict[str, Profile]:
    """`profiles` of config.json."""
    profiles: dict[str, Profile] = {}
    for name, reader in _objects(value, "profiles", PROFILE_KEYS, file, findings):
        raw = reader.value.get("pins", {})
        pins: dict[str, str] = {}
        if not isinstance(raw, dict):
            allowed = '{"a name": "the model that it means"}, with null for none'
            findings.add(reader.problem("pins", "these are no replacements", allowed=allowed))
            raw = {}
        place = ObjectReader(raw, file, f"{reader.path}.pins", findings)
        for asked, target in raw.items():
            pins[asked] = "" if target in (None, "") else place.take(asked, some_text, "")
            if pins[asked] and canonical_name(pins[asked]) not in known and pins[asked] not in selectors:
                valid = [*known, *selectors]
                message, near = "there is no such model, alias or selector", nearest(pins[asked], valid)
                findings.add(place.problem(asked, message, allowed=", ".join(valid), nearest=near))
        profiles[name] = Profile(pins, reader.take("description", _prose, ""))
    return profiles


def _objects(
    value: Any, key: str, keys: Sequence[str], file: str, findings: Findings
) -> list[tuple[str, ObjectReader]]:
    if not isinstance(value, dict):
        findings.add(Problem(f"{key} holds objects by name", file=file, key=key, allowed="an object"))
        return []
    outer = ObjectReader(value, file, key, findings)
    found = []
    for name in value:
        if not name.strip():
            findings.add(_at(file, key, name, "a name cannot be empty"))
        reader = outer.inner(name, keys)
        if reader is not None:
            found.append((name, reader))
        elif value[name] is None:
            findings.add(_at(file, key, name, "this holds several values"))
    return found


def _at(file: str, section: str, key: str, message: str) -> Problem:
    return Problem(message, file=file, section=section, key=key)


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValue("a text")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadValue("an object")
    return dict(value)
