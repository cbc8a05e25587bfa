"""Filters: parameters that are stripped from a request, or set in it, before it goes to llama-server.

The only thing that changes a body, and only for models that are configured so. Every other value goes on as it came,
byte for byte; between the members of the outermost object blanks are lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.body import Buffer
from router.peek import without_mark


@dataclass(frozen=True, slots=True)
class Filters:
    """`by_name` is set for requests that asked for the model by that name, after `set`."""

    strip: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.strip or self.set or self.by_name)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def rewritten(body: Buffer, filters: Filters, name: str) -> tuple[bytes, tuple[str, ...]] | None:
    """The body of a request for `name`, and the parameters that are not as they came; None where nothing changes.

    The body is known to be a JSON object.
    """
    members = _members.decode(without_mark(body))
    changed = [key for key in filters.strip if members.pop(key, None) is not None]
    for key, value in {**filters.set, **filters.by_name.get(name, {})}.items():
        raw = members.get(key)
        if raw is None or msgspec.json.decode(raw) != value:
            members[key] = msgspec.Raw(msgspec.json.encode(value))
            changed.append(key)
    if not changed:
        return None
    return msgspec.json.encode(members), tuple(dict.fromkeys(changed))
