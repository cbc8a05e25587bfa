"""A new configuration while serving: read as at the start, and taken as a whole or not at all.

Who is served notices nothing: only models that changed are unloaded once they are idle, and loaded anew by their next
request (the scheduler's `unload_stale_models`). Calls in quick succession are one reload or two, never half of one.
Asked for by SIGHUP, by POST /router/reload, and where WATCH_CONFIG says so by a change of the files.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from eventlog.events import LogLine, Observation
from router.config import Config, ConfigErrors, Problem

log = logging.getLogger("llama_router.reload")

NEEDS_RESTART = (
    "host",
    "port",
    "log_dir",
    "log",
    "run_dir",
    "state_dir",
    "history_db",
    "dashboard",
    "child_transport",
    "cors_origins",
)
"""Taken once, at the start: whoever asks for them later gets what is in force. So is `keep.directory`."""

WATCH_EVERY_S = 0.5
"""Files are read once they look the same at two looks: two saves within that time are one change."""

Signature = tuple[tuple[int, int, int] | None, ...]
"""Of each file what changes when it is written or replaced; None where it is not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a reload ended. With `problems` the old configuration stayed in force. `at_us` is on the log's clock."""

    by: str
    at_us: int
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Models of which anything is configured otherwise than before."""
    settings: tuple[str, ...] = ()
    """What else changed: `QUEUE_HEAD_GRACE 5 -> 6` of a setting, `routing` of an object; no secret's value."""
    needs_restart: tuple[str, ...] = ()
    """Settings that changed and are taken at the start only."""


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    def note(self, observation: Observation) -> None: ...


class Reloader:
    """Belongs to the event loop's thread; the files are read in another."""

    def __init__(
        self,
        current: Config,
        read: Callable[[], Config],
        apply: Callable[[Config, str], None],
        *,
        loop: Loop,
        now_us: Callable[[], int],
    ) -> None:
        """`read` raises ConfigErrors; `apply(config, by)` puts a configuration in force."""
        self.last: Outcome | None = None
        self._current = current
        self._read = read
        self._apply = apply
        self._loop = loop
        self._now_us = now_us
        self._asked_by: list[str] = []
        self._waiting: list[asyncio.Future[Outcome]] = []
        self._running: asyncio.Task[None] | None = None
        self._read_from = self._signature()

    def ask(self, by: str) -> None:
        """Reload soon. Calls that come while one is under way are answered by one more, together."""
        self._asked_by.append(by)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def reload(self, by: str) -> Outcome:
        """The same, with its end: that of a reading which began after this call."""
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self.ask(by)
        return await ended

    async def watch(self) -> None:
        """Until cancelled: read the files again when they have changed, for as long as WATCH_CONFIG is on."""
        seen = self._read_from
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            if not self._current.watch_config:
                continue
            now = await asyncio.to_thread(self._signature)
            if now == seen and now != self._read_from and self._running is None:
                self.ask("a change of the files")
            seen = now

    async def _run(self) -> None:
        while self._asked_by:
            by, waiting = ", ".join(dict.fromkeys(self._asked_by)), self._waiting
            self._asked_by, self._waiting = [], []
            try:
                self.last = await self._once(by)
            except Exception as error:  # a mistake of ours: whoever waits must hear of it
                log.exception("the configuration could not be read")
                self.last = Outcome(by, self._now_us(), (Problem(f"an error of the router: {error!r}"),))
            for ended in waiting:
                if not ended.done():
                    ended.set_result(self.last)
        self._running = None

    async def _once(self, by: str) -> Outcome:
        # Before the reading: a change that comes meanwhile is one that has not been read.
        self._read_from = await asyncio.to_thread(self._signature)
        try:
            config = await asyncio.to_thread(self._read)
        except ConfigErrors as errors:
            text = f"the new configuration has mistakes, the old one stays in force:\n{errors}"
            log.error("%s", text)
            self._loop.note(LogLine(level="error", text=text))
            return Outcome(by, self._now_us(), tuple(errors.problems), tuple(errors.warnings))
        outcome = self._compared(config, by)
        for warning in config.warnings:
            log.warning("%s", warning)
        for note in config.notes:
            log.info("%s", note)
        for name in outcome.needs_restart:
            log.warning("a new %s takes effect when the router is started again", name)
        self._current = _with_what_stays(config, self._current)
        self._apply(self._current, by)
        log.info("a new configuration is in force (asked for by %s)", by)
        return outcome

    def _compared(self, config: Config, by: str) -> Outcome:
        before, after = self._current.models, config.models
        return Outcome(
            by=by,
            at_us=self._now_us(),
            warnings=config.warnings,
            added=_only_in(after, before),
            removed=_only_in(before, after),
            changed=tuple(name for name, model in after.items() if name in before and model != before[name]),
            settings=_settings_changed(self._current, config),
            needs_restart=_needs_restart(self._current, config),
        )

    def _signature(self) -> Signature:
        return tuple(map(_look, (self._current.config_path, self._current.presets_path)))


def _needs_restart(before: Config, after: Config) -> tuple[str, ...]:
    names = tuple(name for name in NEEDS_RESTART if getattr(before, name) != getattr(after, name))
    return (*names, "keepDirectory") if _moves_caches(before, after) else names


def _with_what_stays(config: Config, before: Config) -> Config:
    stays = {name: getattr(before, name) for name in NEEDS_RESTART}
    keep = replace(config.keep, directory=before.keep.directory) if _moves_caches(before, config) else config.keep
    return replace(config, **stays, keep=keep)


def _moves_caches(before: Config, after: Config) -> bool:
    return before.keep.on and after.keep.on and before.keep.directory != after.keep.directory


def _settings_changed(before: Config, after: Config) -> tuple[str, ...]:
    names = (name for name, value in after.settings.items() if value != before.settings.get(name))
    settings = [f"{name} {_shown(before.settings.get(name))} -> {_shown(after.settings[name])}" for name in names]
    objects = [name for name, value in after.objects.items() if value != before.objects.get(name)]
    return (*settings, *objects, *(["keys"] if after.keys != before.keys else []))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _only_in(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    known = set(others)
    return tuple(name for name in names if name not in known)


def _look(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None
