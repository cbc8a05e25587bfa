"""Bytes that are taken out of a log: copied to `damaged/` beside it, never deleted."""

import os
import stat
from pathlib import Path

from eventlog.segments import DAMAGED, fsync_directory


def set_aside(path: Path, offset: int = 0) -> Path:
    """Copy the bytes of a file from `offset` on to `damaged/NAME.OFFSET`, synced; returns the copy's path."""
    folder = path.parent / DAMAGED
    folder.mkdir(exist_ok=True)
    copy = folder / f"{path.name}.{offset}"
    count = 1
    while copy.exists():
        count += 1
        copy = folder / f"{path.name}.{offset}.{count}"
    with path.open("rb") as source, copy.open("xb") as target:
        os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
        source.seek(offset)
        while block := source.read(1 << 20):
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    fsync_directory(folder)
    return copy
