"""The columns that lines of the log are read into, from the vocabulary itself: one per field that any table asks for.

DuckDB is told them all, so it guesses nothing, and a field that a newer version writes is passed over. A field whose
type differs from event to event, or that is an object, comes as JSON. A field that is left out of a line because it has
its default comes as NULL: what the default is, the SQL must say.
"""

import json
from collections.abc import Iterable
from functools import cache

import msgspec
from msgspec import inspect

from eventlog.events import DECISIONS, FACTS, OBSERVATIONS, Event
from eventlog.segments import Stream
from projections.definitions import words

Shape = str | list["Shape"] | dict[str, "Shape"]
"""A type in the words of DuckDB's json_transform: a name, a list of one, or an object by its fields."""


@cache
def columns(stream: Stream) -> str:
    """What a line of this stream is turned into, for json_transform."""
    kinds: Iterable[type[Event]] = (*FACTS, *DECISIONS) if stream == "events" else OBSERVATIONS
    wanted = words(stream)
    found: dict[str, Shape] = {"type": "VARCHAR"}
    for kind in kinds:
        for name, each in _fields(kind):
            if name in wanted:
                found[name] = each if found.get(name, each) == each else "JSON"
    return json.dumps(found)


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Shape]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [(field.encode_name, _shape(field.type)) for field in info.fields]


def _shape(kind: inspect.Type) -> Shape:
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
            return [inner] if isinstance(inner, str) and inner != "JSON" else "JSON"
        case inspect.UnionType():
            others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _shape(others[0]) if len(others) == 1 else "JSON"
        case inspect.StructType() if not kind.array_like and kind.tag is None:
            parts = {field.encode_name: _shape(field.type) for field in kind.fields}
            if all(isinstance(each, str) and each != "JSON" for each in parts.values()):
                return parts
    return "JSON"
