"""One event as one line for a person.

2026-03-01 12:00:00.123456     #42 run 3  RequestDispatched  rid=7 replica=qwen#0.3 waited_us=120034
"""

from datetime import datetime

import msgspec

from eventlog.codec import UnknownEvent
from eventlog.events import Event

_LONGEST = 160
_ENVELOPE = frozenset(("type", "seq", "at_us", "run", "cause"))


def pretty(event: Event) -> str:
    """The line, without a newline; times are local, long values are cut."""
    if isinstance(event, UnknownEvent):
        name, fields = f"{event.type} ({event.why})", msgspec.json.decode(event.raw)
        fields.pop("crc", None)
    else:
        name, fields = type(event).__name__, msgspec.to_builtins(event)
    words = [f"{key}={_short(value)}" for key, value in fields.items() if key not in _ENVELOPE]
    cause = f" cause=#{event.cause}" if event.cause else ""
    return f"{when(event.at_us)} {'#' + str(event.seq):>9} run {event.run}  {name}  {' '.join(words)}{cause}".rstrip()


def when(at_us: int) -> str:
    """A local time to the microsecond."""
    seconds, us = divmod(at_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}.{us:06d}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value and " " not in value else msgspec.json.encode(value).decode()
    text = text.replace("\n", "\\n")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
