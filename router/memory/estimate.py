"""What a replica of a model will take on each GPU, by its file and its options: an estimate, never a decision.

Weights and cache follow from the file. Buffers are a rough figure, and a process has its CUDA context on each GPU.
Where llama-server is left to fit its options to the memory that is free (`--fit`), it may take less than this.
Sizes are bytes inside and MiB outside.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from router.config import ModelConfig
from router.llama_options import TRUE_WORDS
from router.memory.geometry import Geometry, Layer, geometry
from router.memory.header import Header, NoHeader, read_header
from router.model_files import whole_number

MIB = 1 << 20
CONTEXT_MIB = 350
"""Of a CUDA context with llama.cpp's kernels: measured values lie between 250 and 500."""
AUTO_SLOTS = 4
"""What llama-server makes of `parallel` where it is left to choose; they share one cache then."""
UBATCH = 512
CELLS = 256
"""The cache of sliding layers is made in steps of so many tokens."""
CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes per number, by cache-type-k and cache-type-v."""
STATE_BYTES = 4

_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")


@dataclass(frozen=True, slots=True)
class Parts:
    """MiB of one replica on all its GPUs together, by what they are for."""

    weights_mib: int = 0
    growing_mib: int = 0
    """Cache that a longer context makes larger."""
    fixed_mib: int = 0
    """Cache of sliding layers and recurrent states."""
    buffers_mib: int = 0
    host_mib: int = 0
    """Weights that stay in the memory of the machine."""

    @property
    def gpu_mib(self) -> int:
        return self.weights_mib + self.growing_mib + self.fixed_mib + self.buffers_mib


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a whole model. `gpus` is MiB per GPU, all its replicas together, contexts included."""

    parts: Parts
    gpus: Mapping[int, int]
    context: int
    """Tokens in the cache of one replica, all slots together."""
    context_is_asked: bool
    """False: it is the most that the model can, and llama-server may take less to fit in."""
    slots: int
    shape: Geometry


class Unknown(Exception):
    """There is nothing to estimate by; the message says why."""


def estimate(model: ModelConfig) -> Estimate:
    """Raises Unknown: weights that are yet to be downloaded, or a file that cannot be read."""
    if not model.model_path:
        raise Unknown("its weights are downloaded by llama-server, and no file is known yet")
    try:
        header = read_header(Path(model.model_path))
        further = [read_header(Path(path)) for path in _further_files(model)]
    except NoHeader as error:
        raise Unknown(str(error)) from error
    shape = geometry(header)
    slots = model.slots_hint or AUTO_SLOTS
    context = context_of(model, shape, slots)
    host, weights = _weights(header, model, len(shape.layers))
    growing, fixed = cache(shape.layers, shape, model, context, slots)
    for other in further:
        weights += sum(tensor.bytes for tensor in other.tensors.values())
        draft = geometry(other)
        more = cache(draft.layers, draft, model, context, slots)
        growing, fixed = growing + more[0], fixed + more[1]
    ubatch = whole_number(model.options.get("ubatch-size", "")) or UBATCH
    buffers = ubatch * (shape.vocabulary + 8 * shape.width) * 4 if weights else 0
    parts = Parts(*(round(size / MIB) for size in (weights, growing, fixed, buffers, host)))
    is_asked = bool(whole_number(model.options.get("ctx-size", "")) or "kv-unified-per-slot" in model.options)
    return Estimate(parts, _per_gpu(parts, model), context, is_asked, slots, shape)


def _further_files(model: ModelConfig) -> Iterable[str]:
    for name in ("model-draft", "spec-draft-model", "mmproj"):
        if name in model.options:
            yield model.options[name]


def context_of(model: ModelConfig, shape: Geometry, slots: int) -> int:
    """Tokens of all slots together."""
    per_slot = whole_number(model.options.get("kv-unified-per-slot", ""))
    return whole_number(model.options.get("ctx-size", "")) or per_slot * slots or shape.context


# --- weights --------------------------------------------------------------------------------------------------------


def _weights(header: Header, model: ModelConfig, layers: int) -> tuple[int, int]:
    """Bytes in the memory of the machine, and on GPUs."""
    first = layers - _offloaded(model, layers)
    on_cpu = _KeptOnCpu(model)
    host = gpu = 0
    for name, tensor in header.tensors.items():
        found = _LAYER.match(name)
        if name.startswith(("token_embd", "per_layer_token_embd")):
            host += tensor.bytes
            if name == "token_embd.weight" and "output.weight" not in header.tensors and first < 0:
                gpu += tensor.bytes  # it is the output as well, and lies on both sides
        elif (int(found[1]) < first if found else first >= 0) or on_cpu(name):
            host += tensor.bytes
        else:
            gpu += tensor.bytes
    return host, gpu


def _offloaded(model: ModelConfig, layers: int) -> int:
    """Layers on GPUs, the last ones first; one more for the output."""
    asked = model.options.get("n-gpu-layers", model.options.get("gpu-layers", ""))
    if not model.gpus:
        return 0
    number = whole_number(asked) if re.fullmatch(r"\d+", asked) else layers + 1
    return min(number, layers + 1)


class _KeptOnCpu:
    """Whether a tensor is kept off the GPUs by name."""

    def __init__(self, model: ModelConfig) -> None:
        options = model.options
        self._experts = 1 << 30 if options.get("cpu-moe") in TRUE_WORDS else whole_number(options.get("n-cpu-moe", ""))
        overrides = [override.rpartition("=") for override in options.get("override-tensor", "").split(",")]
        self._patterns = [pattern for pattern, _, where in overrides if where.upper() == "CPU"]

    def __call__(self, name: str) -> bool:
        found = _LAYER.match(name)
        if found and int(found[1]) < self._experts and _EXPERTS.search(name):
            return True
        return any(_matches(pattern, name) for pattern in self._patterns)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


# --- cache ----------------------------------------------------------------------------------------------------------


def cache(
    layers: Iterable[Layer], shape: Geometry, model: ModelConfig, context: int, slots: int
) -> tuple[float, float]:
    """Bytes on GPUs that grow with the context, and those that do not."""
    options = model.options
    count = len(shape.layers)
    first = count - _offloaded(model, count)
    if options.get("kv-offload") == "false" or not model.gpus:
        return 0.0, 0.0
    unified = not model.slots_hint or options.get("kv-unified") == "true"
    ubatch = whole_number(options.get("ubatch-size", "")) or UBATCH
    streams = 1 if unified else slots
    window = shape.window * (slots if unified else 1) + ubatch
    cells = min(context // streams, -(-window // CELLS) * CELLS) * streams
    if options.get("swa-full") == "true":
        cells = context
    growing = fixed = 0.0
    for index, layer in enumerate(layers):
        if index < first:
            continue
        if layer.kind == "growing":
            growing += context * per_token(layer, model)
        elif layer.kind == "sliding":
            fixed += cells * per_token(layer, model)
        elif layer.kind == "state":
            fixed += layer.state * STATE_BYTES * slots
    return growing, fixed


def per_token(layer: Layer, model: ModelConfig) -> float:
    """Bytes that a layer keeps of a token."""
    keys = CACHE_BYTES.get(model.options.get("cache-type-k", "f16"), 2.0)
    values = CACHE_BYTES.get(model.options.get("cache-type-v", "f16"), 2.0)
    return layer.keys * keys + layer.values * values


# --- where it lies --------------------------------------------------------------------------------------------------


def _per_gpu(parts: Parts, model: ModelConfig) -> dict[int, int]:
    """All replicas of a model together."""
    groups = model.replica_gpus or (model.mask,) * model.replicas
    total: dict[int, int] = {}
    for group in groups:
        shares = _shares(model, len(group))
        for gpu, share in zip(group, shares, strict=True):
            spread = parts.weights_mib + parts.growing_mib + parts.fixed_mib
            taken = round(spread * share) + parts.buffers_mib + CONTEXT_MIB if parts.gpu_mib and share else CONTEXT_MIB
            total[gpu] = total.get(gpu, 0) + taken
    return dict(sorted(total.items()))


def _shares(model: ModelConfig, count: int) -> list[float]:
    if model.options.get("split-mode") == "none" and count:
        return [1.0] + [0.0] * (count - 1)
    written = [float(part) for part in re.findall(r"[\d.]+", model.options.get("tensor-split", ""))][:count]
    written += [0.0] * (count - len(written))
    return [part / sum(written) for part in written] if sum(written) else [1 / count for _ in range(count)]
