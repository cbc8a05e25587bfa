"""llama-swap's activity: what its /api/metrics answers (a JSON array), or the same entries one per line.

An entry is written when its answer is complete, so a request arrived `duration_ms` before `timestamp`. Where
llama-server told its timings, input_tokens are those that the cache did not have. Entries that failed are left out.
"""

from pathlib import Path
from typing import Any

import msgspec

from replay.importers.table import time_us
from replay.workload import Call, WorkloadError


class _Tokens(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_tokens: int = -1
    prompt_per_second: float = -1.0


class _Entry(msgspec.Struct):
    timestamp: str
    model: str = ""
    duration_ms: float = 0
    resp_status_code: int = 200
    session_id: str = ""
    key_id: str = ""
    tokens: _Tokens | None = None
    input_tokens: int = 0
    """Older versions keep the counts beside the rest."""
    output_tokens: int = 0
    cache_tokens: int = -1
    prompt_per_second: float = -1.0


def read(path: Path, model: str) -> list[Call]:
    calls: list[Call] = []
    for number, entry in enumerate(_entries(path), 1):
        if entry.resp_status_code >= 400:
            continue
        ended_us = time_us(entry.timestamp)
        if ended_us is None:
            raise WorkloadError(f"{path}, entry {number}: timestamp is {entry.timestamp!r}, not a date and time")
        tokens = entry.tokens or entry
        cached = max(0, tokens.cache_tokens) if tokens.prompt_per_second >= 0 else 0
        calls.append(
            Call(
                number=number,
                at_us=ended_us - round(entry.duration_ms * 1000),
                model=entry.model or model,
                prompt_tokens=tokens.input_tokens + cached,
                output_tokens=tokens.output_tokens,
                conversation=entry.session_id,
                client=entry.key_id,
            )
        )
    return calls


def _entries(path: Path) -> list[_Entry]:
    data = path.read_bytes()
    try:
        if data.lstrip()[:1] != b"[":
            return [_entry(msgspec.json.decode(line)) for line in data.splitlines() if line.strip()]
        return [_entry(entry) for entry in msgspec.json.decode(data)]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkloadError(f"{path} is no activity of llama-swap: {error}") from error


def _entry(value: Any) -> _Entry:
    return msgspec.convert(value, _Entry)
