"""What can go wrong with a log, one class per thing to do about it.

LogError
  LogUnavailable   an append or a sync failed: nothing may be acted on; try `LogWriter.reopen`
  LogLocked        another router writes this log: stop it, or use another directory
  LogDamaged       bytes in the middle are not what was written: `llama-router log repair`
"""

from pathlib import Path


class LogError(Exception):
    """The log cannot be used as asked; the message says why and what to do."""


class LogUnavailable(LogError):
    """An append or a sync failed; what was given to that append is not in the log."""


class LogLocked(LogError):
    """Another process writes this log; `pid` is 0 where it did not leave its number."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.pid = pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the log in {directory} is being written by {who}; "
            "one log has one router: stop that one, or give this one another EVENT_LOG_DIR"
        )


class LogDamaged(LogError):
    """A line is not what was written, and it is not a torn tail. Nothing was changed."""

    def __init__(self, file: Path, offset: int, after_seq: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.after_seq = after_seq
        self.reason = reason
        where = f"after seq {after_seq}" if after_seq else "before its first event"
        super().__init__(
            f"{file}: damaged at byte {offset}, {where}: {reason}. Nothing was changed. "
            f"`llama-router log repair {file.parent}` keeps what is valid and sets the rest aside"
        )
