"""llama-swap's activity: what its /api/metrics answers (a JSON array), or the same entries one per line.

An entry is written when its answer is complete, so a request arrived `duration_ms` before `timestamp`. Where
llama-server told its timings, input_tokens are those that the cache did not have. Entries that failed are left out.
"""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated

import msgspec

from replay.importers.table import TOKENS_MAX, time_us
from replay.workload import Call, WorkloadError

MS_MAX = 1e10
"""Four months: no answer takes longer."""

_Count = Annotated[int, msgspec.Meta(le=TOKENS_MAX)]
"""-1 where it is not known."""


class _Tokens(msgspec.Struct):
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cache_tokens: _Count = -1
    prompt_per_second: float = -1.0


class _Entry(msgspec.Struct):
    timestamp: str
    model: str = ""
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=MS_MAX)] = 0
    resp_status_code: int = 200
    session_id: str = ""
    key_id: str = ""
    tokens: _Tokens | None = None
    input_tokens: _Count = 0
    """Older versions keep the counts beside the rest."""
    output_tokens: _Count = 0
    cache_tokens: _Count = -1
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
                prompt_tokens=max(0, tokens.input_tokens) + cached,
                output_tokens=max(0, tokens.output_tokens),
                conversation=entry.session_id,
                client=entry.key_id,
            )
        )
    return calls


def _entries(path: Path) -> list[_Entry]:
    data = path.read_bytes().removeprefix(BOM_UTF8)
    place = ""
    try:
        if data.lstrip()[:1] == b"[":
            return msgspec.json.decode(data, type=list[_Entry])
        entries = []
        for number, line in enumerate(data.splitlines(), 1):
            place = f", line {number}"
            if line.strip():
                entries.append(msgspec.json.decode(line, type=_Entry))
        return entries
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{path}{place} is no activity of llama-swap: {error}") from error
