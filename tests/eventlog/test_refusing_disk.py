"""A disk that refuses: nothing is acted on that is not in the log, nothing is said twice, and it goes on afterwards."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog import writer as writer_module
from eventlog.errors import LogUnavailable
from eventlog.events import Event
from eventlog.recover import recover
from eventlog.segments import list_segments
from eventlog.verify import verify
from eventlog.writer import LogWriter
from tests.eventlog.small_log import Numbered, last_segment, line, read_said, truncations, until


class Disk:
    """Stands between the log and the system: fails the calls that it is told to, for one stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: set[str] = set()
        self.stream = "events"
        self.writes_first = 0
        """How many bytes a failing write still takes."""
        for name in ("write", "fdatasync", "fsync", "ftruncate", "replace"):
            monkeypatch.setattr(os, name, self._guarded(name, getattr(os, name)))

    def _guarded(self, name, call):  # type: ignore[no-untyped-def]
        def guarded(target, *rest, **more):  # type: ignore[no-untyped-def]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            if name in self.fails and f"/{self.stream}-" in path:
                if name == "write" and self.writes_first:
                    return call(target, rest[0][: self.writes_first])
                raise OSError(errno.ENOSPC if name == "write" else errno.EIO, f"{name} failed")
            return call(target, *rest, **more)

        return guarded


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs happen when the test says so."""
    monkeypatch.setattr(writer_module, "GATHER_S", 3600)


def restarted(directory: Path) -> Numbered:
    """What the next run folds; it asserts that every event is there once."""
    numbered = Numbered()
    numbered.restore(recover(directory))
    assert verify(directory).ok
    return numbered


def test_a_failed_append_says_so_and_leaves_nothing_behind(tmp_path: Path, disk: Disk) -> None:
    """And so does every append after it, until a new segment works."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        written = numbered.write(writer, 2)
        pending = numbered.step(writer.next_seq)
        disk.fails = {"write"}
        with pytest.raises(LogUnavailable, match="write failed"):
            writer.append(pending)
        disk.fails = set()
        with pytest.raises(LogUnavailable, match="write failed"):
            writer.append(pending)

        assert isinstance(writer.failure, OSError)
        assert read_said(tmp_path) == written


@pytest.mark.parametrize("writes_first", [0, 1, 90, 150])
def test_after_a_failed_append_it_goes_on_in_a_new_segment(tmp_path: Path, disk: Disk, writes_first: int) -> None:
    """The half-written line is cut off, what was refused is there once, and the log says what happened."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        written = numbered.write(writer, 2)
        first = last_segment(tmp_path)
        size = first.stat().st_size
        disk.fails, disk.writes_first = {"write"}, writes_first
        pending = numbered.step(writer.next_seq)
        with pytest.raises(LogUnavailable):
            writer.append(pending)
        pending += numbered.step(pending[-1].seq + 1)
        with pytest.raises(LogUnavailable):
            writer.reopen(pending)
        disk.fails = set()

        writer.reopen(pending)
        more = numbered.write(writer, 1)

        assert writer.failure is None
        assert read_said(tmp_path) == written + pending + more
        (cut,) = truncations(tmp_path)
        assert (cut.file, cut.offset, cut.bytes) == (first.name, size, writes_first)
        assert "could be written" in cut.reason or "write failed" in cut.reason
        assert first.stat().st_size == size
        assert last_segment(tmp_path) != first
    assert restarted(tmp_path).op == numbered.op


def test_a_real_limit_of_the_file_size_is_a_refusal(tmp_path: Path) -> None:
    """The kernel itself takes a part of the line and refuses the rest."""
    numbered = Numbered()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LogWriter.open(tmp_path) as writer:
        numbered.write(writer, 2)
        room = last_segment(tmp_path).stat().st_size + 100
        pending = numbered.step(writer.next_seq)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(LogUnavailable):
                writer.append(pending)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert last_segment(tmp_path).stat().st_size == room

        writer.reopen(pending)

        assert [cut.bytes for cut in truncations(tmp_path)] == [100]
    assert restarted(tmp_path).op == numbered.op


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def fill(writer: LogWriter, numbered: Numbered) -> list[Event]:
    """Write until the disk says no; returns what it refused."""
    for _ in range(5_000):
        step = numbered.step(writer.next_seq)
        try:
            writer.append(step)
        except LogUnavailable:
            return step
    raise AssertionError("the disk took everything")


def test_a_full_disk_refuses_and_a_little_room_is_enough_to_go_on(small_disk: Path) -> None:
    """A real one: everything that was acknowledged is there, and everything that was refused too once there is room."""
    numbered = Numbered()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    with LogWriter.open(small_disk / "log", checkpoint=numbered.checkpoint) as writer:
        step = fill(writer, numbered)
        with pytest.raises(LogUnavailable):
            writer.reopen(step)
        ballast.unlink()

        writer.reopen(step)
        numbered.write(writer, 5)

    assert restarted(small_disk / "log").op == numbered.op


def test_after_a_failed_sync_everything_unsynced_is_written_again(tmp_path: Path, disk: Disk, no_group: None) -> None:
    """What the disk made of it is not even looked at: here it lost it all, as a disk does that fails a sync."""
    numbered = Numbered()
    told = []
    with LogWriter.open(tmp_path, on_failure=lambda: told.append(True)) as writer:
        written = numbered.write(writer, 2)
        writer._sync_streams()
        first = last_segment(tmp_path)
        synced = first.stat().st_size
        written += numbered.write(writer, 3)
        disk.fails = {"fdatasync"}
        writer._sync_streams()
        with first.open("r+b") as file:
            file.seek(synced + 10)
            file.write(bytes(50))
        pending = numbered.step(writer.next_seq)
        with pytest.raises(LogUnavailable, match="fdatasync failed"):
            writer.append(pending)
        disk.fails = set()
        writer._sync_streams()

        writer.reopen(pending)

        assert told == [True]
        assert first.stat().st_size == synced
        assert read_said(tmp_path) == written + pending
        (cut,) = truncations(tmp_path)
        assert (cut.file, cut.offset) == (first.name, synced)
    assert restarted(tmp_path).op == numbered.op


def test_the_background_sync_reports_its_failure_by_itself(tmp_path: Path, disk: Disk) -> None:
    """Without waiting for the next append."""
    numbered = Numbered()
    told = []
    with LogWriter.open(tmp_path, on_failure=lambda: told.append(True)) as writer:
        disk.fails = {"fdatasync"}
        numbered.write(writer, 1)

        until(lambda: bool(told))

        with pytest.raises(LogUnavailable):
            writer.append(numbered.step(writer.next_seq))


def test_a_sync_that_fails_before_the_first_event_replaces_the_segment(
    tmp_path: Path, disk: Disk, no_group: None
) -> None:
    """Only its header was certain, so a continuation would have the same name."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, checkpoint=numbered.checkpoint) as writer:
        written = numbered.write(writer, 2)
        disk.fails = {"fdatasync"}
        writer._sync_streams()
        pending = numbered.step(writer.next_seq)
        with pytest.raises(LogUnavailable):
            writer.append(pending)
        disk.fails = set()

        writer.reopen(pending)
        more = numbered.write(writer, 1)

        assert len(list_segments(tmp_path, "events")) == 1
        assert read_said(tmp_path) == written + pending + more
    assert restarted(tmp_path).op == numbered.op


def test_a_write_that_fails_and_then_a_sync_that_fails_lose_nothing(tmp_path: Path, disk: Disk, no_group: None) -> None:
    """The sync is tried once more before the new segment; its failure means that the unsynced part is written again."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        written = numbered.write(writer, 2)
        writer._sync_streams()
        written += numbered.write(writer, 2)
        disk.fails = {"write", "fdatasync"}
        pending = numbered.step(writer.next_seq)
        with pytest.raises(LogUnavailable):
            writer.append(pending)
        with pytest.raises(LogUnavailable):
            writer.reopen(pending)
        disk.fails = {"fdatasync"}

        writer.reopen(pending)

        assert read_said(tmp_path) == written + pending
    disk.fails = set()
    assert restarted(tmp_path).op == numbered.op


def test_always_means_that_an_unsynced_event_was_refused(tmp_path: Path, disk: Disk) -> None:
    """With durability always the failed sync belongs to that append, and its events are the caller's again."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, durability="always") as writer:
        written = numbered.write(writer, 2)
        pending = numbered.step(writer.next_seq)
        disk.fails = {"fdatasync"}
        with pytest.raises(LogUnavailable):
            writer.append(pending)
        disk.fails = set()

        writer.reopen(pending)

        assert read_said(tmp_path) == written + pending
    assert restarted(tmp_path).op == numbered.op


def test_reopen_without_a_failure_is_an_append(tmp_path: Path) -> None:
    """A caller that hears of a failure twice does no harm."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        pending = numbered.step(writer.next_seq)

        writer.reopen(pending)

        assert read_said(tmp_path) == pending
        assert not truncations(tmp_path)


def test_a_roll_that_cannot_sync_the_old_segment_is_a_failure(tmp_path: Path, disk: Disk, no_group: None) -> None:
    """Otherwise damage could end up before the last segment, where no start accepts it."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=500, checkpoint=numbered.checkpoint) as writer:
        written = numbered.step(writer.next_seq) + numbered.step(writer.next_seq + 2) + numbered.step(5)
        writer.append(written)
        disk.fails = {"fdatasync"}

        with pytest.raises(LogUnavailable):
            writer.roll_if_due()

        disk.fails = set()
        writer.reopen()
        assert read_said(tmp_path) == written
    assert restarted(tmp_path).op == numbered.op


def test_a_roll_that_cannot_make_a_new_segment_goes_on_in_the_old_one(tmp_path: Path, disk: Disk) -> None:
    """The old one is whole; it is tried again a little later."""
    numbered = Numbered()
    with LogWriter.open(tmp_path, segment_bytes=1600, checkpoint=numbered.checkpoint) as writer:
        disk.fails = {"replace"}
        written = numbered.write(writer, 10)
        assert writer.failure is None
        assert len(list_segments(tmp_path, "events")) == 1
        disk.fails = set()
        written += numbered.write(writer, 10)

        assert len(list_segments(tmp_path, "events")) > 1
        assert read_said(tmp_path) == written
    assert restarted(tmp_path).op == numbered.op


@pytest.mark.parametrize("dies_at", ["fsync", "ftruncate", "replace"])
def test_a_router_killed_while_it_reopens_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_group: None, dies_at: str
) -> None:
    """The new segment is complete before the old one is cut, and from then on the next start takes it over."""

    class Killed(BaseException):
        pass

    numbered = Numbered()
    writer = LogWriter.open(tmp_path, checkpoint=numbered.checkpoint)
    try:
        written = numbered.write(writer, 3)
        writer._sync_streams()
        written += numbered.write(writer, 3)
        pending = numbered.step(writer.next_seq)
        writer._fail(OSError(errno.EIO, "a sync failed"))
        writer._sync_lost = True

        real = getattr(os, dies_at)

        def die(target, *rest):  # type: ignore[no-untyped-def]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            if "events-" in path:
                raise Killed
            return real(target, *rest)

        monkeypatch.setattr(os, dies_at, die)
        # A killed process cleans nothing up.
        monkeypatch.setattr(os, "unlink", lambda path: None)
        with pytest.raises(Killed):
            writer.reopen(pending)
        monkeypatch.undo()
        assert list(tmp_path.glob("*.ndjson.new"))
    finally:
        writer.close()

    after = Numbered()
    with LogWriter.open(tmp_path) as again:
        after.restore(again.recovered)
        assert not list(tmp_path.glob("*.ndjson.new"))
        events = read_said(tmp_path)
        assert events in (written, written + pending)
        assert dies_at != "replace" or events == written + pending
        after.write(again, 1)
    assert restarted(tmp_path).op == after.op


def test_observations_that_cannot_be_written_are_dropped_and_counted(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events do not notice; later there is a new segment, and the chain holds."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        writer.append_observations([line(writer, "before")])
        disk.fails, disk.stream, disk.writes_first = {"write"}, "observations", 20
        writer.append_observations([line(writer, "lost"), line(writer, "lost too")][:1])
        written = numbered.write(writer, 1)
        writer.append_observations([line(writer, "dropped without a try")])
        assert writer.dropped_observations == 2
        disk.fails = set()
        monkeypatch.setattr(writer, "_observations_retry", 0.0)
        written += numbered.write(writer, 1)
        writer.append_observations([line(writer, "after")])

        assert read_said(tmp_path) == written
        assert writer.failure is None
    assert len(list_segments(tmp_path, "observations")) == 2
    assert verify(tmp_path).ok


def test_observations_that_cannot_be_synced_stop_nothing(tmp_path: Path, disk: Disk, no_group: None) -> None:
    """They go on in a new segment."""
    with LogWriter.open(tmp_path) as writer:
        writer.append_observations([line(writer)])
        disk.fails, disk.stream = {"fdatasync"}, "observations"
        writer._sync_streams()
        disk.fails = set()
        writer.append_observations([line(writer, "dropped")])
        writer._observations_retry = 0.0
        writer.append_observations([line(writer, "after")])

        assert writer.failure is None
        assert writer.dropped_observations == 1
    assert verify(tmp_path).ok


def test_events_out_of_order_are_refused(tmp_path: Path) -> None:
    """A wrong seq is a bug of the caller, and would be damage to every reader."""
    numbered = Numbered()
    with LogWriter.open(tmp_path) as writer:
        written = numbered.write(writer, 1)

        with pytest.raises(ValueError, match="does not follow 2; stamp events"):
            writer.append(written)

        assert read_said(tmp_path) == written
