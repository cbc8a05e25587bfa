"""What all pages share: their frame, their links, their safety, and the files that they are made of."""

import gzip
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from dashboard.assets import PLOTLY, assets
from dashboard.overview import default_range
from dashboard.pages import page, time
from projections.errors import QuestionFailed
from tests.dashboard.rig import dashboard_on, fetch
from tests.projections.logs import unruly_log


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    folder = tmp_path_factory.mktemp("pages")
    unruly_log(folder / "log", runs=1, requests=5)
    with dashboard_on(folder) as dashboard:
        yield dashboard.app


def test_links_lead_from_any_depth_to_the_root_by_a_relative_way(app: FastAPI) -> None:
    """A proxy may put the router under any path: nothing on a page begins with a slash or names a host."""
    extra = FastAPI()

    @extra.get("/dash/things/{thing:path}/parts")
    async def show(request: Request, thing: str) -> HTMLResponse:
        return page(
            request, "dash.html", plotly=PLOTLY, scripts=(), ranges=(), default_range="24h", tiles=(), outcomes=()
        )

    for served, path, root in (
        (app, "/dash", "./"),
        (app, "/dash/", "../"),
        (extra, "/dash/things/7/parts", "../../../"),
        (extra, "/dash/things/a%2Fb/parts?x=/y", "../../../"),
    ):
        html = fetch(served, path).text
        links = re.findall(r'(?:href|src)="([^"]+)"', html)
        assert all(link.startswith((root, "#")) for link in links), links
        assert f'data-root="{root}"' in html
        assert f'href="{root}dash"' in html


def test_a_page_forbids_everything_that_is_inline_or_from_elsewhere(app: FastAPI) -> None:
    response = fetch(app, "/dash")
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "script-src" not in policy, "scripts fall under default-src"
    for script in re.findall(r"<script[^>]*>(.*?)</script>", response.text, re.DOTALL):
        assert not script.strip()
    assert not re.search(r"\son\w+=|\sstyle=", response.text)


def test_html_in_data_is_shown_and_not_run() -> None:
    extra = FastAPI()

    @extra.get("/dash")
    async def show(request: Request) -> HTMLResponse:
        return page(
            request,
            "dash.html",
            plotly='"><script>alert(1)</script>',
            scripts=(),
            ranges=(),
            default_range="24h",
            tiles=(),
            outcomes=(),
        )

    html = fetch(extra, "/dash").text
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_every_file_that_a_page_names_is_there_and_kept_for_ever(app: FastAPI) -> None:
    html = fetch(app, "/dash").text
    named = [link for link in re.findall(r'(?:href|src)="([^"]+)"', html) if "/static/" in link]
    assert len(named) >= 3
    for link in named:
        response = fetch(app, f"/{link.removeprefix('./')}")
        assert response.status_code == 200, link
        assert "immutable" in response.headers["cache-control"]


def test_every_module_that_a_script_imports_is_there() -> None:
    for path, asset in assets().files.items():
        if path.endswith(".js"):
            for wanted in re.findall(r'from "\./([^"]+)"', asset.content.decode()):
                assert f"{path.rpartition('/')[0]}/{wanted}".lstrip("/") in assets().files, f"{path} imports {wanted}"


def test_a_file_of_another_version_is_not_there(app: FastAPI) -> None:
    assert fetch(app, "/dash/static/000000000000/style.css").status_code == 404
    assert fetch(app, f"/dash/static/{assets().version}/%2e%2e/app.py").status_code == 404


def test_plotly_is_sent_compressed_to_who_takes_it_and_plain_to_who_does_not(app: FastAPI) -> None:
    packed = fetch(app, f"/dash/static/{PLOTLY}", **{"accept-encoding": "gzip"})
    plain = fetch(app, f"/dash/static/{PLOTLY}", **{"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert packed.content == plain.content
    assert "content-encoding" not in plain.headers
    assert b"plotly.js" in plain.content[:200]


def test_what_is_compressed_is_the_same_each_time() -> None:
    asset = assets().files["style.css"]
    assert gzip.decompress(asset.compressed) == asset.content


def test_a_moment_is_in_utc_until_a_script_makes_local_time_of_it() -> None:
    assert time(None) == "–"
    shown = time(1_500_000)
    assert shown == '<time datetime="1970-01-01T00:00:01.500Z" data-us="1500000">1970-01-01 00:00:01 UTC</time>'


def test_a_young_router_shows_its_first_minutes_and_an_old_one_its_day() -> None:
    assert [default_range(age_s) for age_s in (0, 60, 1_000, 20_000, 30_000, 9e9)] == [
        "15m",
        "15m",
        "1h",
        "6h",
        "24h",
        "24h",
    ]


@pytest.mark.parametrize("path", ["/dash/nothing", "/dash/requests/seven", "/dash/swaps/1/2", "/dash/crashes/%3Cb%3E"])
def test_an_address_with_nothing_behind_it_is_said_as_a_page_and_to_programs_as_json(app: FastAPI, path: str) -> None:
    page_of_it = fetch(app, path, accept="text/html,*/*;q=0.8")
    told = fetch(app, path)

    assert page_of_it.status_code == told.status_code == 404
    assert "There is no such page" in page_of_it.text
    assert "content-security-policy" in page_of_it.headers
    assert told.json()["error"]["code"] == "not_found"


def test_a_number_larger_than_any_is_no_mistake_of_the_dashboard(app: FastAPI) -> None:
    for place in ("requests", "swaps", "crashes"):
        for number in (2**63, 10**60, -1):
            assert fetch(app, f"/dash/{place}/{number}").status_code == 404, (place, number)


def test_what_breaks_is_said_as_a_page_and_to_programs_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes too long, and a mistake of the dashboard's own."""

    async def fails(error: Exception, *_: object, **__: object) -> None:
        raise error

    unruly_log(tmp_path / "log", runs=1, requests=5)
    with dashboard_on(tmp_path) as dashboard:
        for error, status, words in (
            (QuestionFailed("it took longer than 20 s"), 400, "It took longer than 20 s."),
            (ZeroDivisionError(), 500, "The dashboard made a mistake of its own"),
        ):
            monkeypatch.setattr(dashboard.history, "ask", partial(fails, error))
            page_of_it = fetch(dashboard.app, "/dash/swaps/1", raises=False, accept="text/html")
            told = fetch(dashboard.app, "/dash/api/swaps/1", raises=False)
            assert page_of_it.status_code == told.status_code == status
            assert "This page could not be made" in page_of_it.text
            assert words in page_of_it.text
            assert told.json()["error"]["message"]
