"""Saved prompt caches on disk, or in memory that looks like one: a directory of its own, bounded, never in the way.

A file is written under a temporary name, and gets its name only once it is whole and as long as the writer said. What
is in the directory is known by this object alone; between two runs by an index, which is written at a clean end and
removed at the start. Whatever a crash leaves, a half-written file above all, is unknown to the next run and removed.

Counterpart: `router.cache_keeper`, which has llama-servers write and read the files. Nothing here raises anything but
`Unusable`: a full or vanished directory costs caches. Names of files say nothing; directory 0700, files 0600.
"""

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

INDEX = "index.json"
DONE, PART = ".cache", ".part"

log = logging.getLogger("llama_router.caches")

Why = Literal["budget", "stale", "given_up", "gone"]


class Unusable(Exception):
    """A file cannot be written, or must not be read; the text says why, without anything that was said."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One saved cache."""

    name: str
    model: str
    conversation: str
    tokens: int
    bytes: int
    fingerprint: str
    """Of the weights, the options and the llama-server that it was saved under."""
    shape: str = ""
    prefix: str = ""
    used_us: int = 0
    """When the conversation last used it, on the log's clock."""


_index = msgspec.json.Decoder(list[Entry])


class CacheStore:
    """Belongs to the event loop's thread: all it does is quick. `usable` is False when there is no directory."""

    def __init__(self, directory: Path, budget_bytes: int, dropped: Callable[[Entry, Why], None]) -> None:
        """`dropped` is told of every file that goes and was not replaced. Reads what an earlier run has left."""
        self.directory = directory
        self.budget_bytes = budget_bytes
        self.usable = self._make_directory()
        self._dropped = dropped
        self._entries: dict[tuple[str, str], Entry] = {}
        if self.usable:
            for entry in self._take_index():
                self._entries[entry.model, entry.conversation] = entry
            self._sweep()

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    @property
    def bytes(self) -> int:
        """Of all whole files together."""
        return sum(entry.bytes for entry in self._entries.values())

    # --- writing ---

    def begin(self, expected_bytes: int) -> str:
        """A name to write to, empty and private, with room made for so much. Raises Unusable."""
        if not self.usable:
            raise Unusable("there is no directory for it")
        self._make_room(expected_bytes)
        name = secrets.token_hex(16) + PART
        try:
            os.close(os.open(self.directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise Unusable(f"no file can be made: {error.strerror}") from error
        return name

    def commit(self, name: str, entry: Entry) -> None:
        """The file is complete: it takes the place of an older one of its conversation. Raises Unusable if it is not.

        `entry` with any name; its size is what the writer says that it wrote.
        """
        if not self.usable:
            raise Unusable("caches are not kept any more")
        path = self.directory / name
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.bytes or not entry.bytes:
                raise Unusable(f"the file has {found.st_size} bytes, not {entry.bytes}")
            if entry.bytes > self.budget_bytes:
                raise Unusable(f"it is larger than the budget: {entry.bytes >> 20} MiB of {self.budget_bytes >> 20}")
            done = name.removesuffix(PART) + DONE
            os.chmod(path, 0o600)
            os.rename(path, self.directory / done)
        except OSError as error:
            raise Unusable(f"the file cannot be kept: {error.strerror}") from error
        key = (entry.model, entry.conversation)
        before = self._entries.pop(key, None)
        if before is not None:
            self._remove(before.name)
        self._entries[key] = msgspec.structs.replace(entry, name=done)
        self._make_room(0, spare=key)

    def abort(self, name: str) -> None:
        """It came to nothing. Whoever still writes to it writes to a file without a name."""
        self._remove(name)

    def _make_room(self, expected_bytes: int, spare: tuple[str, str] | None = None) -> None:
        """The least recently used go."""
        total = self.bytes
        for entry in sorted(self._entries.values(), key=lambda entry: entry.used_us):
            if total + expected_bytes <= self.budget_bytes:
                return
            if (entry.model, entry.conversation) != spare:
                total -= entry.bytes
                self._drop(entry, "budget")

    # --- reading ---

    def find(self, model: str, conversation: str, fingerprint: str) -> Entry:
        """The file of a conversation, if it is still whole and was saved under the same. Raises Unusable."""
        entry = self._entries.get((model, conversation))
        if entry is None:
            raise Unusable("there is no such file any more")
        if entry.fingerprint != fingerprint:
            raise Unusable("it was saved under other weights, other options or another llama-server")
        if not self._is_whole(entry):
            raise Unusable("the file is not as long as it was")
        return entry

    def forget(self, model: str, conversation: str) -> None:
        """Remove a file that turned out to be of no use; whoever asks says so elsewhere."""
        entry = self._entries.pop((model, conversation), None)
        if entry is not None:
            self._remove(entry.name)

    def drop_where(self, is_meant: Callable[[Entry], bool], why: Why) -> None:
        """Remove many, and tell."""
        for entry in self:
            if is_meant(entry):
                self._drop(entry, why)

    def set_budget(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._make_room(0)

    # --- between runs ---

    def close(self, *, persist: bool) -> None:
        """The end of the run: the files stay for the next one, on the disk and with an index, or all is removed."""
        if not self.usable:
            return
        if persist:
            try:
                self._write_index()
                return
            except OSError as error:
                log.warning("prompt caches are not kept for the next run: %s", error)
        self._entries.clear()
        self._sweep()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
        self.usable = False

    def _write_index(self) -> None:
        for entry in self:
            _sync(self.directory / entry.name, os.O_RDONLY)
        part = self.directory / (INDEX + PART)
        descriptor = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(list(self._entries.values())))
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, self.directory / INDEX)
        _sync(self.directory, os.O_RDONLY | os.O_DIRECTORY)

    def _take_index(self) -> list[Entry]:
        """What is left whole of an earlier run, whose index is good once."""
        path = self.directory / INDEX
        try:
            data = path.read_bytes()
            path.unlink()
            entries = _index.decode(data)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the prompt caches of an earlier run cannot be used: %s", error)
            return []
        return [entry for entry in entries if _is_name(entry.name) and self._is_whole(entry)]

    # --- the directory ---

    def _make_directory(self) -> bool:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self.directory)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(f"{self.directory} belongs to somebody else")
            os.chmod(self.directory, 0o700)
        except OSError as error:
            log.warning("no prompt cache is kept across swaps: %s", error)
            return False
        return True

    def _sweep(self) -> None:
        """Remove every file that is not known: the directory is ours alone."""
        known = {entry.name for entry in self._entries.values()}
        try:
            names = os.listdir(self.directory)
        except OSError as error:
            log.warning("%s cannot be cleaned: %s", self.directory, error)
            return
        for name in names:
            if name not in known:
                self._remove(name)

    def _is_whole(self, entry: Entry) -> bool:
        try:
            found = os.lstat(self.directory / entry.name)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == entry.bytes

    def _drop(self, entry: Entry, why: Why) -> None:
        self._entries.pop((entry.model, entry.conversation), None)
        self._remove(entry.name)
        self._dropped(entry, why)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(self.directory / name)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s cannot be removed: %s", self.directory / name, error)


def _is_name(name: str) -> bool:
    """A name of ours, and no path to anywhere else."""
    stem = name.removesuffix(DONE)
    return name.endswith(DONE) and len(stem) == 32 and all(char in "0123456789abcdef" for char in stem)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
