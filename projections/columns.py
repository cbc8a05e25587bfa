"""The columns that lines of the log are read into, from the vocabulary itself: one per field that a table asks for.

DuckDB is told them all, so it guesses nothing, and a field that a newer version writes is passed over. A field whose
type differs from event to event, or that is an object, comes as JSON. A field that is left out of a line because it has
its default comes as NULL: what the default is, the SQL must say.
"""

from functools import cache

import msgspec
from msgspec import inspect

from eventlog.events import BY_NAME
from eventlog.segments import Stream
from projections.definitions import definitions

ENVELOPE = {"seq": "BIGINT", "at_us": "BIGINT", "run": "BIGINT"}
"""Read of every line."""


@cache
def shapes(stream: Stream) -> dict[str, str]:
    """Column to its type, for all that any step of this stream asks for."""
    found = dict(ENVELOPE)
    for kind, words in _wanted(stream).items():
        for name, shape in _fields(BY_NAME[kind]).items():
            if name in words:
                found[name] = shape if found.get(name, shape) == shape else "JSON"
    return found


@cache
def columns_of(stream: Stream, kind: str) -> dict[str, str]:
    """Those of them that events of this type have and that a step which takes them asks for."""
    words = _wanted(stream).get(kind, frozenset())
    fields = _fields(BY_NAME[kind]) if kind in BY_NAME else {}
    return {
        name: shape for name, shape in shapes(stream).items() if name in ENVELOPE or (name in words and name in fields)
    }


@cache
def _wanted(stream: Stream) -> dict[str, frozenset[str]]:
    """Type to every word of the SQL that takes it."""
    found: dict[str, frozenset[str]] = {}
    for definition in definitions():
        if definition.stream == stream:
            for step in definition.steps:
                for kind in step.types - {"*"}:
                    found[kind] = found.get(kind, frozenset()) | step.words
    return found


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: _shape(field.type) for field in info.fields}


def _shape(kind: inspect.Type) -> str:
    """Its type in DuckDB's words."""
    match kind:
        case inspect.BoolType():
            return "BOOLEAN"
        case inspect.IntType():
            return "BIGINT"
        case inspect.FloatType():
            return "DOUBLE"
        case inspect.StrType() | inspect.LiteralType():
            return "VARCHAR"
        case inspect.ListType() | inspect.VarTupleType():
            inner = _shape(kind.item_type)
            return f"{inner}[]" if inner.isalpha() and inner != "JSON" else "JSON"
        case inspect.UnionType():
            others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _shape(others[0]) if len(others) == 1 else "JSON"
        case inspect.StructType() if not kind.array_like and kind.tag is None:
            parts = {field.encode_name: _shape(field.type) for field in kind.fields}
            if all(each.isalpha() and each != "JSON" for each in parts.values()):
                return f"STRUCT({', '.join(f'{name} {each}' for name, each in parts.items())})"
    return "JSON"
