"""The story of a crash, from the log alone: what ran, who was served, what was seen before, who was hurt."""

import json
import typing
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog import events as e
from eventlog.errors import LogError
from eventlog.settings import GroupSettings, ModelSettings
from replay.incidents import incidents
from replay.postmortem import Postmortem, postmortem
from replay.postmortem_html import postmortem_html
from replay.postmortem_text import postmortem_text
from replay.pseudonyms import DROPPED_FIELDS, MAPS
from router.cli import main
from tests.replay.recording import SETTINGS, Recording
from tests.scheduler.shell import SECOND, START_US
from tests.scheduler.world import Manners
from tests.standin.client import CutShort
from tests.standin.fixtures import Model, RouterProcess

LINES = ["srv load_model: loading model '/home/ann/models/secret-7b.gguf'", "GGML_ASSERT(n > 0) failed"]


class Diary(Recording):
    """A recording with observations, and with processes that die when the test says so."""

    def notes(self, *observations: e.Observation) -> None:
        stamped = []
        for observation in observations:
            seq, self.writer.next_seq = self.writer.next_seq, self.writer.next_seq + 1
            stamped.append(msgspec.structs.replace(observation, seq=seq, at_us=self.now_us, run=self.run_number))
        self.writer.append_observations(stamped)

    def dies(self, replica: str, **fields: object) -> None:
        """Connections break, then the end of the process is reported."""
        for rid in sorted(self.processes[replica].works_on):
            self._do(e.UpstreamLost(rid=rid, replica=replica, begun=rid % 2 == 1, detail="reset", bytes_out=100))
        crash = {"cause_of_exit": "signal", "signal": 11, "uptime_us": SECOND, "reason": "ended by SIGSEGV"}
        self._do(e.ReplicaCrashed(replica=replica, last_lines=LINES, **{**crash, **fields}))  # type: ignore[arg-type]


def an_evening(folder: Path, until_s: float | None = None) -> None:
    """A's only process works on three requests and a fourth one waits, when it dies at 10 s; C serves beside it."""
    models = {"A": ModelSettings(gpus=(0,)), "C": ModelSettings(gpus=(1,))}
    settings = msgspec.structs.replace(SETTINGS, models=models)
    with Diary(folder, settings, manners=Manners(slots=(3, 3))) as world:
        for rid in (1, 2, 3, 4):
            world.arrives(
                0.0,
                "A",
                service_s=60.0,
                stream=True,
                key="ann",
                client="ann-laptop",
                conversation=f"talk-{min(rid, 2)}",
                prompt_tokens=500 * rid,
            )
        world.arrives(0.0, "C", service_s=60.0)
        world.run_until(6.5)
        for second in range(7, 11):
            world.now_us = START_US + second * SECOND
            used_mib = 6000 + 500 * (second - 6)
            own = {"A#0.1": used_mib - 500}
            world.notes(
                e.GpuSampled(gpu=0, used_mib=used_mib, total_mib=8000, utilisation_percent=90, processes=own),
                e.GpuSampled(gpu=1, used_mib=100, total_mib=8000),
                e.TokensStreamed(rid=1, gaps_us=[20_000] * 50),
            )
        world.notes(e.LogLine(level="error", text="slot 2: context is full", replica="A#0.1"))
        world.dies("A#0.1")
        world.arrives(12.0, "A", service_s=1.0, key="bob")
        if until_s is None:
            world.run()
        else:
            world.run_until(until_s)


@pytest.fixture
def story(tmp_path: Path) -> Postmortem:
    an_evening(tmp_path)
    return postmortem(tmp_path, 1)


# --- what there is to tell ------------------------------------------------------------------------------------------


def test_crashes_failed_loads_and_stalls_are_numbered(tmp_path: Path) -> None:
    with Diary(tmp_path, manners=Manners(load_fails=1.0), seed=2) as world:
        world.arrives(0.0, "A")
        world.run()
        world.manners = Manners()
        world.arrives(100.0, "C", service_s=50.0)
        world.run_until(110.0)
        world.happens(e.ReplicaStalled(replica=next(iter(world.processes)), silent_us=9, norm_us=1, rids=[2]))

    found = incidents(tmp_path)

    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert {each.kind for each in found[:-1]} == {"load_failure"}
    assert (found[-1].kind, found[-1].model, found[-1].rids) == ("stall", "C", [2])


def test_a_crash_that_the_log_does_not_have_is_an_error(tmp_path: Path) -> None:
    an_evening(tmp_path)

    with pytest.raises(LogError, match="no crash 2: it has 1"):
        postmortem(tmp_path, 2)


# --- the story ------------------------------------------------------------------------------------------------------


def test_it_says_how_it_ended_and_what_else_ran(story: Postmortem) -> None:
    incident = story.incident

    assert (incident.kind, incident.replica, incident.model, incident.gpus) == ("crash", "A#0.1", "A", (0,))
    assert (incident.cause, incident.signal, incident.last_lines) == ("signal", 11, LINES)
    assert [(each.replica, each.phase, each.load) for each in story.running] == [
        ("A#0.1", "ready", 3),
        ("C#0.2", "ready", 1),
    ]


def test_it_says_who_was_being_served_although_the_connections_broke_first(story: Postmortem) -> None:
    served = story.served

    assert [each.rid for each in served] == [1, 2, 3]
    assert [each.conversation for each in served] == ["talk-1", "talk-2", "talk-2"]
    assert [each.prompt_tokens for each in served] == [500, 1000, 1500]
    assert {each.since_us for each in served} == {START_US + 6 * SECOND}
    assert {each.client for each in served} == {"ann-laptop"}


def test_it_shows_the_tokens_just_before(story: Postmortem) -> None:
    first, second, _ = story.served

    assert [frames for _, frames in first.tokens] == [50, 50, 50, 50]
    assert first.last_gap_us == 20_000
    assert second.tokens == []


def test_it_shows_the_memory_of_its_own_gpus(story: Postmortem) -> None:
    assert list(story.memory) == [0]
    assert [sample.used_mib for sample in story.memory[0]] == [6500, 7000, 7500, 8000]
    assert [sample.own_mib for sample in story.memory[0]] == [6000, 6500, 7000, 7500]


def test_it_shows_what_was_noted_about_the_process(story: Postmortem) -> None:
    assert [note.text for note in story.notes] == ["slot 2: context is full"]


def test_it_says_what_the_scheduler_did_next(story: Postmortem) -> None:
    """The one whose answer had not begun goes back; the others end; the model is loaded again."""
    steps = [step.type for step in story.next]

    assert steps[:6] == [
        "UpstreamLost",
        "RequestFailed",
        "UpstreamLost",
        "RequestRequeued",
        "UpstreamLost",
        "RequestFailed",
    ]
    assert steps[6:9] == ["ReplicaCrashed", "SwapBegun", "ReplicaSpawnOrdered"]
    assert "ReplicaReady" in steps
    assert story.down_us == 6 * SECOND


def test_it_says_who_was_hurt_and_for_how_long(story: Postmortem) -> None:
    """Two were cut off at once, one was sent again when the model was back, one had waited, one came meanwhile.

    The one that was sent again has the process for itself until 76 s; who came at 12 s has waited since then.
    """
    hurt = {victim.rid: (victim.how, victim.for_us / SECOND, victim.code) for victim in story.hurt}

    assert hurt[1] == hurt[3] == ("cut off", 0.0, "upstream_crashed")
    assert hurt[2] == ("sent again", 6.0, "")
    assert hurt[4] == ("delayed", 66.0, "")
    assert hurt[6] == ("delayed", 64.0, "")
    assert 5 not in hurt


def test_it_says_how_it_ended_for_each_of_them(story: Postmortem) -> None:
    """Also for those who ran again: to their end, although nothing else is told of that time."""
    assert {victim.rid: victim.outcome for victim in story.hurt} == {
        1: "failed 502",
        2: "finished",
        3: "failed 502",
        4: "finished",
        6: "finished",
    }
    assert "RequestFinished" not in [step.type for step in story.next]


def test_what_is_not_over_when_the_log_ends_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    """The last thing that is known is the arrival of request 6 at 12 s; one that runs is not said to have ended."""
    an_evening(tmp_path, until_s=12.0)

    story = postmortem(tmp_path, 1)

    hurt = {victim.rid: (victim.outcome, victim.for_us / SECOND) for victim in story.hurt}
    assert (hurt[2], hurt[4], hurt[6]) == (("open", 2.0), ("open", 2.0), ("open", 0.0))
    assert "still waiting" in postmortem_text(story)
    later = tmp_path / "later"
    an_evening(later, until_s=20.0)
    assert {victim.rid: victim.outcome for victim in postmortem(later, 1).hurt}[2] == "running"
    assert "still running" in postmortem_text(postmortem(later, 1))


def test_who_is_lost_with_the_router_afterwards_is_told(tmp_path: Path) -> None:
    an_evening(tmp_path, until_s=20.0)
    with Diary(tmp_path):
        pass

    hurt = {victim.rid: victim.outcome for victim in postmortem(tmp_path, 1).hurt}

    assert (hurt[1], hurt[2], hurt[4]) == ("failed 502", "lost", "lost")


def test_if_another_replica_serves_on_nobody_waits_for_a_load(tmp_path: Path) -> None:
    models = {"A": ModelSettings(gpus=(0,), replicas=2)}
    with Diary(tmp_path, msgspec.structs.replace(SETTINGS, models=models)) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        world.dies("A#1.2", cause_of_exit="exit", signal=None, exit_code=1)

    story = postmortem(tmp_path, 1)

    assert story.down_us == 0
    assert [victim.rid for victim in story.hurt] == [2]


def test_a_failed_load_hurts_those_who_wait(tmp_path: Path) -> None:
    with Diary(tmp_path) as world:
        world.arrives(0.0, "A")
        world.arrives(1.0, "A", leaves_after_s=1.0)
        world.run_until(3.0)
        failed = e.ReplicaLoadFailed(replica="A#0.1", kind="missing_file", reason="no such file", exit_code=1)
        world.happens(failed)

    story = postmortem(tmp_path, 1)

    assert (story.incident.kind, story.incident.cause) == ("load_failure", "missing_file")
    assert [(victim.rid, victim.how, victim.outcome) for victim in story.hurt] == [(1, "failed", "failed 502")]
    assert story.suspects[0].kind == "configuration"
    assert story.down_us == -1


def test_a_stall_is_told_like_a_crash(tmp_path: Path) -> None:
    with Diary(tmp_path, manners=Manners(stop_s=(1.0, 1.0), begun=0.0)) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        world._do(e.ReplicaStalled(replica="A#0.1", silent_us=60 * SECOND, norm_us=SECOND, rids=[1]))
        world.run()

    story = postmortem(tmp_path, 1)

    assert story.incident.kind == "stall"
    assert [served.rid for served in story.served] == [1]
    assert [victim.how for victim in story.hurt] == ["sent again"]
    assert "ReplicaStopOrdered" in [step.type for step in story.next]


# --- suspects -------------------------------------------------------------------------------------------------------


def crash_with(folder: Path, crashes: list[tuple[str, str]], manners: Manners | None = None) -> None:
    """One request at a time, of a model and conversation; each time the process dies under it for good."""
    with Diary(folder, manners=manners) as world:
        for number, (model, conversation) in enumerate(crashes):
            at_s = number * 1000.0
            rid = world.arrives(at_s, model, service_s=500.0, conversation=conversation)
            world.run_until(at_s + 10.0)
            world._do(e.UpstreamLost(rid=rid, replica=world.running[rid], begun=True))
            (replica,) = [process.replica for process in world.processes.values() if process.model == model]
            world._do(e.ReplicaCrashed(replica=replica, cause_of_exit="signal", signal=11, reason="ended by SIGSEGV"))
            world.run_until(at_s + 900.0)


def test_a_conversation_that_was_there_each_time_comes_first(tmp_path: Path) -> None:
    """Two models died, and the same conversation was being served."""
    crash_with(tmp_path, [("A", "evil"), ("C", "evil"), ("A", "evil")])

    suspects = postmortem(tmp_path, 3).suspects

    assert (suspects[0].kind, suspects[0].name) == ("conversation", "evil")
    assert "at 3 incidents: 1, 2, 3" in suspects[0].evidence[0]


def test_a_model_that_dies_in_every_company_comes_first(tmp_path: Path) -> None:
    crash_with(tmp_path, [("A", "one"), ("A", "two"), ("A", "three")])

    story = postmortem(tmp_path, 3)

    assert (story.suspects[0].kind, story.suspects[0].name) == ("model", "A")
    assert "2 for the same reason: ended by SIGSEGV" in story.suspects[0].evidence
    assert [each.number for each in story.earlier] == [2, 1]


def test_a_request_that_kills_twice_comes_first(tmp_path: Path) -> None:
    """Sent again after the first crash, it runs alone and it happens again."""
    with Diary(tmp_path, manners=Manners(begun=0.0)) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        for replica in ("A#0.1", "A#0.2"):
            world._do(e.UpstreamLost(rid=1, replica=replica), e.ReplicaCrashed(replica=replica, signal=11))
            world.run_until(world.now_us / SECOND - START_US / SECOND + 8.0)

    story = postmortem(tmp_path, 2)
    suspects = story.suspects

    assert [(victim.rid, victim.how, victim.outcome) for victim in story.hurt] == [(1, "failed", "failed 502")]
    assert (suspects[0].kind, suspects[0].name) == ("request", "1")
    assert "it was being served at 2 incidents: 1, 2" in suspects[0].evidence


def test_memory_that_was_full_is_a_suspect(story: Postmortem) -> None:
    memory = [suspect for suspect in story.suspects if suspect.kind == "gpu memory"]

    assert [suspect.name for suspect in memory] == ["GPU 0"]
    assert memory[0].evidence == ["8000 of 8000 MiB were in use just before (100 %)"]


def test_a_process_that_said_it_ran_out_of_memory_is_believed(tmp_path: Path) -> None:
    with Diary(tmp_path) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        world.dies("A#0.1", cause_of_exit="gpu_oom", reason="CUDA error: out of memory")

    assert postmortem(tmp_path, 1).suspects[0].kind == "gpu memory"


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [("killed", "signal", "no sign of that in the log"), ("host_oom", "main memory", "the kernel killed it")],
)
def test_memory_is_to_blame_for_a_sigkill_only_where_the_kernel_was_seen_to_do_it(
    tmp_path: Path, cause: str, kind: str, words: str
) -> None:
    """A plain `kill -9` is somebody's, as far as the log can tell."""
    with Diary(tmp_path) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
        world.dies("A#0.1", cause_of_exit=cause, signal=9, reason=f"ended (SIGKILL): {words}")

    suspects = postmortem(tmp_path, 1).suspects

    assert suspects[0].kind == kind
    assert words in suspects[0].evidence[0]
    assert [suspect.kind for suspect in suspects].count("main memory") == (kind == "main memory")


# --- how it is shown ------------------------------------------------------------------------------------------------


def test_the_text_has_every_part(story: Postmortem) -> None:
    text = postmortem_text(story)

    assert text.startswith("crash 1 of 1: A#0.1, ")
    assert "it had been up for 1 s and ended by itself: SIGSEGV (ended by SIGSEGV)" in text
    assert "the model was ready again after 6 s; 5 requests hurt" in text
    assert "200 frames" in text
    assert "GPU 0: 6500 MiB at " in text
    assert "GGML_ASSERT(n > 0) failed" in text
    for title in ("suspects", "it was serving", "what else ran", "what the scheduler did next", "who was hurt"):
        assert f"\n\n{title}\n" in text


class Page(HTMLParser):
    """What a page refers to, and whether every element is closed."""

    VOID = ("meta", "line", "rect", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(story: Postmortem) -> None:
    story.notes.append(story.notes[0].__class__(1, "<script>alert(1)</script>"))
    html = postmortem_html(story)
    page = Page()
    page.feed(html)
    page.close()

    assert page.open == []
    assert page.links == []
    assert "http" not in html.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in html
    assert "<script>alert(1)</script>" in page.words
    assert html.count("<svg") == 2


def test_a_bundle_says_nothing_about_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither models, keys, clients, conversations nor paths; numbers, times and causes are all there."""
    log = tmp_path / "log"
    models = {"secret-7b": ModelSettings(gpus=(0,), capacities={"vault": 1}), "C": ModelSettings(gpus=(1,))}
    rules = {"groups": {"cabal": GroupSettings(members=("secret-7b",))}, "matrix_evict_costs": {"secret-7b": 3}}
    settings = msgspec.structs.replace(SETTINGS, models=models, pools={"vault": 9}, **rules)
    with Diary(log, settings) as world:
        world.arrives(0.0, "secret-7b", service_s=60.0, key="ann", client="ann-laptop", conversation="talk-77")
        world.run_until(8.0)
        world.notes(
            e.LogLine(level="info", text="secret-7b at 192.168.7.9:8080 says 'my prompt'", replica="secret-7b#0.1")
        )
        world.dies("secret-7b#0.1")

    assert main(["postmortem", str(log), "--crash", "1", "--bundle", str(tmp_path / "crash.zip")]) == 0

    with zipfile.ZipFile(tmp_path / "crash.zip") as bundle:
        files = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert sorted(files) == ["README.txt", "events.ndjson", "report.html", "report.json"]
    for text in files.values():
        for secret in ("secret-7b", "ann", "talk-77", "/home", "192.168", "my prompt", "vault", "cabal"):
            assert secret not in text.replace("channel", "")
    events = [json.loads(line) for line in files["events.ndjson"].splitlines()]
    crash = next(event for event in events if event["type"] == "ReplicaCrashed")
    ready = next(event for event in events if event["type"] == "ReplicaReady")
    assert crash["replica"] == ready["replica"]
    assert (crash["signal"], crash["cause_of_exit"]) == (11, "signal")
    assert "GGML_ASSERT(n > 0) failed" in crash["last_lines"]
    report = json.loads(files["report.json"])
    assert report["incident"]["replica"] == crash["replica"]


def test_whatever_goes_by_name_in_an_event_is_known_to_a_bundle() -> None:
    """A field that holds values by the names of somebody's models, pools or keys hides these names, or is left out."""
    seen: set[object] = set()
    maps: set[str] = set()

    def look(hint: Any, field: str) -> None:
        if typing.get_origin(hint) is dict and typing.get_args(hint)[0] is str:
            maps.add(field)
        for inner in typing.get_args(hint):
            look(inner, field)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in seen:
            seen.add(hint)
            for name, each in typing.get_type_hints(hint).items():
                look(each, name)

    for kind in e.ALL:
        if kind is not e.MetricsSampled:  # never in a bundle
            look(kind, "")
    assert len(maps) > 5
    assert maps <= MAPS | DROPPED_FIELDS


def test_equal_names_are_equal_in_one_bundle_and_not_in_two(tmp_path: Path) -> None:
    an_evening(tmp_path / "log")
    names = []
    for number in (1, 2):
        file = tmp_path / f"{number}.zip"
        assert main(["postmortem", str(tmp_path / "log"), "--crash", "1", "--bundle", str(file)]) == 0
        with zipfile.ZipFile(file) as bundle:
            names.append(json.loads(bundle.read("report.json"))["incident"]["model"])

    assert names[0] != names[1]


def test_the_command_lists_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    an_evening(tmp_path)

    assert main(["postmortem", str(tmp_path)]) == 0

    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["N", "at", "what", "replica"]
    assert "A#0.1" in row
    assert "SIGSEGV" in row


def test_a_log_without_crashes_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Diary(tmp_path) as world:
        world.arrives(0.0, "A")
        world.run()

    assert main(["postmortem", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no crash, failed load or stall in this log\n"


def test_a_directory_without_a_log_is_no_log_without_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["postmortem", str(tmp_path)]) == 1
    assert "there is no log of facts and decisions" in capsys.readouterr().err


def test_a_killed_run_is_told_of_with_what_it_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run 1 ends with two requests open, run 2 in order; neither is a crash of a model."""
    with Diary(tmp_path) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
    with Diary(tmp_path) as world:
        world.happens(e.RequestLost(rid=1, model="A", lost_run=1))
        world.happens(e.RequestLost(rid=2, model="A", lost_run=1))
        world.happens(e.RouterStopped())
    with Diary(tmp_path):
        pass

    assert main(["postmortem", str(tmp_path)]) == 0

    said, killed = capsys.readouterr().out.splitlines()
    assert said == "no crash, failed load or stall in this log"
    assert killed.startswith("router killed: run 1, before ")
    assert killed.endswith("; 2 requests lost: 1 and 2")

    assert main(["postmortem", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["incidents"] == []
    assert [(run["run"], run["lost"]) for run in listed["killed_runs"]] == [(1, [1, 2])]


def test_the_command_gives_text_json_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    an_evening(log)

    assert main(["postmortem", str(log), "--crash", "1"]) == 0
    assert capsys.readouterr().out.startswith("crash 1 of 1")
    assert main(["postmortem", str(log), "--crash", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["incident"]["replica"] == "A#0.1"
    assert main(["postmortem", str(log), "--crash", "1", "--html", str(tmp_path / "crash.html")]) == 0
    assert (tmp_path / "crash.html").read_text().startswith("<!doctype html>")


def test_a_crash_can_be_named_by_its_seq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number counts from the log's beginning, which retention moves; the seq stays."""
    an_evening(tmp_path)
    assert main(["postmortem", str(tmp_path), "--json"]) == 0
    seq = json.loads(capsys.readouterr().out)["incidents"][0]["seq"]

    assert main(["postmortem", str(tmp_path), "--crash", f"#{seq}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["incident"]["seq"] == seq
    assert main(["postmortem", str(tmp_path), "--crash", "#1"]) == 1
    assert "no crash with the seq #1" in capsys.readouterr().err
    assert main(["postmortem", str(tmp_path), "--crash", "last"]) == 1
    assert "--crash last: expected a number" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--bundle"])
def test_a_file_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    an_evening(tmp_path / "log")

    assert main(["postmortem", str(tmp_path / "log"), "--crash", "1", option, str(tmp_path / "no" / "file")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "no" / "file") in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("option", [["--html", "x.html"], ["--bundle", "x.zip"]])
def test_a_file_needs_to_be_told_which_crash(tmp_path: Path, option: list[str]) -> None:
    an_evening(tmp_path)

    assert main(["postmortem", str(tmp_path), *option]) == 2


def test_a_real_crash_is_told_from_the_log_of_a_real_router(tmp_path: Path) -> None:
    """A stand-in dies in the middle of a stream: its last words, its tokens and its client are all in the story."""
    words = "GGML_ASSERT(rows > 0) failed"
    model = Model("a", tokens=200, gap_s=0.02, die_at_chunk=80, last_words=words)
    with RouterProcess(tmp_path, [model]) as router:
        with pytest.raises(CutShort):
            router.chat("a", stream=True).read()
        router.wait_event("ReplicaCrashed")

    story = postmortem(router.log_dir, 1)

    assert (story.incident.cause, story.incident.signal) == ("signal", 11)
    assert words in "\n".join(story.incident.last_lines)
    (served,) = story.served
    assert sum(frames for _, frames in served.tokens) > 20
    assert [(victim.how, victim.code) for victim in story.hurt] == [("cut off", "upstream_crashed")]
