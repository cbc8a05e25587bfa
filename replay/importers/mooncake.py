"""Mooncake's JSONL: timestamp (ms), input_length, output_length, hash_ids: one hash per 512 tokens of the prefix.

It names no conversations. A request whose prefix begins with the whole prompt of an earlier one, full blocks only, is
taken to be the next turn of that one's; when that answer came is not told, so nobody waits for an answer here.
"""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated

import msgspec

from replay.importers.table import SECONDS_MAX, TOKENS_MAX
from replay.workload import Block, Call, WorkloadError

BLOCK_TOKENS = 512
SHARED_BLOCKS_MIN = 3
"""Fewer blocks in common than this are a system prompt, not a conversation."""


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, lt=SECONDS_MAX * 1000)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[int] = []


def read(path: Path, model: str) -> list[Call]:
    calls: list[Call] = []
    decode = msgspec.json.Decoder(_Line).decode
    conversations: dict[int, str] = {}
    """Last full block of a prompt to its conversation: a hash stands for everything before it."""
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = decode(line)
        except msgspec.DecodeError as error:
            raise WorkloadError(f"{path}, line {number}: {error}") from error
        full = entry.hash_ids[: entry.input_length // BLOCK_TOKENS]
        known = (block for block in reversed(full[SHARED_BLOCKS_MIN - 1 :]) if block in conversations)
        conversation = next((conversations[block] for block in known), f"m{number}")
        if len(full) >= SHARED_BLOCKS_MIN:
            conversations[full[-1]] = conversation
        calls.append(
            Call(
                number=number,
                at_us=round(entry.timestamp * 1000),
                model=model,
                prompt_tokens=entry.input_length,
                output_tokens=entry.output_length,
                prefix=_blocks(entry),
                conversation=conversation,
            )
        )
    return calls


def _blocks(entry: _Line) -> tuple[Block, ...]:
    return tuple(
        (str(block), min(place * BLOCK_TOKENS, entry.input_length)) for place, block in enumerate(entry.hash_ids, 1)
    )
