"""The only writer of a log: append, group commit, segments, and what to do when the disk says no.

Events go to the operating system within `append`, so a killed process loses nothing; they reach the disk together, at
most 50 ms later (durability "group"), before `append` returns ("always"), or when the kernel likes ("never").

A failed append or sync is never retried as if nothing had happened. `append` raises LogUnavailable, and the caller
keeps what it wanted to say; `reopen` cuts the old segment back to what is certain, and says it all again in a new one.

Counterparts: `recover` (what a start reads), `housekeeping` (what happens to finished segments). Not known here: what
the events mean. Called from one thread; two threads of its own sync and tidy up.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from eventlog.codec import count_valid, decode, encode_lines, rechain
from eventlog.errors import LogError, LogUnavailable
from eventlog.events import NO_STATE, Event, LogTruncated, SegmentOpened
from eventlog.housekeeping import Housekeeper, Retention, remove_unfinished_copies
from eventlog.lock import lock_log
from eventlog.opening import cut_torn_tail, finish_reopening, open_events, open_observations
from eventlog.recover import Recovered, Torn, recover
from eventlog.scan import write_synced
from eventlog.segment_file import Mark, SegmentFile, create_file, create_segment
from eventlog.segments import SYNCED, fsync_directory, segment_name

logger = logging.getLogger("llama_router.eventlog")

Durability = Literal["group", "always", "never"]

SEGMENT_BYTES = 16 << 20
"""A start reads at most about this much; well under a second."""
KEEP_BYTES = 2 << 30
GATHER_S = 0.03
"""From the first unsynced event to the sync of its group; with the sync itself it stays under 50 ms."""
RETRY_OBSERVATIONS_S = 5.0


def no_checkpoint() -> msgspec.Raw | None:
    """For a log whose events need no state."""
    return None


class LogWriter:
    """An open log. `recovered` says what was in it; `next_seq` is the number to stamp the next event with."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        recovered: Recovered,
        events: SegmentFile,
        observations: SegmentFile | None,
        *,
        durability: Durability,
        segment_bytes: int,
        retention: Retention,
        checkpoint: Callable[[], msgspec.Raw | None],
        on_failure: Callable[[], None],
    ) -> None:
        self.directory = directory
        self.recovered = recovered
        self.next_seq = recovered.last_seq + 1
        self.dropped_observations = 0
        self._lock = lock
        self._events = events
        self._observations = observations
        self._observations_crc = recovered.observations_tip.crc
        self._observations_retry = 0.0
        self._observations_broken = False
        self._durability = durability
        self._segment_bytes = segment_bytes
        self._roll_at = segment_bytes
        self._checkpoint = checkpoint
        self._on_failure = on_failure
        self._at_us = recovered.last_at_us
        self._run = recovered.last_run
        self._failure: OSError | None = None
        self._sync_lost = False
        """A sync of the events failed: nobody knows what the disk has of what follows the last good one."""
        self._synced_fd = -1
        self._housekeeper = Housekeeper(directory, retention)
        self._files = threading.Lock()
        """Held while a segment is synced or exchanged for another; never by a plain append."""
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        durability: Durability = "group",
        segment_bytes: int = SEGMENT_BYTES,
        keep_bytes: int = KEEP_BYTES,
        keep_us: int = 0,
        checkpoint: Callable[[], msgspec.Raw | None] = no_checkpoint,
        on_failure: Callable[[], None] = lambda: None,
    ) -> "LogWriter":
        """Lock the log, read its end, cut a torn tail (and say so in the log), and go on from there.

        `checkpoint` is asked by `roll_if_due` alone. `on_failure` is called from a thread when a sync in the background
        failed; the next append would tell as well.

        Raises LogLocked, LogDamaged, LogUnavailable (the disk refuses) and LogError (no access).
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LogError(f"cannot make the log directory {directory}: {error.strerror}") from error
        lock = lock_log(directory)
        try:
            remove_unfinished_copies(directory)
            finish_reopening(directory)
            recovered = recover(directory)
            sync = durability != "never"
            for torn in recovered.truncated:
                cut_torn_tail(torn)
            writer = cls(
                directory,
                lock,
                recovered,
                open_events(directory, recovered, sync),
                open_observations(recovered),
                durability=durability,
                segment_bytes=segment_bytes,
                retention=Retention(keep_bytes, keep_us),
                checkpoint=checkpoint,
                on_failure=on_failure,
            )
            writer._start()
        except OSError as error:
            os.close(lock)
            raise LogUnavailable(f"the log in {directory} cannot be written: {error}") from error
        except BaseException:
            os.close(lock)
            raise
        return writer

    @property
    def last_run(self) -> int:
        """Number of the last run that the log knows."""
        return self._run

    @property
    def failure(self) -> OSError | None:
        """Why nothing can be appended; None while all is well."""
        return self._failure

    def append(self, events: Sequence[Event]) -> None:
        """Write facts and decisions, all or none; when this returns, a killed process cannot lose them.

        Their seq rises. Raises LogUnavailable; keep them then, and hand them to `reopen`.
        """
        if self._failure is not None:
            raise LogUnavailable(self._why())
        if not events:
            return
        segment = self._events
        _check_order(events, segment.last_seq)
        data, crc = encode_lines(events, segment.end.crc)
        before = segment.end
        try:
            segment.append(data, crc)
            if self._durability == "group":
                segment.unsynced.append((segment.end, data))
                if not self._dirty.is_set():
                    self._dirty.set()
            elif self._durability == "always":
                segment.sync()
                self._note_synced()
        except OSError as error:
            segment.end = before
            self._fail(error)
            raise LogUnavailable(self._why()) from error
        last = events[-1]
        segment.last_seq = last.seq
        self._at_us = last.at_us
        self._run = last.run
        if last.seq >= self.next_seq:
            self.next_seq = last.seq + 1

    def append_observations(self, observations: Sequence[Event]) -> None:
        """Write observations if that is possible, else drop and count them; never raises for what a disk does."""
        if not observations:
            return
        try:
            segment = self._observations_segment()
            if segment is None and time.monotonic() < self._observations_retry:
                self.dropped_observations += len(observations)
                return
            _check_order(observations, segment.last_seq if segment else self.recovered.last_seq)
            if segment is None:
                segment = self._open_observations(observations)
            else:
                data, crc = encode_lines(observations, segment.end.crc)
                segment.append(data, crc)
        except OSError as error:
            self._drop_observations(len(observations), error)
            return
        segment.last_seq = observations[-1].seq
        self._observations_crc = segment.end.crc
        self.next_seq = max(self.next_seq, segment.last_seq + 1)
        if self._durability != "never":
            segment.unsynced.append((segment.end, b""))
            if not self._dirty.is_set():
                self._dirty.set()

    def roll_if_due(self) -> bool:
        """Begin a new segment if the current one is full. Call it when `checkpoint` gives the state after the last
        appended event: between two steps.

        Waits for the disk, once per segment. Raises LogUnavailable if the old segment cannot be synced.
        """
        old = self._events
        if self._failure is not None or old.end.offset - old.header_end < self._roll_at:
            return False
        with self._files:
            self._sync_before_roll(old)
            header = self._header(self.next_seq, old.end.crc, self._checkpoint())
            try:
                new = create_segment(self.directory, header, sync=self._durability != "never")
            except OSError as error:
                # Nothing is lost: the old segment is whole, and can take more.
                self._roll_at += max(1, self._segment_bytes // 16)
                logger.warning("no new segment for the log in %s: %s; going on in the old one", self.directory, error)
                return False
            self._exchange(new)
        return True

    def reopen(self, pending: Sequence[Event] = ()) -> None:
        """After LogUnavailable: go on in a new segment, with `pending` (every event that was refused, in order).

        Raises LogUnavailable if the disk still refuses; then nothing has changed, and it can be called again.
        """
        if self._failure is None:
            self.append(pending)
            return
        _check_order(pending, self._events.last_seq)
        try:
            with self._files:
                self._reopen(pending)
        except OSError as error:
            self._failure = error
            raise LogUnavailable(self._why()) from error
        logger.warning("the log in %s can be written again", self.directory)

    def close(self) -> None:
        """Sync and let go of the log. What could not be synced is said in the diary of the router."""
        self._closing.set()
        self._dirty.set()
        if self._thread is not None:
            self._thread.join()
        self._housekeeper.stop()
        if self._durability != "never":
            self._sync_streams()
        self._events.close()
        if self._observations is not None:
            self._observations.close()
        if self._synced_fd >= 0:
            os.close(self._synced_fd)
        os.close(self._lock)

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        note = self.directory / SYNCED
        if self._durability == "never":
            note.unlink(missing_ok=True)
        else:
            self._events.sync()
            self._synced_fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._note_synced()
            os.fsync(self._synced_fd)
            fsync_directory(self.directory)
        self.append([self._truncated(torn, count) for count, torn in enumerate(self.recovered.truncated)])
        if self._durability != "never":
            self._thread = threading.Thread(target=self._sync_forever, name="eventlog-sync", daemon=True)
            self._thread.start()
        self._housekeeper.start(self._at_us)

    # --- syncing ------------------------------------------------------------------------------------------------

    def _sync_forever(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._closing.wait(GATHER_S)
            self._dirty.clear()
            with self._files:
                self._sync_streams()

    def _sync_streams(self) -> None:
        if self._events.unsynced and not self._sync_lost:
            try:
                self._events.sync()
                self._note_synced()
            except OSError as error:
                self._sync_lost = True
                self._fail(error)
                self._on_failure()
        observations = self._observations
        if observations is not None and observations.unsynced and not self._observations_broken:
            try:
                observations.sync()
            except OSError as error:
                self._observations_broken = True
                logger.warning("observations could not be synced: %s", error)

    def _note_synced(self) -> None:
        # A note that cannot be written stays behind the truth, which is the safe side.
        with suppress(OSError):
            write_synced(self._synced_fd, self._events.path.name, self._events.synced.offset)

    def _sync_before_roll(self, old: SegmentFile) -> None:
        # A torn tail is only accepted in the last segment, so this one must be whole on the disk before that changes.
        if self._durability == "never":
            return
        try:
            old.sync()
        except OSError as error:
            self._sync_lost = True
            self._fail(error)
            raise LogUnavailable(self._why()) from error

    # --- segments -----------------------------------------------------------------------------------------------

    def _header(self, seq: int, crc: int, state: msgspec.Raw | None = None) -> SegmentOpened:
        if state is None:
            state = NO_STATE
        if b"\n" in bytes(state):
            raise ValueError("a checkpoint must be JSON in one line")
        return SegmentOpened(
            seq=seq, at_us=self._at_us, run=self._run, stream="events", chain=f"{crc:08x}", state=state
        )

    def _exchange(self, new: SegmentFile) -> None:
        old, self._events = self._events, new
        old.close()
        self._roll_at = self._segment_bytes
        if self._durability != "never":
            self._note_synced()
        self._housekeeper.start(self._at_us)

    def _observations_segment(self) -> SegmentFile | None:
        """Where to append; None where a segment has to be opened: at first, after a full one, and after a failure."""
        segment = self._observations
        if self._observations_broken:
            self._drop_observations(0, OSError("an earlier sync failed"))
            return None
        if segment is not None and segment.end.offset - segment.header_end >= self._segment_bytes:
            with self._files:
                self._observations = None
            segment.close()
            self._housekeeper.start(self._at_us)
            return None
        return segment

    def _open_observations(self, observations: Sequence[Event]) -> SegmentFile:
        """A new segment, never without lines: so it can be given up without a trace in the chain."""
        first = observations[0]
        header = SegmentOpened(
            seq=first.seq,
            at_us=first.at_us,
            run=first.run,
            stream="observations",
            chain=f"{self._observations_crc:08x}",
        )
        new = create_segment(self.directory, header, observations, sync=False)
        with self._files:
            self._observations = new
        return new

    def _drop_observations(self, count: int, error: OSError) -> None:
        self.dropped_observations += count
        segment = self._observations
        if segment is not None:
            with self._files:
                self._observations = None
            with suppress(OSError):
                os.ftruncate(segment.fd, segment.end.offset)
            segment.close()
        self._observations_broken = False
        self._observations_retry = time.monotonic() + RETRY_OBSERVATIONS_S
        logger.warning("observations are dropped for %d s: %s", RETRY_OBSERVATIONS_S, error)

    # --- failing ------------------------------------------------------------------------------------------------

    def _fail(self, error: OSError) -> None:
        self._failure = error
        logger.error("%s", self._why())

    def _why(self) -> str:
        return f"the log in {self.directory} cannot be written: {self._failure}"

    def _reopen(self, pending: Sequence[Event]) -> None:
        old = self._events
        good = self._last_certain(old)
        unsynced = b"".join(data for mark, data in old.unsynced if mark.offset > good.offset)
        cut_bytes = os.fstat(old.fd).st_size - good.offset
        if unsynced:
            first_seq = decode(unsynced.partition(b"\n")[0]).seq
        else:
            first_seq = pending[0].seq if pending else self.next_seq
        last = pending[-1] if pending else None
        truncated = LogTruncated(
            seq=max(self.next_seq, last.seq + 1 if last else 0),
            at_us=last.at_us if last else self._at_us,
            run=last.run if last else self._run,
            file=old.path.name,
            offset=good.offset,
            bytes=cut_bytes,
            reason=str(self._failure),
        )

        replaces = good.offset == old.header_end
        if replaces:
            # Only the header would stay: the new file takes the place of the old one, header included.
            path, head, crc = old.path, _read_header_line(old), good.crc
        else:
            path = self.directory / segment_name("events", first_seq)
            head, crc = encode_lines([self._header(first_seq, good.crc)], good.crc)
        again, crc = rechain(unsynced, crc)
        lines, crc = encode_lines([*pending, truncated], crc)
        data = b"".join((head, again, lines))

        def cut_old() -> None:
            if not replaces:
                os.ftruncate(old.fd, good.offset)
                if self._durability != "never":
                    os.fsync(old.fd)

        fd = create_file(path, data, sync=self._durability != "never", before_rename=cut_old)
        self._failure, self._sync_lost = None, False
        self._at_us, self._run, self.next_seq = truncated.at_us, truncated.run, truncated.seq + 1
        self._exchange(SegmentFile("events", path, fd, len(head), Mark(len(data), crc), truncated.seq))

    def _last_certain(self, old: SegmentFile) -> Mark:
        """Up to where the old segment is what we wrote: all of it, unless a sync failed now or earlier."""
        if self._durability != "never" and not self._sync_lost:
            try:
                old.sync()
            except OSError:
                self._sync_lost = True
        return old.synced if self._sync_lost else old.end

    def _truncated(self, torn: Torn, count: int) -> LogTruncated:
        file = torn.segment.path.name
        logger.warning("cut a torn tail of %d bytes off %s at byte %d: %s", torn.bytes, file, torn.offset, torn.reason)
        return LogTruncated(
            seq=self.next_seq + count,
            at_us=self._at_us,
            run=self._run,
            file=file,
            offset=torn.offset,
            bytes=torn.bytes,
            reason=torn.reason,
        )


def _check_order(events: Sequence[Event], last_seq: int) -> None:
    for event in events:
        if event.seq <= last_seq:
            raise ValueError(
                f"{type(event).__name__} has seq {event.seq}, which does not follow {last_seq}; "
                "stamp events with LogWriter.next_seq right before they are appended"
            )
        last_seq = event.seq


def _read_header_line(segment: SegmentFile) -> bytes:
    """The header as the disk has it, checked against what we wrote."""
    line = os.pread(segment.fd, segment.header_end, 0)
    header = decode(line[:-1])
    assert isinstance(header, SegmentOpened)
    if count_valid([line[:-1]], int(header.chain, 16))[0] != 1:
        raise OSError(errno.EIO, f"the header of {segment.path.name} cannot be read back")
    return line
