"""One writer per log: an flock on the file `lock`, with the holder's process id in it.

The kernel lets go of it when the process ends, however it ends; a file that stays behind means nothing.
"""

import fcntl
import os
from pathlib import Path

from eventlog.errors import LogError, LogLocked
from eventlog.segments import LOCK


def lock_log(directory: Path) -> int:
    """Take the lock; the descriptor holds it until it is closed. Raises LogLocked with the holder's process id."""
    path = directory / LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LogError(f"cannot write in the log directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).strip()
        os.close(fd)
        raise LogLocked(directory, int(pid) if pid.isdigit() else 0) from None
    except OSError as error:
        os.close(fd)
        raise LogError(f"cannot lock {path}: {error.strerror}") from error
    return fd
