"""Proving a log, and repairing a damaged one: what is valid stays, nothing is deleted, and the hole is on record."""

import gzip
import os
import random
import shutil
from pathlib import Path

import pytest

from eventlog.codec import decode, encode_lines
from eventlog.errors import LogDamaged, LogLocked
from eventlog.events import LogTruncated, SegmentOpened
from eventlog.housekeeping import seal_all
from eventlog.reader import read
from eventlog.recover import recover
from eventlog.repair import repair
from eventlog.segments import DAMAGED, STREAMS, list_segments
from eventlog.verify import verify
from eventlog.writer import LogWriter
from tests.eventlog.small_log import Numbered, flip, last_segment, line, read_said, small_log, truncations


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Segments with checkpoints, two of them sealed, and observations."""
    directory = tmp_path / "log"
    numbered = Numbered()
    with LogWriter.open(directory, segment_bytes=1000, checkpoint=numbered.checkpoint, durability="never") as writer:
        for _ in range(20):
            numbered.write(writer, 1)
            writer.append_observations([line(writer, "x" * 60)])
    seal_all(directory)
    for segment in list_segments(directory, "events")[2:4]:
        unseal(segment.path)
    return directory


def unseal(path: Path) -> None:
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()


def test_a_sound_log_is_proved(log: Path) -> None:
    """Both streams, all segments."""
    result = verify(log)

    assert result.ok
    assert not result.torn
    assert result.segments == sum(len(list_segments(log, stream)) for stream in STREAMS)
    assert result.checkpoints == len(list_segments(log, "events")) - 1
    assert (result.first_seq, result.last_seq) == (1, 60)


def test_verify_proves_from_any_checkpoint_on(log: Path) -> None:
    """Retention has removed what was before."""
    for segment in list_segments(log, "events")[:3]:
        segment.path.unlink()

    assert verify(log).ok


def test_a_single_segment_is_proved_by_itself(log: Path) -> None:
    """Its header says where its chain begins."""
    assert all(verify(segment.path).ok for segment in list_segments(log, "events"))


def test_verify_names_the_first_bad_byte(log: Path) -> None:
    """File, offset and the last good event."""
    path = list_segments(log, "events")[2].path
    data = path.read_bytes()
    third = data.index(b"\n", data.index(b"\n") + 1) + 1
    second = decode(data[:third].splitlines()[1])
    flip(path, 8 * (third + 40))

    (fault,) = verify(log).faults

    assert (fault.file, fault.offset) == (path, third)
    assert fault.after_seq == second.seq
    assert str(path) in str(fault)


@pytest.mark.parametrize("which", [1, 2, 3])
def test_verify_misses_a_segment_that_was_taken_away(log: Path, which: int) -> None:
    """Each header continues the segment before."""
    list_segments(log, "events")[which].path.unlink()

    (fault,) = verify(log).faults

    assert "a segment is missing" in fault.reason


def test_verify_finds_two_segments_that_changed_places(log: Path) -> None:
    """Whole and valid each, but not in their order."""
    first, second = (segment.path for segment in list_segments(log, "events")[2:4])
    shutil.move(first, log / "x")
    shutil.move(second, first)
    shutil.move(log / "x", second)

    assert not verify(log).ok


def test_verify_tells_a_torn_tail_from_damage(log: Path) -> None:
    """A crash leaves one; it is no reason to repair."""
    with last_segment(log).open("ab") as file:
        file.write(b'{"type":"Ad')

    result = verify(log)

    assert result.ok
    assert [fault.file for fault in result.torn] == [last_segment(log)]


def test_verify_finds_numbers_out_of_order(tmp_path: Path) -> None:
    """Even where every checksum is right: two programs may have written."""
    small_log(tmp_path)
    path = last_segment(tmp_path)
    crc = int(path.read_bytes()[-11:-3], 16)
    with path.open("ab") as file:
        file.write(encode_lines(Numbered().step(3), crc)[0])

    (fault,) = verify(tmp_path).faults

    assert "seq 3 after seq 6" in fault.reason


def test_repair_of_a_sound_log_changes_nothing(log: Path) -> None:
    """And says that there was nothing to do."""
    before = {path.name: path.read_bytes() for path in log.iterdir()}

    assert repair(log) == []

    assert {path.name: path.read_bytes() for path in log.iterdir()} | {"lock": b""} == before | {"lock": b""}


def test_repair_cuts_the_last_segment_at_the_damage(log: Path) -> None:
    """The router starts again, with all that was valid before it."""
    numbered = Numbered()
    with LogWriter.open(log, durability="never") as writer:
        numbered.restore(writer.recovered)
        for _ in range(4):
            writer.append(numbered.step(writer.next_seq))
    events = read_said(log)
    path = last_segment(log)
    whole = path.read_bytes()
    bad = whole.rindex(b"\n", 0, len(whole) - 500) + 1
    flip(path, 8 * (bad + 30))
    with pytest.raises(LogDamaged):
        recover(log)

    (lost,) = repair(log)

    assert (lost.offset, lost.bytes) == (bad, len(whole) - bad)
    assert lost.aside is not None
    assert lost.aside.read_bytes()[60:] == whole[bad + 60 :]
    assert verify(log).ok
    kept = read_said(log)
    assert kept == events[: len(kept)]
    assert path.read_bytes()[:bad] == whole[:bad]
    LogWriter.open(log).close()


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_repair_keeps_what_is_around_a_damaged_segment(log: Path, which: int) -> None:
    """Its valid beginning and all later segments, sealed or not: they open with a checkpoint."""
    events = read_said(log)
    segments = list_segments(log, "events")
    path = segments[which].path
    size = path.stat().st_size
    flip(path, 8 * (size * 2 // 3))

    (lost,) = repair(log)

    kept = read_said(log)
    assert verify(log).ok
    assert verify(log).holes == 1
    assert [event for event in events if event in kept] == kept
    assert [event for event in events if event.seq >= segments[which + 1].first_seq] == [
        event for event in kept if event.seq >= segments[which + 1].first_seq
    ]
    assert 0 < len(events) - len(kept) < 10
    (cut,) = truncations(log)
    assert (cut.file, cut.offset, cut.bytes) == (path.name, lost.offset, lost.bytes)
    assert cut.seq not in {event.seq for event in read(log, stream="observations")}
    assert len(list((log / DAMAGED).iterdir())) == 1
    assert repair(log) == []
    LogWriter.open(log).close()
    assert read_said(log) == kept


def test_repair_without_the_header_sets_the_whole_segment_aside(log: Path) -> None:
    """Nothing in it can be proved."""
    segments = list_segments(log, "events")
    flip(segments[2].path, 8 * 30)

    (lost,) = repair(log)

    assert lost.what == "file"
    assert not segments[2].path.exists()
    assert verify(log).ok
    assert verify(log).holes == 1


def test_repair_of_a_missing_segment_puts_the_hole_on_record(log: Path) -> None:
    """Somebody deleted it; from then on verify knows."""
    list_segments(log, "events")[1].path.unlink()

    (lost,) = repair(log)

    assert lost.what == "gap"
    assert verify(log).ok
    assert verify(log).holes == 1
    assert repair(log) == []


def test_a_hole_on_record_excuses_no_other_hole(log: Path) -> None:
    """A segment that goes missing behind it is still missed."""
    list_segments(log, "events")[1].path.unlink()
    repair(log)
    list_segments(log, "events")[1].path.unlink()

    assert not verify(log).ok


def test_repair_sets_continuations_of_what_is_lost_aside_too(tmp_path: Path) -> None:
    """They hold no state to fold them on."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="never", checkpoint=numbered.checkpoint, segment_bytes=700) as writer:
        numbered.write(writer, 4)
        writer.append(numbered.step(writer.next_seq))
        writer._fail(OSError("stub"))
        writer.reopen()
        writer.append(numbered.step(writer.next_seq))
        numbered.write(writer, 6)
    segments = list_segments(tmp_path, "events")
    headers = [event for event in read(tmp_path) if isinstance(event, SegmentOpened)]
    continuation = next(index for index, header in enumerate(headers) if index and not header.state)
    unseal_if_needed(segments[continuation - 1].path)
    before = list_segments(tmp_path, "events")[continuation - 1].path
    flip(before, 8 * (before.stat().st_size - 20))

    lost = repair(tmp_path)

    assert [each.what for each in lost] == ["tail", "file"]
    assert verify(tmp_path).ok
    again = Numbered()
    again.restore(recover(tmp_path))
    assert again.op == numbered.op


def unseal_if_needed(path: Path) -> None:
    if path.suffix == ".gz":
        unseal(path)


def test_repair_heals_observations_the_same_way(log: Path) -> None:
    """They need no checkpoint to go on."""
    segments = list_segments(log, "observations")
    unseal(segments[1].path)
    path = list_segments(log, "observations")[1].path
    flip(path, 8 * (path.stat().st_size // 2))
    events = read_said(log)

    repair(log)

    assert verify(log).ok
    assert read_said(log) == events
    assert len(list_segments(log, "observations")) == len(segments)


def test_garbage_between_two_segments_leaves_no_hole(log: Path) -> None:
    """All lines are there: cutting the garbage is enough."""
    events = read_said(log)
    with list_segments(log, "events")[2].path.open("ab") as file:
        file.write(b"garbage\n")

    repair(log)

    assert read_said(log) == events
    assert verify(log).ok
    assert verify(log).holes == 0


def test_a_dry_run_says_what_would_be_lost(log: Path) -> None:
    """And does nothing."""
    path = list_segments(log, "events")[2].path
    flip(path, 8 * 400)
    damaged = path.read_bytes()

    (lost,) = repair(log, dry_run=True)

    assert lost.aside is None
    assert path.read_bytes() == damaged
    assert not (log / DAMAGED).exists()


def test_a_log_in_use_is_not_repaired(log: Path) -> None:
    """The router that writes it is named."""
    with LogWriter.open(log), pytest.raises(LogLocked, match=f"process {os.getpid()}"):
        repair(log)


def test_whatever_is_broken_repair_makes_it_pass(log: Path, tmp_path: Path) -> None:
    """Random bits, cuts, zeroed stretches and lost files, several at once: never a phantom, and verify passes."""
    rng = random.Random(3)
    events = list(read(log, stream="all"))

    for round_ in range(60):
        copy = tmp_path / f"round-{round_}"
        shutil.copytree(log, copy)
        for _ in range(rng.randint(1, 4)):
            harm(rng, rng.choice([segment.path for stream in STREAMS for segment in list_segments(copy, stream)]))

        repair(copy)

        result = verify(copy)
        assert result.ok, (round_, result.faults)
        left = [event for event in read(copy, stream="all") if not isinstance(event, LogTruncated)]
        assert all(event in events for event in left), f"round {round_}: a phantom"
        LogWriter.open(copy, durability="never").close()
        assert verify(copy).ok
        shutil.rmtree(copy)


def harm(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data)) if data else 0
    match rng.choice(["bit", "cut", "zeros", "remove", "append"]):
        case "bit" if data:
            data[place] ^= 1 << rng.randrange(8)
        case "cut":
            del data[place:]
        case "zeros":
            data[place : place + 200] = bytes(len(data[place : place + 200]))
        case "append":
            data += rng.randbytes(50)
        case "remove":
            path.unlink()
            return
    path.write_bytes(data)
