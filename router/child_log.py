"""What llama-servers print: one file per replica, its last lines at hand, and whoever wants to follow it live.

A file is named `<model>-<hash>.<replica>.log`, since a model may be called anything; its first line says which model it
belongs to. It grows to a limit, then begins anew and keeps one earlier part as `.1`. Old files go, the newest of each
model stay. A child that floods costs disk up to the limit and memory not at all.

Counterpart: `replicas.py` feeds, `GET /logs` and `llama-router logs` read. Nothing in here waits for a reader.
"""

import asyncio
import hashlib
import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

log = logging.getLogger("llama_router.child_log")

FILE_LIMIT = 4 << 20
"""Bytes of one part of a file; a replica has at most two parts."""
KEEP_PER_MODEL = 10
KEEP_BYTES = 256 << 20
"""Of all files of all models together."""
LAST_LINES = 200
LINE_LIMIT = 4096
"""Bytes of a line in memory and in events; the file has all of it."""
HISTORY_BYTES = 64 * 1024
"""How much of the past a follower gets first."""
BACKLOG_BYTES = 256 * 1024
"""What may wait for a slow follower before lines are left out."""


def slug(model: str) -> str:
    """A file name that stands for a model: what is readable of its name, and enough of a hash to tell it apart."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", model).strip("-")[:40] or "model"
    return f"{readable}-{hashlib.sha256(model.encode(errors='surrogatepass')).hexdigest()[:8]}"


class Follower:
    """Output of replicas as it comes, in whole lines. Iterate over it; `close` ends the iteration."""

    def __init__(self, model: str | None, *, prefixed: bool) -> None:
        self.model = model
        """None for all."""
        self.prefixed = prefixed
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._wake = asyncio.Event()
        self._closed = False

    def offer(self, label: bytes, lines: bytes) -> None:
        """Whole lines of one replica. What a slow reader has not taken in time is left out, and said so."""
        if self.prefixed:
            lines = b"".join(label + line for line in lines.splitlines(keepends=True))
        if self._waiting_bytes + len(lines) > BACKLOG_BYTES:
            self._left_out += lines.count(b"\n")
        else:
            self._waiting.append(lines)
            self._waiting_bytes += len(lines)
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting and not self._left_out:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        taken = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._left_out:
            taken += b"... %d lines left out: read faster ...\n" % self._left_out
            self._left_out = 0
        return taken


class ChildLog:
    """The output of one replica."""

    def __init__(
        self,
        path: Path,
        *,
        model: str,
        replica: str,
        secret: str = "",
        on_lines: Callable[[bytes], None] = lambda lines: None,
        limit_bytes: int = FILE_LIMIT,
    ) -> None:
        """Begin the file. `secret` is blotted out of whatever is printed; `on_lines` gets every run of whole lines."""
        self.model = model
        self.replica = replica
        self.path = path
        self.bytes = 0
        """Printed so far."""
        self._secret = secret.encode()
        self._on_lines = on_lines
        self._limit = limit_bytes
        self._label = f"[{replica}] ".encode()
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._rest = b""
        self._followers: list[Follower] = []
        self._file: int | None = None
        self._written = 0
        self._open()

    @property
    def last_lines(self) -> list[str]:
        """The last lines, oldest first; a last one without its end as well."""
        lines = [*self._lines, self._clean(self._rest)] if self._rest else self._lines
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def feed(self, data: bytes) -> None:
        """Bytes as they came from the pipe."""
        self.bytes += len(data)
        whole, newline, rest = data.rpartition(b"\n")
        if not newline and len(self._rest) + len(rest) <= LINE_LIMIT:
            self._rest += rest
            return
        lines = self._rest + whole + newline if newline else self._rest + rest + b"\n"
        self._rest = rest if newline else b""
        if len(self._rest) > LINE_LIMIT:
            lines, self._rest = lines + self._rest + b"\n", b""
        self._take(lines)

    def close(self) -> None:
        """Nothing more comes. Followers stay: they belong to the model, not to this process."""
        if self._rest:
            lines, self._rest = self._rest + b"\n", b""
            self._take(lines)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._followers.clear()

    def follow(self, follower: Follower) -> None:
        self._followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        if follower in self._followers:
            self._followers.remove(follower)

    def _take(self, lines: bytes) -> None:
        lines = self._clean(lines)
        self._write(lines)
        # From the right, so that of a flood only the end is split into lines.
        self._lines.extend(line[:LINE_LIMIT] for line in lines[:-1].rsplit(b"\n", LAST_LINES)[-LAST_LINES:])
        self._on_lines(lines)
        for follower in self._followers:
            follower.offer(self._label, lines)

    def _clean(self, text: bytes) -> bytes:
        return text.replace(self._secret, b"***") if self._secret else text

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._written + len(lines) > self._limit:
                os.close(self._file)
                self._file = None
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self._open()
            if self._file is not None:
                self._written += os.write(self._file, lines)
        except OSError as error:
            self._give_up(error)

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            head = f"# replica {self.replica} of model {self.model!r}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n"
            self._written = os.write(self._file, head.encode(errors="replace"))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """A full disk must not end the replica; its last lines are still at hand."""
        log.warning("the output of replica %s is not kept any more: %s: %s", self.replica, self.path, error.strerror)
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ChildLogs:
    """The files of all replicas, those of earlier runs included, and whoever follows them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.live: dict[str, ChildLog] = {}
        """By replica."""
        self._followers: list[Follower] = []

    def open(self, model: str, replica: str, secret: str, on_lines: Callable[[bytes], None]) -> ChildLog:
        """The log of a replica that is about to start. Followers of its model hear it from the first line on."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prune()
        name = f"{slug(model)}.{replica if replica.isalnum() else slug(replica)}.log"
        made = ChildLog(self.directory / name, model=model, replica=replica, secret=secret, on_lines=on_lines)
        alone = not self._playing(model)
        self.live[replica] = made
        for follower in self._followers:
            if follower.model is None or follower.model == model:
                follower.prefixed |= not alone
                made.follow(follower)
        return made

    def close(self, replica: str) -> None:
        """The replica is gone. Whoever follows its model goes on and hears the next one."""
        if (gone := self.live.pop(replica, None)) is not None:
            gone.close()

    def shut(self) -> None:
        """No replica will come any more: every stream ends."""
        for follower in self._followers:
            follower.close()

    def files(self, model: str | None = None) -> list[Path]:
        """The newest part of each replica's log, the oldest replica first."""
        pattern = f"{slug(model)}.*.log" if model is not None else "*.log"
        return sorted(self.directory.glob(pattern), key=_modified_ns)

    def last_lines(self, model: str, count: int = LAST_LINES) -> list[str]:
        """Of the newest replica of a model, alive or not."""
        files = self.files(model)
        return tail(files[-1], HISTORY_BYTES).decode(errors="replace").splitlines()[-count:] if files else []

    async def stream(self, model: str | None = None, *, history: bool = True) -> AsyncIterator[bytes]:
        """What the replicas of a model (or all) have printed lately, then what they print, until the reader leaves.

        Lines of different replicas are told apart by `[replica] ` in front, as soon as there are several.
        """
        playing = self._playing(model)
        follower = Follower(model, prefixed=model is None or len(playing) > 1)
        # No await between the past and the first of the present: no line is lost or comes twice.
        if history:
            for path in [one.path for one in playing] or self.files(model)[-1:]:
                label = f"[{path.name.split('.')[1]}] ".encode()
                follower.offer(label, tail(path, HISTORY_BYTES))
        for one in playing:
            one.follow(follower)
        self._followers.append(follower)
        try:
            async for lines in follower:
                yield lines
        finally:
            self._followers.remove(follower)
            for one in self.live.values():
                one.unfollow(follower)

    def _playing(self, model: str | None) -> list[ChildLog]:
        return [one for one in self.live.values() if model is None or one.model == model]

    def prune(self) -> None:
        """Remove what is too old or too much; never the log of a replica that lives."""
        kept: dict[str, int] = {}
        total = 0
        living = {one.path for one in self.live.values()}
        for path in reversed(self.files()):
            model = path.name.split(".")[0]
            kept[model] = kept.get(model, 0) + 1
            parts = [path, path.with_name(path.name + ".1")]
            total += sum(_size(part) for part in parts)
            if path not in living and (kept[model] > KEEP_PER_MODEL or total > KEEP_BYTES):
                for part in parts:
                    part.unlink(missing_ok=True)


def tail(path: Path, at_most: int) -> bytes:
    """The last whole lines of a log, reaching back into its earlier part; b"" when it is gone."""
    taken = b""
    for part in (path, path.with_name(path.name + ".1")):
        try:
            with part.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - (at_most - len(taken))))
                taken = file.read() + taken
        except OSError:
            break
        if len(taken) >= at_most:
            return taken.partition(b"\n")[2]
    return taken


def _modified_ns(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
