"""Every page renders on a real log, in both themes, on a phone and a wide screen, and no browser complains.

Of the dashboard itself: `test_dash`; of the chat and the translation: `test_talk`.
"""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import LONG, NARROW, NASTY, WIDE, Router, Window, no_overflow

THEMES = {"light": (WIDE, NARROW), "dark": (NARROW, WIDE)}
"""Each with its widths: a page is opened at the first and narrowed or widened to the second."""
PAGES = {
    "request": "dash/requests/{request}",
    "swap": "dash/swaps/{swap}",
    "crashes": "dash/crashes",
    "crash": "dash/crashes/{crash}",
    "what if": "dash/whatif",
}


def settled(page: Page, name: str) -> None:
    """All that the page shows by itself is there."""
    expect(page.locator("h1")).to_be_visible()
    if name == "request":
        expect(page.locator(".figure .main-svg").first).to_be_visible()
    elif name == "crash":
        expect(page.get_by_role("heading", name="Who may be to blame")).to_be_visible()
    for time in page.locator("time[data-us]").all()[:3]:
        assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", time.inner_text()), "moments are in the reader's time"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_renders_in_both_themes_on_a_phone_and_a_wide_screen(
    name: str, window: Window, past: dict[str, int]
) -> None:
    grounds = set()
    for theme, (width, other) in THEMES.items():
        with window.open(PAGES[name].format(**past), theme=theme, width=width) as page:
            settled(page, name)
            no_overflow(page)
            page.set_viewport_size({"width": other, "height": 900})
            no_overflow(page)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.title().endswith("· llama-router")
    assert len(grounds) == 2, "the themes differ"


def test_a_page_of_nothing_says_so(window: Window) -> None:
    for path in ("dash/requests/99999", "dash/swaps/99999", "dash/crashes/1"):
        with window.open(path, width=NARROW, allowed=(404,)) as page:
            expect(page.get_by_text("is not in the history")).to_be_visible()
            no_overflow(page)


def test_html_in_names_and_errors_is_shown_and_never_run(window: Window, past: dict[str, int], router: Router) -> None:
    """A dialog, or a picture that cannot be fetched, would be a problem of its own."""
    rid = next(event["rid"] for event in router.events("RequestArrived", model=NASTY))
    paths = {"dash": NASTY, f"dash/requests/{rid}": NASTY, f"dash/crashes/{past['crash']}": NASTY}
    for path, text in paths.items():
        with window.open(path) as page:
            expect(page.get_by_text(text).first).to_be_visible()
            assert page.locator("img[src=x]").count() == 0


def test_a_name_of_eighty_characters_can_be_read_and_breaks_nothing(window: Window, past: dict[str, int]) -> None:
    with window.open(f"dash/swaps/{past['swap']}", width=NARROW) as page:
        assert page.locator(".page-head .name").get_attribute("title") == LONG
        no_overflow(page)


def test_everything_can_be_reached_with_the_keyboard(window: Window, past: dict[str, int]) -> None:
    with window.open(f"dash/requests/{past['request']}") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null"), "the content begins after the skip"


def test_a_story_leads_from_the_dashboard_to_its_request_its_swap_and_back(
    window: Window, past: dict[str, int]
) -> None:
    with window.open("dash") as page:
        page.locator(f"#requests a[href$='requests/{past['request']}']").first.click()
        expect(page.locator("h1")).to_have_text(f"Request {past['request']}")
        page.locator(f"a[href$='swaps/{past['swap']}']").first.click()
        expect(page.locator("h1")).to_have_text(f"Swap {past['swap']}")
        page.get_by_role("navigation", name="Where this is").get_by_role("link", name="Dashboard").click()
        expect(page.locator("h1")).to_be_visible()
