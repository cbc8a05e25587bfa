"""What the questions with a name answer where a range, a run or a wait begins or ends in the middle of something."""

from pathlib import Path
from typing import Any

from eventlog import events as e
from projections import questions
from tests.projections.logs import Row, Story, arrives, project, started, us

S = 1_000_000


def answer(folder: Path, name: str, since_s: float, until_s: float, bucket_s: float = 10, model: str = "") -> list[Row]:
    question = questions.find(name)
    parameters = question.parameters(
        since_us=us(since_s), until_us=us(until_s), model=model, bucket_us=round(bucket_s * S)
    )
    with project(folder / "log", folder / "db") as projector, projector.cursor() as cursor:
        found = cursor.execute(question.sql, parameters)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def at(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_a_range_in_which_nothing_moves_tells_of_who_was_there_all_the_time(tmp_path: Path) -> None:
    """One runs and one waits from 5 s on; the range is 20 s to 40 s."""
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1), e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(5, arrives(2, "B", 5))
        story.at(50, e.RequestCancelled(rid=2))

    [row] = answer(tmp_path, "queue_over_time", 20, 40)
    assert at(row, "queued_max", "queued_last", "in_flight_max", "in_flight_last") == (1, 1, 1, 1)
    [row] = answer(tmp_path, "queue_over_time", 20, 40, model="A")
    assert at(row, "queued_max", "in_flight_max") == (0, 1)
    assert answer(tmp_path, "queue_over_time", 20, 40, model="C") == []


def test_who_leaves_the_queue_in_the_first_step_was_in_it_before(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for rid in (1, 2, 3):
            story.at(rid, arrives(rid, "A", rid))
        story.at(22, e.RequestCancelled(rid=2))

    [row] = answer(tmp_path, "queue_over_time", 20, 40)
    assert at(row, "queued_max", "queued_last") == (3, 2)


def test_an_empty_queue_before_a_range_is_nothing_to_tell_of(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, e.RequestCancelled(rid=1))

    assert answer(tmp_path, "queue_over_time", 20, 40) == []


def test_who_is_served_at_once_has_waited_in_no_queue(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for rid in (1, 2):
            story.at(rid, arrives(rid, "A", rid), e.RequestDispatched(rid=rid, replica="A#0.1"))
        story.at(3, e.RequestFinished(rid=1, replica="A#0.1"))
        story.at(4, arrives(3, "A", 4), e.RequestRejected(rid=3, status=429, code="queue_full"))

    [row] = answer(tmp_path, "queue_over_time", 0, 10)
    assert at(row, "queued_max", "queued_last", "in_flight_max", "in_flight_last") == (0, 0, 2, 1)


def test_a_run_that_was_killed_holds_nobody_in_the_queue_until_the_next_one(tmp_path: Path) -> None:
    """Killed at 12 s; the next run begins at 1000 s and says what was lost."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"))
        story.at(10, arrives(1, "A", 10), e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(12, arrives(2, "A", 12))
    with Story(tmp_path / "log", run=2) as story:
        story.at(1000, started("A"), *(e.RequestLost(rid=rid, model="A", lost_run=1) for rid in (1, 2)))

    assert answer(tmp_path, "queue_over_time", 100, 900) == []
    assert [row["in_flight_last"] for row in answer(tmp_path, "queue_over_time", 0, 900)] == [0]


def test_a_rate_counts_the_time_of_a_step_that_is_within_the_range(tmp_path: Path) -> None:
    """Ten tokens a second from 3 s to 36 s; a range from 5 s to 36 s cuts the first and the last step of ten."""
    with Story(tmp_path / "log") as story:
        for second in range(3, 36):
            story.at(second, e.TokensStreamed(rid=1, gaps_us=[100_000] * 10))

    rows = answer(tmp_path, "tokens_over_time", 5, 36)
    assert [row["frames_per_s"] for row in rows] == [10, 10, 10, 10]
    [row] = answer(tmp_path, "tokens_over_time", 35, 35.2)
    assert row["frames_per_s"] == 2, "a moment says nothing of a rate"


def test_time_spent_swapping_is_that_of_the_swaps_that_are_counted(tmp_path: Path) -> None:
    """A load of 4 s, and an unload of 2 s, which is no swap that makes room."""
    with Story(tmp_path / "log") as story:
        story.at(1, e.SwapBegun(swap=1, target="A", why="idle"))
        story.at(5, e.SwapFinished(swap=1, target="A"))
        story.at(10, e.SwapBegun(swap=2, why="ttl", victims=[e.Victim(model="A")]))
        story.at(12, e.SwapFinished(swap=2))

    [row] = answer(tmp_path, "tiles", 0, 100)
    assert at(row, "swaps", "swapping_us") == (1, 4 * S)


def test_a_request_that_is_back_in_the_queue_is_not_being_served(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("A", gpus=[e.Gpu(index=0)]))
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(2, e.ReplicaReady(replica="A#0.1", slots=1))
        story.at(3, arrives(1, "A", 3), e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(9, e.ReplicaCrashed(replica="A#0.1"), e.RequestRequeued(rid=1, replica="A#0.1", attempt=2))

    rows = answer(tmp_path, "status_over_time", 10, 60)
    assert [row["status"] for row in rows] == ["idle"]


def test_how_long_a_stay_was_does_not_depend_on_the_range(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for place, (second, model) in enumerate(((0, "A"), (500, "B"))):
            replica = f"{model}#0.{place}"
            story.at(second, e.ReplicaSpawnOrdered(replica=replica, model=model, index=0, gpus=(0,)))
            story.at(second, e.ReplicaReady(replica=replica, slots=1))
        story.at(400, e.ReplicaStopOrdered(replica="A#0.0", why="evict"))
        story.at(400, e.ReplicaStopped(replica="A#0.0"))

    ended, lasts = answer(tmp_path, "residency_over_time", 300, 600, 1)
    assert at(ended, "from_us", "until_us", "lasted_us") == (us(300), us(400), 400 * S)
    assert at(lasts, "from_us", "until_us", "lasted_us") == (us(500), None, 100 * S)
