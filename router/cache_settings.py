"""The part of `promptCache` in config.json that is the router's own: prompt caches that survive swaps.

The rest of `promptCache` becomes options of llama-server (`router.models`). What shapes a cache is told here as well,
since a saved one may only meet what it was saved under.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from router.llama_options import OptionTable
from router.model_entry import ObjectReader
from router.models import KEEP_KEYS, ModelConfig
from router.problems import Findings
from router.settings import BadValue, text

SHARED_MEMORY = Path("/dev/shm")
SAVE_PATH = "slot-save-path"

SHAPES_NOTHING = frozenset(
    {
        "batch-size",
        "cache-prompt",
        "cache-ram",
        "cache-reuse",
        "checkpoint-min-step",
        "ctx-checkpoints",
        "ctx-size",
        "load-on-startup",
        "log-verbosity",
        "metrics",
        "min-p",
        "n-predict",
        "parallel",
        "props",
        "reasoning",
        "reasoning-budget",
        "repeat-penalty",
        "seed",
        "slots",
        "stop-timeout",
        "swa-checkpoints",
        "temp",
        "temperature",
        "threads",
        "threads-batch",
        "threads-http",
        "timeout",
        "top-k",
        "top-p",
        "ubatch-size",
        "ui",
        "verbosity",
        "webui",
    }
)
"""Options that leave a cache as it is: how fast it is computed, how many there are, what is done with the output. Any
other one is taken to shape it. Some have another first name in other builds."""


@dataclass(frozen=True, slots=True)
class KeepConfig:
    """Whether and how prompt caches are kept across swaps."""

    on: bool = False
    directory: Path = Path()
    """Each router makes one of its own in here."""
    budget_mib: int = 2048
    min_tokens: int = 512
    hold_s: float = 2.0
    """The longest that a swap may be held up by saving and restoring together."""
    persist: bool = False
    """The files outlive a clean end of the router."""


def read_keep(
    top: Mapping[str, Any],
    file: str,
    state_dir: Path,
    table: OptionTable | None,
    with_own_path: Sequence[str],
    findings: Findings,
) -> KeepConfig:
    """What `promptCache` says of it; mistakes are noted. Keys that are none of these are judged by `router.models`.

    `with_own_path` are models that have an option `slot-save-path` already.
    """
    value = top.get("promptCache")
    if not isinstance(value, dict):
        return KeepConfig()
    reader = ObjectReader(value, file, "promptCache", findings)
    persist = reader.key("persist", KEEP_KEYS)
    keep = KeepConfig(
        on=reader.key("keepAcrossSwaps", KEEP_KEYS),
        directory=reader.take("keepDirectory", _directory, _usual_directory(state_dir, persist)),
        budget_mib=reader.key("keepBudgetMiB", KEEP_KEYS),
        min_tokens=reader.key("keepMinTokens", KEEP_KEYS),
        hold_s=reader.key("keepMaxHoldSeconds", KEEP_KEYS),
        persist=persist,
    )
    if keep.on and table is not None and SAVE_PATH not in table.by_key:
        message = f"this llama-server has no option {SAVE_PATH}: a newer one is needed"
        findings.add(reader.problem("keepAcrossSwaps", message, allowed="false"))
    if keep.on and with_own_path:
        message = f"the option {SAVE_PATH} is the router's to set then, and {', '.join(with_own_path)} has one"
        findings.add(reader.problem("keepAcrossSwaps", message, allowed=f"no {SAVE_PATH} in presets.ini, or false"))
    for key in value:
        if key in KEEP_KEYS and key != "keepAcrossSwaps" and not keep.on:
            findings.warn(reader.problem(key, "this has no effect unless keepAcrossSwaps is true"))
    return keep


def _directory(value: Any) -> Path:
    path = Path(text(value))
    if not path.is_absolute():
        raise BadValue("an absolute path")
    there = path
    while not os.path.exists(there):
        there = there.parent
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise BadValue(f"a directory that this user can make and write; {there} is none")
    return path


def _usual_directory(state_dir: Path, persist: bool) -> Path:
    """Memory, so that nothing that was said reaches a disk, unless it is to be there for longer."""
    if not persist and SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return SHARED_MEMORY
    return state_dir / "prompt-caches"


def shape_of(model: ModelConfig, identity: list[str], *, embedded: bool) -> list[Any]:
    """All that a saved cache of this model depends on: weights, options, and the llama-server with its version.

    `identity` is that of the binary. Files that options name are told apart by size and time of their last change.
    """
    options = {name: value for name, value in sorted(model.options.items()) if name not in SHAPES_NOTHING}
    files = [_file_identity(value) for value in options.values()]
    return [identity, _wheel() if embedded else "", options, files, sorted(model.env.items())]


def weights_identity(path: str) -> str:
    """Tells the file of a loaded model from one that has been put in its place; empty when it cannot be looked at."""
    return _file_identity(path)


def _file_identity(value: str) -> str:
    try:
        found = os.stat(value)
    except (OSError, ValueError):
        return ""
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _wheel() -> str:
    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        return ""
