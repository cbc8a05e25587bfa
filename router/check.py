"""`llama-router check`: read the configuration as `serve` would, say what it means or everything that is wrong with it.

Starts nothing. Exit code 0 when the router can be started with it, 1 when not. Mistakes go to stderr, what the
configuration means to stdout; with --json both are one object on stdout.
"""

import argparse
import asyncio
import json
import logging
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from eventlog.events import Gpu
from router.config import Config, ConfigErrors, load
from router.gpus import Gpus
from router.models import ModelConfig
from router.plan_table import plan_lines, planned, told

NVML_TIMEOUT_S = 5.0


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which configuration: the same for `check` and `serve`."""
    parser.add_argument("--config", metavar="FILE", help="config.json (default: ~/.config/llama-router/config.json)")
    parser.add_argument("--presets", metavar="FILE", help="presets.ini (default: beside config.json)")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one setting, such as QUEUE_HEAD_GRACE=30; wins over the files; may be repeated",
    )


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """What these arguments set, for `router.config.load`. Raises ValueError for a --set without a `=`."""
    chosen: dict[str, Any] = {"CONFIG_PATH": args.config, "PRESETS_PATH": args.presets}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: a setting is written NAME=VALUE")
        chosen[name.strip()] = value.strip()
    return chosen


def check_command(args: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    try:
        chosen = overrides(args)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    gpus = gpus_there_are()
    try:
        config = load(chosen, nvml_gpus=len(gpus) or None, gpu_uuids=[gpu.uuid for gpu in gpus])
    except ConfigErrors as errors:
        if args.json:
            problems = [asdict(problem) for problem in errors.problems]
            _print_json({"ok": False, "problems": problems, "warnings": list(errors.warnings)})
        else:
            for warning in errors.warnings:
                print(f"warning: {warning}\n", file=sys.stderr)
            print(errors, file=sys.stderr)
        return 1
    if args.json:
        plan = {"plan": planned(config.scheduler)} if args.plan else {}
        _print_json({"ok": True, "problems": [], "warnings": list(config.warnings), **_described(config), **plan})
    else:
        print("\n".join(_summary(config, show_argv=args.show_argv)))
        if args.plan:
            print("\n".join(plan_lines(config.scheduler)))
    return 0


def gpus_there_are() -> list[Gpu]:
    """By NVML; none without it, which is said elsewhere."""
    logging.getLogger("llama_router").addHandler(logging.NullHandler())
    return asyncio.run(_ask_nvml())


async def _ask_nvml() -> list[Gpu]:
    gpus = Gpus(lambda observation: None)
    found = await gpus.start(NVML_TIMEOUT_S)
    await gpus.stop()
    return found


def _described(config: Config) -> dict[str, Any]:
    models = {}
    for name, model in config.models.items():
        shown = asdict(model)
        # The environment may hold secrets; that a variable is set is no secret.
        shown["env"] = sorted(model.env)
        models[name] = shown
    return {
        "config": str(config.config_path),
        "presets": str(config.presets_path),
        "llama_server": list(config.llama_server),
        "host": config.host,
        "port": config.port,
        "gpus": config.scheduler.gpus,
        "gpu_count_from": config.gpu_count_from,
        "log_dir": str(config.log_dir),
        "run_dir": str(config.run_dir),
        "engine": config.scheduler.engine,
        "notes": list(config.notes),
        "models": models,
    }


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=True))


FROM = {"config": "as configured", "path": "found on PATH", "embedded": "embedded, CPU only"}
COUNTED = {"config": "by NUM_GPUS", "nvml": "counted by NVML", "pins": "guessed from the pins; NVML is not there"}


def _summary(config: Config, *, show_argv: bool) -> Iterable[str]:
    settings = config.scheduler
    yield f"config.json    {config.config_path}"
    yield f"presets.ini    {config.presets_path}"
    yield f"llama-server   {shlex.join(config.llama_server)} ({FROM[config.llama_server_from]})"
    yield f"listens on     {config.host}:{config.port}"
    yield f"GPUs           {settings.gpus} ({COUNTED[config.gpu_count_from]}){_cap(config)}"
    if settings.engine != "residency":
        yield f"loaded by      {told(settings)}"
    yield f"queue          {settings.eviction}, grace {_seconds(settings.head_grace_us)}, {_force(config)}"
    if config.selectors:
        yield f"selectors      {', '.join(config.selectors)}"
    if config.profiles:
        yield f"profiles       {', '.join(config.profiles)}"
    yield f"event log      {config.log_dir}"
    yield f"run directory  {config.run_dir}"
    yield ""
    yield from _table(config.models.values())
    if show_argv:
        for model in config.models.values():
            yield ""
            yield f"{model.name}:"
            yield f"  {shlex.join(model.argv)}"
            if model.env:
                yield f"  environment: {', '.join(sorted(model.env))}"
    yield ""
    yield from config.notes
    for warning in config.warnings:
        yield f"warning: {warning}"
    said = f", {_count(len(config.warnings), 'warning')}" if config.warnings else ""
    yield f"{_count(len(config.models), 'model')}{said}: ready to serve"


def _table(models: Iterable[ModelConfig]) -> Iterable[str]:
    rows = [("MODEL", "ALIASES", "GPUS", "REPLICAS", "SLOTS", "CONTEXT", "WEIGHTS")]
    for model in models:
        rows.append(
            (
                model.name,
                ", ".join(model.aliases) or "-",
                _gpus(model),
                str(model.replicas),
                str(model.slots_hint or "auto"),
                str(model.context_hint or "auto"),
                model.model_path or (f"hf: {model.hf_repo}" if model.hf_repo else "downloaded"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])


def _gpus(model: ModelConfig) -> str:
    if model.replica_gpus:
        return " | ".join(_numbers(group) for group in model.replica_gpus)
    return _numbers(model.mask) or "cpu"


def _numbers(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))


def _cap(config: Config) -> str:
    cap = config.scheduler.max_models_per_gpu
    return f", {_count(cap, 'model')} each at most" if cap else ""


def _force(config: Config) -> str:
    force_us = config.scheduler.force_load_us
    return f"forced after {_seconds(force_us)}" if force_us else "never forced"


def _seconds(us: int) -> str:
    return f"{us / 1_000_000:g} s"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
