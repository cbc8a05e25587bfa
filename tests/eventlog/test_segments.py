"""Segments: they roll, are sealed, are removed when old, and no kill in between does harm."""

import errno
import gzip
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from eventlog.damaged import set_aside
from eventlog.errors import LogDamaged, LogError, LogLocked
from eventlog.events import SegmentOpened
from eventlog.housekeeping import Housekeeper, Retention, read_header, retain, seal, seal_all
from eventlog.reader import read
from eventlog.recover import recover
from eventlog.segments import STREAMS, list_segments, segment_of, stored_bytes
from eventlog.verify import verify
from eventlog.writer import LogWriter
from tests.eventlog.small_log import START_US, Numbered, flip, last_segment, line, read_said, small_log, until


def names(directory: Path, stream: str = "events") -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(stream))


def test_each_segment_opens_with_the_chain_and_the_state(tmp_path: Path) -> None:
    """The state is that of all events before; the number in the name is that of the line that follows."""
    written = small_log(tmp_path, steps=12, segment_bytes=1000)

    segments = list_segments(tmp_path, "events")
    headers = [event for event in read(tmp_path) if isinstance(event, SegmentOpened)]

    assert len(segments) == len(headers) > 2
    assert not headers[0].state, "there was nothing yet"
    for segment, header in zip(segments[1:], headers[1:], strict=True):
        before = [event for event in written if event.seq < header.seq]
        assert header.seq == segment.first_seq == before[-1].seq + 1
        assert msgspec.json.decode(header.state) == {"op": len(before) // 2}
    assert read_said(tmp_path) == written


def test_a_start_reads_only_the_last_segment(tmp_path: Path) -> None:
    """Damage further back is none of its business; verify finds it."""
    written = small_log(tmp_path, steps=12, segment_bytes=1000)
    first = list_segments(tmp_path, "events")[0].path
    first.write_bytes(b"nonsense")

    found = recover(tmp_path)

    assert found.state is not None
    assert found.events == written[-len(found.events) :]
    assert found.last_seq == written[-1].seq
    assert verify(tmp_path).faults[0].file == first


def test_a_start_goes_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    """Segments that were opened in the middle of a step have none."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1000, checkpoint=numbered.checkpoint, durability="never") as writer:
        numbered.write(writer, 12)
        writer._fail(OSError("stub"))
        writer.reopen()
        numbered.write(writer, 1)

    found = recover(tmp_path)
    again = Numbered()
    again.restore(found)

    assert again.op == 13
    assert found.state is not None


def test_a_missing_segment_since_the_checkpoint_stops_the_start(tmp_path: Path) -> None:
    """Folding around a hole would give a wrong state."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="never") as writer:
        for _ in range(3):
            numbered.write(writer, 1)
            writer._fail(OSError("stub"))
            writer.reopen()
    list_segments(tmp_path, "events")[1].path.unlink()

    with pytest.raises(LogDamaged, match="does not continue"):
        recover(tmp_path)


def test_finished_segments_are_compressed_in_the_background(tmp_path: Path) -> None:
    """Both streams; the current segments stay plain, and reading does not notice."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1000, checkpoint=numbered.checkpoint) as writer:
        written = numbered.write(writer, 12)
        for _ in range(20):
            writer.append_observations([line(writer, "x" * 40)])
        until(lambda: all(name.endswith(".gz") for stream in STREAMS for name in names(tmp_path, stream)[:-1]))

        assert read_said(tmp_path) == written
    assert [event.text for event in read(tmp_path, stream="observations", types={"LogLine"})] == ["x" * 40] * 20
    assert verify(tmp_path).ok


@pytest.mark.parametrize("killed_before", ["fsync", "replace", "unlink"])
def test_a_kill_between_the_steps_of_sealing_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: str
) -> None:
    """Every line can be read at once, and the next start finishes the work."""

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    written = small_log(tmp_path, steps=12, segment_bytes=1000)
    seal_all(tmp_path)
    plain = segment_of(_unseal(tmp_path))
    assert plain is not None
    monkeypatch.setattr(Path if killed_before == "unlink" else os, killed_before, die)
    with pytest.raises(Killed):
        seal(plain)
    monkeypatch.undo()

    assert read_said(tmp_path) == written
    assert verify(tmp_path).ok
    with LogWriter.open(tmp_path, durability="never"):
        until(lambda: all(name.endswith(".gz") for name in names(tmp_path)[:-1]))
    assert read_said(tmp_path) == written
    assert not list(tmp_path.glob("*.new"))


def _unseal(directory: Path) -> Path:
    """Make the oldest segment plain again."""
    sealed = list_segments(directory, "events")[0].path
    plain = sealed.with_suffix("")
    plain.write_bytes(gzip.decompress(sealed.read_bytes()))
    sealed.unlink()
    return plain


def test_sealing_that_is_stopped_leaves_the_plain_segment(tmp_path: Path) -> None:
    """A router that stops does not wait for it."""
    small_log(tmp_path, steps=12, segment_bytes=1000)
    seal_all(tmp_path)
    plain = segment_of(_unseal(tmp_path))
    assert plain is not None
    stop = threading.Event()
    stop.set()

    seal(plain, stop)

    assert plain.path.exists()
    assert names(tmp_path)[0] == plain.path.name


def test_the_oldest_segments_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    """What stays can be read and proved from its first checkpoint on."""
    written = small_log(tmp_path, steps=40, segment_bytes=1000)
    sizes = [stored_bytes(segment) for segment in list_segments(tmp_path, "events")]

    removed = retain(tmp_path, Retention(bytes=sum(sizes[-4:]) + 10), now_us=0)

    assert len(removed) == len(sizes) - 4
    kept = read_said(tmp_path)
    assert kept == written[-len(kept) :]
    assert verify(tmp_path).ok
    assert next(read(tmp_path)).state  # type: ignore[attr-defined]


def test_the_oldest_segments_go_when_they_are_too_old(tmp_path: Path) -> None:
    """Age is counted from the newest event, not from any clock."""
    written = small_log(tmp_path, steps=40, segment_bytes=1000)

    retain(tmp_path, Retention(us=10_000), now_us=written[-1].at_us)

    kept = read_said(tmp_path)
    young = [event for event in written if event.at_us >= written[-1].at_us - 10_000]
    assert kept == written[-len(kept) :]
    assert len(young) <= len(kept) < len(young) + 12


def test_a_clock_that_was_set_back_leaves_no_hole(tmp_path: Path) -> None:
    """What was written while the clock was wrong looks old, but what came before it is to stay."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1000, checkpoint=numbered.checkpoint, durability="never") as writer:
        for start_us in (START_US, START_US - 10**12, START_US + 10**7):
            numbered.start_us = start_us
            last_us = numbered.write(writer, 20)[-1].at_us

    assert retain(tmp_path, Retention(us=3_600_000_000), now_us=last_us) == []
    assert verify(tmp_path).ok


@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_that_cannot_be_read_does_not_keep_the_rest_for_ever(tmp_path: Path, sealed: bool) -> None:
    """It goes with those before it; else a log with one bad byte in the wrong place would fill the disk."""
    written = small_log(tmp_path, steps=40, segment_bytes=1000)
    seal_all(tmp_path)
    damaged = list_segments(tmp_path, "events")[3].path if sealed else _unseal(tmp_path)
    damaged.write_bytes(b"nonsense")
    sizes = [stored_bytes(segment) for segment in list_segments(tmp_path, "events")]

    retain(tmp_path, Retention(bytes=sum(sizes[-2:]) + 10), now_us=0)

    assert damaged not in [segment.path for segment in list_segments(tmp_path, "events")]
    kept = read_said(tmp_path)
    assert kept == written[-len(kept) :]
    assert verify(tmp_path).ok


def test_nobody_may_read_a_sealed_segment_who_could_not_read_it_before(tmp_path: Path) -> None:
    """Nor what is set aside from it."""
    small_log(tmp_path, steps=12, segment_bytes=1000)
    seal_all(tmp_path)
    plain = segment_of(_unseal(tmp_path))
    assert plain is not None
    plain.path.chmod(0o600)
    aside = set_aside(plain.path)
    seal(plain)

    sealed = list_segments(tmp_path, "events")[0].path
    assert sealed.name.endswith(".gz")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (sealed, aside)] == [0o600, 0o600]


def test_the_current_segment_and_the_last_checkpoint_always_stay(tmp_path: Path) -> None:
    """Whatever the limit: a start must find the state."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1000, checkpoint=numbered.checkpoint, durability="never") as writer:
        numbered.write(writer, 12)
        for _ in range(3):
            writer._fail(OSError("stub"))
            writer.reopen()
            numbered.write(writer, 1)

    retain(tmp_path, Retention(bytes=1, us=1), now_us=START_US * 2)

    left = list_segments(tmp_path, "events")
    header = read_header(left[0])
    assert header is not None
    assert header.state
    assert len(left) == 4
    again = Numbered()
    again.restore(recover(tmp_path))
    assert again.op == 15


def test_continuations_go_together_with_their_checkpoint(tmp_path: Path) -> None:
    """A log never begins with a segment that cannot be folded."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1000, checkpoint=numbered.checkpoint, durability="never") as writer:
        for _ in range(4):
            numbered.write(writer, 3)
            writer._fail(OSError("stub"))
            writer.reopen()
            numbered.write(writer, 6)
    total = sum(stored_bytes(segment) for segment in list_segments(tmp_path, "events"))

    while retain(tmp_path, Retention(bytes=total), now_us=0) or total > 1000:
        total -= 300
        header = read_header(list_segments(tmp_path, "events")[0])
        assert header is not None
        assert header.state or header.seq == 1
        assert verify(tmp_path).ok


def test_retention_runs_while_the_log_is_written(tmp_path: Path) -> None:
    """A router that runs for months stays within its limit."""
    numbered = Numbered()
    with LogWriter.open(
        tmp_path, segment_bytes=2000, keep_bytes=6000, checkpoint=numbered.checkpoint, durability="never"
    ) as writer:
        numbered.write(writer, 200)
        until(lambda: sum(stored_bytes(segment) for segment in list_segments(tmp_path, "events")) < 7000)

    again = Numbered()
    again.restore(recover(tmp_path))
    assert again.op == 200


def test_a_full_disk_does_not_keep_old_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be sealed there, and no half of a copy takes room; what is beyond the limit goes all the same."""
    small_log(tmp_path, steps=40, segment_bytes=1000)
    seal_all(tmp_path)
    plain = _unseal(tmp_path)
    size = sum(stored_bytes(segment) for segment in list_segments(tmp_path, "events"))

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        seal(list_segments(tmp_path, "events")[0])
    assert not list(tmp_path.glob("*.new"))
    monkeypatch.setattr("eventlog.housekeeping.fsync_directory", lambda directory: None)
    housekeeper = Housekeeper(tmp_path, Retention(bytes=size - 10))
    housekeeper.start(now_us=START_US)
    until(lambda: not plain.exists())
    housekeeper.stop()
    assert verify(tmp_path).ok


def test_a_second_router_on_the_same_log_is_told_who_has_it(tmp_path: Path) -> None:
    """By process id; afterwards the log is free."""
    with LogWriter.open(tmp_path), pytest.raises(LogLocked, match=f"process {os.getpid()}") as caught:
        LogWriter.open(tmp_path)

    assert caught.value.pid == os.getpid()
    LogWriter.open(tmp_path).close()


def test_a_start_that_fails_leaves_the_log_unlocked(tmp_path: Path) -> None:
    """The owner repairs and starts again, in the same process if need be."""
    small_log(tmp_path)
    path = last_segment(tmp_path)
    flip(path, 8 * 20)
    for _ in range(2):
        with pytest.raises(LogDamaged):
            LogWriter.open(tmp_path)
    flip(path, 8 * 20)

    LogWriter.open(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """Not a traceback."""
    (tmp_path / "file").write_text("")

    with pytest.raises(LogError, match="cannot make the log directory"):
        LogWriter.open(tmp_path / "file" / "log")


def test_a_checkpoint_with_a_newline_is_refused(tmp_path: Path) -> None:
    """It would break the line in two."""
    with LogWriter.open(tmp_path, segment_bytes=10, checkpoint=lambda: msgspec.Raw(b'{\n"op":1}')) as writer:
        writer.append(Numbered().step(writer.next_seq))

        with pytest.raises(ValueError, match="in one line"):
            writer.roll_if_due()


def test_numbers_are_shared_by_both_streams_and_go_on_after_a_restart(tmp_path: Path) -> None:
    """One counter, never reset."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="never") as writer:
        numbered.write(writer, 1)
        writer.append_observations([line(writer)])
        assert writer.next_seq == 4
    with LogWriter.open(tmp_path, durability="never") as writer:
        assert writer.next_seq == 4
        assert writer.recovered.last_seq == 3
        numbered.write(writer, 1)

    assert [event.seq for event in read(tmp_path, stream="all") if not isinstance(event, SegmentOpened)] == [
        1,
        2,
        3,
        4,
        5,
    ]
