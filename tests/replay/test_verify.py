"""replay verify: the decisions of a log are those that its facts lead to, and whatever is not is found."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from eventlog.errors import LogDamaged, LogError
from eventlog.repair import repair
from eventlog.segments import list_segments
from replay.verify import Verified, verify
from router.cli import main
from router.scheduler import POLICY_VERSION, rules
from router.scheduler.rules import arm_the_force_timer
from tests.replay.recording import SETTINGS, Line, Recording, busy_hour, lines_of, rewrite
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners

SMALL_SEGMENTS = 4096
UNRULY = Manners(
    load_s=(2.0, 9.0), stop_s=(0.0, 1.0), service_s=(0.5, 4.0), slots=(1, 3), crashes=0.05, load_fails=0.1, breaks=0.05
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run that was ended in order, in one segment."""
    folder = tmp_path / "log"
    with Recording(folder) as world:
        busy_hour(world)
    return folder


def at(lines: list[Line], name: str, place: int = -1) -> Line:
    """One of the lines of a type."""
    return [line for line in lines if line["type"] == name][place]


def kind_of(result: Verified) -> str:
    """Of the one difference that ended the proof."""
    assert not result.ok
    assert result.differences == 1
    assert result.first is not None
    return result.first.kind


# --- what is the same -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_what_the_scheduler_decided_is_decided_again(tmp_path: Path, seed: int) -> None:
    """Loads that fail, crashes and broken connections included: facts are all that decisions depend on."""
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS, seed=seed, manners=UNRULY) as world:
        busy_hour(world, 60)

    result = verify(tmp_path)

    assert result.ok
    assert result.differences == 0
    assert result.events == len(world.record)
    assert len(result.checkpoints) == len(list_segments(tmp_path, "events")) - 1 > 3
    assert all(checkpoint.same for checkpoint in result.checkpoints)


def test_the_digests_do_not_depend_on_the_hash_seed(log: Path) -> None:
    """Two processes in which strings hash otherwise come to the same digests."""
    digests = []
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-m", "router.cli", "replay", "verify", str(log), "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        result = json.loads(ran.stdout)
        digests.append((result["decisions_digest"], result["states_digest"]))

    assert digests[0] == digests[1]


def test_other_decisions_have_another_digest(log: Path, tmp_path: Path) -> None:
    with Recording(tmp_path / "other", msgspec.structs.replace(SETTINGS, head_grace_us=SECOND)) as world:
        busy_hour(world)

    assert verify(tmp_path / "other").decisions_digest != verify(log).decisions_digest


def test_a_log_goes_over_several_runs(tmp_path: Path) -> None:
    """The second run begins with the cool-down and the numbers that the first one left."""
    hopeless = Manners(load_fails=1.0)
    with Recording(tmp_path, manners=hopeless) as world:
        world.arrives(0.0, "A")
        world.run()
    with Recording(tmp_path) as world:
        busy_hour(world, 10, from_s=100.0)

    result = verify(tmp_path)

    assert result.ok
    assert result.runs == [1, 2]
    assert at(lines_of(tmp_path), "RouterStarted")["carried"]["next_rid"] == 2


def test_a_log_that_retention_has_cut_is_verified_from_its_first_checkpoint_on(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS) as world:
        busy_hour(world)
    whole = verify(tmp_path)
    first, second, *_ = list_segments(tmp_path, "events")
    first.path.unlink()

    result = verify(tmp_path)

    assert result.ok
    assert result.skipped == 0
    assert result.first_seq == second.first_seq
    assert result.checkpoints == whole.checkpoints
    assert result.last_seq == whole.last_seq


def test_one_segment_can_be_verified_by_itself(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS) as world:
        busy_hour(world)
    segments = list_segments(tmp_path, "events")

    result = verify(segments[2].path)

    assert result.ok
    assert result.first_seq == segments[2].first_seq
    assert result.last_seq == segments[3].first_seq - 1


def test_events_before_the_first_checkpoint_are_skipped_and_counted(tmp_path: Path, log: Path) -> None:
    """A segment that opened in the middle of a step has no state, so nothing can be said of it."""
    with Recording(tmp_path / "next", segment_bytes=SMALL_SEGMENTS) as world:
        busy_hour(world)

    def cut(lines: list[Line]) -> list[Line]:
        headers = [place for place, line in enumerate(lines) if line["type"] == "SegmentOpened"]
        kept = lines[headers[1] :]
        del kept[0]["state"]
        return kept

    lines = rewrite(tmp_path / "next", cut)

    result = verify(tmp_path / "next")

    headers = [place for place, line in enumerate(lines) if line["type"] == "SegmentOpened"]
    assert result.ok
    assert result.skipped == headers[1] - 1
    assert result.events == sum(line["type"] != "SegmentOpened" for line in lines) - result.skipped


def test_events_that_this_version_does_not_know_are_skipped(log: Path) -> None:
    def insert(lines: list[Line]) -> list[Line]:
        last = lines[-1]
        news = {"type": "MoonPhaseChanged", "seq": last["seq"] + 1, "at_us": last["at_us"], "run": 1, "phase": "full"}
        return [*lines, news]

    rewrite(log, insert)

    result = verify(log)

    assert result.ok
    assert result.unknown == 1


def test_a_crash_in_the_middle_of_a_step_is_no_difference(log: Path) -> None:
    """The facts reached the log, their decisions did not; there is nothing after them."""
    kept = rewrite(log, lambda lines: lines[: lines.index(at(lines, "RequestDispatched"))])

    result = verify(log)

    assert result.ok
    assert result.interrupted == [kept[-1]["seq"]]


def test_a_crash_in_the_middle_of_a_step_is_no_difference_when_the_next_run_tells_of_it(tmp_path: Path) -> None:
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run()
    rewrite(tmp_path, lambda lines: lines[: lines.index(at(lines, "RequestDispatched"))])
    with Recording(tmp_path) as world:
        busy_hour(world, 10, from_s=20.0)

    result = verify(tmp_path)

    assert result.ok
    assert result.runs == [1, 2]
    assert len(result.interrupted) == 1


def test_decisions_lost_from_a_run_that_ended_in_order_are_a_difference(tmp_path: Path) -> None:
    """If the next run says that all was well, something else has taken them away."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run()
    rewrite(tmp_path, lambda lines: lines[: lines.index(at(lines, "RequestDispatched"))])
    with Recording(tmp_path) as world:
        busy_hour(world, 10, from_s=20.0)

    def claim_order(lines: list[Line]) -> list[Line]:
        at(lines, "RouterStarted")["carried"]["clean"] = True
        return lines

    rewrite(tmp_path, claim_order)

    result = verify(tmp_path)

    assert kind_of(result) == "missing"


def test_a_torn_tail_is_where_the_log_ends(log: Path) -> None:
    (segment,) = list_segments(log, "events")
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[:-20])

    assert verify(log).ok


def test_behind_a_hole_from_a_repair_the_next_checkpoint_counts(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS) as world:
        busy_hour(world)
    segments = list_segments(tmp_path, "events")
    data = bytearray(segments[1].path.read_bytes())
    data[len(data) // 2] ^= 1
    segments[1].path.write_bytes(data)
    with pytest.raises(LogDamaged):
        verify(tmp_path)
    repair(tmp_path)

    result = verify(tmp_path)

    assert result.ok
    assert result.events < len(world.record)
    assert result.last_seq == world.record[-1].seq


# --- what is not the same -------------------------------------------------------------------------------------------


def test_a_value_that_was_changed_is_found_with_its_place_and_both_sides(log: Path) -> None:
    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 7)["waited_us"] = 1
        return lines

    forged = at(rewrite(log, forge), "RequestDispatched", 7)

    result = verify(log)

    assert kind_of(result) == "other"
    assert result.first is not None
    assert result.first.seq == forged["seq"]
    assert result.first.recorded == forged
    (field,) = result.first.fields
    assert (field.field, field.recorded) == ("waited_us", 1)
    assert result.first.recomputed == {**forged, "waited_us": field.recomputed}
    assert result.first.state is not None
    assert forged["rid"] in result.first.state.requests
    assert not result.first.state.requests[forged["rid"]].replica, "the state is the one before the decision"


@pytest.mark.parametrize("field", ["at_us", "cause", "run"])
def test_the_envelope_of_a_decision_is_compared_too(log: Path, field: str) -> None:
    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "SwapBegun", 2)[field] += 1
        return lines

    forged = at(rewrite(log, forge), "SwapBegun", 2)

    result = verify(log)

    assert result.first is not None
    assert [each.field for each in result.first.fields] == [field]
    assert result.first.seq == forged["seq"]


def test_a_decision_that_was_taken_out_is_found(log: Path) -> None:
    taken = at(lines_of(log), "SwapFinished", 1)
    rewrite(log, lambda lines: [line for line in lines if line != taken])

    result = verify(log)

    assert kind_of(result) in ("missing", "other")
    assert result.first is not None
    assert result.first.recomputed == taken


def test_a_fact_that_was_taken_out_shows_in_what_follows(log: Path) -> None:
    """The decision that it led to is one that nothing leads to."""
    finished = at(lines_of(log), "RequestFinished", 1)
    rewrite(log, lambda lines: [line for line in lines if line != finished])

    result = verify(log)

    assert not result.ok
    assert result.first is not None
    assert result.first.seq > finished["seq"]


def test_a_decision_too_many_is_found(log: Path) -> None:
    def forge(lines: list[Line]) -> list[Line]:
        last = lines[-1]
        more = {"type": "ReplicaStopOrdered", "seq": last["seq"] + 1, "at_us": last["at_us"], "run": 1}
        return [*lines, {**more, "cause": last["seq"], "replica": "A#0.1", "why": "evict"}]

    rewrite(log, forge)

    assert kind_of(verify(log)) == "extra"


def test_two_decisions_that_changed_places_are_found(log: Path) -> None:
    """Their order is what was acted on."""

    def forge(lines: list[Line]) -> list[Line]:
        place = next(
            place
            for place, (one, two) in enumerate(itertools.pairwise(lines))
            if one.get("cause") and one.get("cause") == two.get("cause") and one["type"] != two["type"]
        )
        one, two = lines[place], lines[place + 1]
        lines[place : place + 2] = [{**two, "seq": one["seq"]}, {**one, "seq": two["seq"]}]
        return lines

    rewrite(log, forge)

    assert kind_of(verify(log)) == "other"


def test_a_checkpoint_that_is_not_the_state_is_found(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS) as world:
        busy_hour(world)

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "SegmentOpened", 2)["state"]["last_rid"] += 1
        return lines

    forged = at(rewrite(tmp_path, forge), "SegmentOpened", 2)

    result = verify(tmp_path)

    assert kind_of(result) == "checkpoint"
    assert result.first is not None
    assert result.first.seq == forged["seq"]
    assert [each.field for each in result.first.fields] == ["last_rid"]


def test_a_run_that_begins_with_something_else_than_the_one_before_left_is_found(tmp_path: Path) -> None:
    """Numbers of requests that are given twice, a cool-down that is forgotten: it shows at the start."""
    for _ in range(2):
        with Recording(tmp_path) as world:
            world.arrives(0.0, "A")
            world.run()

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RouterStarted")["carried"]["next_swap"] = 1
        return lines

    rewrite(tmp_path, forge)

    result = verify(tmp_path)

    assert kind_of(result) == "carried"
    assert result.first is not None
    assert [each.field for each in result.first.fields] == ["next_swap"]


def test_a_fact_that_breaks_the_rules_is_named(log: Path) -> None:
    """What a run that ended with code 70 leaves behind: the fact that shows the bug."""

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RouterStarted")["at_us"] = 0
        return lines

    rewrite(log, forge)

    result = verify(log)

    assert kind_of(result) == "broken"
    assert result.first is not None
    assert result.first.error.startswith("AssertionError: 0 means never")


# --- other policies -------------------------------------------------------------------------------------------------


def test_differences_under_another_policy_are_counted_one_by_one(tmp_path: Path) -> None:
    """Two decisions were made otherwise by the rules of old: two differences, not one and all that came of it."""
    with Recording(tmp_path, policy_version=POLICY_VERSION + 1) as world:
        busy_hour(world)

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 3)["waited_us"] = 1
        at(lines, "RequestDispatched", 9)["waited_us"] = 1
        return lines

    forged = rewrite(tmp_path, forge)

    result = verify(tmp_path)

    assert result.ok
    assert result.differences == 2
    assert result.first is not None
    assert result.first.seq == at(forged, "RequestDispatched", 3)["seq"]
    assert result.first.policy_version == POLICY_VERSION + 1
    assert result.events == len(world.record)


def without_the_force_timer(patch: pytest.MonkeyPatch) -> None:
    """Rules that never set it."""
    patch.setattr(rules, "RULES_AFTER", tuple(each for each in rules.RULES_AFTER if each is not arm_the_force_timer))
    patch.setattr(rules, "arm_the_force_timer", lambda state: None)


def test_a_decision_that_other_rules_would_not_make_is_one_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules without the force timer, on a log that has it: everything else is the same."""
    with Recording(tmp_path, policy_version=POLICY_VERSION + 1) as world:
        busy_hour(world)
    set_, cancelled = (
        sum(isinstance(event, kind) and event.kind == "force" for event in world.record)
        for kind in (e.TimerSet, e.TimerCancelled)
    )
    assert (set_, cancelled) == (1, 0)
    without_the_force_timer(monkeypatch)

    result = verify(tmp_path)

    assert result.ok
    assert result.differences == 1
    assert result.first is not None
    assert result.first.kind == "extra"


def test_a_decision_that_only_other_rules_make_is_a_difference_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules without the force timer made the log; it is missing wherever it would be set."""
    with monkeypatch.context() as other_rules, Recording(tmp_path, policy_version=POLICY_VERSION + 1) as world:
        without_the_force_timer(other_rules)
        world.arrives(0.0, "A")
        world.run()

    result = verify(tmp_path)

    assert result.ok
    assert result.differences > 0
    assert result.first is not None
    assert result.first.kind == "missing"
    assert result.first.recomputed is not None
    assert result.first.recomputed["type"] == "TimerSet"


def test_a_log_that_begins_in_the_middle_of_a_run_knows_its_policy_from_the_checkpoint(tmp_path: Path) -> None:
    with Recording(tmp_path, segment_bytes=SMALL_SEGMENTS, policy_version=POLICY_VERSION + 1) as world:
        busy_hour(world)
    first, *_ = list_segments(tmp_path, "events")
    first.path.unlink()

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 3)["waited_us"] = 1
        return lines

    rewrite(tmp_path, forge)

    result = verify(tmp_path)

    assert result.ok
    assert result.differences == 1
    assert result.recorded_policies == [POLICY_VERSION + 1]


def test_strict_fails_on_them(tmp_path: Path) -> None:
    with Recording(tmp_path, policy_version=POLICY_VERSION + 1) as world:
        busy_hour(world)

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 3)["waited_us"] = 1
        return lines

    rewrite(tmp_path, forge)

    assert not verify(tmp_path, strict=True).ok


def test_a_difference_in_a_run_of_this_policy_counts_behind_one_of_another(tmp_path: Path) -> None:
    for policy_version in (POLICY_VERSION + 1, POLICY_VERSION):
        with Recording(tmp_path, policy_version=policy_version) as world:
            world.arrives(0.0 if policy_version > POLICY_VERSION else 50.0, "A")
            world.run()

    def forge(lines: list[Line]) -> list[Line]:
        for place in (0, 1):
            at(lines, "RequestDispatched", place)["waited_us"] = 1
        return lines

    forged = rewrite(tmp_path, forge)

    result = verify(tmp_path)

    assert not result.ok
    assert result.differences == 2
    assert result.first is not None
    assert result.first.seq == at(forged, "RequestDispatched", 1)["seq"]


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_what_was_proved(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = verify(log)

    code = main(["replay", "verify", str(log)])

    out = capsys.readouterr().out
    assert code == 0
    assert f"verified {result.events} events" in out
    assert "every decision is the same" in out
    assert result.decisions_digest in out


def test_the_command_shows_both_decisions_and_the_state(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 7)["replica"] = "C#7.7"
        return lines

    forged = at(rewrite(log, forge), "RequestDispatched", 7)

    code = main(["replay", "verify", str(log)])

    out = capsys.readouterr().out
    assert code == 1
    assert out.startswith(f"#{forged['seq']} at ")
    assert "recorded    RequestDispatched" in out
    assert "recomputed  RequestDispatched" in out
    assert '"C#7.7"' in out
    assert "queue: " in out
    assert "NOT THE SAME" in out


def test_as_json_it_can_be_read_by_scripts(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 7)["waited_us"] = 1
        return lines

    forged = at(rewrite(log, forge), "RequestDispatched", 7)

    code = main(["replay", "verify", str(log), "--json"])

    result = json.loads(capsys.readouterr().out)
    assert code == 1
    assert result["ok"] is False
    assert result["first"]["seq"] == forged["seq"]
    assert result["first"]["recorded"] == forged
    assert result["first"]["fields"][0]["field"] == "waited_us"
    assert result["first"]["state"]["run"] == 1


def test_the_command_tells_of_other_policies_and_accepts_them_unless_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recording(tmp_path, policy_version=POLICY_VERSION + 1) as world:
        busy_hour(world)

    def forge(lines: list[Line]) -> list[Line]:
        at(lines, "RequestDispatched", 3)["waited_us"] = 1
        return lines

    rewrite(tmp_path, forge)

    assert main(["replay", "verify", str(tmp_path)]) == 0
    assert "1 difference, all in runs recorded under another policy" in capsys.readouterr().out
    assert main(["replay", "verify", str(tmp_path), "--strict"]) == 1


def test_a_segment_that_is_missing_is_not_taken_for_other_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rules have done nothing wrong: the log is not whole."""
    with Recording(tmp_path, segment_bytes=4096) as world:
        busy_hour(world, 40)
    missing = list_segments(tmp_path, "events")[3].path
    missing.unlink()

    assert main(["replay", "verify", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "a segment is missing, or not the one that was" in said.err
    assert said.out == ""


def test_a_log_of_which_nothing_can_be_verified_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins neither with a start nor with a checkpoint."""
    with Recording(tmp_path) as world:
        busy_hour(world, 3)
    rewrite(tmp_path, lambda lines: [line for line in lines if line["type"] != "RouterStarted"])

    assert main(["replay", "verify", str(tmp_path)]) == 1
    assert "nothing to verify" in capsys.readouterr().out


def test_what_is_no_log_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "verify", str(tmp_path)]) == 1
    assert "there is no log of facts and decisions" in capsys.readouterr().err

    with pytest.raises(LogError):
        verify(tmp_path / "nowhere")
