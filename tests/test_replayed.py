"""The verifier of recorded runs is no rubber stamp: it finds a decision that was changed, left out or made up."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from eventlog.verify import verify
from eventlog.writer import LogWriter
from router.scheduler import State, digest, dump, fold
from tests.replayed import replayed
from tests.scheduler.world import World

Events = list[e.Event]


@pytest.fixture
def world() -> World:
    """Two models take turns on one GPU, with a grace: swaps, holds, timers and dispatches."""
    models = {name: ModelSettings(gpus=(0,)) for name in "AB"}
    world = World(SchedulerSettings(models=models, head_grace_us=2_000_000))
    for at_s, model in enumerate("ABAABBAB"):
        world.arrives(at_s, model)
    world.run()
    return world


def written(folder: Path, events: Events) -> Path:
    """A log with these events: its chain is whole, whatever was done to them."""
    with LogWriter.open(folder) as writer:
        writer.append(events)
    assert verify(folder).ok
    return folder


def in_segments(folder: Path, events: Events) -> Path:
    """The same in many segments, each with a checkpoint between two steps."""
    state = State()
    with LogWriter.open(folder, segment_bytes=1000, checkpoint=lambda: dump(state)) as writer:
        for event in events:
            if isinstance(event, e.Fact):
                writer.roll_if_due()
            writer.append([event])
            fold(state, event)
    return folder


def test_a_run_replays_to_the_state_that_it_ended_in(world: World, tmp_path: Path) -> None:
    replay = replayed(written(tmp_path, world.record))
    assert digest(replay.state) == digest(world.state)
    assert (replay.runs, replay.facts + replay.decisions) == (1, len(world.record))


def test_every_checkpoint_of_a_run_is_compared_with_the_replayed_state(world: World, tmp_path: Path) -> None:
    assert replayed(in_segments(tmp_path, world.record)).checkpoints > 5


def test_a_log_whose_beginning_is_gone_replays_from_its_oldest_checkpoint(world: World, tmp_path: Path) -> None:
    """Retention cuts at a checkpoint, in the middle of a run."""
    in_segments(tmp_path, world.record)
    for segment in sorted(tmp_path.glob("events-*"))[:3]:
        segment.unlink()
    replay = replayed(tmp_path)
    assert digest(replay.state) == digest(world.state)
    assert 0 < replay.facts + replay.decisions < len(world.record)


def test_a_run_that_was_killed_in_the_middle_of_a_step_is_followed_by_the_next(world: World, tmp_path: Path) -> None:
    """The fact of the last step was written, its decisions were not; the next run knows what it must by `carried`."""
    cut = next(place for place, event in enumerate(world.record) if isinstance(event, e.SwapBegun))
    events = world.record[:cut]
    start = world.record[0]
    events.append(replace(start, seq=events[-1].seq + 1, at_us=events[-1].at_us + 1, run=2))
    assert replayed(written(tmp_path, events)).runs == 2


def other_replica(events: Events) -> Events:
    """A dispatch to a replica that the rules did not choose."""
    return [replace(event, replica="Z#0.9") if isinstance(event, e.RequestDispatched) else event for event in events]


def other_wait(events: Events) -> Events:
    """The right replica, but a wait that was a microsecond longer: the reason is part of the decision."""
    place = [type(event) for event in events].index(e.RequestDispatched)
    return [*events[:place], replace(events[place], waited_us=77), *events[place + 1 :]]


def left_out(events: Events) -> Events:
    """A swap that never was decided on; the numbers behind it are closed up."""
    place = [type(event) for event in events].index(e.SwapBegun)
    return [*events[:place], *(replace(event, seq=event.seq - 1) for event in events[place + 1 :])]


def made_up(events: Events) -> Events:
    """A decision that nothing led to, at the end of the log."""
    last = events[-1]
    extra = e.AdminDone(seq=last.seq + 1, at_us=last.at_us, run=1, cause=last.cause or last.seq, op=9, outcome="done")
    return [*events, extra]


def exchanged(events: Events) -> Events:
    """Two decisions of one step in the other order."""
    for place, (first, second) in enumerate(pairwise(events)):
        if isinstance(first, e.Decision) and isinstance(second, e.Decision):
            swapped = [replace(second, seq=first.seq), replace(first, seq=second.seq)]
            return [*events[:place], *swapped, *events[place + 2 :]]
    raise AssertionError("no step has two decisions")


def cut_short(events: Events) -> Events:
    """The last step without its decisions, in a run that was not killed as far as the log tells."""
    place = max(place for place, event in enumerate(events) if isinstance(event, e.Decision))
    return events[:place]


@pytest.mark.parametrize("change", [other_replica, other_wait, left_out, made_up, exchanged, cut_short])
def test_a_log_that_was_tampered_with_does_not_replay(
    change: Callable[[Events], Events], world: World, tmp_path: Path
) -> None:
    """Every checksum is right; only what it says does not follow."""
    log = written(tmp_path, change(world.record))
    with pytest.raises(AssertionError, match="follow"):
        replayed(log)


def test_a_checkpoint_that_is_another_state_does_not_replay(world: World, tmp_path: Path) -> None:
    """The live state had gone its own way, while every decision was still the same."""
    with LogWriter.open(tmp_path, segment_bytes=1, checkpoint=lambda: dump(State(profile="other"))) as writer:
        for event in world.record:
            if isinstance(event, e.RequestArrived):
                writer.roll_if_due()
            writer.append([event])
    with pytest.raises(AssertionError, match="checkpoint"):
        replayed(tmp_path)
