"""The stand-in's own record of what happened to it, and how a test reads it.

Each process appends JSON lines to `$STANDIN_LEDGER/<pid>.jsonl`; every line has `event`, `pid`, `model` (the model
path), `mono_us` (CLOCK_MONOTONIC, comparable between processes) and `wall_us`. Events:

    started, ready, load_failed, gpu_over_cap, sigterm, exit      a process
    request_start, slot_taken, first_chunk, chunk, disconnect_seen, slot_freed, request_end      a generation
    call      any other request
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

Line = dict[str, Any]


def now_us() -> int:
    return time.monotonic_ns() // 1000


class LedgerWriter:
    """Appends whole lines; without a directory it writes nowhere."""

    def __init__(self, directory: str | None, model: str) -> None:
        self.model = model
        self.pid = os.getpid()
        self.directory = directory
        self.file = -1
        if directory:
            os.makedirs(directory, exist_ok=True)
            self.file = os.open(f"{directory}/{self.pid}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        if self.file >= 0:
            line = {"event": event, "pid": self.pid, "model": self.model, "mono_us": now_us()}
            line |= {"wall_us": time.time_ns() // 1000, **fields}
            os.write(self.file, json.dumps(line).encode() + b"\n")

    def count_load(self) -> int:
        """Counts the processes started for this model, this one included; 1 without a directory."""
        return self.count(f"loads-{self.model}")

    def count(self, what: str) -> int:
        """Counts something across all processes, this time included."""
        if not self.directory:
            return 1
        counter = os.open(f"{self.directory}/{what.replace('/', '%')}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(counter, fcntl.LOCK_EX)
            os.lseek(counter, 0, os.SEEK_END)
            os.write(counter, b".")
            return os.fstat(counter).st_size
        finally:
            os.close(counter)


class Ledger:
    """All processes' lines, for a test."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)

    def lines(self) -> list[Line]:
        """Everything written so far, in the order of time."""
        found: list[Line] = []
        for name in sorted(os.listdir(self.directory)) if os.path.isdir(self.directory) else []:
            if name.endswith(".jsonl"):
                with open(f"{self.directory}/{name}") as file:
                    found += [json.loads(line) for line in file if line.endswith("\n")]
        return sorted(found, key=lambda line: int(line["mono_us"]))

    def events(self, event: str, **fields: Any) -> list[Line]:
        """The lines of one event whose fields have these values; `model` is compared with the end of the path."""
        return [line for line in self.lines() if line["event"] == event and _agrees(line, fields)]

    def wait_for(
        self, event: str, predicate: Callable[[Line], bool] | None = None, deadline_s: float = 10.0, **fields: Any
    ) -> Line:
        """The first such line, waiting for it; AssertionError with what there is when the deadline passes."""
        return self.wait_for_count(1, event, predicate, deadline_s, **fields)[0]

    def wait_for_count(
        self,
        count: int,
        event: str,
        predicate: Callable[[Line], bool] | None = None,
        deadline_s: float = 10.0,
        **fields: Any,
    ) -> list[Line]:
        """At least `count` such lines."""
        for _ in polls(deadline_s):
            found = [line for line in self.events(event, **fields) if predicate is None or predicate(line)]
            if len(found) >= count:
                return found
        there = "\n".join(json.dumps(line) for line in self.lines()[-40:])
        raise AssertionError(
            f"no {count} x {event} {fields} in the ledger within {deadline_s} s; it ends with:\n{there}"
        )


def polls(deadline_s: float, every_s: float = 0.01) -> Iterator[float]:
    """Yields at once and then every few milliseconds until the deadline; the elapsed seconds each time."""
    start = time.monotonic()
    while True:
        elapsed = time.monotonic() - start
        yield elapsed
        if elapsed > deadline_s:
            return
        time.sleep(every_s)


def _agrees(line: Line, fields: dict[str, Any]) -> bool:
    for name, wanted in fields.items():
        if name == "model":
            if not str(line["model"]).endswith(str(wanted)):
                return False
        elif line.get(name) != wanted:
            return False
    return True
