"""Which llama-server the children are, and what it understands.

The configured one, else `llama-server` on PATH, else the embedded one. `router.llama_options` reads its help text.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from router.llama_options import HelpFailed, OptionTable, parse_help, read_help
from router.models import Draft
from router.presets import PRESET_ONLY
from router.problems import Findings, Problem
from router.settings import Values

From = Literal["config", "path", "embedded"]


def find_llama_server(values: Values, environ: Mapping[str, str], findings: Findings) -> tuple[tuple[str, ...], From]:
    """The configured llama-server, else the one on PATH, else the embedded one. Empty where there is none."""
    search = environ.get("PATH", os.defpath)
    configured: tuple[str, ...] = values["LLAMA_SERVER"]
    if configured:
        program = os.path.expanduser(configured[0])
        found = shutil.which(program, path=search)
        if found is None:
            wrong = "is not executable" if os.path.exists(program) else "is not there"
            findings.add(values.problem("LLAMA_SERVER", f"{program} {wrong}", allowed="a path, or a name on PATH"))
            return (), "config"
        return (os.path.abspath(found), *configured[1:]), "config"
    if found := shutil.which("llama-server", path=search):
        return (os.path.abspath(found),), "path"
    if importlib.util.find_spec("xllamacpp"):
        return (sys.executable, "-m", "router.embedded"), "embedded"
    findings.add(
        values.problem(
            "LLAMA_SERVER",
            "there is no llama-server",
            allowed="put llama-server on PATH, set `llama-server-executable` in config.json, or install "
            "llama-router[embedded]",
        )
    )
    return (), "path"


def read_options(
    server: Sequence[str], server_from: From, state: Path, help_text: str | None, findings: Findings
) -> OptionTable | None:
    """What llama-server understands, or None where it cannot be asked."""
    if help_text is None:
        if not server:
            return None
        version = importlib.metadata.version("xllamacpp") if server_from == "embedded" else ""
        try:
            help_text = read_help(server, state / "llama-help", version=version)
        except HelpFailed as error:
            findings.add(Problem(str(error), key="llama-server-executable", value=" ".join(server)))
            return None
    return OptionTable(parse_help(help_text), PRESET_ONLY)


def check_embedded(drafts: Sequence[Draft], table: OptionTable | None, findings: Findings) -> None:
    """The embedded llama-server loads files and downloads nothing."""
    for draft in drafts:
        if draft.settings and table and table.canonical("model") not in draft.settings:
            message = "the embedded llama-server cannot download weights"
            allowed = "a `model` that is a file, or llama.cpp's own llama-server"
            findings.add(replace(draft.place, message=message, allowed=allowed))
