"""What a start does to the files of a log before the writer goes on in them.

`recover` has looked and changed nothing; here a torn tail is cut, a segment that a killed `reopen` left complete gets
its name, and the files are opened. Counterpart: `writer`, which calls this while it holds the lock.
"""

import logging
import os
from pathlib import Path

from eventlog.damaged import set_aside
from eventlog.events import SegmentOpened
from eventlog.housekeeping import read_header
from eventlog.recover import Recovered, Torn, recover
from eventlog.segment_file import Mark, SegmentFile, create_segment
from eventlog.segments import UNFINISHED, Segment, segment_of

logger = logging.getLogger("llama_router.eventlog")


def open_events(directory: Path, recovered: Recovered, sync: bool) -> SegmentFile:
    """The segment to go on in; a new one where there is none, or the last one is sealed."""
    tip = recovered.tip
    if tip.segment is None:
        header = SegmentOpened(
            seq=recovered.last_seq + 1,
            at_us=recovered.last_at_us,
            run=recovered.last_run,
            stream="events",
            chain=f"{tip.crc:08x}",
        )
        return create_segment(directory, header, sync=sync)
    mark = Mark(tip.size, tip.crc)
    return SegmentFile.resume("events", tip.segment.path, tip.header_end, mark, recovered.last_seq)


def open_observations(recovered: Recovered) -> SegmentFile | None:
    """The same, but a new one is made with the first observation."""
    tip = recovered.observations_tip
    if tip.segment is None:
        return None
    mark = Mark(tip.size, tip.crc)
    return SegmentFile.resume("observations", tip.segment.path, tip.header_end, mark, recovered.last_seq)


def cut_torn_tail(torn: Torn) -> None:
    """Cut it off, or take the file away where nothing of it is whole; what might be worth something is set aside."""
    path = torn.segment.path
    if torn.keep:
        set_aside(path, torn.offset)
    if torn.offset:
        os.truncate(path, torn.offset)
    else:
        path.unlink()


def finish_reopening(directory: Path) -> None:
    """A segment that was complete but did not get its name: take it if it goes on where the log ends, else drop it."""
    for name in sorted(os.listdir(directory)):
        segment = segment_of(directory / name.removesuffix(UNFINISHED))
        if segment is None or not name.endswith(UNFINISHED):
            continue
        unfinished = directory / name
        header = read_header(Segment(segment.stream, segment.first_seq, unfinished))
        continues = (
            header is not None
            and segment.stream == "events"
            and not segment.path.exists()
            and recover(directory).tip.crc == int(header.chain, 16)
        )
        if continues:
            os.replace(unfinished, segment.path)
            logger.warning("took over %s, which the router had no time to finish", segment.path.name)
        else:
            unfinished.unlink()
