"""The report of `replay tune --html`: one file that draws its figures without asking anybody for anything."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from router.cli import main


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Two models on one GPU, by turns."""
    lines = [f"{n * 0.9:.1f},{'ab'[n % 2]},120,30" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["time,model,prompt_tokens,output_tokens", *lines]) + "\n")
    sweep = ["--sweep", "QUEUE_HEAD_GRACE=0,10,30", "--jobs", "1"]
    written = tmp_path / "report.html"
    assert main(["replay", "tune", str(tmp_path / "t.csv"), *sweep, "--html", str(written)]) == 0
    return written


def test_the_report_draws_its_figures_from_what_is_in_it(browser: Browser, report: Path) -> None:
    """plotly.js is packed into the file, which is small enough to send to somebody."""
    assert report.stat().st_size < 2_500_000
    complaints: list[str] = []
    asked: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        expect(page.locator(".figure .main-svg .xtitle")).to_have_text(["time spent loading, s", "QUEUE_HEAD_GRACE, s"])
        expect(page.locator(".figure:has(.main-svg)")).to_have_count(3)
    assert complaints == []
    assert asked == [report.as_uri()]
