"""The columns that lines of the log are read into, from the vocabulary itself: one per field that any table asks for.

DuckDB is told them all, so it guesses nothing, and a field that a newer version writes is passed over. A field whose
type differs from event to event, or that is an object, comes as JSON. A field that is left out of a line because it has
its default comes as NULL: what the default is, the SQL must say.
"""

from collections.abc import Iterable
from functools import cache

import msgspec
from msgspec import inspect

from eventlog.events import DECISIONS, FACTS, OBSERVATIONS, Event
from eventlog.segments import Stream
from projections.definitions import words


@cache
def columns(stream: Stream) -> str:
    """The argument `columns` of read_json."""
    kinds: Iterable[type[Event]] = (*FACTS, *DECISIONS) if stream == "events" else OBSERVATIONS
    wanted = words(stream)
    found = {"type": "VARCHAR"}
    for kind in kinds:
        for name, each in _fields(kind):
            if name in wanted:
                found[name] = each if found.get(name, each) == each else "JSON"
    return "{" + ", ".join(f"'{name}': '{each}'" for name, each in found.items()) + "}"


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [(field.encode_name, _sql_type(field.type)) for field in info.fields]


def _sql_type(kind: inspect.Type) -> str:
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
            inner = _sql_type(kind.item_type)
            return "JSON" if inner == "JSON" else f"{inner}[]"
        case inspect.UnionType():
            others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _sql_type(others[0]) if len(others) == 1 else "JSON"
        case inspect.StructType() if not kind.array_like and kind.tag is None:
            parts = [(field.encode_name, _sql_type(field.type)) for field in kind.fields]
            if all(each in ("BIGINT", "VARCHAR", "BOOLEAN", "DOUBLE") for _, each in parts):
                return "STRUCT(" + ", ".join(f'"{name}" {each}' for name, each in parts) + ")"
    return "JSON"
