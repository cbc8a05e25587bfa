"""What a model takes, from the head of its file: layers, cache, weights, and where they lie."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from router.config import ModelConfig
from router.memory.cram import Cost, cost_of
from router.memory.estimate import CONTEXT_MIB, Unknown, estimate
from router.memory.geometry import geometry
from router.memory.header import BLOCKS, NoHeader, read_header
from tests.router.memory.heads import LLAMA, dotted, write_head
from tests.tiny_gguf import write_tiny_gguf

MIB = 1 << 20

GEMMA = {
    "block_count": 30,
    "context_length": 131072,
    "embedding_length": 2816,
    "attention.head_count": 16,
    "attention.head_count_kv": [2 if index % 6 == 5 else 8 for index in range(30)],
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
    "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": [index % 6 != 5 for index in range(30)],
}
QWEN = {
    "block_count": 65,
    "context_length": 262144,
    "embedding_length": 5120,
    "attention.head_count": 24,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 6144,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}


def model(path: Path, **more: Any) -> ModelConfig:
    options = {name.replace("_", "-"): value for name, value in more.pop("options", {}).items()}
    return ModelConfig("m", model_path=str(path), options=options, **more)


# --- the head -------------------------------------------------------------------------------------------------------


def test_the_head_says_what_llama_cpps_own_package_says(tmp_path: Path) -> None:
    """A real file: every number, and the size of every tensor."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    assert ours.architecture == "llama"
    assert ours.get("context_length") == 8192
    assert {name: tensor.bytes for name, tensor in ours.tensors.items()} == {
        tensor.name: int(tensor.n_bytes) for tensor in theirs.tensors
    }
    assert "tokenizer.ggml.chat_template" in ours.metadata or "tokenizer.chat_template" in ours.metadata


def test_sizes_of_blocks_are_those_of_llama_cpp() -> None:
    known = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in BLOCKS} == BLOCKS


def test_a_long_vocabulary_is_walked_over(tmp_path: Path) -> None:
    header = read_header(write_head(tmp_path / "m.gguf", "llama", {"output.weight": (3, 32)}, **dotted(LLAMA)))
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.tensors["output.weight"].bytes == 384


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    first = write_head(tmp_path / "m-00001-of-00002.gguf", "llama", {"blk.0.a": (32, 32)}, **dotted(LLAMA))
    write_head(tmp_path / "m-00002-of-00002.gguf", "llama", {"blk.1.a": (32, 32)})
    assert set(read_header(first).tensors) == {"blk.0.a", "blk.1.a"}


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>not found</html>" * 9, b"GGUF\x03\0\0\0" + b"\xff" * 40])
def test_a_file_without_a_head_is_no_reason_to_fail(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(NoHeader, match=r"m\.gguf"):
        read_header(path)
    with pytest.raises(Unknown):
        estimate(model(path))


# --- which layer keeps what -----------------------------------------------------------------------------------------


def test_r81_of_gemmas_30_layers_5_grow_and_of_qwens_65_there_are_16(tmp_path: Path) -> None:
    gemma = geometry(read_header(write_head(tmp_path / "g.gguf", "gemma4", **dotted(GEMMA))))
    assert (gemma.count("growing"), gemma.count("sliding"), gemma.window) == (5, 25, 1024)
    qwen = geometry(read_header(write_head(tmp_path / "q.gguf", "qwen35", **dotted(QWEN))))
    assert (qwen.count("growing"), qwen.count("state")) == (16, 49)


@pytest.mark.parametrize(
    ("architecture", "metadata", "growing"),
    [
        ("llama", {}, [0, 1, 2, 3]),
        ("gemma2", {"attention__sliding_window": 4096}, [1, 3]),
        ("smallthinker", {"attention__sliding_window": 4096}, [0]),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 2}, [1, 3]),
        ("unheard-of", {"attention__sliding_window": 512}, [0, 1, 2, 3]),
        ("gemma3n", {"attention__shared_kv_layers": 2}, [0, 1]),
        ("qwen3next", {"ssm__inner_size": 64, "ssm__state_size": 8}, [3]),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0, 2], "shortconv__l_cache": 3}, [1, 3]),
    ],
)
def test_layers_are_told_apart_as_llama_cpp_does(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], growing: list[int]
) -> None:
    """By a pattern in the file, by the architecture, by heads that are zero; what nobody knows counts in full."""
    head = write_head(tmp_path / "m.gguf", architecture, **(dotted(LLAMA) | metadata))
    layers = geometry(read_header(head)).layers
    assert [index for index, layer in enumerate(layers) if layer.kind == "growing"] == growing


# --- the cache ------------------------------------------------------------------------------------------------------


def test_a_cache_grows_with_the_context_and_shrinks_with_its_type(tmp_path: Path) -> None:
    """4 layers of 2 heads of 64: 1,024 numbers per token."""
    path = write_head(tmp_path / "m.gguf", "llama", **dotted(LLAMA))
    assert estimate(model(path)).parts.growing_mib == 8192 * 1024 * 2 // MIB == 16
    assert estimate(model(path, options={"ctx_size": "32768"})).parts.growing_mib == 64
    small = {"ctx_size": "32768", "cache_type_k": "q8_0", "cache_type_v": "q4_0"}
    assert estimate(model(path, options=small)).parts.growing_mib == 26
    assert estimate(model(path, options={"kv_offload": "false"})).parts.growing_mib == 0


def test_a_window_takes_the_same_whatever_the_context(tmp_path: Path) -> None:
    """Gemma: 25 layers of 4,096 numbers per token keep 1,024 tokens and a batch; 5 of 2,048 keep everything."""
    path = write_head(tmp_path / "g.gguf", "gemma4", **dotted(GEMMA))
    short = estimate(model(path, slots_hint=1, options={"ctx_size": "16384"})).parts
    long = estimate(model(path, slots_hint=1, options={"ctx_size": "131072"})).parts
    assert short.fixed_mib == long.fixed_mib == 25 * 4096 * 2 * 1536 // MIB == 300
    assert long.growing_mib == 8 * short.growing_mib == 131072 * 5 * 2048 * 2 // MIB
    assert (
        estimate(model(path, slots_hint=1, options={"swa_full": "true", "ctx_size": "16384"})).parts.fixed_mib == 3200
    )


def test_a_recurrent_state_is_there_once_per_slot(tmp_path: Path) -> None:
    path = write_head(tmp_path / "q.gguf", "qwen35", **dotted(QWEN))
    one, four = (estimate(model(path, slots_hint=slots)).parts.fixed_mib for slots in (1, 4))
    state = 128 * 6144 + 3 * (6144 + 2 * 16 * 128)
    assert one == round(49 * state * 4 / MIB)
    assert four == round(4 * 49 * state * 4 / MIB)


# --- weights --------------------------------------------------------------------------------------------------------

BLOCKS_OF_8_MIB = {f"blk.{index}.ffn_up.weight": (2048, 1024) for index in range(4)}
WHOLE = {"token_embd.weight": (4096, 256), "output.weight": (4096, 256), **BLOCKS_OF_8_MIB}


@pytest.mark.parametrize(
    ("options", "gpu", "host"),
    [
        ({}, 36, 4),
        ({"n_gpu_layers": "all"}, 36, 4),
        ({"n_gpu_layers": "99"}, 36, 4),
        ({"n_gpu_layers": "4"}, 32, 8),
        ({"n_gpu_layers": "1"}, 8, 32),
        ({"n_gpu_layers": "0"}, 0, 40),
        ({"override_tensor": r"blk\.[01]\..*=CPU,output=CUDA0"}, 20, 20),
    ],
)
def test_weights_lie_where_the_options_put_them(tmp_path: Path, options: dict[str, str], gpu: int, host: int) -> None:
    """The last layers go first, then the output; the embedding stays in the memory of the machine."""
    parts = estimate(model(write_head(tmp_path / "m.gguf", "llama", WHOLE, **dotted(LLAMA)), options=options)).parts
    assert (parts.weights_mib, parts.host_mib) == (gpu, host)


def test_an_embedding_that_is_the_output_too_lies_on_both_sides(tmp_path: Path) -> None:
    tensors = {name: shape for name, shape in WHOLE.items() if name != "output.weight"}
    parts = estimate(model(write_head(tmp_path / "m.gguf", "llama", tensors, **dotted(LLAMA)))).parts
    assert (parts.weights_mib, parts.host_mib) == (36, 4)


def test_experts_can_stay_on_the_cpu(tmp_path: Path) -> None:
    tensors = {f"blk.{index}.ffn_up_exps.weight": (2048, 1024) for index in range(4)} | {
        "blk.0.attn_q.weight": (1024, 256)
    }
    path = write_head(tmp_path / "m.gguf", "llama", tensors, **dotted(LLAMA))
    assert estimate(model(path, options={"n_cpu_moe": "3"})).parts.host_mib == 24
    assert estimate(model(path, options={"cpu_moe": "true"})).parts.host_mib == 32
    assert estimate(model(path)).parts.host_mib == 0


def test_a_draft_model_and_a_projector_are_added(tmp_path: Path) -> None:
    path = write_head(tmp_path / "m.gguf", "llama", WHOLE, **dotted(LLAMA))
    draft = write_head(tmp_path / "d.gguf", "llama", BLOCKS_OF_8_MIB, **dotted(LLAMA))
    alone, both = estimate(model(path)).parts, estimate(model(path, options={"model_draft": str(draft)})).parts
    assert both.weights_mib == alone.weights_mib + 32
    assert both.growing_mib == 2 * alone.growing_mib


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_every_gpu_and_every_replica_pays_its_own_context(tmp_path: Path) -> None:
    """Layers are spread evenly, or as `tensor-split` says; a model on the CPU takes nothing."""
    path = write_head(tmp_path / "m.gguf", "llama", WHOLE, **dotted(LLAMA))
    one = model(path, gpus=(1,), mask=(1,))
    parts = estimate(one).parts
    spread = parts.weights_mib + parts.growing_mib
    assert estimate(one).gpus == {1: spread + parts.buffers_mib + CONTEXT_MIB}
    two = model(path, gpus=(0, 2), mask=(2, 0))
    half = spread // 2 + parts.buffers_mib + CONTEXT_MIB
    assert estimate(two).gpus == {0: half, 2: half}
    uneven = estimate(replace(two, options={"tensor-split": "3,1"})).gpus
    assert uneven[2] - uneven[0] == spread // 2
    twice = estimate(replace(one, replicas=2)).gpus
    assert twice == {1: 2 * estimate(one).gpus[1]}
    apart = model(path, gpus=(0, 1), mask=(0, 1), replica_gpus=((0,), (1,)), replicas=2)
    assert estimate(apart).gpus == {0: estimate(one).gpus[1], 1: estimate(one).gpus[1]}
    assert estimate(model(path, gpus=(), mask=())).gpus == {}


# --- the prompt cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed_mib", "growth_kib", "tokens", "cram_mib", "capacity"),
    [(176, 5.7, 131072, 16384, 18), (766, 30.2, 262144, 16384, 1)],
)
def test_r80_capacity_is_the_cap_over_fixed_and_growing_cost(
    fixed_mib: float, growth_kib: float, tokens: int, cram_mib: int, capacity: int
) -> None:
    cost = Cost(fixed_mib, growth_kib)
    assert cost.capacity(tokens, cram_mib) == capacity
    assert cost.needed(tokens, capacity) <= cram_mib < cost.needed(tokens, capacity + 1)


def test_the_growing_cost_of_a_model_follows_from_its_layers(tmp_path: Path) -> None:
    """Gemma with a q4_0 cache: 5 layers of 2,048 numbers; each checkpoint keeps the window once more."""
    shape = geometry(read_header(write_head(tmp_path / "g.gguf", "gemma4", **dotted(GEMMA))))
    small = ModelConfig("m", options={"cache-type-k": "q4_0", "cache-type-v": "q4_0"})
    plain, kept = cost_of(shape, small, 0), cost_of(shape, small, 2)
    assert plain.growth_kib == pytest.approx(5.625)
    assert plain.fixed_mib == pytest.approx(56.25)
    assert kept.fixed_mib == pytest.approx(168.75)
    assert kept.growth_kib == plain.growth_kib
