"""Lines: what is written can be read, for ever, and what is not known is not lost."""

from pathlib import Path

import msgspec
import pytest

from eventlog import codec
from eventlog.codec import UnknownEvent, count_valid, crc_after, decode, decode_lines, encode_lines, rechain, seq_of
from eventlog.events import ALL, BY_NAME, AdminDrain, Event, MetricsSampled, SegmentOpened, SlotReleased
from eventlog.reader import read
from eventlog.verify import verify
from tests.eventlog.samples import sample

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not SegmentOpened], ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_was_written(kind: type[Event]) -> None:
    """All fields set, umlauts, quotes and newlines included."""
    event = sample(kind, 7)

    data, _ = encode_lines([event], 0)

    assert data.count(b"\n") == 1
    assert data.startswith(b'{"type":"%b","seq":7' % kind.__name__.encode())
    assert decode(data[:-1]) == event


def test_a_line_is_plain_json_with_the_type_first_and_the_checksum_last() -> None:
    """So jq, grep and DuckDB read it directly."""
    data, crc = encode_lines([SlotReleased(seq=7, at_us=5, run=1, rid=3, replica="a#0.1")], 0)

    fields = msgspec.json.decode(data)

    assert list(fields) == ["type", "seq", "at_us", "run", "rid", "replica", "crc"]
    assert fields["crc"] == f"{crc:08x}"


@pytest.mark.parametrize("schema", sorted(path.name for path in GOLDEN.iterdir()))
@pytest.mark.parametrize("stream", ["events", "observations"])
def test_golden_logs_can_be_read_for_ever(schema: str, stream: str) -> None:
    """Every line decodes to the same type, and nothing that was stored is missing from the event."""
    (path,) = (GOLDEN / schema).glob(f"{stream}-*.ndjson")

    lines = path.read_bytes().splitlines()
    events = list(read(path))

    assert len(events) == len(lines)
    for line, event in zip(lines, events, strict=True):
        stored = msgspec.json.decode(line)
        assert type(event) is BY_NAME[stored["type"]]
        assert _kept(stored, msgspec.json.decode(encode_lines([event], 0)[0]))


def test_every_type_stands_in_some_golden_log() -> None:
    """A new type needs one too: `python -m tests.eventlog.samples tests/eventlog/golden/NEXT`; old ones stay."""
    found = {type(event) for directory in GOLDEN.iterdir() for event in read(directory, stream="all")}

    assert found == set(ALL)


def _kept(stored: object, now: object) -> bool:
    """Whether all that is stored is still there; defaults that came later may be there too."""
    if isinstance(stored, dict) and isinstance(now, dict):
        return all(key == "crc" or (key in now and _kept(value, now[key])) for key, value in stored.items())
    if isinstance(stored, list) and isinstance(now, list):
        return len(stored) <= len(now) and all(map(_kept, stored, now))
    return stored == now


@pytest.mark.parametrize("schema", sorted(path.name for path in GOLDEN.iterdir()))
def test_golden_logs_verify_for_ever(schema: str) -> None:
    """The way the checksum is computed is part of the format."""
    result = verify(GOLDEN / schema)

    assert result.ok
    assert result.unknown == 0


def test_an_unknown_type_is_skipped_but_keeps_its_envelope_and_its_bytes() -> None:
    """A log of a newer version stays readable."""
    raw = b'{"type":"MoonRose","seq":9,"at_us":5,"run":2,"cause":8,"colour":"red","crc":"00000000"}'

    event = decode(raw)

    assert event == UnknownEvent(type="MoonRose", raw=raw, why="unknown type", seq=9, at_us=5, run=2, cause=8)


def test_a_known_type_with_a_value_from_the_future_is_unknown_too() -> None:
    """Folding half of an event would be worse than skipping it; the reason is kept."""
    event = decode(b'{"type":"AdminGpu","seq":9,"op":1,"gpu":0,"action":"sideways"}')

    assert isinstance(event, UnknownEvent)
    assert event.type == "AdminGpu"
    assert "sideways" in event.why


def test_one_unknown_line_does_not_hide_its_neighbours() -> None:
    """Bulk decoding falls back to one line at a time."""
    lines = [b'{"type":"AdminDrain","seq":1,"op":1}', b'{"type":"X","seq":2}', b'{"type":"AdminDrain","seq":3,"op":2}']

    events = decode_lines(lines)

    assert [event.seq for event in events] == [1, 2, 3]
    assert isinstance(events[1], UnknownEvent)


def test_a_field_that_this_version_does_not_know_is_no_obstacle() -> None:
    """A newer version may add fields to a known type."""
    assert decode(b'{"type":"AdminDrain","seq":1,"op":4,"mood":"calm"}') == AdminDrain(seq=1, op=4)


def test_old_lines_are_upgraded_on_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step per schema; the stored line stays as it is."""
    monkeypatch.setattr(codec, "SCHEMA", 3)
    monkeypatch.setitem(codec.UPGRADES, (1, "AdminStop"), lambda old: {**old, "type": "AdminDrain"})
    monkeypatch.setitem(codec.UPGRADES, (2, "AdminDrain"), lambda old: {**old, "by": old.pop("who")})
    line = b'{"type":"AdminStop","seq":1,"op":4,"who":"alice","crc":"00000000"}'

    assert decode_lines([line], schema=1) == [AdminDrain(seq=1, op=4, by="alice")]
    assert decode_lines([b'{"type":"AdminDrain","seq":2,"op":5}'], schema=3) == [AdminDrain(seq=2, op=5)]


def test_a_number_that_is_none_does_not_break_the_line() -> None:
    """JSON has no NaN: the line stays readable, if not as this type."""
    data, _ = encode_lines([MetricsSampled(seq=1, replica="a", values={"x": float("nan")})], 0)

    assert isinstance(decode(data[:-1]), UnknownEvent)


def test_the_chain_finds_a_lost_a_doubled_and_a_swapped_line() -> None:
    """Each line's checksum starts from that of the line before."""
    data, crc = encode_lines([AdminDrain(seq=n, op=n) for n in range(1, 5)], 0)
    a, b, c, d = data.splitlines()

    assert count_valid([a, b, c, d], 0) == (4, crc)
    assert count_valid([a, c, d], 0)[0] == 1
    assert count_valid([a, a, b], 0)[0] == 1
    assert count_valid([b, a, c, d], 0)[0] == 0
    assert count_valid([a, c, b, d], 0)[0] == 1


def test_a_checksum_alone_is_no_line() -> None:
    """A line that says nothing would continue every chain."""
    assert count_valid([b',"crc":"0000002a"}'], 42)[0] == 0
    assert crc_after([b',"crc":"0000002a"}'], 42) is None


def test_a_chain_that_is_compared_at_its_end_alone_still_knows_every_byte_of_what_is_said() -> None:
    """Only what a line in the middle claims as its own checksum can be another number: nobody goes on from there."""
    data, crc = encode_lines([AdminDrain(seq=n, op=n) for n in range(1, 4)], 0)
    a, b, c = data.splitlines()

    assert crc_after([a, b, c], 0) == crc
    assert crc_after([a, c], 0) is None
    assert crc_after([b, a, c], 0) is None
    assert crc_after([a, b, c, b""], 0) is None
    claimed = range(len(b) - 10, len(b) - 2)
    for place in range(len(b)):
        flipped = b[:place] + bytes([b[place] ^ 1]) + b[place + 1 :]
        assert (crc_after([a, flipped, c], 0) == crc) == (place in claimed), flipped


def test_the_number_of_a_line_is_found_without_decoding_it_and_wherever_it_stands() -> None:
    for kind in ALL:
        data, _ = encode_lines([sample(kind, 4711)], 0)
        assert seq_of(data[:-1]) == 4711, kind
    assert seq_of(b'{"type":"Later","note":"%b","seq":7,"op":1}' % (b"x" * 80)) == 7
    assert seq_of(b'{"type":"Later","op":1}') == 0


def test_a_chain_can_be_made_anew_from_another_start() -> None:
    """Lines that move to another segment keep their content."""
    events = [AdminDrain(seq=n, op=n) for n in range(1, 5)]
    data, _ = encode_lines(events, 0)

    moved, crc = rechain(data, 4711)

    assert (moved, crc) == encode_lines(events, 4711)
    assert rechain(b"", 4711) == (b"", 4711)
