"""Names that tell nothing, for what is shared: within one bundle the same name always becomes the same one.

Hashed under a key that is thrown away, so nobody finds a name by trying. Whatever is not known to be harmless is taken
for a name; sentences lose names, paths, addresses and all that stands in quotes.
"""

import hashlib
import re
import secrets
import typing
from collections.abc import Iterable
from typing import Any, get_type_hints

from eventlog import events

HARMLESS_FIELDS = frozenset(
    (
        "build",
        "cause",
        "code",
        "end",
        "finish_reason",
        "how",
        "kind",
        "level",
        "llama_build",
        "outcome",
        "phase",
        "route",
        "stage",
        "type",
        "version",
        "why",
    )
)
TEXT_FIELDS = frozenset(("detail", "evidence", "last_lines", "reason", "text"))
DROPPED_FIELDS = frozenset(
    ("address", "argv_hash", "effective", "error", "fingerprint", "llama_server", "model_path", "prefix", "uuid")
)
"""They say too much, or nothing to others."""
MAPS = frozenset(("capacities", "groups", "keys", "matrix_evict_costs", "models", "pools", "processes"))
"""Fields that hold a dict whose keys are names."""

TEXT_MAX = 300
_SHORTEST_NAME = 3
"""A shorter name is not looked for in sentences: "a" is also a word."""
_REPLICA = re.compile(r"(.+)#(\d+\.\d+)")
_HARMLESS = re.compile(r"\d+|rid:\d+|GPU \d+(, GPU \d+)*|SIGKILL|this machine|queue|router")
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
"""Without leading zeros: llama-server's time in front of a line is no address."""
_TAKEN_OUT = (
    (re.compile(r"\bhttps?://\S+"), "<url>"),
    (re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`"), "'...'"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), "<mail>"),
    (re.compile(r"(?<![\w.])(?:~|\.{1,2})?(?:/[^\s'\":,;()]+)+|\b[A-Za-z]:\\[^\s'\"]+"), "<path>"),
    (
        re.compile(rf"\b{_OCTET}(?:\.{_OCTET}){{3}}(?::\d+)?\b|\b(?:[0-9a-f]{{1,4}}:){{3,}}[0-9a-f:]*\b", re.I),
        "<address>",
    ),
)


def _words() -> frozenset[str]:
    """Every word that a field of an event chooses from a fixed list."""
    found: set[str] = set()

    def look(hint: Any) -> None:
        if typing.get_origin(hint) is typing.Literal:
            found.update(word for word in typing.get_args(hint) if isinstance(word, str))
        for inner in typing.get_args(hint):
            look(inner)

    for kind in events.ALL:
        for hint in get_type_hints(kind).values():
            look(hint)
    return frozenset(found)


class Pseudonyms:
    """The names of one bundle."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """`known`: names to be taken out of sentences, too."""
        self._key = secrets.token_bytes(32)
        self._words = _words()
        names = sorted({name for name in known if len(name) >= _SHORTEST_NAME}, key=lambda name: (-len(name), name))
        self._in_text = re.compile("|".join(map(re.escape, names))) if names else None

    def of(self, name: str) -> str:
        """The other name; a replica keeps its numbers, and what is a number or no name at all stays."""
        if not name or _HARMLESS.fullmatch(name):
            return name
        if match := _REPLICA.fullmatch(name):
            return f"{self.of(match[1])}#{match[2]}"
        return f"n-{hashlib.blake2b(name.encode(), digest_size=5, key=self._key).hexdigest()}"

    def text(self, text: str) -> str:
        """A sentence or line without names."""
        for pattern, instead in _TAKEN_OUT:
            text = pattern.sub(instead, text)
        if self._in_text is not None:
            text = self._in_text.sub(lambda match: self.of(match[0]), text)
        return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."

    def apply(self, value: Any, field: str = "") -> Any:
        """A JSON value without names; `field` says which field of its parent it is."""
        if isinstance(value, dict):
            if field in MAPS:
                return {self.of(name): self.apply(inner) for name, inner in value.items()}
            kept = {name: self.apply(inner, name) for name, inner in value.items() if name not in DROPPED_FIELDS}
            return {**kept, "name": value["name"]} if field == "gpus" and "name" in value else kept
        if isinstance(value, list):
            return [self.apply(inner, field) for inner in value]
        if not isinstance(value, str) or field in HARMLESS_FIELDS:
            return value
        if field in TEXT_FIELDS:
            return self.text(value)
        return value if value in self._words else self.of(value)
