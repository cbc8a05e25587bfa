"""Which conversation went where: remembered as long as somebody can come back to it, and never without a bound."""

import pytest

from router import conversations
from router.conversations import KEEP_US, Streams, Turns


def test_the_last_finished_turn_is_the_one_that_the_next_follows() -> None:
    turns = Turns()
    turns.finished("x", 1)
    turns.finished("y", 2)
    turns.finished("x", 3)
    assert [turns.last_of(name) for name in "xyz"] == [3, 2, 0]


def test_of_too_many_conversations_those_that_were_quiet_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "TURNS_MAX", 2)
    turns = Turns()
    for rid, name in enumerate("xyxz", 1):
        turns.finished(name, rid)
    assert [turns.last_of(name) for name in "xyz"] == [3, 0, 4]


def test_a_stream_can_be_come_back_to_for_a_while_after_its_end() -> None:
    streams = Streams()
    streams.opened("c", 1, "alice")
    streams.dispatched("c", 1, "a#0.1")
    streams.ended("c", 1, 1000)
    found = streams.find("c", 1000 + KEEP_US - 1)
    assert found is not None
    assert (found.rid, found.key, found.replica) == (1, "alice", "a#0.1")
    assert streams.find("c", 1000 + KEEP_US) is None


def test_one_that_never_reached_a_replica_leaves_nothing() -> None:
    streams = Streams()
    streams.opened("c", 1)
    assert streams.find("c", 1) is not None
    streams.ended("c", 1, 1)
    assert streams.find("c", 1) is None


def test_what_is_reported_of_an_older_request_says_nothing_of_the_newer_one() -> None:
    """A client asks again under the same id: the first request is still being ended."""
    streams = Streams()
    streams.opened("c", 1)
    streams.opened("c", 2)
    streams.dispatched("c", 1, "old")
    streams.ended("c", 1, 5)
    found = streams.find("c", 5)
    assert found is not None
    assert (found.rid, found.replica, found.ended_us) == (2, "", 0)


def test_an_end_clears_away_what_nobody_comes_back_to_but_never_what_still_runs() -> None:
    """In the order in which they came: behind one that goes on for hours the others wait, each forgotten when asked."""
    streams = Streams()
    for rid, name in enumerate("abc", 1):
        streams.opened(name, rid)
        streams.dispatched(name, rid, "a#0.1")
    streams.ended("a", 1, 1)
    streams.ended("c", 3, 1 + KEEP_US)
    assert list(streams._by_id) == ["b", "c"]
    assert streams.find("b", 10 * KEEP_US) is not None


def test_ids_are_kept_for_so_many_streams_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "STREAMS_MAX", 2)
    streams = Streams()
    for rid, name in enumerate(["a", "b", "a", "c"], 1):
        streams.opened(name, rid)
    assert [name for name in "abc" if streams.find(name, 0) is not None] == ["a", "c"]
