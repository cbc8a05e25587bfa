"""What-ifs: recorded traffic served again under other settings, by `llama-router replay`, one at a time.

A job lives in this process, not in a page: it goes on when the page is closed, is there when it comes back, and can be
cancelled. The last few are kept. Counterpart: `whatif_page`, which shows them.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import msgspec

from dashboard.commands import CommandFailed, Limits, run

LIMITS = Limits(memory_mib=4096, cpu_s=1800, wall_s=3600.0)
COMBINATIONS_MAX = 96
SETTINGS_MAX = 20
KEPT = 5
SAY_EVERY_S = 0.25
HEARTBEAT_S = 15.0
LISTENERS = 50

KEY = re.compile(r"[A-Z][A-Z0-9_]{1,40}|(replicas|gpus|priority|ttl|persistent)\.[^\s=][^\n=]{0,159}")
_BLAMED = re.compile(r"--(?:set|sweep) ([^=\s]+)=.*?: (.*)", re.DOTALL)
"""How the command begins when a setting is wrong."""
TIME = re.compile(r"[0-9A-Za-z:.+-]{1,40}")


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a page asks for. A value of `settings` may be empty (as it is) or, for `tune`, several with commas."""

    kind: Literal["simulate", "tune"] = "simulate"
    since: str = ""
    """As `--since` takes it; empty for the beginning."""
    until: str = ""
    settings: dict[str, str] = {}

    def chosen(self) -> dict[str, list[str]]:
        """Settings with the values to try."""
        found = {key.strip(): [part.strip() for part in text.split(",")] for key, text in self.settings.items()}
        return {key: values for key, values in found.items() if values != [""]}


class Refused(Exception):
    """It cannot be done as asked; the text says why. `param`: the wrong setting, `since` or `until`, or nothing."""

    def __init__(self, text: str, param: str = "") -> None:
        super().__init__(text)
        self.param = param


class Busy(Refused):
    """Another one runs."""


@dataclass
class Job:
    """One of them. `stage`, `done`, `total`: how far it is; `total` 0 while nothing is known."""

    number: int
    asked: Asked
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    stage: str = "starting"
    done: float = 0.0
    total: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    """What `replay simulate` or `replay tune` printed as JSON."""
    error: str = ""
    began_s: float = field(default_factory=time.time)
    ended_s: float | None = None

    @property
    def blamed(self) -> tuple[str, str]:
        """The setting that its error is about, if it is about one, and what is wrong with it."""
        found = _BLAMED.fullmatch(self.error)
        return (found[1], found[2]) if found else ("", self.error)

    @property
    def took_s(self) -> float:
        return (self.ended_s or time.time()) - self.began_s

    def told(self) -> dict[str, Any]:
        """How it is, without its result."""
        return {
            "job": self.number,
            "kind": self.asked.kind,
            "state": self.state,
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "error": self.error,
            "param": self.blamed[0],
            "took_s": round(self.took_s, 1),
        }


def arguments(asked: Asked, log_dir: Path) -> list[str]:
    """The command line of it. Raises Refused with what is wrong."""
    chosen = asked.chosen()
    if len(chosen) > SETTINGS_MAX:
        raise Refused(f"{len(chosen)} settings are too many: at most {SETTINGS_MAX}")
    for key, values in chosen.items():
        if not KEY.fullmatch(key):
            raise Refused(f"{key!r} is no setting: expected a name such as QUEUE_HEAD_GRACE or replicas.MODEL", key)
        if not all(values) or any(len(value) > 80 or not value.isprintable() for value in values):
            raise Refused(f"{key}: expected a value such as 30 or, to compare several, 0, 10, 30", key)
    command = ["replay", asked.kind, str(log_dir), "--json", "--progress"]
    for option, text in (("since", asked.since), ("until", asked.until)):
        if text and not TIME.fullmatch(text):
            raise Refused(f"{text!r} is no time: expected 2h, 2026-03-01T12:00 or seconds since 1970", option)
        command += [f"--{option}={text}"] if text else []
    if asked.kind == "simulate":
        several = next((key for key, values in chosen.items() if len(values) > 1), None)
        if several is not None:
            raise Refused(f"{several}: one value, please; several are compared by a search", several)
        if not chosen:
            raise Refused("nothing is changed: choose at least one setting")
        return [*command, *(f"--set={key}={values[0]}" for key, values in chosen.items())]
    combinations = prod(len(values) for values in chosen.values())
    if combinations > COMBINATIONS_MAX:
        raise Refused(f"these are {combinations} combinations: at most {COMBINATIONS_MAX}")
    # One processor: this machine has other things to do.
    return [*command, "--jobs=1", *(f"--sweep={key}={','.join(values)}" for key, values in chosen.items())]


class WhatIf:
    """Belongs to the event loop's thread."""

    def __init__(self, log_dir: Path, *, limits: Limits = LIMITS) -> None:
        self._log_dir = log_dir
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Of the next change; another one takes its place then."""
        self._changes = 0
        self._listeners = 0
        self.jobs: list[Job] = []
        """The last ones, the newest first."""

    @property
    def latest(self) -> Job | None:
        return self.jobs[0] if self.jobs else None

    def job(self, number: int) -> Job | None:
        return next((job for job in self.jobs if job.number == number), None)

    def start(self, asked: Asked) -> Job:
        """Begin it. Raises Refused, and Busy while another runs."""
        command = arguments(asked, self._log_dir)
        latest = self.latest
        if latest is not None and latest.state == "running":
            raise Busy("another what-if is running: wait for its end, or cancel it")
        job = Job(number=(latest.number if latest is not None else 0) + 1, asked=asked)
        self.jobs = [job, *self.jobs[: KEPT - 1]]
        self._task = asyncio.create_task(self._run(job, command))
        return job

    async def cancel(self) -> Job | None:
        """End the one that runs; None if none does."""
        job, task = self.latest, self._task
        if job is None or job.state != "running" or task is None:
            return None
        task.cancel()
        await asyncio.wait({task})
        if job.state == "running":  # it had not even begun
            job.state, job.ended_s = "cancelled", time.time()
            self._tell()
        return job

    async def listen(self) -> AsyncIterator[bytes]:
        """How the latest job is, as server-sent events: now, at each change, and a sign of life in between."""
        if self._listeners >= LISTENERS:
            return
        self._listeners += 1
        try:
            while True:
                seen = self._changes
                job = self.latest
                told = job.told() if job is not None else {"job": 0, "state": "none"}
                yield b"event: job\ndata: " + json.dumps(told).encode() + b"\n\n"
                while not await self._change_after(seen):
                    yield b": alive\n\n"
                await asyncio.sleep(SAY_EVERY_S)
        finally:
            self._listeners -= 1

    async def _change_after(self, seen: int) -> bool:
        """Whether something changes before the next sign of life is due."""
        while self._changes == seen:
            changed = self._changed
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
            except TimeoutError:
                return False
        return True

    def _tell(self) -> None:
        """Wake whoever listens."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, job: Job, command: list[str]) -> None:
        def progress(told: dict[str, Any]) -> None:
            job.stage = str(told.get("stage", ""))
            job.done, job.total = float(told.get("done", 0)), float(told.get("total", 0))
            self._tell()

        self._tell()
        try:
            job.result = json.loads(await run(command, self._limits, progress))
            job.state = "done"
        except CommandFailed as error:
            job.state, job.error = "failed", str(error)
        except asyncio.CancelledError:
            job.state = "cancelled"
        except Exception as error:
            job.state, job.error = "failed", f"its answer could not be read: {error}"
        finally:
            job.ended_s = time.time()
            self._tell()
