"""llama-swap's config.yaml as plain values, with every `${macro}` replaced.

A macro may use those that were defined before it; a model's own come on top of the global ones. `${env.NAME}` is taken
from the environment of whoever imports, except in `apiKeys`: there it can stay what it is. `${PORT}` is kept, since
only options that are dropped use it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

_ENV = re.compile(r"\$\{env\.([A-Za-z_]\w*)\}")
_MACRO = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
KEPT = ("PORT", "PID")
"""Known only to llama-swap while it runs."""


class NoDocument(Exception):
    """The file cannot be imported at all; the message says why, and what would help."""


@dataclass(slots=True)
class Document:
    """The top of the file, and its models by their ids."""

    top: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_document(text: str, environ: Mapping[str, str]) -> Document:
    """Raises NoDocument: no YAML, no models, a macro or variable that is not there."""
    try:
        top = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NoDocument(f"this is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(top, dict) or not isinstance(top.get("models"), dict) or not top["models"]:
        raise NoDocument("there are no `models` in it: is this llama-swap's config.yaml?")
    missing: set[str] = set()
    macros = _macros(top.get("macros"), "macros")
    document = Document({})
    for key, value in top.items():
        if key == "apiKeys":
            document.top[key] = value
        elif key not in ("models", "macros"):
            document.top[str(key)] = _replaced(value, macros, environ, missing)
    for model_id, raw in top["models"].items():
        name = str(model_id)
        if not isinstance(raw, dict):
            raise NoDocument(f"models.{name}: a model is a mapping with `cmd`")
        own = _macros(raw.get("macros"), f"models.{name}.macros")
        # A global macro that a model defines anew keeps its place, for those that use it.
        known = list({"MODEL_ID": name, **dict(macros), **dict(own)}.items())
        body = {str(key): value for key, value in raw.items() if key != "macros"}
        document.models[name] = _replaced(body, known, environ, missing)
    if missing:
        names = ", ".join(sorted(missing))
        raise NoDocument(f"these are used and not set: {names}. Set them as llama-swap has them, then import again")
    return document


def _macros(value: Any, where: str) -> list[tuple[str, Any]]:
    """In the order of their definition."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise NoDocument(f"{where}: a mapping of names to values is wanted")
    return [(str(name), content) for name, content in value.items()]


def _replaced(value: Any, macros: Sequence[tuple[str, Any]], environ: Mapping[str, str], missing: set[str]) -> Any:
    if isinstance(value, dict):
        return {
            _replaced(key, macros, environ, missing): _replaced(item, macros, environ, missing)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_replaced(item, macros, environ, missing) for item in value]
    if not isinstance(value, str):
        return value
    # The last one first: what it brings in was defined before it.
    for name, content in reversed(macros):
        slug = f"${{{name}}}"
        if value == slug and not isinstance(content, str):
            return _replaced(content, macros, environ, missing)
        if slug in value:
            value = value.replace(slug, _shown(content))

    def variable(found: "re.Match[str]") -> str:
        if found[1] not in environ:
            missing.add(f"the environment variable {found[1]}")
        return environ.get(found[1], "")

    text = _ENV.sub(variable, value)
    missing.update(f"the macro {name}" for name in _MACRO.findall(text) if name not in KEPT)
    return text


def _shown(content: Any) -> str:
    return str(content).lower() if isinstance(content, bool) else str(content)
