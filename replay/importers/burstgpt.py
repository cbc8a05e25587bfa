"""BurstGPT: Timestamp (seconds), Model, Request tokens, Response tokens; later releases also Session ID.

A request without an answer (0 response tokens) failed where it was recorded; it is left out.
"""

from pathlib import Path

from replay.importers.table import rows
from replay.workload import Call


def read(path: Path, model: str) -> list[Call]:
    calls: list[Call] = []
    for row in rows(path, {"timestamp", "request tokens", "response tokens"}):
        if row.count("response tokens") == 0:
            continue
        calls.append(
            Call(
                number=len(calls) + 1,
                at_us=row.time_us("timestamp"),
                model=row.text("model") or model,
                prompt_tokens=row.count("request tokens"),
                output_tokens=row.count("response tokens"),
                conversation=row.text("session id"),
            )
        )
    return calls
