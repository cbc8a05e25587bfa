"""The head of a GGUF file: its metadata and the size of each tensor, without reading weights or vocabulary.

The package `gguf` reads the whole vocabulary into Python objects first: 4 s for 49,000 tokens, where this takes a tenth
of a second; and it would bring numpy into every installation. Long arrays are walked over and left out here.
"""

import mmap
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARRAY_MAX = 1024
"""Longer arrays are vocabularies."""
TYPE_STRING, TYPE_ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36),
}  # fmt: skip
"""ggml's types: weights in a block, and bytes of a block."""


class NoHeader(Exception):
    """The file has no head that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` as in the file: the fastest dimension first."""

    shape: tuple[int, ...]
    bytes: int


@dataclass(slots=True)
class Header:
    """`metadata` holds numbers, texts and short arrays."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's own prefix, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.gguf")


def read_header(path: Path) -> Header:
    """Of the file, or of all parts of a model in several. Raises NoHeader."""
    header = _read_one(path)
    if part := _PART.fullmatch(str(path)):
        for number in range(2, int(part["count"]) + 1):
            more = _read_one(Path(f"{part['stem']}-{number:05}-of-{part['count']}.gguf"))
            header.tensors |= more.tensors
    return header


def _read_one(path: Path) -> Header:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError) as error:
        raise NoHeader(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (struct.error, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise NoHeader(f"{path} is damaged, or of a kind that is not known here ({error!r})") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, tensors, pairs = self._take("IQQ")
        if not 2 <= version <= 3:
            raise ValueError(f"GGUF version {version} is not known here")
        header = Header()
        for _ in range(pairs):
            key = self._text()
            value = self._value(self._take("I")[0])
            if value is not None:
                header.metadata[key] = value
        for _ in range(tensors):
            name = self._text()
            shape = self._take(f"{self._take('I')[0]}Q")
            kind, _ = self._take("IQ")
            count = 1
            for size in shape:
                count *= size
            per_block, size = BLOCKS[kind]
            header.tensors[name] = Tensor(shape, count // per_block * size)
        return header

    def _value(self, kind: int) -> Any:
        """None for a long array."""
        if kind == TYPE_STRING:
            return self._text()
        if kind != TYPE_ARRAY:
            return self._take(_SCALARS[kind])[0]
        inner, count = self._take("IQ")
        if inner in (TYPE_STRING, TYPE_ARRAY):
            return self._walk(inner, count)
        code = _SCALARS[inner]
        if count > ARRAY_MAX:
            self._at += count * struct.calcsize(f"<{code}")
            return None
        return list(self._take(f"{count}{code}"))

    def _walk(self, inner: int, count: int) -> Any:
        if inner == TYPE_ARRAY:
            values = [self._value(TYPE_ARRAY) for _ in range(count)]
            return values if count <= ARRAY_MAX else None
        if count <= ARRAY_MAX:
            return [self._text() for _ in range(count)]
        at, data, unpack = self._at, self._data, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._at = at
        return None

    def _text(self) -> str:
        (size,) = self._take("Q")
        text = self._data[self._at : self._at + size]
        self._at += size
        return text.decode("utf-8", "replace")

    def _take(self, code: str) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{code}")
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values
