"""A what-if from the page: tried, cancelled, there again after a reload."""

import re

from playwright.sync_api import Page, expect

from tests.browser.rig import NARROW, Window, no_overflow


def fill(page: Page, label: str, text: str) -> None:
    page.locator(f"input[name={label}]").fill(text)


def test_a_change_is_tried_and_its_result_is_there_after_a_reload(window: Window) -> None:
    with window.open("dash/whatif", width=NARROW) as page:
        fill(page, "QUEUE_HEAD_GRACE", "5")
        page.get_by_role("button", name="Run it").click()
        expect(page.get_by_role("heading", name="What would have changed")).to_be_visible()
        expect(page.get_by_role("heading", name="How far off the simulator is")).to_be_visible()
        expect(page.locator(".figure .main-svg").first).to_be_visible()
        no_overflow(page)
        page.reload()
        expect(page.get_by_role("heading", name="What would have changed")).to_be_visible()


def test_what_is_missing_is_said_at_once(window: Window) -> None:
    with window.open("dash/whatif", allowed=(400,)) as page:
        page.get_by_role("button", name="Run it").click()
        expect(page.get_by_role("alert")).to_contain_text("nothing is changed")


def test_a_value_that_is_wrong_is_told_at_its_field(window: Window) -> None:
    """What is refused at once, what the command finds wrong, and what stands in no field of its own."""
    with window.open("dash/whatif", allowed=(400,), width=NARROW, theme="dark") as page:
        run = page.get_by_role("button", name="Run it")
        grace, others = page.locator("input[name=QUEUE_HEAD_GRACE]"), page.locator("textarea[name=others]")
        fill(page, "QUEUE_HEAD_GRACE", "1, 2")
        run.click()
        expect(grace).to_have_accessible_description(
            "QUEUE_HEAD_GRACE: one value, please; several are compared by a search"
        )
        expect(grace).to_be_focused()
        fill(page, "QUEUE_HEAD_GRACE", "soon")
        expect(page.get_by_role("alert")).to_have_count(0)
        run.click()
        expect(grace).to_have_accessible_description(re.compile("^'soon' is not seconds, 0 or more"))
        expect(page.locator("#job .note.bad")).to_have_text(re.compile("^Grace, s: 'soon' is not seconds, 0 or more"))
        fill(page, "QUEUE_HEAD_GRACE", "")
        others.fill("replicas.small")
        run.click()
        expect(others).to_have_accessible_description('"replicas.small": expected KEY=VALUE, such as replicas.MODEL=2')
        no_overflow(page)


def test_a_search_can_be_cancelled(window: Window) -> None:
    with window.open("dash/whatif") as page:
        page.get_by_role("button", name="Search for the best").click()
        for field in page.locator("input[data-setting]").all():
            field.fill("")
        fill(page, "QUEUE_HEAD_GRACE", ", ".join(map(str, range(90))))  # more than is tried before the click
        page.get_by_role("button", name="Run it").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("It was cancelled")).to_be_visible()


def test_a_setting_that_there_is_not_is_told_in_the_words_of_the_command(window: Window) -> None:
    with window.open("dash/whatif") as page:
        page.locator("textarea[name=others]").fill("QUEUE_HEAD_GRACES=5")
        page.get_by_role("button", name="Run it").click()
        expect(page.locator("#job").get_by_text("did you mean QUEUE_HEAD_GRACE?")).to_be_visible()
        expect(page.locator("textarea[name=others]")).to_have_attribute("aria-invalid", "true")
