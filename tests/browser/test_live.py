"""Pages change while they are looked at, and what is pressed on them happens."""

from contextlib import suppress
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.rig import LONG, Router, Window, number_of, until_told
from tests.standin.client import CutShort


def test_a_request_that_runs_is_followed_to_its_end(window: Window, router: Router, gate: Path) -> None:
    call = router.chat("gated", stream=True)
    rid = number_of(call)
    until_told(router, f"/dash/api/requests/{rid}", {"stage": "running"})
    with window.open(f"dash/requests/{rid}") as page:
        expect(page.get_by_text("running", exact=True)).to_be_visible()
        gate.touch()
        call.read()
        expect(page.get_by_text("answered", exact=True)).to_be_visible()
        expect(page.locator(".figure .main-svg").first).to_be_visible()
        expect(page.locator(".story")).to_have_attribute("data-live", "0")


def test_a_new_request_appears_on_the_dashboard_by_itself(window: Window, router: Router) -> None:
    with window.open("dash") as page:
        expect(page.locator("#requests tr").first).to_be_visible()
        rid = number_of(router.chat("small"))
        expect(page.locator(f"#requests a[href$='requests/{rid}']").first).to_be_visible()


def test_a_filter_leaves_what_fits(window: Window, router: Router) -> None:
    wanted = {event["rid"] for event in router.events("RequestArrived", model=LONG)}
    with window.open("dash") as page:
        expect(page.locator("#requests tr").first).to_be_visible()
        page.locator("#model").select_option(LONG)
        expect(page.locator("#requests tr")).to_have_count(len(wanted))
        links = page.locator("#requests a[href*='requests/']").all()
        assert {int(str(link.get_attribute("href")).rpartition("/")[2]) for link in links} == wanted


def test_a_running_request_is_cancelled_from_the_page(window: Window, router: Router, gate: Path) -> None:
    call = router.chat("gated", stream=True)
    rid = number_of(call)
    with window.open("dash") as page:
        page.get_by_role("button", name=f"Cancel request {rid}").click()
        page.get_by_role("button", name="Cancel the request").click()
        ended = router.wait_event("RequestCancelled", rid=rid)
        expect(page.get_by_role("button", name=f"Cancel request {rid}")).to_have_count(0)
    assert ended["by"] == "admin"
    with suppress(CutShort):
        call.read()


def test_a_model_is_unloaded_and_loaded_from_the_page(window: Window, router: Router) -> None:
    assert router.chat("small").status == 200
    before = len(router.events("AdminUnload"))
    with window.open("dash") as page:
        page.get_by_role("button", name="Unload small").click()
        sure = page.get_by_role("button", name="Unload it")
        load = page.get_by_role("button", name="Load small", exact=True)
        expect(sure.or_(load)).to_be_visible()
        if sure.is_visible():
            sure.click()
        expect(load).to_be_visible()
        assert len(router.events("AdminUnload")) == before + 1
        load.click()
        expect(page.get_by_role("button", name="Unload small")).to_be_visible()
