"""A crash's page: what the tables know at once, the post-mortem when it is made, and downloads of it."""

import asyncio
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dashboard import postmortems
from dashboard.app import create_app
from dashboard.commands import CommandFailed
from dashboard.crash_page import step
from dashboard.postmortems import Postmortems
from eventlog import events as e
from tests.dashboard.rig import Dashboard, dashboard_on, text_of
from tests.projections.logs import Story, arrives, started, unruly_log

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("crashes")
    unruly_log(folder / "log", runs=1, requests=60, segment_bytes=1_000_000)
    with dashboard_on(folder) as running:
        yield running


def test_every_crash_is_listed_in_words_and_leads_to_its_page(dashboard: Dashboard) -> None:
    crashes = dashboard.sql("SELECT seq FROM crashes ORDER BY seq DESC")
    html = dashboard.get("/dash/crashes").text
    told = dashboard.get("/dash/api/crashes").json()

    assert len(crashes) > 3
    assert [row["seq"] for row in told] == [row["seq"] for row in crashes]
    for row in told:
        assert f'href="../dash/crashes/{row["seq"]}"' in html
        assert row["words"].endswith(".")


def test_a_page_is_there_at_once_and_its_post_mortem_follows(dashboard: Dashboard) -> None:
    """One event loop for all: the post-mortem is made while the page is asked for again."""
    seq = dashboard.sql("SELECT max(seq) AS seq FROM crashes WHERE kind = 'crash'")[0]["seq"]

    async def look() -> tuple[str, str, httpx.Response, httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app=create_app(dashboard.history))
        async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as client:
            early = (await client.get(f"/dash/crashes/{seq}")).text
            told = await client.get(f"/dash/api/crashes/{seq}")
            late = (await client.get(f"/dash/crashes/{seq}?part=1")).text
            text = await client.get(f"/dash/crashes/{seq}/postmortem.txt")
            bundle = await client.get(f"/dash/crashes/{seq}/bundle.zip")
            return early, late, told, text, bundle

    early, late, told, text, bundle = asyncio.run(look())

    assert "The post-mortem is being made" in early
    assert 'data-live="1"' in early
    assert told.json()["postmortem"]["incident"]["seq"] == seq
    assert "Who may be to blame" in late
    assert 'data-live="0"' in late
    assert "None" not in text_of(late)
    assert text.text.startswith("crash ")
    assert text.headers["content-disposition"] == f'attachment; filename="crash-{seq}.txt"'
    assert "report.html" in zipfile.ZipFile(io.BytesIO(bundle.content)).namelist()


def test_a_line_that_is_no_crash_says_so(dashboard: Dashboard) -> None:
    for path in ("/dash/crashes/1", "/dash/api/crashes/1", "/dash/crashes/1/bundle.zip"):
        answer = dashboard.get(path)
        assert answer.status_code == 404
        assert "No crash, failed load or stall stands at this line" in answer.text


def test_without_crashes_the_list_says_so(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("a"))
    with dashboard_on(tmp_path) as dashboard:
        assert "No llama-server has ended by itself" in dashboard.get("/dash/crashes").text


def test_html_in_what_a_process_said_is_shown_and_not_run(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started(NASTY))
        story.at(1, arrives(1, NASTY, 1))
        story.at(1, e.ReplicaSpawnOrdered(replica=f"{NASTY}#0.1", model=NASTY, index=0, gpus=(0,)))
        story.at(2, e.ReplicaCrashed(replica=f"{NASTY}#0.1", reason=NASTY, last_lines=[NASTY, "</pre><script>"]))
    with dashboard_on(tmp_path) as dashboard:
        seq = dashboard.sql("SELECT seq FROM crashes")[0]["seq"]
        for path in ("/dash/crashes", f"/dash/crashes/{seq}"):
            html = dashboard.get(path).text
            assert "<img src=x" not in html
            assert "<script>" not in html
            assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_a_post_mortem_that_cannot_be_made_says_why_and_is_tried_again(tmp_path: Path) -> None:
    """A log that is not there any more, say."""

    async def fail() -> list[str]:
        made = Postmortems(tmp_path / "nothing")
        said = []
        for _ in range(2):
            made.begin(7)
            assert made.since_s(7) is not None
            with pytest.raises(CommandFailed):
                await made.made(7)
            said.append(made.failure(7))
        return said

    first, second = asyncio.run(fail())
    assert first == second
    assert "nothing" in first


def test_a_crash_whose_consequences_go_on_is_told_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Postmortems(tmp_path)
    now_s = 1000.0
    monkeypatch.setattr(postmortems.time, "time", lambda: now_s)
    made._made[1] = postmortems.Made({}, b"", b"", made_at_s=now_s - 60, settled=False)
    made._made[2] = postmortems.Made({}, b"", b"", made_at_s=now_s - 60, settled=True)

    assert made.known(1) is None
    assert made.known(2) is not None


@pytest.mark.parametrize(
    ("kind", "what", "said"),
    [
        (
            "RequestFailed",
            {"rid": 3, "status": 502, "code": "upstream_crashed"},
            "Request 3: the router ended it with status 502: the llama-server that worked on it died.",
        ),
        ("ReplicaReady", {"replica": "a#0.2", "load_us": 1_500_000}, "a#0.2 is ready, after 1.5 s."),
        ("SwapBegun", {"swap": 4, "target": "a", "why": "idle"}, None),
        ("SomethingNew", {"depth": 3}, "SomethingNew: depth 3"),
    ],
)
def test_what_happened_next_is_said_in_words(kind: str, what: dict[str, object], said: str | None) -> None:
    told = step({"type": kind, "what": what, "at_us": 0, "seq": 1})["words"]

    assert told == said if said is not None else told.startswith("Swap 4 begun to load a")
