"""Events <-> lines of the log, the checksum chain over the lines, and upgrades of old lines.

A line is the event as JSON, `type` first and `crc` last:

    {"type":"SlotReleased","seq":7,"at_us":1700000000000000,"run":1,"rid":3,"replica":"a/1","crc":"5f3a9c01"}

`crc` is the CRC32 of all bytes of the line before `,"crc"`, started with the `crc` of the line before it. It has a
fixed width, so it is cut off without parsing. A flipped bit, a lost line and two swapped lines all break the chain.

Counterpart: `eventlog.events` says what the events are. Files, segments and torn tails are not known here.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union
from zlib import crc32

import msgspec

from eventlog.events import ALL, BY_NAME, Event

SCHEMA = 1
"""Version of the lines that this code writes; SegmentOpened carries it."""

TAIL = len(b',"crc":"00000000"}')
"""Bytes of a line, without its newline, that the checksum does not cover."""

_PUNCTUATION = [(place, sign) for place, sign in enumerate(b',"crc":"00000000"}') if sign != ord("0")]
_SHORTEST = len(b'{"type":"X"') + TAIL

_SEQ_WITHIN = 64
"""Bytes in which a type has room."""

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[tuple[int, str], Upgrade] = {}
"""(schema, type) -> how to turn such a line's JSON object into one of schema + 1. Stored lines stay as they are."""


class UnknownEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag=False):
    """A line of a type, or with a value, that this version does not know: its envelope, and its bytes as they stand."""

    type: str
    raw: bytes
    """The line without its newline."""
    why: str = ""


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    seq: int = 0
    at_us: int = 0
    run: int = 0
    cause: int = 0


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Union[ALL])  # noqa: UP007 - the members are only known as a tuple
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode_lines(events: Iterable[Event], crc: int) -> tuple[bytes, int]:
    """The lines of these events, and the checksum that the next line starts from."""
    lines = []
    for event in events:
        body = _encode(event)[:-1]
        crc = crc32(body, crc)
        lines.append(b'%b,"crc":"%08x"}\n' % (body, crc))
    return b"".join(lines), crc


def rechain(data: bytes, crc: int) -> tuple[bytes, int]:
    """The same lines with a chain that starts from `crc`."""
    lines = []
    for line in data.rstrip(b"\n").split(b"\n") if data else ():
        body = line[:-TAIL]
        crc = crc32(body, crc)
        lines.append(b'%b,"crc":"%08x"}\n' % (body, crc))
    return b"".join(lines), crc


def count_valid(lines: Sequence[bytes], crc: int) -> tuple[int, int]:
    """How many of these lines, from the first on, continue the chain, and the checksum after the last of those."""
    valid = 0
    for line in lines:
        after = crc32(line[:-TAIL], crc)
        if line[-TAIL:] != b',"crc":"%08x"}' % after or len(line) < _SHORTEST:
            break
        crc = after
        valid += 1
    return valid, crc


def crc_after(lines: Sequence[bytes], crc: int) -> int | None:
    """The checksum after the last of these lines; None if they do not continue the chain. Quicker than `count_valid`.

    It is the checksum of all that they say, one after another, so it is computed once for all. What a line in the
    middle claims as its own checksum is not compared: that must look like one, no more.
    """
    after = crc32(b"".join([line[:-TAIL] for line in lines]), crc)
    tails = b"".join([line[-TAIL:] for line in lines])
    if stored_crc(lines[-1]) != after or min(map(len, lines)) < _SHORTEST:
        return None
    if any(tails[place::TAIL] != bytes([sign]) * len(lines) for place, sign in _PUNCTUATION):
        return None
    return after


def checksum(line: bytes, crc: int) -> int:
    """The checksum that a line ought to have after a line with `crc`."""
    return crc32(line[:-TAIL], crc)


def stored_crc(line: bytes) -> int | None:
    """The checksum that a line claims to have; None if it does not end as a line does."""
    tail = line[-TAIL:]
    if len(tail) != TAIL or tail[:8] != b',"crc":"' or tail[16:] != b'"}':
        return None
    try:
        return int(tail[8:16], 16)
    except ValueError:
        return None


def seq_of(line: bytes) -> int:
    """The number of a line; 0 if it has none. The line is decoded only where it does not stand right behind `type`."""
    before, key, after = line.partition(b',"seq":')
    if key and len(before) < _SEQ_WITHIN:
        return int(after[: after.index(b",")])
    return _envelope_decoder.decode(line).seq


def decode(line: bytes, schema: int = SCHEMA) -> Event:
    """The event of one line. What this version does not know comes back as an UnknownEvent.

    Raises msgspec.DecodeError where the line is not the JSON of an event at all.
    """
    if schema < SCHEMA:
        line = _upgraded(line, schema)
    try:
        event: Event = _decoder.decode(line)
    except msgspec.ValidationError as error:
        envelope = _envelope_decoder.decode(line)
        why = f"invalid: {error}" if envelope.type in BY_NAME else "unknown type"
        return UnknownEvent(
            type=envelope.type,
            raw=bytes(line),
            why=why,
            seq=envelope.seq,
            at_us=envelope.at_us,
            run=envelope.run,
            cause=envelope.cause,
        )
    return event


def decode_lines(lines: Sequence[bytes], schema: int = SCHEMA) -> list[Event]:
    """The events of many lines: one call for all of them, line by line only where one is not known as it stands."""
    if schema == SCHEMA:
        try:
            return _decoder.decode_lines(b"\n".join(lines))
        except msgspec.ValidationError:
            pass
    return [decode(line, schema) for line in lines]


def _upgraded(line: bytes, schema: int) -> bytes:
    fields = msgspec.json.decode(line)
    for old in range(schema, SCHEMA):
        upgrade = UPGRADES.get((old, fields["type"]))
        if upgrade is not None:
            fields = upgrade(fields)
    return _encode(fields)
