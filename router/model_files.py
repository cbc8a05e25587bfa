"""Whether a model can be loaded: where its weights are, that its files are there, that its numbers make sense.

All of it llama-server would find as well, but only when the model is loaded for the first request that waits for it.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from router.llama_options import OptionTable
from router.presets import DEFAULT, Setting
from router.problems import Findings, Problem, at

SOURCES = ("model", "hf-repo", "model-url", "docker-repo")
"""Options of which one says where the weights are."""

FILES = {
    "model": ("hf-repo", "model-url", "docker-repo"),
    "mmproj": ("hf-repo",),
    "model-draft": ("hf-repo-draft",),
    "chat-template-file": (),
    "grammar-file": (),
    "json-schema-file": (),
}
"""Options that name a file which must be there, unless one of the others says that it is downloaded."""


def check_settings(
    name: str, settings: Mapping[str, Setting], table: OptionTable, place: Problem, findings: Findings
) -> None:
    """What llama-server would only find when it loads: no weights, a missing file, a number that makes no sense."""
    sources = [table.canonical(source) for source in SOURCES]
    downloads = any(setting.option.downloads and setting.value == "true" for setting in settings.values())
    if not downloads and not any(source in settings for source in sources):
        message = "this model has no weights"
        if name == DEFAULT and place.line == 0:
            message = "keys before any header are those of a model named 'default', which has no weights"
        elif re.fullmatch(r"[^/\s]+/[^/\s]+", name):
            message += f"; if they are to be downloaded from Hugging Face, write hf-repo = {name}"
        findings.add(at(place, message, allowed=f"one of {', '.join(SOURCES)}; for all models, [*]"))
    for option, unless in FILES.items():
        setting = settings.get(table.canonical(option))
        if setting and not any(table.canonical(other) in settings for other in unless):
            _check_file(setting, findings)
    for key, low in (("ctx-size", 0), ("parallel", -1), ("cache-ram", -1), ("stop-timeout", 0)):
        setting = settings.get(table.canonical(key))
        if setting and whole_number(setting.value) < low:
            findings.add(setting.entry.problem("this is too small", allowed=f"a number from {low}"))
    parallel = settings.get(table.canonical("parallel"))
    if parallel and whole_number(parallel.value) == 0:
        findings.add(parallel.entry.problem("without a slot nothing can run", allowed="a number from 1, or -1"))


def _is_gguf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


_SHARD = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")


def _check_file(setting: Setting, findings: Findings) -> None:
    path = setting.value
    hint = ""
    if path[:1] in "\"'":
        hint = "quotes are part of a value here; write it without them"
    elif path.startswith("~"):
        hint = "~ is not replaced here; write the whole path"
    elif not path.startswith("/"):
        hint = f"a relative path begins where the router runs, now {os.getcwd()}"
    if not os.path.exists(path):
        findings.add(setting.entry.problem("there is no such file", allowed=hint))
        return
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        why = "this cannot be read" if os.path.isfile(path) else "this is not a file"
        findings.add(setting.entry.problem(why))
        return
    if path.endswith(".gguf") and not _is_gguf(path):
        # A page that says "not found", or a pointer that git left in the place of a large file.
        findings.warn(setting.entry.problem("this is no GGUF file: it does not begin with GGUF"))
    if shard := _SHARD.fullmatch(path):
        wanted = [f"{shard['stem']}-{n:05}-of-{shard['count']}.gguf" for n in range(1, int(shard["count"]) + 1)]
        missing = [Path(part).name for part in wanted if not os.path.exists(part)]
        if missing:
            shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
            findings.add(setting.entry.problem(f"{len(missing)} of {len(wanted)} parts are missing: {shown}"))
        elif int(shard["index"]) != 1:
            findings.add(setting.entry.problem("llama-server wants the first part", nearest=Path(wanted[0]).name))


def whole_number(text: str) -> int:
    """The number in a value that was checked already; 0 where it is a word."""
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0
