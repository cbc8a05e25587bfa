"""`llama-router log ...` as its user sees it: output, messages and exit codes, without a configuration or a router."""

import argparse
import errno
import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from eventlog import commands
from eventlog.commands import add_commands
from eventlog.events import (
    AdminDrain,
    Event,
    LogLine,
    ReplicaReady,
    ReplicaSpawnOrdered,
    RequestArrived,
    RequestDispatched,
    RequestFinished,
    SwapBegun,
    TokensStreamed,
    Victim,
)
from eventlog.segments import STREAMS, list_segments, read_blocks
from eventlog.writer import LogWriter
from router.cli import main
from tests.eventlog.small_log import START_US, flip, last_segment, small_log
from tests.replay.recording import Recording, busy_hour


def log(*words: str | Path) -> int:
    """Run a command line; argparse ends by SystemExit where it is wrong."""
    parser = argparse.ArgumentParser(prog="llama-router")
    add_commands(parser.add_subparsers(required=True), lambda: Path("nowhere"))
    args = parser.parse_args(["log", *map(str, words)])
    code: int = args.run(args)
    return code


STORY: list[Event] = [
    RequestArrived(rid=1, arrived_us=START_US, model="qwen"),
    SwapBegun(swap=1, target="qwen", cause_rid=1, why="idle", victims=[Victim(model="phi")]),
    ReplicaSpawnOrdered(replica="qwen#0.1", model="qwen", index=0),
    ReplicaReady(replica="qwen#0.1", slots=4),
    RequestDispatched(rid=1, replica="qwen#0.1"),
    RequestArrived(rid=2, arrived_us=START_US, model="phi"),
    RequestFinished(rid=1, replica="qwen#0.1"),
    AdminDrain(op=1),
]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """Two runs of a little traffic, a second apart."""
    with LogWriter.open(tmp_path / "log", durability="never") as writer:
        for run in (1, 2):
            for event in STORY:
                seq = writer.next_seq
                at_us = START_US + seq * 1_000_000
                writer.append([msgspec.structs.replace(event, seq=seq, at_us=at_us, run=run)])
            notes = [TokensStreamed(rid=1, gaps_us=[20_000, 19_000]), LogLine(level="info", text="hello")]
            first = writer.next_seq
            writer.append_observations(
                [msgspec.structs.replace(note, seq=first + n, at_us=START_US, run=run) for n, note in enumerate(notes)]
            )
    return tmp_path / "log"


def seqs(text: str) -> list[int]:
    return [json.loads(line)["seq"] for line in text.splitlines() if json.loads(line)["type"] != "SegmentOpened"]


def test_cat_prints_the_lines_as_they_are_stored(story: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Byte for byte, so that it can be piped into jq, grep or a file."""
    assert log("cat", story) == 0

    assert capfdbinary.readouterr().out == last_segment(story).read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--run", "2"], range(11, 19)),
        (["--type", "SwapBegun", "--type", "ReplicaReady"], [2, 4, 12, 14]),
        (["--request", "1", "--run", "1"], [1, 2, 5, 7]),
        (["--replica", "qwen#0.1", "--run", "1"], [3, 4, 5, 7]),
        (["--model", "qwen", "--run", "1"], [1, 2, 3, 4, 5, 7]),
        (["--model", "phi", "--run", "2"], [12, 16]),
        (["--since", str(START_US // 10**6 + 17)], [17, 18]),
        (["--until", str(START_US // 10**6 + 3)], [1, 2]),
        (["--stream", "observations"], [9, 10, 19, 20]),
        (["--stream", "all", "--request", "1", "--run", "2"], [11, 12, 15, 17, 19]),
        (["--stream", "observations", "--model", "qwen"], [9, 19]),
        (["--since", "1h"], []),
        (["--request", "4711"], []),
    ],
)
def test_cat_filters(
    story: Path, capfd: pytest.CaptureFixture[str], words: list[str], expected: list[int] | range
) -> None:
    """By run, type, request, replica, model, time and stream; a model means its requests and replicas too."""
    assert log("cat", story, *words) == 0

    assert seqs(capfd.readouterr().out) == list(expected)


def test_cat_pretty_is_one_line_per_event(story: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a local time, and the fields as words."""
    assert log("cat", story, "--pretty", "--request", "1", "--run", "1") == 0

    first, second, *_ = capfd.readouterr().out.splitlines()
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(START_US / 1e6 + 1))
    assert first == f"{moment}.000000        #1 run 1  RequestArrived  rid=1 arrived_us={START_US} model=qwen"
    assert 'victims=[{"model":"phi"}]' in second


def test_a_type_that_does_not_exist_names_its_neighbours(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is a mistake of the command line."""
    with pytest.raises(SystemExit) as ended:
        log("cat", story, "--type", "SwapBegan")

    assert ended.value.code == 2
    assert "is it SwapBegun" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["yesterday", "12", "2026-13-01"])
def test_a_time_that_is_none_says_what_is(story: Path, capsys: pytest.CaptureFixture[str], when: str) -> None:
    """With examples."""
    with pytest.raises(SystemExit) as ended:
        log("cat", story, "--since", when)

    assert ended.value.code == 2
    assert "expected 30m, 2h" in capsys.readouterr().err


def test_cat_of_a_damaged_log_prints_what_is_valid_and_fails(story: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The message names the place and the remedy."""
    path = last_segment(story)
    flip(path, 8 * (path.stat().st_size // 2))

    assert log("cat", story) == 1

    captured = capfd.readouterr()
    assert "damaged at byte" in captured.err
    assert f"llama-router log repair {story}" in captured.err


def test_a_log_that_is_not_there_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a traceback, for each verb."""
    for verb in ("cat", "tail", "verify", "repair", "stats"):
        assert log(verb, tmp_path / "nowhere") == 1
        assert str(tmp_path / "nowhere") in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["cat", "tail", "verify", "stats", "repair"])
def test_a_log_of_another_user_is_a_message(
    story: Path, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may be read, and its segments not."""
    segment = str(last_segment(story))

    def refuse(path: Path, *how: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert log(verb, story) == 1
    assert f"{segment}: Permission denied" in capsys.readouterr().err


def test_tail_prints_the_last_events(story: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ten, or as many as are asked for."""
    assert log("tail", story) == 0
    assert seqs(capfd.readouterr().out) == [7, 8, *range(11, 19)]
    assert log("tail", story, "-n", "3", "--stream", "all") == 0
    assert seqs(capfd.readouterr().out) == [18, 19, 20]


def test_tail_follows(story: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes is printed, each once, until it is interrupted."""
    waits = []

    def wait() -> bool:
        waits.append(1)
        writer.append([AdminDrain(seq=writer.next_seq, at_us=START_US, run=3, op=len(waits))])
        return len(waits) < 4

    monkeypatch.setattr(commands, "wait_a_moment", wait)
    with LogWriter.open(story, durability="never") as writer:
        assert log("tail", story, "-f", "-n", "1") == 0

    assert seqs(capfd.readouterr().out) == [18, 21, 22, 23]


def test_tail_follows_both_streams_from_their_own_ends(
    story: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router writes while the first lines are looked for: between the end of one stream and that of the other."""
    late: list[int] = []

    def read_late(path: Path, offset: int = 0) -> Iterator[bytes]:
        if path.name.startswith("observations") and not late:
            late.append(writer.next_seq)
            writer.append([AdminDrain(seq=writer.next_seq, at_us=START_US, run=3, op=9)])
            writer.append_observations([LogLine(seq=writer.next_seq, at_us=START_US, run=3, level="info", text="x")])
        return read_blocks(path, offset)

    with LogWriter.open(story, durability="never") as writer:
        monkeypatch.setattr("eventlog.scan.read_blocks", read_late)
        monkeypatch.setattr(commands, "wait_a_moment", lambda: False)
        assert log("tail", story, "-f", "-n", "1", "--stream", "all") == 0

    assert sorted(seqs(capfd.readouterr().out)) == [late[0], late[0] + 1]


def test_tail_goes_back_as_far_as_it_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where each segment has but a few lines."""
    written = small_log(tmp_path, steps=60, segment_bytes=400)

    for lines in (0, 1, 10, 77, 500):
        assert log("tail", tmp_path, "-n", str(lines)) == 0
        assert seqs(capfd.readouterr().out) == [event.seq for event in written[max(0, len(written) - lines) :]]


@pytest.mark.parametrize("verb", ["cat", "tail", "stats", "repair"])
def test_a_directory_without_a_log_is_no_empty_log(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in the path is told, and nothing is left there."""
    assert log(verb, tmp_path) == 1
    assert f"there is no log at {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_a_model_is_known_although_its_beginning_was_cut_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint knows the requests and replicas of then: A's end is found without its arrival and its load."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=3.0)
        world.run_until(7.0)
        world.writer._roll_at = 1
        assert world.writer.roll_if_due()
        world.run()
    list_segments(tmp_path, "events")[0].path.unlink()

    assert log("cat", tmp_path, "--model", "A", "--type", "RequestFinished") == 0
    assert '"rid":1' in capfd.readouterr().out
    assert log("cat", tmp_path, "--model", "B", "--type", "RequestFinished") == 0
    assert capfd.readouterr().out == ""


def test_the_last_hour_of_a_year_is_found_without_reading_the_year(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the checkpoint before it on; who belongs to a model is known from there."""
    with Recording(tmp_path, segment_bytes=4096) as world:
        busy_hour(world, 40)
    since_s = [event.at_us for event in world.record if isinstance(event, RequestFinished)][-8] // 10**6
    list_segments(tmp_path, "events")[0].path.write_bytes(b"nonsense")
    recent = [event for event in world.record if event.at_us >= since_s * 10**6]

    assert log("cat", tmp_path, "--since", f"{since_s:09}") == 0
    assert seqs(capfd.readouterr().out) == [event.seq for event in recent]
    models = {event.rid: event.model for event in world.record if isinstance(event, RequestArrived)}
    ended = [(event.seq, models[event.rid]) for event in recent if isinstance(event, RequestFinished)]
    assert ended
    assert not any(isinstance(event, RequestArrived) for event in recent)
    for model in sorted({whose for _, whose in ended}):
        words = ["--model", model, "--type", "RequestFinished", "--since", f"{since_s:09}"]
        assert log("cat", tmp_path, *words) == 0
        assert seqs(capfd.readouterr().out) == [seq for seq, whose in ended if whose == model]


def test_verify_says_what_it_proved(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people, or as JSON."""
    assert log("verify", story) == 0
    assert "proved 22 lines in 2 segments, seq 1 to 20" in capsys.readouterr().out

    assert log("verify", story, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_verify_proves_nothing_of_a_directory_without_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in the path is no success."""
    assert log("verify", tmp_path) == 1
    assert f"there is no log at {tmp_path}" in capsys.readouterr().err


def test_verify_and_repair_of_a_damaged_log(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 with the place; repair says what is lost and where it is now; then verify passes."""
    path = last_segment(story)
    flip(path, 8 * (path.stat().st_size // 2))

    assert log("verify", story) == 1
    assert f"DAMAGED {path}: byte" in capsys.readouterr().out
    assert log("repair", story, "--dry-run") == 1
    assert "would lose events-" in capsys.readouterr().out
    assert log("repair", story) == 0
    assert "now in " + str(story / "damaged") in (told := capsys.readouterr().out)
    assert "the log is whole again" in told
    assert log("verify", story) == 0
    assert log("repair", story) == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_repair_leaves_a_running_router_alone(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its process is named."""
    with LogWriter.open(story):
        assert log("repair", story) == 1

    assert f"process {os.getpid()}" in capsys.readouterr().err


def test_stats_count_types_bytes_and_runs(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes add up to the files."""
    assert log("stats", story, "--json") == 0

    stats = json.loads(capsys.readouterr().out)
    stored = sum(segment.path.stat().st_size for stream in STREAMS for segment in list_segments(story, stream))
    assert (stats["events"], stats["runs"], stats["last_run"]) == (20, 2, 2)
    assert stats["types"]["RequestArrived"]["events"] == 4
    assert sum(counted["bytes"] for counted in stats["types"].values()) == stored
    assert log("stats", story) == 0
    assert "20 events, seq 1 to 20, 2 runs" in capsys.readouterr().out


def test_stats_tell_a_torn_tail_from_damage(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As verify does: a power cut is nothing that somebody has to mend."""
    with last_segment(story).open("ab") as file:
        file.write(bytes(100) + b"\n")

    assert log("stats", story) == 0
    said = capsys.readouterr().out
    assert "torn tail, which the next start cuts off: events-" in said
    assert "DAMAGED" not in said

    (story / "events-000000000099.ndjson").write_bytes(last_segment(story).read_bytes()[:-120])
    assert log("stats", story) == 1
    assert "DAMAGED events-000000000001" in capsys.readouterr().out


def test_a_single_sealed_segment_is_enough(story: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Sent along with a bug report, say."""
    lone = tmp_path / "events-000000000001.ndjson.gz"
    lone.write_bytes(gzip.compress(last_segment(story).read_bytes()))

    assert log("cat", lone, "--run", "1") == 0
    assert seqs(capfd.readouterr().out) == list(range(1, 9))
    assert log("verify", lone) == 0
    assert log("repair", lone) == 1


@pytest.mark.parametrize("variable", ["EVENT_LOG_DIR", "LLAMA_ROUTER_EVENT_LOG_DIR"])
def test_without_a_path_the_environment_says_where_the_log_is(
    variable: str, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it says to the router: by either name of the setting, else the place for a user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(variable, str(story))
    assert main(["log", "verify"]) == 0

    monkeypatch.delenv(variable)
    assert main(["log", "verify"]) == 1
    assert str(tmp_path / "state/llama-router/events") in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["cat", "tail", "verify", "repair", "stats"])
def test_help_has_examples_and_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For each verb."""
    with pytest.raises(SystemExit):
        log(verb, "--help")

    text = capsys.readouterr().out
    assert f"llama-router log {verb}" in text.partition("examples:")[2]
    assert "exit codes:" in text
