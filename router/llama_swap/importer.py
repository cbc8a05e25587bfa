"""What `llama-router import llama-swap` does: read, convert, write, check, report."""

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from router.config import ConfigErrors, load
from router.llama_server import find_llama_server, read_options
from router.llama_swap.command import usual_program
from router.llama_swap.convert import Conversion, convert, presets_text
from router.llama_swap.document import NoDocument, read_document
from router.places import find_places, place
from router.problems import Findings
from router.settings import complete, read_outside


def run(args: argparse.Namespace) -> int:
    """The exit code."""
    try:
        result = _converted(args.file)
        config, presets = _write(args.to, result, force=args.force)
    except (NoDocument, OSError) as error:
        print(f"llama-router: {error}", file=sys.stderr)
        return 1
    mistakes, warnings = _checked(config, presets)
    if args.json:
        report = {
            "config": str(config),
            "presets": str(presets),
            "models": list(result.presets),
            "left_out": result.left_out,
            "items": [asdict(item) for item in result.items],
            "mistakes": mistakes,
            "warnings": warnings,
        }
        print(json.dumps(report, indent=2, ensure_ascii=True))
    else:
        print("\n".join(_report(result, config, presets, mistakes, warnings)))
    return 0


def _converted(file: Path) -> Conversion:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise NoDocument(f"{file} is not UTF-8") from error
    try:
        document = read_document(text, os.environ)
    except NoDocument as error:
        raise NoDocument(f"{file}: {error}") from error
    findings = Findings()
    # The llama-server that these commands were written for knows best what they mean; failing that, any.
    program = usual_program(str(body.get("cmd", "")) for body in document.models.values())
    chosen = {"LLAMA_SERVER": list(program)} if program and shutil.which(program[0]) else {}
    values = complete(read_outside(chosen, os.environ, findings), {}, "", findings)
    places = place(values, *find_places(values, os.environ), os.environ, findings)
    server, server_from = find_llama_server(values, os.environ, findings)
    table = read_options(server, server_from, places.state, None, findings)
    if table is None:
        why = "; ".join(problem.message for problem in findings.problems)
        raise NoDocument(f"llama-server is asked what its options mean, and cannot be: {why}")
    return convert(document, table)


def _write(folder: Path, result: Conversion, *, force: bool) -> tuple[Path, Path]:
    config, presets = folder / "config.json", folder / "presets.ini"
    there = [str(path) for path in (config, presets) if path.exists()]
    if there and not force:
        raise NoDocument(f"{' and '.join(there)} would be written over; --force does it, --to names another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (config, json.dumps(result.config, indent=2, ensure_ascii=False) + "\n"),
        (presets, presets_text(result.presets)),
    ):
        # It may hold API keys.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    return config, presets


def _checked(config: Path, presets: Path) -> tuple[list[str], list[str]]:
    try:
        loaded = load({"CONFIG_PATH": str(config), "PRESETS_PATH": str(presets)})
    except ConfigErrors as errors:
        return [str(problem) for problem in errors.problems], errors.warnings
    return [], list(loaded.warnings)


TITLES = (
    ("lost", "Not carried over:"),
    ("changed", "Works in another way:"),
)


def _report(
    result: Conversion, config: Path, presets: Path, mistakes: Sequence[str], warnings: Sequence[str]
) -> Iterable[str]:
    count = len(result.presets)
    yield f"{count} model{'' if count == 1 else 's'} written to {config} and {presets}"
    if result.left_out:
        yield f"{len(result.left_out)} left out: {', '.join(result.left_out)}"
    for kind, title in TITLES:
        items = [item for item in result.items if item.kind == kind]
        if not items:
            continue
        yield ""
        yield title
        seen = Counter((item.message, item.advice) for item in items)
        for item in items:
            alike = seen.pop((item.message, item.advice), 0)
            if not alike:
                continue
            places = [other.where for other in items if (other.message, other.advice) == (item.message, item.advice)]
            yield f"  {', '.join(places)}: {item.message}"
            if item.advice:
                yield f"    {item.advice}"
    for title, texts in (("Mistakes that `check` finds in it:", mistakes), ("Warnings of `check`:", warnings)):
        if texts:
            yield ""
            yield title
            yield from ("  " + text.replace("\n", "\n  ") for text in texts)
    if not mistakes:
        yield ""
        yield f"Next: llama-router check --config {config} --presets {presets}"
