"""Reading: what is there, in order, checked; and following what comes."""

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest

from eventlog import writer as writer_module
from eventlog.codec import UnknownEvent, encode_lines
from eventlog.errors import LogDamaged, LogError
from eventlog.events import AdminDone, Event, LogLine, SegmentOpened
from eventlog.housekeeping import seal_all
from eventlog.reader import read, records
from eventlog.segments import Segment, Stream, list_segments
from eventlog.tail import Tail, follow
from eventlog.writer import LogWriter
from tests.eventlog.small_log import Numbered, flip, last_segment, line, read_said, said, small_log, until


def both_streams(directory: Path) -> list[Event]:
    """A log with small segments and both streams mixed; returns its events in order."""
    numbered = Numbered()
    written: list[Event] = []
    with LogWriter.open(directory, segment_bytes=900, checkpoint=numbered.checkpoint, durability="never") as writer:
        for _ in range(15):
            written += numbered.write(writer, 1)
            note = line(writer)
            writer.append_observations([note])
            written.append(note)
    return written


def test_both_streams_come_merged_by_seq(tmp_path: Path) -> None:
    """Whatever the segments, sealed or not."""
    written = both_streams(tmp_path)

    assert said(list(read(tmp_path, stream="all"))) == written
    seal_all(tmp_path)
    assert said(list(read(tmp_path, stream="all"))) == written
    assert said(list(read(tmp_path))) == [event for event in written if not isinstance(event, LogLine)]


@pytest.mark.parametrize(("first", "last"), [(0, 9), (7, 7), (20, 30), (44, None), (46, None), (3, 1)])
def test_a_range_of_seq_is_read_exactly(tmp_path: Path, first: int, last: int | None) -> None:
    """Both ends included; segments before it are not opened."""
    written = both_streams(tmp_path)

    events = said(list(read(tmp_path, stream="all", from_seq=first, to_seq=last)))

    assert events == [event for event in written if event.seq >= first and (last is None or event.seq <= last)]


def test_segments_before_the_range_are_not_opened(tmp_path: Path) -> None:
    """Reading the last hour of a year is quick."""
    written = both_streams(tmp_path)
    list_segments(tmp_path, "events")[0].path.write_bytes(b"nonsense")

    assert said(list(read(tmp_path, from_seq=written[-2].seq)))[0] == written[-2]


def test_only_some_types(tmp_path: Path) -> None:
    """Other lines are checked but not decoded."""
    written = both_streams(tmp_path)

    assert list(read(tmp_path, types={"AdminDone"})) == [event for event in written if isinstance(event, AdminDone)]
    assert list(read(tmp_path, types={"Admin"})) == []


def test_records_are_the_lines_as_stored(tmp_path: Path) -> None:
    """So they can be copied byte for byte."""
    small_log(tmp_path)

    stored = last_segment(tmp_path).read_bytes()

    assert b"".join(line + b"\n" for line, _ in records(tmp_path)) == stored


def test_a_single_segment_plain_or_compressed(tmp_path: Path) -> None:
    """By its path; any other file is an error that says what was expected."""
    written = small_log(tmp_path)
    path = last_segment(tmp_path)
    sealed = tmp_path / "elsewhere" / "events-000000000001.ndjson.gz"
    sealed.parent.mkdir()
    data = path.read_bytes()
    sealed.write_bytes(gzip.compress(data[:300]) + gzip.compress(data[300:]))

    assert said(list(read(path))) == said(list(read(sealed))) == written
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(LogError, match="expected a name such as"):
        list(read(tmp_path / "notes.txt"))
    with pytest.raises(LogError, match="cannot read the log directory"):
        list(read(tmp_path / "nowhere"))
    with pytest.raises(LogError, match="there is no segment"):
        list(read(tmp_path / "events-000000000099.ndjson"))


def test_damage_comes_after_the_events_before_it(tmp_path: Path) -> None:
    """Each valid event is handed out, then the error names the place."""
    written = small_log(tmp_path, steps=6)
    path = last_segment(tmp_path)
    flip(path, 8 * (path.stat().st_size // 2))
    events: list[Event] = []

    with pytest.raises(LogDamaged) as caught:
        events.extend(read(tmp_path))

    assert said(events) == written[: len(said(events))]
    assert 0 < caught.value.after_seq == events[-1].seq < written[-1].seq


def test_an_unfinished_line_is_not_there_yet(tmp_path: Path) -> None:
    """The log may be read while it is written."""
    written = small_log(tmp_path)
    with last_segment(tmp_path).open("ab") as file:
        file.write(b'{"type":"AdminDr')

    assert read_said(tmp_path) == written


def test_a_torn_tail_ends_the_log_and_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a power cut the log can be read before the router has cut it."""
    written = small_log(tmp_path)
    with last_segment(tmp_path).open("ab") as file:
        file.write(bytes(100) + b"\n")

    assert read_said(tmp_path) == written
    assert "torn tail" in caplog.text


def test_unknown_events_are_handed_out_with_their_bytes(tmp_path: Path) -> None:
    """Between known ones, without harm to them."""
    written = small_log(tmp_path)
    path = last_segment(tmp_path)
    *_, (_, last) = records(tmp_path)
    crc = int(path.read_bytes()[-11:-3], 16)
    raw, _ = encode_lines([UnknownEvent(type="MoonRose", raw=b"", seq=last.seq + 1)], crc)
    with path.open("ab") as file:
        file.write(raw)

    events = read_said(tmp_path)

    assert events[:-1] == written
    assert isinstance(events[-1], UnknownEvent)
    assert events[-1].raw == raw[:-1]


def test_a_tail_hands_out_each_event_once_through_rolls_and_sealing(tmp_path: Path) -> None:
    """The files change under it all the time."""
    numbered = Numbered()
    seen: list[Event] = []
    written: list[Event] = []
    with LogWriter.open(tmp_path, segment_bytes=900, checkpoint=numbered.checkpoint, durability="never") as writer:
        tail = Tail(tmp_path)
        assert tail.poll() == []
        for round_ in range(30):
            written += numbered.write(writer, 1 + round_ % 7)
            if round_ % 3 == 0:
                until(lambda: all(segment.sealed for segment in list_segments(tmp_path, "events")[:-1]))
            if round_ % 2 == 0:
                while events := tail.poll():
                    seen += events
                assert seen == written
        tail.close()


def test_a_tail_starts_where_it_is_told_to(tmp_path: Path) -> None:
    """At a seq, or behind what is there now."""
    written = small_log(tmp_path, steps=12, segment_bytes=900)
    late, everything, middle = Tail(tmp_path, from_seq=None), Tail(tmp_path), Tail(tmp_path, from_seq=9)
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="never") as writer:
        numbered.restore(writer.recovered)
        more = numbered.write(writer, 2)

    assert _all(late) == more
    assert _all(everything) == written + more
    assert _all(middle) == written[8:] + more


def _all(tail: Tail) -> list[Event]:
    found: list[Event] = []
    while events := tail.poll():
        found += events
    tail.close()
    return found


@pytest.mark.parametrize("steps_before_the_sync", [0, 3])
def test_a_tail_survives_a_cut_and_does_not_repeat_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_before_the_sync: int
) -> None:
    """After a failed sync lines are written again, in a new segment or in a new file of the same name."""
    monkeypatch.setattr(writer_module, "GATHER_S", 3600)
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        tail = Tail(tmp_path)
        written = numbered.write(writer, steps_before_the_sync)
        writer._sync_streams()
        written += numbered.write(writer, 3)
        seen = tail.poll()
        writer._fail(OSError("stub"))
        writer._sync_lost = True
        pending = numbered.step(writer.next_seq)
        writer.reopen(pending)
        more = numbered.write(writer, 1)
        seen += _all(tail)

    assert said(seen) == written + pending + more


def test_what_is_written_just_before_a_roll_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look at a segment and the look for a newer one, a line and a roll may come."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=900, checkpoint=numbered.checkpoint, durability="never") as writer:
        written = numbered.write(writer, 1)
        tail = Tail(tmp_path)
        seen = tail.poll()

        def list_late(directory: Path, stream: Stream) -> list[Segment]:
            written.extend(numbered.write(writer, 7))
            return list_segments(directory, stream)

        monkeypatch.setattr("eventlog.tail.list_segments", list_late)
        seen += tail.poll()
        monkeypatch.undo()
        seen += _all(tail)

    assert len(list_segments(tmp_path, "events")) > 1
    assert seen == written


def test_a_segment_that_is_sealed_or_removed_meanwhile(tmp_path: Path) -> None:
    """Files that were listed may have another name by the time they are opened, or be gone."""
    written = small_log(tmp_path, steps=12, segment_bytes=900)
    for segment in list_segments(tmp_path, "events")[:-1]:
        unsealed = segment.path.name.removesuffix(".gz")
        if segment.sealed:
            (tmp_path / unsealed).write_bytes(gzip.decompress(segment.path.read_bytes()))
            segment.path.unlink()
    found = read(tmp_path)
    first = next(found)
    seal_all(tmp_path)
    gone = list_segments(tmp_path, "events")[1]
    lost = list(read(gone.path))
    gone.path.unlink()

    assert said([first, *found]) == [event for event in written if event not in lost]


def test_a_segment_that_is_sealed_just_as_it_is_opened_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However close: its lines are in one file or the other."""
    written = small_log(tmp_path, steps=12, segment_bytes=900)
    for segment in list_segments(tmp_path, "events")[:-1]:
        if segment.sealed:
            (tmp_path / segment.path.name.removesuffix(".gz")).write_bytes(gzip.decompress(segment.path.read_bytes()))
            segment.path.unlink()
    found = read(tmp_path)
    really_open = Path.open
    sealing: list[Path] = []

    def open_late(path: Path, *how: Any, **more: Any) -> Any:
        if path.suffix == ".ndjson" and not sealing:
            sealing.append(path)
            seal_all(tmp_path)
        return really_open(path, *how, **more)

    monkeypatch.setattr(Path, "open", open_late)

    assert said(list(found)) == written
    assert sealing


def test_a_tail_waits_for_a_line_that_is_not_complete(tmp_path: Path) -> None:
    """Then it is handed out whole."""
    written = small_log(tmp_path)
    path = last_segment(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    tail = Tail(tmp_path)

    assert tail.poll() == written[:-1]
    assert tail.poll() == []
    with path.open("ab") as file:
        file.write(whole[-30:])
    assert tail.poll() == written[-1:]
    tail.close()


def test_a_tail_refuses_damage_once_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    """Until then it could be a tail that is just being cut."""
    small_log(tmp_path, steps=12, segment_bytes=900)
    flip(list_segments(tmp_path, "events")[0].path, 8 * 300)
    tail = Tail(tmp_path)

    with pytest.raises(LogDamaged):
        _all(tail)
    tail.close()


def test_a_tail_can_be_polled_from_an_event_loop(tmp_path: Path) -> None:
    """It never waits, so the router's SSE route can use it."""

    async def story() -> list[Event]:
        numbered = Numbered()
        tail = Tail(tmp_path)
        seen: list[Event] = []
        with LogWriter.open(tmp_path, durability="never") as writer:
            for _ in range(3):
                numbered.write(writer, 2)
                await asyncio.sleep(0)
                seen += tail.poll()
        tail.close()
        return seen

    assert [event.seq for event in asyncio.run(story())] == list(range(1, 13))


def test_following_both_streams_until_told_to_stop(tmp_path: Path) -> None:
    """`wait` is asked when nothing is new."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="never") as writer:
        numbered.write(writer, 1)
        rounds = []

        def wait() -> bool:
            rounds.append(1)
            numbered.write(writer, 1)
            writer.append_observations([line(writer)])
            return len(rounds) < 4

        found = [event for _, event in follow(tmp_path, stream="all", from_seq=None, wait=wait)]

    assert [event.seq for event in found] == list(range(3, 12))
    assert not any(isinstance(event, SegmentOpened) for event in found)
