"""Runs verbs of the `llama-router` command as processes: the dashboard imports nothing that they are made of.

    told = await run(["postmortem", str(log), "--crash", "#48211", "--json"], Limits())

Each is limited in memory, processor time and time by the clock, gives way to everything else (`bounded`), and is gone
when `run` returns or is cancelled. A command that takes --progress says how far it is, line by line.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

COMMAND = ("-P", "-m", "router.cli")
OUTPUT_MAX = 64 << 20
WORDS_MAX = 4000
LINE_MAX = 1 << 16
EXITED_IN_S = 10.0

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Limits:
    """What one run may take."""

    memory_mib: int = 2048
    cpu_s: int = 900
    wall_s: float = 1800.0


USUAL = Limits()


class CommandFailed(Exception):
    """It did not do what it was run for; the text says why, for people."""


async def run(arguments: Sequence[str], limits: Limits = USUAL, progress: Progress = lambda told: None) -> bytes:
    """What it printed. Raises CommandFailed."""
    python = sys.executable
    bounds = [str(os.getpid()), str(limits.memory_mib), str(limits.cpu_s)]
    process = await asyncio.create_subprocess_exec(
        python,
        "-P",
        "-m",
        "dashboard.bounded",
        *bounds,
        python,
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_MAX,
        # A group of its own, so that what it starts ends with it.
        start_new_session=True,
    )
    assert process.stdout
    assert process.stderr
    try:
        async with asyncio.timeout(limits.wall_s):
            out, words = await asyncio.gather(_output(process.stdout), _words(process.stderr, progress))
            code = await process.wait()
    except TimeoutError:
        raise CommandFailed(f"it took longer than {_minutes(limits.wall_s)} and was ended") from None
    finally:
        await _end(process)
    if code == 0:
        return out
    raise CommandFailed(_why(code, words, limits))


async def _output(stream: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(1 << 16):
        size += len(piece)
        if size > OUTPUT_MAX:
            raise CommandFailed(f"its answer is larger than {OUTPUT_MAX >> 20} MiB; choose less of the log")
        pieces.append(piece)
    return b"".join(pieces)


async def _words(stream: asyncio.StreamReader, progress: Progress) -> str:
    """The end of what it says; lines of JSON go to `progress` instead."""
    said = ""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than a line may be
            continue
        if not line:
            return said
        text = line.decode("utf-8", "replace")
        if text.startswith("{"):
            with suppress(ValueError):
                progress(json.loads(text))
                continue
        said = (said + text)[-WORDS_MAX:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """It and all that it started are gone afterwards."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(process.wait()), EXITED_IN_S)


def _why(code: int, words: str, limits: Limits) -> str:
    if "MemoryError" in words:
        return f"it needs more than {limits.memory_mib} MiB of memory; choose less of the log"
    if code == -signal.SIGXCPU:
        return f"it needs more than {_minutes(limits.cpu_s)} of processor time; choose less of the log"
    if code < 0:
        return f"it was ended by signal {-code}"
    lines = [line for line in words.splitlines() if line.strip()]
    last = lines[-1] if lines else f"it ended with exit code {code} and said nothing"
    # "llama-router replay simulate: --set X: ..." is what a terminal shows; here the command is known.
    return last.removeprefix("llama-router ").partition(": ")[2] if last.startswith("llama-router ") else last


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"
