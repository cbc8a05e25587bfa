"""One example of every event type, with every field set: what a golden log is made of.

Counterpart: `golden/`, whose files were written from these once and must be readable for ever.

    python -m tests.eventlog.samples DIRECTORY     writes a new golden log, for a new schema only
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from eventlog.codec import encode_lines
from eventlog.events import ALL, Decision, Event, Observation, SegmentOpened

START_US = 1_750_000_000_000_000


def sample(kind: type[Event], seq: int) -> Event:
    """An event whose fields all differ from their defaults."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    values = {field.name: _value(field.type, field.name) for field in info.fields}
    values |= {"seq": seq, "at_us": START_US + seq, "run": 1, "cause": 1 if issubclass(kind, Decision) else 0}
    return kind(**values)


def _value(kind: inspect.Type, name: str) -> Any:
    match kind:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1 + sum(name.encode())
        case inspect.FloatType():
            return 0.25
        case inspect.StrType():
            return f"{name} 'ä\n'"
        case inspect.LiteralType():
            return kind.values[-1]
        case inspect.ListType() | inspect.VarTupleType():
            items = [_value(kind.item_type, name)] * 2
            return tuple(items) if isinstance(kind, inspect.VarTupleType) else items
        case inspect.DictType():
            return {f"{name}/key": _value(kind.value_type, name)}
        case inspect.UnionType():
            return _value(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), name)
        case inspect.StructType():
            return kind.cls(**{field.name: _value(field.type, field.name) for field in kind.fields})
        case inspect.RawType():
            return msgspec.Raw(b'{"any":["state",1]}')
        case inspect.AnyType():
            return {"any": [1, None, "x"]}
    raise AssertionError(f"no sample for {kind} ({name})")


def golden_log() -> dict[str, bytes]:
    """File names and their contents: both streams, one event of each type."""
    files = {}
    seq = 1
    for stream in ("events", "observations"):
        first = seq
        header = SegmentOpened(
            seq=first,
            at_us=START_US,
            run=1,
            stream="events" if stream == "events" else "observations",
            chain="00000000",
            state=msgspec.Raw(b'{"any":["state",1]}'),
        )
        events: list[Event] = [header]
        for kind in ALL:
            if kind is not SegmentOpened and issubclass(kind, Observation) == (stream == "observations"):
                events.append(sample(kind, seq))
                seq += 1
        files[f"{stream}-{first:012d}.ndjson"], _ = encode_lines(events, 0)
    return files


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    for file_name, data in golden_log().items():
        (target / file_name).write_bytes(data)
