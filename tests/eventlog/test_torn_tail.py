"""What a crash, a power cut or a bad bit leaves at the end of a log: an exact prefix or a refusal, never a phantom."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog import writer as writer_module
from eventlog.errors import LogDamaged
from eventlog.housekeeping import seal_all
from eventlog.reader import read
from eventlog.recover import Recovered, recover
from eventlog.segments import DAMAGED, SYNCED, list_segments
from eventlog.verify import verify
from eventlog.writer import LogWriter
from tests.eventlog.small_log import (
    START_US,
    Numbered,
    flip,
    last_segment,
    line,
    read_said,
    small_log,
    truncations,
)

PAGE = 4096


def test_a_log_cut_at_every_byte_is_an_exact_prefix(tmp_path: Path) -> None:
    """Wherever the file ends, the start keeps the complete lines, reports the cut, and goes on."""
    written = small_log(tmp_path / "log", steps=2)
    whole = last_segment(tmp_path / "log").read_bytes()
    ends = [offset + 1 for offset, byte in enumerate(whole) if byte == ord("\n")]

    for size in range(len(whole) + 1):
        directory = tmp_path / f"cut-{size}"
        directory.mkdir()
        (directory / last_segment(tmp_path / "log").name).write_bytes(whole[:size])
        complete = [end for end in ends if end <= size]
        torn = size - (complete[-1] if complete else 0)
        kept = written[: max(0, len(complete) - 1)]

        found = recover(directory)

        assert found.events == kept
        assert [cut.bytes for cut in found.truncated] == ([torn] if torn or not size else [])
        if size % 10 == 0 or size in ends:
            with LogWriter.open(directory, durability="never") as writer:
                more = Numbered().write(writer, 1)
            assert read_said(directory) == kept + more
            assert [cut.bytes for cut in truncations(directory)] == [cut.bytes for cut in found.truncated]
            assert verify(directory).ok


def test_every_flipped_bit_is_found_or_cut_off(tmp_path: Path) -> None:
    """In the middle the start refuses, and says where; in the last line it is a torn tail."""
    written = small_log(tmp_path, steps=2)
    path = last_segment(tmp_path)
    whole = path.read_bytes()
    last_line = whole.rindex(b"\n", 0, len(whole) - 1) + 1

    for bit, flipped in every_flip(path):
        found = recovered_or_damaged(tmp_path)
        if isinstance(found, LogDamaged):
            assert (found.file, found.offset) == (path, whole.rfind(b"\n", 0, flipped) + 1)
        else:
            assert flipped >= last_line - 1, f"bit {bit} in the middle was taken for a torn tail"
            assert found.events == written[: len(found.events)]
            assert len(found.events) >= len(written) - 2
            assert found.truncated


def recovered_or_damaged(directory: Path) -> Recovered | LogDamaged:
    try:
        return recover(directory)
    except LogDamaged as error:
        return error


def every_flip(path: Path) -> Iterator[tuple[int, int]]:
    """Flip each bit of a file in turn: number of the bit, and of its byte."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(whole)):
            index = bit // 8
            os.pwrite(file.fileno(), bytes([whole[index] ^ 1 << bit % 8]), index)
            yield bit, index
            os.pwrite(file.fileno(), whole[index : index + 1], index)


def test_every_flipped_bit_of_a_sealed_segment_is_found(tmp_path: Path) -> None:
    """Either verify says so, or not one byte of the content has changed (gzip has bits that mean nothing)."""
    small_log(tmp_path, steps=6, segment_bytes=400)
    seal_all(tmp_path)
    path = list_segments(tmp_path, "events")[0].path
    events = list(read(path))
    missed = 0

    for _ in every_flip(path):
        if verify(path).ok:
            missed += 1
            assert list(read(path)) == events

    assert path.suffix == ".gz"
    assert 0 < missed < 100, "the header of a gzip file has some bits without a meaning, and only those"


def test_damage_in_the_middle_names_file_offset_and_remedy(tmp_path: Path) -> None:
    """What the router's owner reads."""
    small_log(tmp_path)
    path = last_segment(tmp_path)
    second = path.read_bytes().index(b"\n") + 1
    flip(path, 8 * (second + 20))

    with pytest.raises(LogDamaged) as caught:
        LogWriter.open(tmp_path)

    assert f"{path}: damaged at byte {second}" in str(caught.value)
    assert f"llama-router log repair {tmp_path}" in str(caught.value)


def test_garbage_of_more_than_a_mebibyte_is_no_torn_tail(tmp_path: Path) -> None:
    """A crash cannot leave that much."""
    small_log(tmp_path)
    with last_segment(tmp_path).open("ab") as file:
        file.write(b"\0" * (1 << 20) + b"\0")

    with pytest.raises(LogDamaged):
        recover(tmp_path)


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    """File systems lengthen a file before they have its data."""
    written = small_log(tmp_path)
    with last_segment(tmp_path).open("ab") as file:
        file.write(b"\0" * 10_000)

    found = recover(tmp_path)

    assert found.events == written
    assert [torn.bytes for torn in found.truncated] == [10_000]


class PowerCut:
    """A log whose last part was written but never synced, as the disk has it when the power goes."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        numbered = Numbered()
        monkeypatch.setattr(writer_module, "GATHER_S", 3600)
        with LogWriter.open(directory, checkpoint=numbered.checkpoint) as writer:
            self.synced_events = numbered.write(writer, 30)
            writer._sync_streams()
            self.synced = last_segment(directory).stat().st_size
            self.note = (directory / SYNCED).read_bytes()
            self.events = self.synced_events + numbered.write(writer, 150)
            self.data = last_segment(directory).read_bytes()
            self.size = len(self.data)
        self.name = last_segment(directory).name

    def image(self, target: Path, lost: list[int]) -> Path:
        """The directory after the power cut: of these pages, what was not synced reads as zeros."""
        data = bytearray(self.data)
        for page in lost:
            begin, end = max(self.synced, page * PAGE), min(self.size, (page + 1) * PAGE)
            data[begin:end] = bytes(end - begin)
        target.mkdir()
        (target / self.name).write_bytes(data)
        (target / SYNCED).write_bytes(self.note)
        return target

    @property
    def pages(self) -> range:
        """Those with something unsynced in them."""
        return range(self.synced // PAGE, (self.size + PAGE - 1) // PAGE)


@pytest.fixture
def power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    return PowerCut(tmp_path / "log", monkeypatch)


def test_any_unsynced_page_may_be_zero_after_a_power_cut(power_cut: PowerCut, tmp_path: Path) -> None:
    """Even with good pages behind it: an exact prefix that holds all that was synced, no refusal, and a message.

    What was whole behind the zeros is set aside.
    """
    rng = random.Random(1)
    some = [[page] for page in power_cut.pages]
    some += [sorted(rng.sample(power_cut.pages, rng.randint(2, len(power_cut.pages)))) for _ in range(20)]
    assert len(power_cut.pages) > 5

    for index, lost in enumerate(some):
        directory = power_cut.image(tmp_path / str(index), lost)
        with LogWriter.open(directory, durability="never"):
            pass

        events = read_said(directory)
        assert events == power_cut.events[: len(events)]
        assert events[: len(power_cut.synced_events)] == power_cut.synced_events
        assert len(events) < len(power_cut.events)
        (cut,) = truncations(directory)
        assert cut.file == power_cut.name
        assert max(power_cut.synced, lost[0] * PAGE) - 400 <= cut.offset < (lost[0] + 1) * PAGE
        assert cut.offset + cut.bytes == power_cut.size
        assert verify(directory).ok
        if len(lost) == 1 and lost[0] < power_cut.pages[-2]:
            (aside,) = (directory / DAMAGED).iterdir()
            assert len(aside.read_bytes()) == cut.bytes


def test_a_zeroed_page_before_the_synced_mark_is_damage(power_cut: PowerCut, tmp_path: Path) -> None:
    """No power cut explains it, so nothing is thrown away silently."""
    directory = power_cut.image(tmp_path / "image", [])
    path = directory / power_cut.name
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(data)

    with pytest.raises(LogDamaged):
        LogWriter.open(directory)


def test_without_the_note_a_hole_before_good_lines_is_damage(power_cut: PowerCut, tmp_path: Path) -> None:
    """The strict rule: nothing valid may follow a torn tail."""
    directory = power_cut.image(tmp_path / "image", [power_cut.pages[1]])
    (directory / SYNCED).unlink()

    with pytest.raises(LogDamaged):
        LogWriter.open(directory)


def test_a_segment_that_never_got_its_header_is_taken_away(tmp_path: Path) -> None:
    """The power went just after a roll: the segment before goes on."""
    written = small_log(tmp_path)
    (tmp_path / "events-000000000007.ndjson").write_bytes(b"\0" * 500)
    numbered = Numbered()

    with LogWriter.open(tmp_path, durability="never") as writer:
        numbered.restore(writer.recovered)
        more = numbered.write(writer, 1)

    assert read_said(tmp_path) == written + more
    assert len(list_segments(tmp_path, "events")) == 1
    assert verify(tmp_path).ok


def test_a_clock_that_went_back_an_hour_changes_nothing(tmp_path: Path) -> None:
    """Order comes from seq alone."""
    first, second = Numbered(), Numbered(start_us=START_US - 3_600_000_000, run=2)
    with LogWriter.open(tmp_path, segment_bytes=2000, checkpoint=first.checkpoint) as writer:
        written = first.write(writer, 20)

    with LogWriter.open(tmp_path, segment_bytes=2000, checkpoint=second.checkpoint) as writer:
        second.restore(writer.recovered)
        assert writer.last_run == 1
        written += second.write(writer, 20)
    third = Numbered()
    found = recover(tmp_path)
    third.restore(found)

    assert third.op == 40
    assert found.last_run == 2
    assert found.last_seq == written[-1].seq
    assert read_said(tmp_path) == written
    assert verify(tmp_path).ok


def test_a_torn_observation_is_cut_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    """The other stream is cut the same way, and says so among the events."""
    with LogWriter.open(tmp_path, durability="never") as writer:
        writer.append_observations([line(writer)])
        writer.append_observations([line(writer)])
    path = list_segments(tmp_path, "observations")[0].path
    path.write_bytes(path.read_bytes()[:-5])

    with LogWriter.open(tmp_path, durability="never") as writer:
        writer.append_observations([line(writer, "after")])

    assert [cut.file for cut in truncations(tmp_path)] == [path.name]
    assert verify(tmp_path).ok


def test_damaged_observations_stop_nothing(tmp_path: Path) -> None:
    """They go on in a new segment, with numbers that nobody had; verify still tells of the damage."""
    with LogWriter.open(tmp_path, durability="never") as writer:
        for _ in range(5):
            writer.append_observations([line(writer)])
    path = list_segments(tmp_path, "observations")[0].path
    flip(path, 8 * (path.stat().st_size // 2))

    with LogWriter.open(tmp_path, durability="never") as writer:
        assert writer.next_seq == 6
        writer.append_observations([line(writer, "after")])

    assert len(list_segments(tmp_path, "observations")) == 2
    assert [fault.file for fault in verify(tmp_path).faults] == [path]


def test_threads_are_gone_after_close(tmp_path: Path) -> None:
    """Nothing of a closed log lives on."""
    before = set(threading.enumerate())

    with LogWriter.open(tmp_path, segment_bytes=500) as writer:
        Numbered().write(writer, 20)

    assert set(threading.enumerate()) == before
