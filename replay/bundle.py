"""A postmortem to share: a zip with the page, its data and the events around it, without prompts and with names hashed.

    report.html, report.json      as `postmortem` tells it
    events.ndjson                 what happened around it, one event a line
    README.txt                    what was taken out

Counterpart: `pseudonyms`, which says what a name is.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from eventlog.codec import UnknownEvent
from eventlog.events import ConfigLoaded, Event, LoadWished, MetricsSampled, RequestArrived, RouterStarted
from eventlog.reader import read
from replay.differences import as_fields
from replay.lines import first_seq_before
from replay.postmortem import Postmortem
from replay.postmortem_html import postmortem_html
from replay.pseudonyms import Pseudonyms

BEFORE_US = 120_000_000
AFTER_US = 60_000_000

README = """\
A crash of llama-router, for others to look at.

report.html    the story; open it in a browser
report.json    the same as data
events.ndjson  what happened around it, one event a line, as in the router's log

There are no prompts and no answers in it: the log never had them. Names of models, keys, clients and conversations are
hashed under a key that was thrown away; equal names are equal here. Paths, addresses, quoted text and configuration
values were taken out. Read it before you send it all the same: the child's own lines are in it.
"""


def write_bundle(path: Path, story: Postmortem, file: Path) -> None:
    """Write the zip. Raises LogError and LogDamaged; OSError if it cannot be written."""
    names = Pseudonyms(_names(path, story))
    hidden = msgspec.convert(names.apply(msgspec.to_builtins(story)), Postmortem, strict=False)
    lines = [msgspec.json.encode(names.apply(as_fields(event))) for event in _around(path, story)]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("README.txt", README)
        bundle.writestr("report.html", postmortem_html(hidden))
        bundle.writestr("report.json", msgspec.json.encode(hidden))
        bundle.writestr("events.ndjson", b"\n".join(lines) + b"\n")


def _around(path: Path, story: Postmortem) -> Iterator[Event]:
    """Two minutes before to a minute after; what this version does not know is left out, for it may hold anything."""
    at_us = story.incident.at_us
    for event in read(path, stream="all", from_seq=first_seq_before(path, at_us - BEFORE_US)):
        if event.at_us > at_us + AFTER_US:
            return
        if event.at_us >= at_us - BEFORE_US and event.run and not isinstance(event, UnknownEvent | MetricsSampled):
            yield event


def _names(path: Path, story: Postmortem) -> set[str]:
    """Names to look for in sentences."""
    found = {story.incident.model}
    for event in read(path, types=("RouterStarted", "ConfigLoaded", "RequestArrived", "LoadWished")):
        match event:
            case RouterStarted() | ConfigLoaded():
                found |= {*event.config.models, *event.config.keys}
            case RequestArrived():
                found |= {event.model, event.asked, event.key, event.conversation, event.client, event.session}
            case LoadWished():
                found.add(event.model)
    return found
