"""The Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens; one service per file."""

from pathlib import Path

from replay.importers.table import rows
from replay.workload import Call


def read(path: Path, model: str) -> list[Call]:
    return [
        Call(
            number=number,
            at_us=row.time_us("timestamp"),
            model=model,
            prompt_tokens=row.count("contexttokens"),
            output_tokens=row.count("generatedtokens"),
        )
        for number, row in enumerate(rows(path, {"timestamp", "contexttokens", "generatedtokens"}), 1)
    ]
