"""How the router's own messages are written: a line that begins at the margin is one that the router wrote.

A message may quote what a client sent or a child printed. Control characters in it are shown, not sent to the terminal,
and what follows a line break is indented: so nobody can forge a line, or colour one.
"""

import logging
import re

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Formatter(logging.Formatter):
    """For every handler of the process."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """One record as text, without the line break at its end."""
        text = super().format(record)
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).replace("\n", "\n    ")


def write_to_stderr(level: str) -> None:
    """Have everything from `level` on written to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(handlers=[handler], level=level.upper())
