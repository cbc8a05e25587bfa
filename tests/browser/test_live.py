"""Pages change while they are looked at, and what is pressed on them happens. Of the dashboard itself: `test_dash`."""

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.rig import Router, Window, is_silent, number_of, until_told


def test_a_request_that_runs_is_followed_to_its_end(window: Window, router: Router, gate: Path) -> None:
    call = router.chat("gated", stream=True)
    rid = number_of(call)
    until_told(router, f"/dash/api/requests/{rid}", {"stage": "running"})
    with window.open(f"dash/requests/{rid}") as page:
        expect(page.get_by_text("running", exact=True)).to_be_visible()
        # Nothing happens, so nothing is asked; what had begun before may still come to its end.
        assert any(is_silent(page, 2500) for _ in range(4))
        gate.touch()
        expect(page.locator(".figure .main-svg").first).to_be_visible()
        page.evaluate("document.querySelector('.figure').dataset.mark = 'first'")
        call.read()
        expect(page.get_by_text("answered", exact=True)).to_be_visible()
        expect(page.locator(".figure .main-svg").first).to_be_visible()
        expect(page.locator(".story")).to_have_attribute("data-live", "0")
        expect(page.locator(".figure")).to_have_attribute("data-mark", "first")
        # The last tokens of a stream come into the tables after its end.
        frames = until_told(router, f"/dash/api/requests/{rid}", {"outcome": "ok"})["request"]["frames"]
        expect(page.get_by_text(f"{frames - 1} frames")).to_be_visible()


def test_a_model_is_unloaded_and_loaded_from_the_page(window: Window, router: Router) -> None:
    assert router.chat("small").status == 200
    before = len(router.events("AdminUnload"))
    with window.open("dash") as page:
        page.get_by_role("button", name="Unload small").click()
        sure = page.get_by_role("button", name="When done")
        load = page.get_by_role("button", name="Load small", exact=True)
        expect(sure.or_(load)).to_be_visible()
        if sure.is_visible():
            sure.click()
        expect(load).to_be_visible()
        assert len(router.events("AdminUnload")) == before + 1
        load.click()
        expect(page.get_by_role("button", name="Unload small")).to_be_visible()
