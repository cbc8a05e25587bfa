"""The panels of /dash say what the tables say, filter as asked, and do not stumble over nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import request_list, units
from dashboard.panels import PANELS
from projections import questions
from projections.output import plain
from tests.dashboard.rig import Dashboard, dashboard_on
from tests.projections.logs import Story, arrives, started, unruly_log
from tests.scheduler.shell import SECOND

SINCE_US = 0
"""January 1970, in which the pretended world lives."""
UNTIL_US = 31 * 86_400 * SECOND


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("panels")
    unruly_log(folder / "log", runs=2, requests=40)
    with dashboard_on(folder) as running:
        yield running


def asked(dashboard: Dashboard, name: str, **more: Any) -> list[dict[str, Any]]:
    question = questions.find(name)
    parameters = question.parameters(since_us=SINCE_US, until_us=UNTIL_US, **more)
    rows = dashboard.sql(question.sql, **parameters)
    return [{key: plain(value) for key, value in row.items()} for row in rows]


RANGE = {"since": "1970-01-01T00:00+00:00", "until": "1970-02-01T00:00+00:00"}


def test_the_tiles_say_what_the_tables_say(dashboard: Dashboard) -> None:
    assert dashboard.panel("tiles", **RANGE)["rows"] == asked(dashboard, "tiles")
    assert dashboard.panel("tiles", **RANGE, model="A")["rows"] == asked(dashboard, "tiles", model="A")
    (row,) = dashboard.panel("tiles", **RANGE)["rows"]
    (counted,) = dashboard.sql("SELECT count(*) AS n, count(*) FILTER (outcome = 'ok') AS ok FROM requests")
    assert (row["requests"], row["ok"]) == (counted["n"], counted["ok"])
    assert row["ok"] > 0
    assert row["failed"] > 0


@pytest.mark.parametrize(
    ("panel", "question"),
    [("queue", "queue_over_time"), ("tokens", "tokens_over_time"), ("gpus", "gpus_over_time"), ("crashes", "crashes")],
)
def test_a_panel_has_the_rows_of_its_question(dashboard: Dashboard, panel: str, question: str) -> None:
    rows = dashboard.panel(panel, **RANGE)["rows"]
    assert rows == asked(dashboard, question)
    assert rows


def test_the_page_gets_figures_without_the_rows(dashboard: Dashboard) -> None:
    for panel in ("queue", "tokens", "gpus", "residency"):
        told = dashboard.panel(panel, **RANGE, rows="false")
        assert told.keys() == {"since_us", "until_us", "bucket_us", "figure"}
        assert told["figure"]["data"]


@pytest.mark.parametrize("many", [request_list.MANY, 0], ids=["few", "many"])
def test_the_history_of_requests_is_paged_newest_first_and_loses_none(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Of many, a page is looked for in the last part of the range first."""
    monkeypatch.setattr(request_list, "MANY", many)
    (last,) = dashboard.sql("SELECT max(arrived_us) AS at_us FROM requests")
    asked = {"since": "1970-01-01T00:00+00:00", "until": units.iso(last["at_us"] + SECOND)}
    rids: list[int] = []
    pages = 0
    while True:
        pages += 1
        told = dashboard.panel("requests", **asked, page=pages, limit=17)
        rids += [row["rid"] for row in told["rows"]]
        assert len(told["rows"]) == min(17, told["total"] - 17 * (pages - 1))
        if pages * 17 >= told["total"]:
            break
    assert pages > 2
    wanted = dashboard.sql("SELECT rid FROM requests ORDER BY arrived_us DESC, rid DESC")
    assert rids == [row["rid"] for row in wanted]


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"model": "B"}, "model = 'B'"),
        ({"client": "x"}, "client = 'x'"),
        ({"outcome": "ok"}, "outcome = 'ok'"),
        ({"outcome": "cancelled", "model": "A"}, "outcome = 'cancelled' AND model = 'A'"),
        ({"outcome": "open"}, "outcome IS NULL"),
        ({"outcome": "not_ok"}, "outcome IN ('error', 'failed', 'rejected', 'lost')"),
    ],
    ids=str,
)
def test_a_filter_of_the_history_finds_what_sql_finds(
    dashboard: Dashboard, given: dict[str, str], condition: str
) -> None:
    told = dashboard.panel("requests", **RANGE, limit=500, **given)
    wanted = dashboard.sql(f"SELECT rid FROM requests WHERE {condition} ORDER BY arrived_us DESC, rid DESC")
    assert [row["rid"] for row in told["rows"]] == [row["rid"] for row in wanted]
    assert told["total"] == len(wanted)


def test_the_clients_are_those_that_asked_the_most(dashboard: Dashboard) -> None:
    rows = dashboard.panel("clients", **RANGE)["rows"]
    wanted = dashboard.sql("SELECT client, count(*) AS n FROM requests GROUP BY client ORDER BY n DESC, client")
    assert [(row["who"], row["requests"]) for row in rows] == [(row["client"], row["n"]) for row in wanted]
    assert not any(row["is_key"] for row in rows)


def test_what_cannot_be_asked_is_said(dashboard: Dashboard) -> None:
    for path, words in (
        ("tile", "there is no panel 'tile'; there are tiles"),
        ("tiles?since=yesterday", "'yesterday' is no time"),
        ("tiles?since=1h&until=2h", "since ('1h') must be before until ('2h')"),
        ("requests?outcome=good", "outcome 'good' is none of open, not_ok, ok"),
    ):
        answer = dashboard.get(f"/dash/api/panels/{path}")
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    answer = dashboard.get("/dash/api/panels/requests?page=0")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "page is '0': input should be greater than or equal to 1"


def test_every_panel_is_listed(dashboard: Dashboard) -> None:
    assert set(dashboard.get("/dash/api/panels").json()) == {*PANELS, "requests"}


def test_models_have_a_colour_each_in_the_order_of_their_names(dashboard: Dashboard) -> None:
    told = dashboard.get("/dash/api/models").json()
    assert told["models"] == sorted(told["models"])
    assert told["hues"] == {model: place for place, model in enumerate(told["models"])}


def test_colours_are_those_of_the_last_configuration_whatever_the_clock_said(tmp_path: Path) -> None:
    """The machine's clock was set back between two runs."""
    with Story(tmp_path / "log") as story:
        story.at(1000, started("b", "gone"))
    with Story(tmp_path / "log", run=2) as story:
        story.at(10, started("a", "b"))
    with dashboard_on(tmp_path) as dashboard:
        told = dashboard.get("/dash/api/models").json()

    assert told == {"models": ["a", "b", "gone"], "hues": {"a": 0, "b": 1}}


def test_on_empty_tables_every_panel_answers_and_draws_nothing(tmp_path: Path) -> None:
    with Story(tmp_path / "log"):
        pass
    with dashboard_on(tmp_path) as empty:
        assert empty.get("/dash").status_code == 200
        for name in PANELS:
            told = empty.panel(name)
            assert told.get("figure") is None
            assert len(told["rows"]) == (name == "tiles")
        assert empty.panel("requests")["total"] == 0
        assert empty.get("/dash/api/models").json() == {"models": [], "hues": {}}


def test_a_name_made_of_html_arrives_as_it_is_and_is_no_mark_in_a_figure(tmp_path: Path) -> None:
    """JSON needs no escaping, and the page's scripts make text of it; Plotly takes some tags for marks."""
    name = "<img src=x onerror=alert(1)>"
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, name, 1))
    with dashboard_on(tmp_path) as odd:
        assert odd.panel("requests")["rows"][0]["model"] == name
        assert name not in odd.get("/dash").text
