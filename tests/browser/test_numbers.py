"""The numbers on a page are those that `llama-router sql` gives."""

import json
import re
import subprocess
import sys
from typing import Any

from playwright.sync_api import expect

from dashboard.units import duration
from tests.browser.rig import Router, Window


def sql(router: Router, text: str) -> list[dict[str, Any]]:
    told = subprocess.run(
        [sys.executable, "-m", "router.cli", "sql", text, "--json"],
        env=router.env,
        cwd=router.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows: list[dict[str, Any]] = json.loads(told.stdout)
    return rows


def test_the_tiles_of_the_dashboard_say_what_the_tables_say(window: Window, router: Router) -> None:
    (row,) = sql(router, "SELECT count(*) AS n, count(*) FILTER (WHERE outcome = 'ok') AS ok FROM requests")
    with window.open("dash") as page:
        tile = page.locator("[data-tile=requests]")
        expect(tile).to_contain_text(str(row["n"]))
        (swaps,) = sql(router, "SELECT count(*) AS n FROM swaps WHERE target <> ''")
        expect(page.locator("[data-tile=swaps]")).to_contain_text(str(swaps["n"]))


def test_a_request_s_page_says_what_its_row_says(window: Window, router: Router, past: dict[str, int]) -> None:
    (row,) = sql(router, f"SELECT * FROM requests WHERE rid = {past['request']}")
    with window.open(f"dash/requests/{past['request']}") as page:
        tiles = {}
        for tile in page.locator(".tile").all():
            label, value = tile.inner_text().split("\n")[:2]
            tiles[label] = value
    assert tiles["Waited"] == duration(row["wait_us"])
    assert tiles["First token"] == duration(row["ttft_us"])
    assert tiles["In all"] == duration(row["total_us"])
    assert tiles["Answer"] == f"{row['completion_tokens']} tokens"


def test_a_swap_s_page_says_what_its_rows_say(window: Window, router: Router, past: dict[str, int]) -> None:
    (row,) = sql(router, f"SELECT * FROM swaps WHERE swap = {past['swap']}")
    candidates = sql(router, f"SELECT model FROM swap_candidates WHERE swap = {past['swap']} ORDER BY place")
    with window.open(f"dash/swaps/{past['swap']}") as page:
        text = re.sub(r"\s+", " ", page.locator(".life").inner_text())
        names = page.locator("table").first.locator("tbody .name").all_inner_texts()
    for name in ("drain_us", "stop_us", "load_us"):
        assert duration(row[name]) in text
    assert names == [candidate["model"] for candidate in candidates]
