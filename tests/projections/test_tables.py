"""What the other tables say: swaps and who left for them, processes and their GPUs, crashes, the queue, tokens."""

import re
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from eventlog.events import ALL, BY_NAME, Victim
from projections.definitions import definitions
from projections.projector import Projector
from tests.eventlog.samples import sample
from tests.projections.logs import Row, Story, arrives, ask, project, started, us

S = 1_000_000


def answer(folder: Path, sql: str) -> list[Row]:
    with project(folder / "log", folder / "db") as projector:
        return ask(projector, sql)


def test_a_swap_tells_why_who_left_and_who_could_have_left_instead(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(
            1,
            e.SwapBegun(
                swap=7,
                target="A",
                cause_rid=3,
                why="grace_over",
                victims=[Victim(model="B", wanted=2, in_flight=1, age_us=5 * S, gpus=(0,))],
                others=[Victim(model="C", age_us=9 * S, gpus=(0, 1))],
                footprint=(0,),
                waited_us=4 * S,
            ),
        )
        story.at(12, e.SwapFinished(swap=7, target="A", drain_us=3 * S, stop_us=S, load_us=7 * S, ready=1, save_us=S))

    [swap] = answer(tmp_path, "FROM swaps")
    left, stayed = answer(tmp_path, "FROM swap_candidates ORDER BY place")

    assert (swap["why"], swap["cause_rid"], swap["waited_us"], swap["footprint"]) == ("grace_over", 3, 4 * S, [0])
    assert (swap["drain_us"], swap["stop_us"], swap["load_us"], swap["took_us"]) == (3 * S, S, 7 * S, 11 * S)
    assert swap["save_us"] == S
    assert (swap["outcome"], swap["ready"]) == ("ok", 1)
    assert (left["model"], left["chosen"], left["wanted"], left["in_flight"], left["gpus"]) == ("B", True, 2, 1, [0])
    assert (stayed["model"], stayed["chosen"], stayed["age_us"], stayed["gpus"]) == ("C", False, 9 * S, [0, 1])


def test_a_swap_tells_what_its_engine_weighed_and_nothing_where_it_weighs_nothing(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.SwapBegun(swap=1, target="A", why="idle"))
        story.at(2, e.SwapBegun(swap=2, target="A", why="idle", engine="matrix", set_name="evening", cost=40))
        story.at(3, e.SwapBegun(swap=3, target="A", why="idle", engine="capacity", nodes=9, search_limited=True))

    found = answer(tmp_path, "SELECT set_name, cost, nodes, search_limited FROM swaps ORDER BY swap")

    assert [tuple(row.values()) for row in found] == [
        (None, None, None, None),
        ("evening", 40, None, None),
        (None, 0, 9, True),
    ]


def test_swaps_that_were_called_off_or_failed_say_so(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for swap in (1, 2, 3):
            story.at(swap, e.SwapBegun(swap=swap, target="A", why="idle"))
        story.at(5, e.SwapAborted(swap=1, target="A"), e.SwapFinished(swap=2, target="A", ok=False))

    found = answer(tmp_path, "SELECT outcome, abort_why, ended_us FROM swaps ORDER BY swap")

    assert [(row["outcome"], row["abort_why"]) for row in found] == [
        ("aborted", "unwanted"),
        ("failed", None),
        (None, None),
    ]
    assert found[2]["ended_us"] is None


def test_a_model_on_two_gpus_lives_on_both_from_loading_to_its_last_breath(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0, 1), swap=1))
        story.at(2, e.ReplicaSpawned(replica="A#0.1", pid=123))
        story.at(
            5, e.ReplicaReady(replica="A#0.1", slots=4, load_us=4 * S, vram=[e.Memory(0, 3000), e.Memory(1, 2000)])
        )
        story.at(8, e.ReplicaStopOrdered(replica="A#0.1", why="evict", swap=2))
        story.at(9, e.ReplicaStopped(replica="A#0.1", exit_code=0, escalated=True))
        story.at(9, e.ReplicaSpawnOrdered(replica="B#0.2", model="B", index=0, gpus=(1,)))

    [replica, _] = answer(tmp_path, "FROM replicas ORDER BY seq")
    lived = answer(tmp_path, "SELECT gpu, model, phase, from_us, until_us FROM residency ORDER BY model, from_us, gpu")

    assert (replica["slots"], replica["vram_mib"], replica["pid"]) == (4, 5000, 123)
    assert (replica["ending"], replica["stop_why"], replica["stop_forced"]) == ("stopped", "evict", False)
    assert replica["escalated"] is True
    assert [tuple(row.values()) for row in lived] == [
        (0, "A", "loading", us(1), us(5)),
        (1, "A", "loading", us(1), us(5)),
        (0, "A", "ready", us(5), us(8)),
        (1, "A", "ready", us(5), us(8)),
        (0, "A", "stopping", us(8), us(9)),
        (1, "A", "stopping", us(8), us(9)),
        (1, "B", "loading", us(9), None),
    ]


def test_a_load_that_is_called_off_has_loaded_until_its_order_to_stop(tmp_path: Path) -> None:
    """It was never ready, and its process took a while to leave."""
    with Story(tmp_path / "log") as story:
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(3, e.ReplicaStopOrdered(replica="A#0.1", why="stopping"))
        story.at(5, e.ReplicaStopped(replica="A#0.1"))

    lived = answer(tmp_path, "SELECT phase, from_us, until_us FROM residency ORDER BY from_us")

    assert [tuple(row.values()) for row in lived] == [("loading", us(1), us(3)), ("stopping", us(3), us(5))]


@pytest.mark.parametrize("in_time", [False, True])
def test_a_call_that_a_killed_run_left_open_ends_as_the_next_one_says(tmp_path: Path, in_time: bool) -> None:
    """Whether the tables have read its start already or read both together. Of what it says nothing is lost."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"))
        story.at(1, *(e.AdminUnload(op=op, model="A", by="owner") for op in (4, 5, 6)))
        story.at(2, e.AdminDone(op=5, outcome="done"))
    with project(tmp_path / "log", tmp_path / "db") as projector:
        with Story(tmp_path / "log", run=2) as story:
            story.at(9, started("A"))
            if in_time:
                projector.catch_up()
            story.at(9, e.AdminDone(op=4, outcome="cancelled", reason="ended before this was done"))
        projector.catch_up()
        calls = ask(projector, "SELECT op, outcome, ended_us, coalesce(reason, '') FROM operations ORDER BY op")

    assert [tuple(row.values()) for row in calls] == [
        (4, "cancelled", us(9), "ended before this was done"),
        (5, "done", us(2), ""),
        (6, "lost", us(2), ""),
    ]


@pytest.mark.parametrize("size_bytes", [1, 1_000_000])
def test_a_second_order_to_stop_only_adds_force(tmp_path: Path, size_bytes: int) -> None:
    """Its stop began with the first one, whether both are read together or one after the other."""
    with Story(tmp_path / "log") as story:
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(5, e.ReplicaStopOrdered(replica="A#0.1", why="evict"))
        story.at(8, e.ReplicaStopOrdered(replica="A#0.1", why="unload", force=True))
    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        while projector.poll(size_bytes=size_bytes):
            pass
        [replica] = ask(projector, "SELECT stop_ordered_us, stop_why, stop_forced FROM replicas")

    assert tuple(replica.values()) == (us(5), "evict", True)


def test_a_crash_keeps_the_last_lines_of_the_process(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(2, e.ReplicaReady(replica="A#0.1", slots=1))
        story.at(3, e.ReplicaStalled(replica="A#0.1", silent_us=90 * S, norm_us=S, rids=[4, 5]))
        story.at(
            9,
            e.ReplicaCrashed(
                replica="A#0.1", cause_of_exit="signal", signal=11, uptime_us=7 * S, last_lines=["x", "y"]
            ),
        )
        story.at(9, e.ReplicaSpawnOrdered(replica="A#0.2", model="A", index=0, gpus=(0,)))
        story.at(10, e.ReplicaLoadFailed(replica="A#0.2", kind="gpu_oom", reason="out of memory", exit_code=1))

    stall, crash, failed = answer(tmp_path, "FROM crashes ORDER BY seq")

    assert (stall["kind"], stall["model"], stall["silent_us"], stall["rids"]) == ("stall", "A", 90 * S, [4, 5])
    assert (crash["kind"], crash["cause"], crash["signal"], crash["lived_us"]) == ("crash", "signal", 11, 7 * S)
    assert crash["last_lines"] == ["x", "y"]
    assert (failed["kind"], failed["cause"], failed["reason"]) == ("load_failed", "gpu_oom", "out of memory")


def test_what_a_run_that_broke_off_left_open_ended_with_it(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"), e.SwapBegun(swap=1, target="A", why="idle"), e.AdminUnload(op=1, model="A"))
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(4, e.ReplicaReady(replica="A#0.1", slots=1))
    with Story(tmp_path / "log", run=2) as story:
        story.at(100, started("A"))
        story.at(101, e.SwapBegun(swap=2, target="A", why="idle"))

    assert answer(tmp_path, "SELECT ending, ended_us FROM replicas") == [{"ending": "lost", "ended_us": us(4)}]
    assert answer(tmp_path, "SELECT swap, outcome, ended_us FROM swaps ORDER BY swap") == [
        {"swap": 1, "outcome": "lost", "ended_us": us(4)},
        {"swap": 2, "outcome": None, "ended_us": None},
    ]
    assert answer(tmp_path, "SELECT outcome FROM operations") == [{"outcome": "lost"}]
    assert answer(tmp_path, "SELECT run, started_us, last_us, stopped_us FROM runs ORDER BY run") == [
        {"run": 1, "started_us": us(0), "last_us": us(4), "stopped_us": None},
        {"run": 2, "started_us": us(100), "last_us": us(101), "stopped_us": None},
    ]


def test_the_queue_counts_over_all_models_and_for_each(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, arrives(2, "B", 2))
        story.at(3, e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(4, arrives(3, "A", 4))
        story.at(5, e.RequestRequeued(rid=1, replica="A#0.1", attempt=1))
        story.at(6, e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(7, e.RequestCancelled(rid=2))
        story.at(8, e.RequestFinished(rid=1, replica="A#0.1"))
        story.at(9, e.RequestRejected(rid=3, status=503, code="x"))

    found = answer(
        tmp_path, "SELECT model, queued, in_flight, model_queued, model_in_flight FROM queue_depth ORDER BY seq"
    )

    assert [tuple(row.values()) for row in found] == [
        ("A", 1, 0, 1, 0),
        ("B", 2, 0, 1, 0),
        ("A", 1, 1, 0, 1),
        ("A", 2, 1, 1, 1),
        ("A", 3, 0, 2, 0),
        ("A", 2, 1, 1, 1),
        ("B", 1, 1, 0, 0),
        ("A", 1, 0, 1, 0),
        ("A", 0, 0, 0, 0),
    ]


def test_a_request_that_is_sent_again_as_it_comes_back_is_running_and_counted_as_such(tmp_path: Path) -> None:
    """Its replica is lost and another one has room: both decisions come in one batch."""
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, e.RequestDispatched(rid=1, replica="A#0.1"))
        with project(tmp_path / "log", tmp_path / "db") as projector:
            story.at(3, e.RequestRequeued(rid=1, replica="A#0.1", attempt=2))
            story.at(3, e.RequestDispatched(rid=1, replica="A#1.2", attempt=2))
            projector.poll()
            assert ask(projector, "SELECT stage, attempts FROM requests") == [{"stage": "running", "attempts": 2}]
            story.at(4, e.RequestFinished(rid=1, replica="A#1.2"))
            projector.poll()
            assert ask(projector, "FROM queue_now") == [{"model": "A", "queued": 0, "in_flight": 0}]


def test_a_queue_that_nobody_stood_in_is_not_told_of_whatever_a_batch_ends_with(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story, Projector(tmp_path / "log", tmp_path / "live") as live:
        for event in (arrives(1, "A", 1), e.RequestDispatched(rid=1, replica="A#0.1"), arrives(2, "A", 1)):
            story.at(1, event)
            live.poll()
        with project(tmp_path / "log", tmp_path / "db") as rebuilt:
            wanted = "SELECT rid, queued, in_flight FROM queue_depth ORDER BY seq"
            assert ask(live, wanted) == ask(rebuilt, wanted)
            assert [tuple(row.values()) for row in ask(live, wanted)] == [(1, 0, 1), (2, 1, 1)]


def test_numbers_as_large_as_they_may_be_stop_nothing(tmp_path: Path) -> None:
    """Thousands of prompts with an `n` of two thousand millions; a machine that slept for a night in a stream."""
    night_us = 9 * 3600 * S
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1, slots_wanted=5000 * (2**31 - 1), max_tokens=2**31 - 1))
        story.at(2, e.TokensStreamed(rid=1, gaps_us=[night_us, 20_000, night_us]))

    with project(tmp_path / "log", tmp_path / "db") as projector:
        assert ask(projector, "SELECT slots_wanted FROM requests") == [{"slots_wanted": 5000 * (2**31 - 1)}]
        assert ask(projector, "SELECT first_frame_us, gap_max_us FROM token_timings") == [
            {"first_frame_us": night_us, "gap_max_us": night_us}
        ]


def test_a_process_that_is_ready_after_it_was_told_to_stop_was_never_there(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(3, e.ReplicaStopOrdered(replica="A#0.1", why="unload", force=True))
        story.at(4, e.ReplicaReady(replica="A#0.1", slots=1))
        story.at(6, e.ReplicaStopped(replica="A#0.1"))

    found = answer(tmp_path, "SELECT phase, from_us, until_us FROM residency ORDER BY from_us")
    assert [tuple(row.values()) for row in found] == [("loading", us(1), us(3)), ("stopping", us(3), us(6))]


def test_the_first_gap_of_a_stream_is_the_wait_for_its_first_token_and_no_gap(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.TokensStreamed(rid=1, gaps_us=[800_000, 10_000, 20_000]))
        story.at(2, e.TokensStreamed(rid=2, gaps_us=[500_000]))
        story.at(3, e.TokensStreamed(rid=1, gaps_us=[10_000, 2_000_000, 30_000]))

    first, second = answer(tmp_path, "FROM token_timings ORDER BY rid")

    assert (first["frames"], first["first_frame_us"], first["stalls"]) == (6, 800_000, 1)
    assert (first["gap_p50_us"], first["gap_p95_us"], first["gap_max_us"]) == (20_000, 2_000_000, 2_000_000)
    assert first["streamed_us"] == 2_070_000
    assert round(first["frames_per_s"], 3) == round(5 / 2.07, 3)
    assert (second["frames"], second["gap_p50_us"], second["stalls"], second["frames_per_s"]) == (1, None, 0, None)


def test_samples_and_lines_come_as_they_were_written(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, e.GpuSampled(gpu=1, used_mib=100, processes={"A#0.1": 60, "pid:7": 40}))
        story.at(1, e.SlotsSampled(replica="A#0.1", busy=1, slots=2, context_used=[10, 0]))
        story.at(2, e.LogLine(level="warning", text="a line"), e.ReplicaNote(replica="A#0.1", code="slow"))

    assert answer(tmp_path, "SELECT gpu, used_mib, power_mw, processes ->> 'pid:7' AS other FROM gpu_samples") == [
        {"gpu": 1, "used_mib": 100, "power_mw": None, "other": "40"}
    ]
    assert answer(tmp_path, "SELECT busy, slots, context_used FROM slot_samples") == [
        {"busy": 1, "slots": 2, "context_used": [10, 0]}
    ]
    assert answer(tmp_path, "SELECT level, replica, code, text FROM log_lines ORDER BY seq") == [
        {"level": "warning", "replica": "", "code": "", "text": "a line"},
        {"level": "note", "replica": "A#0.1", "code": "slow", "text": ""},
    ]


def test_every_decision_is_in_the_table_of_decisions(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for kind in e.DECISIONS:
            story.at(1, msgspec.structs.replace(sample(kind, 0), seq=0, cause=9))

    found = answer(tmp_path, "SELECT type, cause FROM decisions ORDER BY seq")

    assert found == [{"type": kind.__name__, "cause": 9} for kind in e.DECISIONS]


def test_an_event_of_a_type_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    """A newer router may have written it, with fields whose types are other than ours."""

    class Requisitioned(e.Event, frozen=True, kw_only=True):
        rid: str
        replica: list[int]
        timing: int

    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, Requisitioned(rid="one", replica=[1], timing=4))
        story.at(3, e.RequestFinished(rid=1, replica="A#0.1"))

    assert answer(tmp_path, "SELECT rid, outcome FROM requests") == [{"rid": 1, "outcome": "ok"}]


def test_the_tables_are_fed_by_events_that_exist() -> None:
    """And a step that asks for a type is given the lines of that type, whatever makes it run."""
    observed = {kind.__name__ for kind in e.OBSERVATIONS}
    for definition in definitions():
        for step in definition.steps:
            assert step.causes
            assert step.causes <= step.types, definition.name
            if step.types != {"*"}:
                assert set(re.findall(r"'(\w+)'", step.sql)) & set(BY_NAME) <= step.types, definition.name
            assert step.types <= set(BY_NAME) or step.types == {"*"}, definition.name
            if step.types != {"*"}:
                assert (definition.stream == "observations") == bool(step.types & observed), definition.name


def test_a_log_with_every_event_there_is_can_be_projected(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        for kind in ALL:
            if not issubclass(kind, e.LogEvent):
                story.at(1, msgspec.structs.replace(sample(kind, 0), seq=0))

    assert answer(tmp_path, "SELECT count(*) AS n FROM requests") == [{"n": 1}]
