"""GGUF files that are only a head, by llama.cpp's own package: any metadata, and tensors without weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LLAMA = {
    "block_count": 4,
    "context_length": 8192,
    "embedding_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
"""32 numbers would be a head; 2 heads of 64 keep 128 keys and 128 values per token and layer."""


def write_head(
    path: Path, architecture: str, tensors: Mapping[str, Sequence[int]] | None = None, **metadata: Any
) -> Path:
    """Keys stand under the architecture; in their names `__` stands for a dot. Tensors are F32, slowest first."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in metadata.items():
        key = f"{architecture}.{name.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_token_list([f"token {number}" for number in range(2000)])
    for name, shape in (tensors or {}).items():
        writer.add_tensor_info(name, list(shape), np.dtype(np.float32), int(np.prod(shape)) * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def dotted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in metadata.items()}
