"""The history API, as the router's port answers it, and the SQL behind what each GPU did."""

import asyncio
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboard import history_api
from dashboard.app import create_app
from dashboard.history import History
from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from projections import questions
from projections.projector import Projector
from projections.sandbox import ask
from tests.dashboard.test_beside_the_router import WithDashboard
from tests.projections.logs import Story, us
from tests.standin.fixtures import Model


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithDashboard]:
    """One router for all, with some traffic behind it: four requests of `a`, one of `b`, and one that failed."""
    models = (Model("a", tokens=3), Model("b", gpus=(1,), tokens=3))
    with WithDashboard(tmp_path_factory.mktemp("history"), *models) as running:
        running.until_ready()
        for model in ("a", "a", "b", "a", "a"):
            assert running.chat(model).status == 200
        assert running.chat("a", standin={"status": 400}).status >= 400
        yield running


def history(router: WithDashboard, query: str = "") -> Any:
    call = router.call("GET", f"/router/history{query}")
    assert call.status == 200, call.read()
    return call.json()


def rids(found: Any) -> list[int]:
    return [row["rid"] for row in found["history"]]


def test_a_request_that_has_been_answered_is_in_the_history(router: WithDashboard) -> None:
    """At once, newest first, with model, times and tokens: nobody has to wait for the tables."""
    assert router.chat("b").status == 200
    found = history(router)
    newest = found["history"][0]
    assert newest["model"] == "b"
    assert newest["rid"] == max(rids(found))
    assert newest["outcome"] in ("ok", None)  # its end may be logged a moment after its client has it
    older = found["history"][1:]
    assert all(row["prompt_tokens"] > 0 and row["completion_tokens"] == 3 for row in older if row["outcome"] == "ok")
    assert all(row["arrived_us"] <= row["dispatched_us"] <= row["ended_us"] for row in older)
    assert rids(found) == sorted(rids(found), reverse=True)
    assert (found["more"], found["reset_us"]) == (False, None)


def test_filters_choose_and_a_page_goes_on_where_the_last_one_ended(router: WithDashboard) -> None:
    everything = rids(history(router))
    of_b = history(router, "?model=b")
    assert {row["model"] for row in of_b["history"]} == {"b"}
    assert rids(history(router, "?model=a&model=b")) == everything
    assert rids(history(router, "?model=nobody")) == []
    assert [row["status"] for row in history(router, "?outcome=error")["history"]] == [400]

    first = history(router, "?limit=2")
    assert (rids(first), first["more"]) == (everything[:2], True)
    second = history(router, f"?limit=2&before={rids(first)[-1]}")
    assert rids(second) == everything[2:4]
    assert rids(history(router, "?limit=0")) == everything
    assert rids(history(router, "?order=asc&limit=3")) == everything[::-1][:3]
    assert rids(history(router, f"?after={everything[1]}")) == everything[:1]

    assert rids(history(router, "?since=1h")) == everything
    assert rids(history(router, "?until=1h")) == []
    third = history(router)["history"][2]["arrived_us"] / 1e6
    assert rids(history(router, f"?since={third:.6f}")) == everything[:3]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?limit=100001", "'limit': Input should be less than or equal to 100000, not '100001'"),
        ("?limit=-1", "'limit': Input should be greater than or equal to 0, not '-1'"),
        ("?limit=many", "'limit': Input should be a valid integer"),
        ("?modle=a", "there is no parameter 'modle'; did you mean 'model'?"),
        ("?since=yesterday", "'yesterday' is no time: expected 30m, 2h"),
        ("?since=1h&until=2h", "since (1h) is not before until (2h)"),
        ("?order=up", "'order'"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(router: WithDashboard, query: str, told: str) -> None:
    answer = router.call("GET", f"/router/history{query}")
    assert answer.status == 400
    assert told in answer.json()["error"]["message"]


def test_the_routes_are_documented(router: WithDashboard) -> None:
    paths = router.call("GET", "/openapi.json").json()["paths"]
    assert {"/router/history", "/router/status_timeline", "/router/reset_history"} <= set(paths)
    listed = {field["name"] for field in paths["/router/history"]["get"]["parameters"]}
    assert {"model", "limit", "since", "until"} <= listed
    assert router.call("GET", "/router/reset_history").status == 405


def test_a_monitor_that_asks_by_head_gets_headers_and_the_connection_stays_good(router: WithDashboard) -> None:
    """One connection for all: a body that should not be there would be taken for the next answer's beginning."""
    for path in ("/router/history", "/router/status_timeline", "/status", "/dash", "/events", "/logs"):
        head = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        health = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", router.port), timeout=30) as connection:
            connection.sendall((head + health).encode())
            first, rest = b"".join(iter(lambda: connection.recv(65536), b"")).split(b"\r\n\r\n", 1)
        assert first.startswith(b"HTTP/1.1 200 "), path
        assert rest.startswith(b"HTTP/1.1 200 "), f"{path}: {rest[:80]!r}"
        assert rest.endswith(b'\r\n\r\n{"status":"ok"}'), path


def test_each_gpu_has_its_timeline(router: WithDashboard) -> None:
    """From one moment to the next without a gap; both loaded and served here."""
    found = router.call("GET", "/router/status_timeline?since=1h").json()
    for row in found["gpus"]:
        timeline = row["timeline"]
        assert timeline[0]["from_us"] == found["since_us"]
        assert timeline[-1]["until_us"] == found["until_us"]
        assert all(one["until_us"] == two["from_us"] for one, two in pairwise(timeline))
        assert all(one["status"] != two["status"] for one, two in pairwise(timeline))
        assert {"inactive", "swapping", "serving", "idle"} == {span["status"] for span in timeline}
    assert [row["gpu"] for row in found["gpus"]] == [0, 1]
    assert [row["gpu"] for row in router.call("GET", "/router/status_timeline?gpu=1").json()["gpus"]] == [1]
    assert router.call("GET", "/router/status_timeline?gpu=x").status == 400


def test_a_reset_hides_what_was_for_good_and_deletes_nothing(tmp_path: Path) -> None:
    """It is a fact of the log, so neither the end of the router nor the loss of the database undoes it."""
    with WithDashboard(tmp_path) as router:
        router.until_ready()
        assert router.chat("a").status == 200
        router.wait_event("RequestFinished")
        done = router.call("POST", "/router/reset_history")
        assert done.status == 200
        reset_us = done.json()["reset_us"]
        assert history(router) == {"history": [], "more": False, "reset_us": reset_us}
        assert router.chat("a").status == 200
        assert len(history(router)["history"]) == 1

        router.stop()
        (tmp_path / "state" / "history.duckdb").unlink()
        router.start()
        router.until_ready()
        assert [row["rid"] for row in history(router)["history"]] == [2]
        timeline = router.call("GET", "/router/status_timeline?since=1d").json()
        assert timeline["since_us"] == reset_us
        assert [event["rid"] for event in router.events("RequestArrived")] == [1, 2]


def test_a_long_history_comes_whole_and_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece repeats or leaves out a row."""
    monkeypatch.setattr(history_api, "PIECE", 7)
    with Story(tmp_path / "log") as story:
        story.at(0, e.RouterStarted(config=SchedulerSettings(), version="1"))
        for rid in range(1, 31):
            story.at(rid, e.RequestArrived(rid=rid, arrived_us=us(rid), model="a", route="/chat/completions"))
    kept = History(tmp_path / "log", tmp_path / "db", failed=lambda error: None)
    kept.start()
    assert kept.wait_caught_up(20)

    async def ask_for(query: str) -> Any:
        transport = httpx.ASGITransport(create_app(kept))
        async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as client:
            return (await client.get(f"/router/history{query}")).json()

    found = asyncio.run(ask_for("?limit=0&order=asc"))
    assert (rids(found), found["more"]) == (list(range(1, 31)), False)
    found = asyncio.run(ask_for("?limit=20"))
    assert (rids(found), found["more"]) == (list(range(30, 10, -1)), True)
    kept.close()


def test_swapping_goes_before_serving_before_idle(tmp_path: Path) -> None:
    """One GPU: a swap from 10 s on, ready at 14 s, a request from 14 s to 20 s; the router ends at 30 s."""
    settings = SchedulerSettings(models={"a": ModelSettings(gpus=(0,))}, gpus=1)
    with Story(tmp_path / "log") as story:
        story.at(5, e.RouterStarted(config=settings, version="1", gpus=[e.Gpu(index=0)]))
        story.at(10, e.RequestArrived(rid=1, arrived_us=us(10), model="a", route="/chat/completions"))
        story.at(10, e.SwapBegun(swap=1, target="a", cause_rid=1, why="queue", footprint=[0]))
        story.at(10, e.ReplicaSpawnOrdered(replica="a#0.1", model="a", index=0, gpus=[0], swap=1))
        story.at(14, e.ReplicaReady(replica="a#0.1", slots=1))
        story.at(14, e.SwapFinished(swap=1), e.RequestDispatched(rid=1, replica="a#0.1"))
        story.at(20, e.RequestFinished(rid=1, replica="a#0.1", status=200))
        story.at(30, e.RouterStopped())
    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        projector.catch_up()
        question = questions.find("status_over_time")
        rows = ask(projector.cursor(), question.sql, question.parameters(since_us=us(0), until_us=us(40))).rows
    assert [(status, from_us, until_us) for _, status, from_us, until_us in rows] == [
        ("inactive", us(0), us(5)),
        ("idle", us(5), us(10)),
        ("swapping", us(10), us(14)),
        ("serving", us(14), us(20)),
        ("idle", us(20), us(30)),
        ("inactive", us(30), us(40)),
    ]


def test_what_ended_before_it_began_by_a_clock_that_was_set_back_is_nothing(tmp_path: Path) -> None:
    settings = SchedulerSettings(models={"a": ModelSettings(gpus=(0,))}, gpus=1)
    with Story(tmp_path / "log") as story:
        story.at(5, e.RouterStarted(config=settings, version="1", gpus=[e.Gpu(index=0)]))
        story.at(20, e.SwapBegun(swap=1, target="a", cause_rid=1, why="queue", footprint=[0]))
        story.at(12, e.SwapFinished(swap=1))
        story.at(30, e.RouterStopped())
    with Projector(tmp_path / "log", tmp_path / "db") as projector:
        projector.catch_up()
        question = questions.find("status_over_time")
        rows = ask(projector.cursor(), question.sql, question.parameters(since_us=us(0), until_us=us(40))).rows
    assert [row[1:] for row in rows] == [
        ("inactive", us(0), us(5)),
        ("idle", us(5), us(30)),
        ("inactive", us(30), us(40)),
    ]
