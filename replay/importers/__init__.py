"""Traces of others, read as workloads: one module per format, each with `read(path, model) -> calls`.

`read_traces` takes several files, each of which may be a model of its own, and merges them on their timestamps. What a
trace does not tell (GPUs, settings, costs) is not invented here: the caller says it, and the output states it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.importers import azure, burstgpt, generic, llama_swap, mooncake
from replay.workload import Call, Workload, WorkloadError, renumbered

Format = Literal["azure", "mooncake", "burstgpt", "csv", "llama-swap"]

Read = Callable[[Path, str], list[Call]]
"""(file, name of the model where the trace has none) -> calls, with times in microseconds on the trace's own clock."""


@dataclass(frozen=True)
class Importer:
    read: Read
    attribution: str = ""
    """What the licence of the public trace of this format asks to be said."""


IMPORTERS: dict[Format, Importer] = {
    "azure": Importer(azure.read, "Azure LLM inference trace 2023, Microsoft, CC-BY-4.0"),
    "mooncake": Importer(mooncake.read, "Mooncake trace, kvcache-ai/Mooncake, Apache-2.0"),
    "burstgpt": Importer(burstgpt.read, "BurstGPT, HPMLL/BurstGPT, CC-BY-4.0"),
    "csv": Importer(generic.read),
    "llama-swap": Importer(llama_swap.read),
}


def read_traces(sources: Sequence[str], kind: Format | None = None) -> Workload:
    """Merge `[MODEL=]FILE`s into a workload on one GPU, in order of arrival. Raises WorkloadError and OSError.

    Without a kind, each file is looked at. Conversations and clients of different files are different ones.
    """
    calls: list[Call] = []
    said: list[str] = []
    begins_us: dict[Path, int] = {}
    prefixes: list[str] = []
    for source in sources:
        model, path = _named(source)
        this = kind or detect(path)
        if this is None:
            raise WorkloadError(f"{path} is of no known format; known: {', '.join(IMPORTERS)}{_hint(path)}")
        found = IMPORTERS[this].read(path, model)
        if not found:
            raise WorkloadError(f"{path} holds no request")
        offset = len(calls)
        begins_us[path] = min(call.at_us for call in found)
        prefix = path.stem if len(sources) > 1 else ""
        prefixes.append(f"{prefix}-{len(prefixes)}" if prefix in prefixes else prefix)
        calls += _moved(found, offset, prefixes[-1])
        attribution = IMPORTERS[this].attribution
        said.append(f"{path.name} ({this}{': ' + attribution if attribution else ''})")
    _check_clocks(begins_us)
    models = {call.model: ModelSettings() for call in sorted(calls, key=lambda call: call.model)}
    start_us = min(call.at_us for call in calls)
    return Workload(
        calls=renumbered(calls, start_us), settings=SchedulerSettings(models=models, gpus=1), source="; ".join(said)
    )


def detect(path: Path) -> Format | None:
    """The format of a file, by its first bytes."""
    with path.open("rb") as file:
        start = file.read(65536).decode("utf-8-sig", "replace").lstrip()
    line = start.partition("\n")[0].strip()
    if line.startswith("{"):
        try:
            keys = json.loads(line).keys()
        except ValueError:
            keys = set()
        if "hash_ids" in keys:
            return "mooncake"
        return "llama-swap" if {"tokens", "req_path"} & set(keys) or '"req_path"' in start else None
    if line.startswith("["):
        return "llama-swap" if '"model"' in start and "_tokens" in start else None
    columns = {column.strip().strip('"').casefold() for column in line.split(",")}
    if {"contexttokens", "generatedtokens"} <= columns:
        return "azure"
    if {"request tokens", "response tokens"} <= columns:
        return "burstgpt"
    return "csv" if columns.intersection(generic.COLUMNS["time"]) else None


def _hint(path: Path) -> str:
    with path.open("rb") as file:
        is_ours = file.read(9) == b'{"type":"'
    return "; a log of ours is named by its directory, or by one of its segments alone" if is_ours else ""


RELATIVE_US = 315_360_000_000_000
"""Ten years: whoever begins before 1980 counts from the beginning of the trace."""


def _check_clocks(begins_us: Mapping[Path, int]) -> None:
    """Files are merged on their clocks, so these must be of one kind."""
    relative = [path for path, at_us in begins_us.items() if at_us < RELATIVE_US]
    dated = [path for path in begins_us if path not in relative]
    if relative and dated:
        raise WorkloadError(
            f"{relative[0]} counts time from its own beginning and {dated[0]} tells the date: "
            "their requests cannot be merged in order; give both the same clock"
        )


def _named(source: str) -> tuple[str, Path]:
    """`MODEL=FILE` or `FILE`, whose model is called after it."""
    model, equals, file = source.partition("=")
    if equals and not Path(source).exists():
        if not model or not file:
            raise WorkloadError(f"{source}: expected MODEL=FILE")
        return model, Path(file)
    return Path(source).stem, Path(source)


def _moved(calls: Iterable[Call], offset: int, prefix: str) -> list[Call]:
    """Numbers and fingerprints that meet no other file's."""
    moved = []
    for call in calls:
        moved.append(
            Call(
                number=call.number + offset,
                at_us=call.at_us,
                model=call.model,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                prefix=tuple((f"{prefix}/{key}", tokens) for key, tokens in call.prefix) if prefix else call.prefix,
                after=call.after + offset if call.after else 0,
                think_us=call.think_us,
                client=f"{prefix}/{call.client}" if prefix and call.client else call.client,
                conversation=f"{prefix}/{call.conversation}" if prefix and call.conversation else call.conversation,
            )
        )
    return moved


__all__ = ["IMPORTERS", "Format", "detect", "read_traces"]
