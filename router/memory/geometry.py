"""What each layer of a model keeps of a conversation: something per token, a window of tokens, or one state.

* *growing*: full attention; keys and values of every token.
* *sliding*: attention over a window; keys and values of the last tokens only.
* *state*: recurrent; the same amount whatever the length.
* *none*: shares another layer's cache, or has no memory.

Which layer is what stands in the file's metadata, and for some architectures in llama.cpp's code: `PERIODS`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from router.memory.header import Header

Kind = Literal["growing", "sliding", "state", "none"]

PERIODS: dict[str, tuple[int, bool]] = {
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gemma-embedding": (6, False),
    "cohere2": (4, False),
    "gpt-oss": (2, False),
    "exaone4": (4, False),
    "olmo2": (4, False),
    "afmoe": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
    "llama4": (4, False),
}
"""One layer of so many attends to everything, the last of them or (True) the first, where the file does not say."""

HYBRIDS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""One layer of so many attends, the others are recurrent, where the file does not say."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`keys` and `values` are numbers per token, `state` numbers per slot."""

    kind: Kind
    keys: int = 0
    values: int = 0
    state: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """`window` is that of the sliding layers in tokens, `context` what the model was trained for."""

    layers: tuple[Layer, ...]
    window: int
    context: int
    width: int
    vocabulary: int

    def count(self, kind: Kind) -> int:
        return sum(layer.kind == kind for layer in self.layers)


def geometry(header: Header) -> Geometry:
    """Of a model; numbers that its file does not give are taken as zero."""
    count = _number(header.get("block_count"))
    sliding = _sliding(header, count)
    recurrent = _recurrent(header, count)
    first_shared = count - _number(header.get("attention.shared_kv_layers"))
    layers = []
    for index in range(count):
        heads = _at(header.get("attention.head_count_kv", header.get("attention.head_count")), index)
        if recurrent[index] or not heads:
            layers.append(Layer("state", state=_state(header)) if _state(header) else Layer("none"))
        elif index >= first_shared:
            layers.append(Layer("none"))
        else:
            keys, values = _lengths(header, index, sliding=sliding[index])
            layers.append(Layer("sliding" if sliding[index] else "growing", heads * keys, heads * values))
    return Geometry(
        layers=tuple(layers),
        window=_number(header.get("attention.sliding_window")),
        context=_number(header.get("context_length")),
        width=_number(header.get("embedding_length")),
        vocabulary=_vocabulary(header),
    )


def _sliding(header: Header, count: int) -> list[bool]:
    if not _number(header.get("attention.sliding_window")):
        return [False] * count
    pattern = header.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and pattern:
        return [bool(pattern[index % len(pattern)]) for index in range(count)]
    period, first = PERIODS.get(header.architecture, (1, False))
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        period, first = pattern, False
    if not period:
        return [True] * count
    full = 0 if first else period - 1
    return [index % period != full for index in range(count)]


def _recurrent(header: Header, count: int) -> list[bool]:
    interval = _number(header.get("full_attention_interval")) or HYBRIDS.get(header.architecture, 0)
    if not interval:
        return [False] * count
    return [(index + 1) % interval != 0 for index in range(count)]


def _lengths(header: Header, index: int, *, sliding: bool) -> tuple[int, int]:
    """Numbers per head of a key and of a value."""
    heads = _at(header.get("attention.head_count"), index)
    usual = _number(header.get("embedding_length")) // heads if heads else 0
    keys = _number(header.get("attention.key_length")) or usual
    values = _number(header.get("attention.value_length")) or usual
    if sliding:
        keys = _number(header.get("attention.key_length_swa")) or keys
        values = _number(header.get("attention.value_length_swa")) or values
    if _number(header.get("attention.key_length_mla")):
        values = 0  # the value is a part of the key
    return keys, values


def _state(header: Header) -> int:
    inner = _number(header.get("ssm.inner_size"))
    size = _number(header.get("ssm.state_size"))
    groups = _number(header.get("ssm.group_count"))
    convolution = max(0, _number(header.get("ssm.conv_kernel")) - 1) * (inner + 2 * groups * size)
    short = max(0, _number(header.get("shortconv.l_cache")) - 1) * _number(header.get("embedding_length"))
    return convolution + size * inner + short


def _vocabulary(header: Header) -> int:
    embedding = header.tensors.get("token_embd.weight")
    return embedding.shape[-1] if embedding is not None else _number(header.get("vocab_size"))


def _at(value: Any, index: int) -> int:
    """Of a number for all layers, or a list with one for each."""
    if isinstance(value, list):
        return _number(value[index]) if index < len(value) else 0
    return _number(value)


def _number(value: Any) -> int:
    """The number; of a list the largest; 0 for anything else."""
    if isinstance(value, list):
        return max(map(_number, value), default=0)
    return int(value) if isinstance(value, int | float) else 0
