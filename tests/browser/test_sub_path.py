"""The pages work where a proxy serves the router under a path of its own."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.rig import Router, Window, number_of
from tests.browser.sub_path import sub_path


@pytest.fixture(scope="module")
def window(browser: Browser, router: Router) -> Iterator[Window]:
    with sub_path(router.port, "/home/llm") as base_url:
        yield Window(browser, base_url)


def test_the_root_leads_to_the_dashboard_below_the_path(window: Window) -> None:
    with window.open("") as page:
        expect(page.locator("#requests tr").first).to_be_visible()
        assert page.url == f"{window.base_url}/dash"


def test_every_link_of_a_page_stays_below_the_path(window: Window, past: dict[str, int]) -> None:
    for path in (
        "dash",
        f"dash/requests/{past['request']}",
        f"dash/swaps/{past['swap']}",
        "dash/crashes",
        "dash/whatif",
    ):
        with window.open(path) as page:
            expect(page.locator("h1")).to_be_visible()
            hrefs = page.evaluate("[...document.links].map((link) => link.href)")
            assert hrefs
            assert [href for href in hrefs if not href.startswith(window.base_url + "/")] == []


def test_streams_and_actions_go_through_it(window: Window, router: Router) -> None:
    with window.open("dash") as page:
        expect(page.locator("#requests tr").first).to_be_visible()
        rid = number_of(router.chat("small"))
        expect(page.locator(f"#requests a[href$='requests/{rid}']").first).to_be_visible()
    with window.open("dash/whatif") as page:
        page.locator("input[name=QUEUE_HEAD_GRACE]").fill("7")
        page.get_by_role("button", name="Run it").click()
        expect(page.get_by_role("heading", name="What would have changed")).to_be_visible()
