"""A request's page tells its life without a gap, as the replay tells it from the log, and of whom it knows nothing."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dashboard import request_life
from dashboard.request_life import Stretch, gaps, runs, waits
from eventlog import events as e
from replay.explain import RequestStory, explain_request
from tests.dashboard.rig import Dashboard, dashboard_on, text_of
from tests.projections.logs import Story, arrives, started, unruly_log

Told = dict[int, tuple[dict[str, Any], RequestStory]]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("requests")
    unruly_log(folder / "log", runs=1, requests=40, segment_bytes=1_000_000)
    return folder


@pytest.fixture(scope="module")
def dashboard(folder: Path) -> Iterator[Dashboard]:
    with dashboard_on(folder) as running:
        yield running


@pytest.fixture(scope="module")
def told(dashboard: Dashboard, folder: Path) -> Told:
    """Each request, as its page tells it and as the replay does."""
    return {rid: (life_of(dashboard, rid), explain_request(folder / "log", rid)) for rid in rids(dashboard)}


def life_of(dashboard: Dashboard, rid: int) -> dict[str, Any]:
    answer = dashboard.get(f"/dash/api/requests/{rid}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def rids(dashboard: Dashboard) -> list[int]:
    return [row["rid"] for row in dashboard.sql("SELECT rid FROM requests ORDER BY rid")]


def test_its_time_is_told_without_a_gap_from_its_arrival_to_its_end(told: Told) -> None:
    for rid, (life, _) in told.items():
        request, stretches = life["request"], life["stretches"]
        if not request["total_us"]:
            assert not stretches
            continue
        moments = [(each["from_us"], each["to_us"]) for each in stretches]
        assert moments[0][0] == request["arrived_us"], rid
        assert all(before[1] == after[0] for before, after in pairwise(moments)), (rid, moments)
        assert moments[-1][1] == request["ended_us"], rid


def test_it_waits_as_long_as_the_replay_finds_in_the_log_and_mostly_for_the_same(told: Told) -> None:
    """The replay folds the whole state; the page has the tables alone. They may name what a request behind the head of
    its queue waits for in different words, and agree on all that is decided about the request itself."""
    alike = whole = 0
    for rid, (life, story) in told.items():
        queued = [each for each in life["stretches"] if each["phase"] == "queued"]
        assert sum(each["to_us"] - each["from_us"] for each in queued) == story.queued_us, rid
        for wait in story.waits:
            middle_us = (wait.from_us + wait.to_us) // 2
            here = next(each for each in queued if each["from_us"] <= middle_us < each["to_us"])
            whole += wait.to_us - wait.from_us
            alike += (wait.to_us - wait.from_us) * (here["what"] == wait.what)
            if wait.what in ("drain", "stop", "load"):
                assert (here["what"], here["swap"]) == (wait.what, wait.swap), (rid, wait, here)
    assert alike / whole > 0.8


def test_everybody_who_went_first_is_named(told: Told) -> None:
    for rid, (life, story) in told.items():
        assert {each.rid for each in story.overtaken_by} <= {row["rid"] for row in life["passed_by"]}, rid


def test_every_request_has_a_page_in_words(dashboard: Dashboard) -> None:
    for rid in rids(dashboard):
        answer = dashboard.get(f"/dash/requests/{rid}")
        assert answer.status_code == 200, answer.text
        assert f"<h1>Request {rid}</h1>" in answer.text
        assert "None" not in text_of(answer.text)
        assert 'data-live="0"' in answer.text


def test_a_part_is_asked_for_by_itself_while_it_goes_on(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("big"))
        story.at(1, arrives(1, "big", 1, stream=True))
        story.at(1, e.RequestHeld(rid=1, model="big", why="grace", blocked_by=["small"], victims=["small"]))
        story.at(5, arrives(2, "big", 5))
    with dashboard_on(tmp_path) as dashboard:
        whole, part = dashboard.get("/dash/requests/1").text, dashboard.get("/dash/requests/1?part=1").text

    assert "<html" in whole
    assert "<html" not in part
    assert 'data-live="1"' in part
    assert "Waiting in the queue. 4 s so far." in part
    assert "others might go first until its grace was over: small" in part
    assert "4 s so far" in text_of(part)


def test_a_number_that_is_a_wish_or_nothing_says_so(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("big"))
        story.at(1, e.LoadWished(op=4, rid=7, model="big"))
    with dashboard_on(tmp_path) as dashboard:
        wish, missing = dashboard.get("/dash/requests/7"), dashboard.get("/dash/requests/800")
        soon, told = dashboard.get("/dash/requests/8"), dashboard.get("/dash/api/requests/8")

    assert wish.status_code == missing.status_code == told.status_code == 404
    assert "somebody wanted big to be loaded (operation 4" in wish.text
    assert "Request 800 is not in the history" in missing.text
    assert 'http-equiv="refresh"' not in missing.text
    assert 'http-equiv="refresh"' in soon.text
    assert told.json()["error"]["code"] == "request_not_found"


def test_html_in_names_keys_and_errors_is_shown_and_not_run(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started(NASTY))
        story.at(1, arrives(1, NASTY, 1, stream=True, key=NASTY, asked=NASTY, route=NASTY))
        story.at(1, e.RequestDispatched(rid=1, replica=f"{NASTY}#0.1"))
        story.at(1.5, e.TokensStreamed(rid=1, gaps_us=[100_000, 20_000, 30_000]))
        story.at(2, e.RequestFinished(rid=1, replica=f"{NASTY}#0.1", status=500, error=NASTY, took_us=1_000_000))
    with dashboard_on(tmp_path) as dashboard:
        html = dashboard.get("/dash/requests/1").text

    assert "<img src=x" not in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") >= 5


def test_the_figure_in_a_page_is_whole(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("a"))
        story.at(1, arrives(1, "a", 1, stream=True))
        story.at(1, e.RequestDispatched(rid=1, replica="a#0.1"))
        story.at(1.2, e.TokensStreamed(rid=1, gaps_us=[100_000, 20_000, 30_000]))
    with dashboard_on(tmp_path) as dashboard:
        html = dashboard.get("/dash/requests/1").text

    found = re.search(r'data-figure="([^"]+)"', html)
    assert found
    figure = json.loads(found[1].replace("&#34;", '"').replace("&amp;", "&"))
    assert figure["data"][0]["x"] == [0.12, 0.15]
    assert figure["data"][0]["y"] == [20.0, 30.0]


def test_a_stream_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("a"))
        story.at(1, arrives(1, "a", 1, stream=True))
        story.at(2, e.RequestDispatched(rid=1, replica="a#0.1", waited_us=1_000_000))
        story.at(4, e.TokensStreamed(rid=1, gaps_us=[500_000, 20_000, 30_000]))
        story.at(6, arrives(2, "a", 6))
    with dashboard_on(tmp_path) as dashboard:
        said = text_of(dashboard.get("/dash/requests/1?part=1").text)

    assert "Waited 1 s" in said
    assert "First token 1.5 s" in said
    assert "In all 5 s so far" in said
    assert "Answer 3 tokens so far" in said


def test_a_stream_that_was_cut_off_says_how_far_it_had_come(tmp_path: Path) -> None:
    """llama-server never gave its account of it; the tokens that were seen are there."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("a"))
        story.at(1, arrives(1, "a", 1, stream=True, prompt_tokens=40))
        story.at(2, e.RequestDispatched(rid=1, replica="a#0.1", waited_us=1_000_000))
        story.at(4, e.TokensStreamed(rid=1, gaps_us=[500_000, 20_000, 20_000]))
        story.at(4, e.RequestCancelled(rid=1, replica="a#0.1", by="client"))
    with dashboard_on(tmp_path) as dashboard:
        said = text_of(dashboard.get("/dash/requests/1?part=1").text)

    assert "First token 1.5 s from its arrival" in said
    assert "In all 3 s" in said
    assert "Prompt ~40 tokens by its size" in said
    assert "Answer 3 tokens when it was cut off, 50" in said


# --- pure -----------------------------------------------------------------------------------------------------------


def request(**fields: Any) -> dict[str, Any]:
    known = {"model": "a", "arrived_us": 0, "ended_us": None, "stream": True, "work": "generation"}
    return {**known, "first_token_us": None, "priority": 0, **fields}


def test_a_wait_is_cut_where_its_reason_changes() -> None:
    """Its body came, an earlier request had its GPUs, its swap drained, stopped and loaded."""
    dispatched = {"type": "RequestDispatched", "at_us": 100, "replica": "a#0.1"}
    swap = {"swap": 3, "begun_us": 40, "drain_us": 20, "stop_us": 10, "ended_us": 100, "victims": ["b"]}
    holds = [{"at_us": 10, "why": "claimed", "blocked_by": ["rid:1"]}]

    found = waits(request(), [dispatched], holds, [swap], [], in_queue_us=10, now_us=100)

    assert [(each.what, each.from_us, each.to_us, each.by) for each in found] == [
        ("body", 0, 10, []),
        ("claimed", 10, 40, ["rid:1"]),
        ("drain", 40, 60, ["b"]),
        ("stop", 60, 70, ["b"]),
        ("load", 70, 100, ["a"]),
    ]
    assert found[1].text == "an earlier request had the room that it needs: request 1"


def test_a_wait_that_goes_on_has_no_end() -> None:
    (found,) = waits(request(), [], [], [], [], in_queue_us=0, now_us=50)

    assert (found.what, found.to_us, found.shown) == ("turn", None, "")


def test_behind_a_loaded_model_it_waits_for_a_slot() -> None:
    replica = {"ready_us": -5, "stop_ordered_us": None, "ended_us": None, "ordered_us": -9, "swap": 1}

    (found,) = waits(request(), [], [], [], [replica], in_queue_us=0, now_us=50)

    assert found.what == "slots"


def test_a_lost_attempt_is_told_and_the_wait_after_it() -> None:
    decisions = [
        {"seq": 1, "type": "RequestDispatched", "at_us": 10, "replica": "a#0.1"},
        {"seq": 2, "type": "RequestRequeued", "at_us": 30},
        {"seq": 3, "type": "RequestDispatched", "at_us": 50, "replica": "a#0.2"},
    ]

    queued = waits(request(), decisions, [], [], [], in_queue_us=0, now_us=90)
    ran = runs(request(ended_us=90), [decisions[0], decisions[2]], decisions, first_frame_us=15)

    assert [(each.from_us, each.to_us, each.attempt) for each in queued] == [(0, 10, 1), (30, 50, 2)]
    assert [(each.phase, each.from_us, each.to_us) for each in ran] == [
        ("lost", 10, 30),
        ("prefill", 50, 65),
        ("tokens", 65, 90),
    ]


def test_gaps_are_placed_after_the_first_token_and_the_longest_is_never_lost() -> None:
    seconds = [
        {"first_frame_us": 100, "gaps_us": [20, 30]},
        {"first_frame_us": None, "gaps_us": [10] * 5000 + [900] + [10] * 5000},
    ]

    found = gaps(seconds)

    assert gaps(seconds[:1]) == [(120, 20), (150, 30)]
    assert len(found) <= request_life.POINTS_MAX
    assert max(gap_us for _, gap_us in found) == 900


def test_a_stretch_names_whom_it_was_for_in_words() -> None:
    stretch = Stretch("queued", "drain", 0, 1_500_000, "the models finished", ["big", "rid:4"], swap=9)

    assert (stretch.shown, stretch.text) == ("1.5 s", "the models finished: big and request 4 (swap 9)")


def test_a_request_that_was_held_for_hundreds_of_reasons_has_still_run(tmp_path: Path) -> None:
    """Its decisions are more than its page shows: the last of them is its dispatch."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"), arrives(1, "A", 0))
        for second in range(1, 300):
            story.at(second, e.RequestHeld(rid=1, model="A", why="claimed", blocked_by=[f"rid:{second}"]))
        story.at(300, e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(310, e.RequestFinished(rid=1, replica="A#0.1"))
    with dashboard_on(tmp_path) as dashboard:
        life = life_of(dashboard, 1)
        html = dashboard.get("/dash/requests/1").text

    last = life["stretches"][-1]
    assert (last["phase"], last["to_us"] - last["from_us"]) == ("running", 10_000_000)
    assert len(life["decisions"]) == request_life.DECISIONS_SHOWN
    assert "and more" in html
