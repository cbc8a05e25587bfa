"""Any CSV with a header: a time, and what else it has of model, prompt and output tokens, conversation, client."""

from pathlib import Path

from replay.importers.table import rows
from replay.workload import Call, WorkloadError

COLUMNS: dict[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "arrival", "arrived_at", "time_s"),
    "model": ("model",),
    "prompt": ("prompt_tokens", "prompt tokens", "input_tokens", "input tokens", "prompt"),
    "output": ("output_tokens", "output tokens", "completion_tokens", "completion tokens", "output"),
    "conversation": ("conversation", "session", "session_id", "session id"),
    "client": ("client", "user", "key"),
}
"""Names under which each column is found, whatever their case; of several that are there, the first."""


def read(path: Path, model: str) -> list[Call]:
    calls: list[Call] = []
    names: dict[str, str] = {}
    for row in rows(path, set()):
        if not names:
            names = {what: next((name for name in known if name in row.values), "") for what, known in COLUMNS.items()}
            for what in ("time", "prompt", "output"):
                if not names[what]:
                    raise WorkloadError(f"{path} has no column {what}: expected one of {', '.join(COLUMNS[what])}")
        calls.append(
            Call(
                number=len(calls) + 1,
                at_us=row.time_us(names["time"]),
                model=row.text(names["model"]) or model,
                prompt_tokens=row.count(names["prompt"]),
                output_tokens=row.count(names["output"]),
                conversation=row.text(names["conversation"]),
                client=row.text(names["client"]),
            )
        )
    return calls
