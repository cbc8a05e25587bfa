"""A tiny llama model with random weights, for tests that need many real llama.cpp processes and no meaning.

Loads in about 0.1 s and generates over 1,000 tokens/s on two cores. One token is one byte of text; what it says is
printable ASCII without sense, so that each token is one event of a stream. About one token in a hundred ends the
answer: a test that wants an exact length asks for `ignore_eos`. The same seed and context give the same file, byte for
byte.

`python -m tests.tiny_gguf PATH` writes one by hand.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

WIDTH = 256
LAYERS = 4
HEADS = 4
FEED_FORWARD = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

UNKNOWN, BEGIN, END = 0, 1, 2
FIRST_BYTE = 3
SPACE = FIRST_BYTE + 256
VOCABULARY_SIZE = SPACE + 1


def write_tiny_gguf(path: Path, *, seed: int = 0, context: int = 8192) -> Path:
    """Write the model to `path`, whole or not at all, and return `path`.

    `context` is the trained context length in tokens: llama-server's context when none is asked for.
    """
    fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(fd)
    try:
        _write(unfinished, seed, context)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
    return path


def _write(path: str, seed: int, context: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny-{seed}")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_vocabulary(writer)
    _add_weights(writer, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Three control tokens, one token for each byte, and the space, which this tokenizer writes as U+2581."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * VOCABULARY_SIZE)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_weights(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float64] = random.standard_normal((rows, columns)) / np.sqrt(columns)
        return values.astype(np.float32)

    ones = np.ones(WIDTH, dtype=np.float32)
    embedding = random.standard_normal((VOCABULARY_SIZE, WIDTH)).astype(np.float32)
    output = matrix(VOCABULARY_SIZE, WIDTH)
    # Every token starts with the same large first coordinate. The layers' small random additions leave it standing, so
    # the output can tell by it, whatever the text, which tokens may be said.
    embedding[:, 0] = 8.0
    output[:, 0] = -8.0
    output[_speakable(), 0] = 8.0

    writer.add_tensor("token_embd.weight", embedding)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", matrix(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_norm.weight", ones)
        writer.add_tensor(f"{block}.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_up.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_down.weight", matrix(WIDTH, FEED_FORWARD))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)


def _speakable() -> list[int]:
    """Printable ASCII, the space, and the end of the answer."""
    return [*(FIRST_BYTE + byte for byte in range(0x21, 0x7F)), SPACE, END]


if __name__ == "__main__":
    print(write_tiny_gguf(Path(sys.argv[1])))
