"""replay explain: why a request waited, why a model left, what the state was. Told from recorded worlds."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from eventlog.errors import LogError
from eventlog.repair import repair
from eventlog.segments import list_segments
from eventlog.settings import KeySettings, ModelSettings
from replay.explain import SwapStory, explain_request, explain_swap, explain_time
from replay.explain_text import swap_text
from router.cli import main
from tests.replay.recording import SETTINGS, THREE, Recording, busy_hour, rewrite
from tests.scheduler.shell import SECOND, START_US
from tests.scheduler.world import Manners

GRACE = msgspec.structs.replace(SETTINGS, head_grace_us=5 * SECOND)


def reasons(folder: Path, rid: int) -> list[tuple[str, float]]:
    """What a request waited for, and how many seconds each."""
    story = explain_request(folder, rid)
    return [(wait.what, (wait.to_us - wait.from_us) / SECOND) for wait in story.waits]


# --- requests -------------------------------------------------------------------------------------------------------


def test_the_first_request_waits_for_its_model_to_be_loaded(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", body_s=0.5, route="/chat/completions", key="alice")
        world.run()

    story = explain_request(tmp_path, 1)

    assert reasons(tmp_path, 1) == [("body", 0.5), ("load", 6.0)]
    assert (story.model, story.route, story.key) == ("A", "/chat/completions", "alice")
    assert (story.outcome, story.status) == ("finished", 200)
    assert story.queued_us == 6.5 * SECOND
    assert [(attempt.replica, attempt.rule, attempt.end) for attempt in story.attempts] == [
        ("A#0.1", "pay_out", "finished")
    ]
    assert story.swaps == story.caused == [1]
    assert story.overtaken_by == []


def test_who_holds_the_slot_is_named(tmp_path: Path) -> None:
    """Three requests for one slot: the last one waits for both, and one stands before it."""
    with Recording(tmp_path) as world:
        for _ in range(3):
            world.arrives(0.0, "A")
        world.run()

    story = explain_request(tmp_path, 3)

    assert reasons(tmp_path, 3) == [("load", 6.0), ("slots", 2.0)]
    assert story.waits[1].by == ["rid:1", "rid:2"]
    assert story.waits[1].ahead == 1
    assert story.caused == []


def test_grace_is_shown_with_those_who_passed(tmp_path: Path) -> None:
    """B's request is the head; two later ones for A pass it within its grace, then A drains, stops, B loads."""
    with Recording(tmp_path, GRACE, manners=Manners(stop_s=(0.5, 0.5))) as world:
        world.arrives(0.0, "A", service_s=3.0)
        world.arrives(6.5, "B")
        world.arrives(7.0, "A", service_s=3.0)
        world.arrives(11.2, "A", service_s=1.0)
        world.run()

    story = explain_request(tmp_path, 2)

    assert reasons(tmp_path, 2) == [("grace", 5.0), ("drain", 0.5), ("stop", 0.5), ("load", 6.0)]
    assert [(each.rid, each.why) for each in story.overtaken_by] == [(3, "grace")]
    assert story.caused == [2]
    assert reasons(tmp_path, 4)[0][0] == "slots"


def test_a_request_for_a_model_that_leaves_says_for_whom(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=4.0)
        world.arrives(7.0, "B")
        world.arrives(8.0, "A")
        world.run()

    story = explain_request(tmp_path, 3)

    assert [wait.what for wait in story.waits] == ["leaving", "swapping", "drain", "load"]
    assert story.waits[0].by == ["B"]
    assert story.waits[0].swap == 2


def test_a_request_for_a_model_that_is_unloaded_is_not_said_to_wait_for_another(tmp_path: Path) -> None:
    with Recording(tmp_path, manners=Manners(stop_s=(2.0, 2.0))) as world:
        world.arrives(0.0, "A", service_s=4.0)
        world.fact_at(7.0, e.AdminUnload(op=1, model="A"))
        world.arrives(8.0, "A")
        world.run()

    assert reasons(tmp_path, 2) == [("unload", 4.0), ("load", 6.0)]


def test_a_claim_of_an_earlier_request_is_named(tmp_path: Path) -> None:
    """Both need the GPU that A has: the first in line claims it."""
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(GRACE, models=models)
    with Recording(tmp_path, settings) as world:
        world.arrives(0.0, "A", service_s=4.0)
        world.arrives(7.0, "B")
        world.arrives(7.5, "D")
        world.run()

    story = explain_request(tmp_path, 3)

    assert story.waits[0].what == "claimed"
    assert story.waits[0].by == ["rid:2"]


def test_a_key_at_its_limit_is_named_with_its_requests(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, keys={"k": KeySettings(max_parallel=1)})
    with Recording(tmp_path, settings, manners=Manners(slots=(2, 2))) as world:
        world.arrives(0.0, "A", key="k")
        world.arrives(0.5, "A", key="k")
        world.run()

    story = explain_request(tmp_path, 2)

    assert reasons(tmp_path, 2) == [("load", 5.5), ("key", 1.0)]
    assert story.waits[1].by == ["rid:1"]


def test_a_gpu_out_of_service_is_named(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.fact_at(0.0, e.AdminGpu(op=1, gpu=0, action="out"))
        world.arrives(1.0, "A")
        world.fact_at(4.0, e.AdminGpu(op=2, gpu=0, action="in"))
        world.run()

    assert reasons(tmp_path, 1) == [("gpu_out", 3.0), ("load", 6.0)]


def test_a_model_that_must_leave_for_somebody_earlier_takes_no_more(tmp_path: Path) -> None:
    """No grace: the wide model waits for both GPUs, and the one that is free already stays so."""
    models = {"A": ModelSettings(gpus=(0,)), "B": ModelSettings(gpus=(1,)), "W": ModelSettings(gpus=(0, 1))}
    settings = msgspec.structs.replace(SETTINGS, models={**models, "C": ModelSettings(gpus=(1,))})
    with Recording(tmp_path, settings, manners=Manners(slots=(2, 2))) as world:
        world.arrives(0.0, "A", service_s=2.0)
        world.arrives(0.0, "C", service_s=2.0)
        world.arrives(7.0, "B")
        world.arrives(7.1, "W")
        world.arrives(7.2, "A")
        world.run()

    assert reasons(tmp_path, 5)[0][0] == "yield"
    assert explain_request(tmp_path, 5).waits[0].by == ["rid:4"]


def test_a_crash_is_two_attempts_and_two_waits(tmp_path: Path) -> None:
    """The connection breaks before the answer has begun: back to its place, and once more."""
    manners = Manners(crashes=1.0, begun=0.0)
    with Recording(tmp_path, manners=manners) as world:
        world.arrives(0.0, "A")
        world.run()

    story = explain_request(tmp_path, 1)

    assert [attempt.end for attempt in story.attempts] == ["as drawn", "as drawn"]
    assert [attempt.rule for attempt in story.attempts][1] == "alone"
    assert (story.outcome, story.status, story.code) == ("failed", 502, "upstream_crashed")


def test_who_runs_alone_and_who_waits_for_that_are_not_told_that_all_slots_are_taken(tmp_path: Path) -> None:
    """Request 1 was there when the process died; the next one has four slots, and it has them for itself."""
    with Recording(tmp_path, manners=Manners(slots=(4, 4), begun=0.0)) as world:
        world.arrives(0.0, "A", service_s=10.0)
        world.run_until(8.0)
        world._do(e.UpstreamLost(rid=1, replica="A#0.1"), e.ReplicaAnswered(replica="A#0.1"))
        world.arrives(8.5, "A", service_s=3.0)
        world.run()
    assert [wait.what for wait in explain_request(tmp_path, 2).waits] == ["company"]
    assert explain_request(tmp_path, 2).waits[0].by == ["rid:1"]

    other = tmp_path / "other"
    with Recording(other, manners=Manners(slots=(4, 4), begun=0.0)) as world:
        world.arrives(0.0, "A", service_s=10.0)
        world.arrives(0.0, "A", service_s=5.0)
        world.run_until(8.0)
        world._do(e.UpstreamLost(rid=1, replica="A#0.1"), e.ReplicaAnswered(replica="A#0.1"))
        world.run()
    assert [wait.what for wait in explain_request(other, 1).waits] == ["load", "alone"]
    assert explain_request(other, 1).waits[-1].by == ["rid:2"]


def test_the_first_event_of_a_log_that_retention_has_cut_is_explained(tmp_path: Path) -> None:
    """Its state is the checkpoint that the log begins with."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run_until(10.0)
        world.writer._roll_at = 1
        assert world.writer.roll_if_due()
        world.arrives(11.0, "B")
        world.run()
    list_segments(tmp_path, "events")[0].path.unlink()

    assert reasons(tmp_path, 2) == [("load", 6.0)]
    assert explain_swap(tmp_path, 2).target == "B"
    for explained in (explain_request, explain_swap):
        with pytest.raises(LogError, match=r"no \w+ 1; .*; the log begins with #\d+, and what was before it has been"):
            explained(tmp_path, 1)


def test_a_story_goes_over_the_hole_that_a_repair_has_left(tmp_path: Path) -> None:
    """Request 1 was being served before it and is gone behind it: how it ended nobody knows, and all else is told."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=5.0)
        world.run_until(8.0)
        for until_s in (60.0, 100.0):
            world.writer._roll_at = 1
            assert world.writer.roll_if_due()
            world.arrives(20.0 if until_s == 60.0 else 70.0, "B", service_s=2.0)
            world.run_until(until_s)
    list_segments(tmp_path, "events")[1].path.unlink()
    repair(tmp_path)

    assert explain_request(tmp_path, 1).outcome == "open"
    assert explain_swap(tmp_path, 1).outcome == "done"
    assert explain_request(tmp_path, 3).outcome == "finished"


def test_a_log_that_does_not_follow_from_itself_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a newer version, say, whose new facts this one does not know: no traceback out of the fold."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run()
    lines = rewrite(tmp_path, lambda lines: [line for line in lines if line["type"] != "ReplicaSpawnOrdered"])
    (dispatched,) = [line["seq"] for line in lines if line["type"] == "RequestDispatched"]

    for what in (["--request", "1"], ["--swap", "1"], ["--at", f"#{lines[-1]['seq']}"]):
        assert main(["replay", "explain", str(tmp_path), *what]) == 1
        error = capsys.readouterr().err
        assert f"event #{dispatched}, RequestDispatched, does not fit to what the log says before it" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("leaves", "outcome"), [(1.0, ("cancelled", "client")), (6.5, ("cancelled", "client")), (None, ("finished", ""))]
)
def test_how_it_ended_is_said(tmp_path: Path, leaves: float | None, outcome: tuple[str, str]) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", leaves_after_s=leaves)
        world.run()

    story = explain_request(tmp_path, 1)

    assert (story.outcome, story.code) == outcome


def test_a_request_that_was_refused_did_not_wait(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "nobody")
        world.run()

    story = explain_request(tmp_path, 1)

    assert (story.outcome, story.status, story.code) == ("rejected", 404, "model_not_found")
    assert story.waits == []


def test_a_wish_has_its_story_too(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.fact_at(0.0, e.LoadWished(op=world.next_op(), rid=world.next_rid(), model="A"))
        world.run()

    story = explain_request(tmp_path, 1)

    assert story.wish
    assert reasons(tmp_path, 1) == [("load", 6.0)]
    assert story.outcome == "done"


def test_a_request_that_died_with_the_router_is_lost(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.arrives(1.0, "B")
        world.run_until(6.5)
    with Recording(tmp_path):
        pass

    assert [explain_request(tmp_path, rid).outcome for rid in (1, 2)] == ["lost", "lost"]
    assert explain_request(tmp_path, 1).attempts[0].end == "the router died"


def test_a_request_that_is_still_open_is_told_as_far_as_the_log_goes(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=50.0)
        world.arrives(1.0, "B")
        world.run_until(6.0)

    assert explain_request(tmp_path, 2).outcome == "open"
    assert reasons(tmp_path, 2) == [("swapping", 5.0)]


def test_a_number_that_the_log_does_not_have_is_an_error(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run()

    with pytest.raises(LogError, match="no request 12"):
        explain_request(tmp_path, 12)
    with pytest.raises(LogError, match="no swap 12"):
        explain_swap(tmp_path, 12)


@pytest.mark.parametrize("seed", range(4))
def test_the_stretches_of_every_wait_add_up(tmp_path: Path, seed: int) -> None:
    """Whatever happened: to the first dispatch they leave no gap, and no request waited for nothing."""
    unruly = Manners(load_s=(2, 9), stop_s=(0, 1), service_s=(0.5, 4), crashes=0.05, load_fails=0.1, breaks=0.05)
    with Recording(tmp_path, seed=seed, manners=unruly, segment_bytes=8192) as world:
        busy_hour(world, 25)

    dispatched: dict[int, int] = {}
    for event in world.record:
        if isinstance(event, e.RequestDispatched):
            dispatched.setdefault(event.rid, event.waited_us)
    words: Counter[str] = Counter()
    for rid in range(1, 26):
        story = explain_request(tmp_path, rid)
        first_us = story.attempts[0].from_us if story.attempts else story.ended_us
        waits = [wait for wait in story.waits if wait.from_us < first_us]
        assert sum(wait.to_us - wait.from_us for wait in waits) == dispatched.get(rid, first_us - story.arrived_us)
        assert all(one.to_us == two.from_us for one, two in pairwise(waits))
        words.update(wait.what for wait in waits)
    assert len(words) > 4
    assert "turn" not in words


# --- swaps ----------------------------------------------------------------------------------------------------------


def test_why_this_victim_and_not_the_other(tmp_path: Path) -> None:
    """Room for two: A was used last, so B leaves for D; C is not asked, for it is on another GPU."""
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(SETTINGS, models=models, max_models_per_gpu=2)
    with Recording(tmp_path, settings) as world:
        for at_s, model in ((0.0, "A"), (7.0, "B"), (14.0, "C"), (21.0, "A"), (25.0, "D")):
            world.arrives(at_s, model)
        world.run()

    story = explain_swap(tmp_path, 4)

    assert (story.target, story.why, story.cause_rid) == ("D", "idle", 5)
    assert [(victim.model, victim.age_us) for victim in story.victims] == [("B", 11 * SECOND)]
    assert [(other.model, other.spared_by) for other in story.others] == [("A", "age")]
    assert (story.drain_us, story.stop_us, story.load_us) == (0, 0, 6 * SECOND)
    assert story.outcome == "done"


def spared(folder: Path, swap: int) -> dict[str, str | None]:
    return {other.model: other.spared_by for other in explain_swap(folder, swap).others}


def test_what_an_engine_weighed_is_told(tmp_path: Path) -> None:
    """A and B fill the pool; B leaves for C, for it costs less."""
    takes = {
        name: ModelSettings(gpus=(0,), capacities={"ram": 4}, evict_cost=cost) for name, cost in (("A", 9), ("B", 1))
    }
    models = {**takes, "C": ModelSettings(gpus=(0,), capacities={"ram": 4})}
    settings = msgspec.structs.replace(
        SETTINGS, models=models, engine="capacity", pools={"ram": 8}, max_models_per_gpu=0
    )
    with Recording(tmp_path, settings) as world:
        for at_s, model in ((0.0, "A"), (7.0, "B"), (21.0, "C")):
            world.arrives(at_s, model)
        world.run()

    story = explain_swap(tmp_path, 3)

    assert (story.engine, story.cost, story.search_limited) == ("capacity", 1, False)
    assert [(other.model, other.spared_by) for other in story.others] == [("A", "cost")]
    said = swap_text(story)
    assert "who left: the cheapest models that make room in the pools, at a cost of 1 (" in said
    assert "left, at a cost of 1" in said
    assert "stayed: others leave at a lower cost, or are fewer" in said


def test_a_model_that_others_want_is_spared(tmp_path: Path) -> None:
    """B was used less recently, but somebody waits for it."""
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(GRACE, models=models, max_models_per_gpu=2)
    with Recording(tmp_path, settings) as world:
        world.arrives(0.0, "B", service_s=20.0)
        world.arrives(1.0, "B")
        world.arrives(7.0, "A")
        world.arrives(20.0, "D")
        world.run()

    assert spared(tmp_path, 3) == {"B": "wanted"}


def test_a_busy_model_is_spared(tmp_path: Path) -> None:
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(SETTINGS, models=models, max_models_per_gpu=2)
    with Recording(tmp_path, settings) as world:
        world.arrives(0.0, "B", service_s=30.0)
        world.arrives(7.0, "A")
        world.arrives(20.0, "D")
        world.run()

    assert spared(tmp_path, 3) == {"B": "busy"}


def test_fifo_goes_by_the_load(tmp_path: Path) -> None:
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(SETTINGS, models=models, max_models_per_gpu=2, eviction="fifo")
    with Recording(tmp_path, settings) as world:
        for at_s, model in ((0.0, "A"), (7.0, "B"), (21.0, "A"), (25.0, "D")):
            world.arrives(at_s, model)
        world.run()

    story = explain_swap(tmp_path, 3)

    assert story.eviction == "fifo"
    assert [victim.model for victim in story.victims] == ["A"]
    assert spared(tmp_path, 3) == {"B": "age"}


def test_eviction_by_worth_is_told_in_its_own_terms(tmp_path: Path) -> None:
    """B was used last and leaves all the same: A was used twice. Its age says nothing then."""
    models = {**THREE, "D": ModelSettings(gpus=(0,))}
    settings = msgspec.structs.replace(SETTINGS, models=models, max_models_per_gpu=2, eviction="worth")
    with Recording(tmp_path, settings) as world:
        for at_s, model in ((0.0, "A"), (8.0, "A"), (10.0, "B"), (30.0, "D")):
            world.arrives(at_s, model)
        world.run()

    story = explain_swap(tmp_path, 3)
    text = swap_text(story)

    assert [victim.model for victim in story.victims] == ["B"]
    assert spared(tmp_path, 3) == {"A": "worth"}
    assert "who left: the first in the order unwanted, idle, worth least (uses x seconds of load)" in text
    assert "used before" in text
    assert "left, worth 5.9" in text
    assert "stayed: it is used more, or takes longer to load, worth 11.8" in text


def test_a_forced_load_does_not_claim_to_have_asked_who_is_wanted(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, head_grace_us=900 * SECOND, force_load_us=5 * SECOND, prefer_idle=False
    )
    with Recording(tmp_path, settings) as world:
        world.arrives(0.0, "A", service_s=20.0)
        world.arrives(7.0, "B")
        world.run()

    story = explain_swap(tmp_path, 2)

    assert story.why == "forced"
    assert "who left: the first in the order longest unused" in swap_text(story)


def test_a_release_by_accrued_waiting_is_not_said_to_be_a_matter_of_grace(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, head_release="accrued")
    with Recording(tmp_path, settings) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.arrives(7.0, "B")
        world.run()

    story = explain_swap(tmp_path, 2)

    assert (story.why, story.grace_us) == ("grace_over", 0)
    assert reasons(tmp_path, 2)[0] == ("accrue", 6.0)
    assert "why then: the requests for its model had waited long enough together" in swap_text(story)


def test_what_a_swap_cost_and_whom_it_served(tmp_path: Path) -> None:
    """B's load waits for A's request, serves two, and then B leaves for A again."""
    with Recording(tmp_path, manners=Manners(stop_s=(0.5, 0.5))) as world:
        world.arrives(0.0, "A", service_s=4.0)
        world.arrives(7.0, "B")
        world.arrives(7.5, "B")
        world.arrives(30.0, "A")
        world.run()

    story = explain_swap(tmp_path, 2)

    assert story.draining == [1]
    assert (story.drain_us, story.stop_us, story.load_us) == (3 * SECOND, SECOND // 2, 6 * SECOND)
    assert [(load.end, load.to_us - load.from_us) for load in story.loads] == [("ready", 6 * SECOND)]
    assert (story.first_served, story.served, story.served_rids) == (2, 2, [2, 3])
    assert story.left_us == START_US + 30 * SECOND


def test_a_load_that_ends_in_a_crash_has_not_served_those_of_the_next_one(tmp_path: Path) -> None:
    with Recording(tmp_path, manners=Manners(begun=1.0)) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        world.now_us = START_US + 8 * SECOND
        world._do(e.UpstreamLost(rid=1, replica="A#0.1", begun=True), e.ReplicaCrashed(replica="A#0.1", signal=11))
        world.arrives(9.0, "A")
        world.run()

    story = explain_swap(tmp_path, 1)

    assert (story.served_rids, story.left_us) == ([1], START_US + 8 * SECOND)
    assert "it served 1 request until it crashed at " in swap_text(story)
    assert explain_swap(tmp_path, 2).served_rids == [2]


def test_a_swap_that_was_called_off_says_why(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=8.0)
        world.arrives(7.0, "B", leaves_after_s=2.0)
        world.run()

    story = explain_swap(tmp_path, 2)

    assert (story.outcome, story.abort_why, story.drain_us) == ("aborted", "unwanted", 2 * SECOND)


def test_a_load_that_failed_shows_its_attempts(tmp_path: Path) -> None:
    with Recording(tmp_path, manners=Manners(load_fails=1.0), seed=2) as world:
        world.arrives(0.0, "A")
        world.run()

    story = explain_swap(tmp_path, 1)

    assert story.outcome == "failed"
    assert story.loads
    assert all(load.end not in ("ready", "loading") for load in story.loads)
    assert story.served == 0


def test_a_swap_that_the_router_did_not_survive_is_lost(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run_until(3.0)
    with Recording(tmp_path):
        pass

    assert explain_swap(tmp_path, 1).outcome == "lost"


def test_an_unload_has_no_target(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.fact_at(10.0, e.AdminUnload(op=1, model="A"))
        world.run()

    story: SwapStory = explain_swap(tmp_path, 2)

    assert (story.target, story.why, story.outcome) == ("", "unload", "done")
    assert [victim.model for victim in story.victims] == ["A"]
    assert "the first in the order" not in swap_text(story)


@pytest.mark.parametrize("force", [True, False])
def test_who_is_cut_off_by_an_unload_is_said(tmp_path: Path, force: bool) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=20.0)
        world.fact_at(10.0, e.AdminUnload(op=1, model="A", force=force))
        world.run()

    said = swap_text(explain_swap(tmp_path, 2))

    assert ("serving request 1 then; cut off, for it was by force" in said) == force
    assert ("nobody is cut off for a swap" in said) != force


def test_a_wish_is_not_called_a_request(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.fact_at(0.0, e.LoadWished(op=world.next_op(), rid=world.next_rid(), model="A"))
        world.run()

    assert "for wish 1, which had waited" in swap_text(explain_swap(tmp_path, 1))


# --- moments --------------------------------------------------------------------------------------------------------


def test_a_moment_can_be_named_by_its_time_or_by_a_seq(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=4096) as world:
        busy_hour(world, 20)
    at_us = START_US + 8 * SECOND
    last = [event for event in world.record if event.at_us <= at_us][-1]

    by_time = explain_time(tmp_path, str(at_us / SECOND).rjust(12, "0"))
    by_seq = explain_time(tmp_path, f"#{last.seq}")

    assert by_time.seq == by_seq.seq == last.seq
    assert by_time.before[-1] == last
    assert by_time.after[0].seq == last.seq + 1
    assert by_time.state.now_us == last.at_us
    assert msgspec.json.encode(by_time.state) == msgspec.json.encode(by_seq.state)


def test_a_moment_never_lies_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """The seq of a fact means: with all that was decided on it."""
    with Recording(tmp_path) as world:
        busy_hour(world, 10)
    (fact, last) = next(
        (fact, decision)
        for fact, decision in zip(world.record, world.record[2:], strict=False)
        if isinstance(fact, e.RequestArrived) and decision.cause == fact.seq
    )

    moment = explain_time(tmp_path, str(fact.seq))

    assert moment.seq >= last.seq
    assert moment.after[0].cause == 0


@pytest.mark.parametrize("when", ["yesterday", "12:00", "#x"])
def test_what_is_no_time_is_said(tmp_path: Path, when: str) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world, 3)

    with pytest.raises(LogError, match="is no time"):
        explain_time(tmp_path, when)


def test_a_time_before_the_log_is_said(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world, 3)

    with pytest.raises(LogError, match="begins after"):
        explain_time(tmp_path, "000000000.5")


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_tells_a_request_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recording(tmp_path, GRACE) as world:
        world.arrives(0.0, "A", service_s=3.0)
        world.arrives(6.5, "B")
        world.arrives(7.0, "A", service_s=3.0)
        world.run()

    code = main(["replay", "explain", str(tmp_path), "--request", "2"])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("request 2: request for B\n")
    assert "it waited 11.5 s" in out
    assert "others might go first until its grace was over: A" in out
    assert "1 later request went first on GPUs that it needs" in out
    assert "this one was within its grace" in out


def test_the_command_tells_a_swap_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recording(tmp_path, GRACE) as world:
        world.arrives(0.0, "A", service_s=3.0)
        world.arrives(6.5, "B")
        world.arrives(7.0, "A", service_s=3.0)
        world.run()

    code = main(["replay", "explain", str(tmp_path), "--swap", "2"])

    out = capsys.readouterr().out
    assert code == 0
    assert "swap 2: load B on GPU 0" in out
    assert "why then: its head had waited its grace of 5 s" in out
    assert "for request 2, which had waited 5 s, 5 s of that as the blocked head" in out
    assert "serving request 3 then" in out
    assert "it served 1 request to the end of the log (2)" in out


def test_without_a_grace_a_swap_is_not_said_to_have_waited_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=3.0)
        world.arrives(6.5, "B")
        world.run()

    assert main(["replay", "explain", str(tmp_path), "--swap", "2"]) == 0
    out = capsys.readouterr().out
    assert "why then: its turn had come (no grace)" in out


def test_the_command_shows_the_state_at_a_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.arrives(0.5, "B")
        world.run()

    code = main(["replay", "explain", str(tmp_path), "--at", "0001000002.5"])

    out = capsys.readouterr().out
    assert code == 0
    assert "A (loading)" in out
    assert "queue: 2 requests" in out
    assert "RequestHeld" in out


@pytest.mark.parametrize("what", [["--request", "2"], ["--swap", "1"], ["--at", "#5"]])
def test_every_explanation_comes_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: list[str]) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world, 5)

    assert main(["replay", "explain", str(tmp_path), *what, "--json"]) == 0

    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_what_the_log_does_not_have_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world, 3)

    assert main(["replay", "explain", str(tmp_path), "--request", "99"]) == 1

    assert capsys.readouterr().err.count("\n") == 1
