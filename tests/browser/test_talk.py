"""/chat with the real llama.cpp, and /translate: text that comes as it is made, in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.rig import LONG, NARROW, Router, Window, no_overflow, until_ready
from tests.browser.sub_path import sub_path
from tests.real_router import RealRouter
from tests.tiny_gguf import write_tiny_gguf

ITS_OWN = (403, 404, 409)
"""What llama-server answers its own page: tools are off; and what the router does once the replica is gone."""


@pytest.mark.weights
def test_the_page_of_a_replica_chats_under_a_sub_path_and_holds_no_gpu(browser: Browser, tmp_path: Path) -> None:
    """A model is loaded from the empty page, its own page answers, and what it asks by itself is no request."""
    pytest.importorskip("xllamacpp", reason="the extra 'embedded' is not installed")
    weights = write_tiny_gguf(tmp_path / "tiny.gguf")
    models = {"alpha": {"gpus": [0]}, "beta": {"gpus": [0]}}
    with RealRouter(tmp_path, weights, models, {"DASHBOARD": True}, context=2048) as router:
        until_ready(router)
        with sub_path(router.port, "/some/llm") as base, Window(browser, base).open("chat", allowed=ITS_OWN) as page:
            expect(page.get_by_text("No model is loaded")).to_be_visible()
            page.get_by_role("button", name="Load alpha").click()
            expect(page.get_by_role("tab", name="alpha")).to_be_visible()
            frame = page.frame_locator("iframe")
            field = frame.locator("textarea").first
            expect(field).to_be_visible()
            assert router.events("RequestArrived") == []
            field.fill("hello")
            field.press("Enter")
            finished = router.wait_event("RequestFinished")
            assert finished["completion_tokens"] > 0
            assert [event["model"] for event in router.events("RequestArrived")][:1] == ["alpha"]
            # Its page stays open and goes on asking, and yet another model takes the GPU.
            assert router.post("/v1/completions", "beta", max_tokens=2).status == 200
            expect(page.get_by_role("tab", name="beta")).to_be_visible()
            expect(page.locator("#unloaded")).to_contain_text("alpha is not loaded now")


def test_a_translation_streams_and_can_be_stopped(window: Window, router: Router, gate: Path) -> None:
    gate.unlink(missing_ok=True)
    with window.open("translate") as page:
        page.locator("#model").select_option("small")
        page.get_by_label("Into").fill("German")
        page.get_by_role("textbox", name="Text").fill("Good morning")
        page.get_by_role("button", name="Translate").click()
        expect(page.locator("#result")).to_contain_text("w1 w2 w3")
        expect(page.get_by_role("button", name="Copy")).to_be_enabled()
        before = max(event["rid"] for event in router.events("RequestArrived"))

        page.locator("#model").select_option("gated")
        page.get_by_role("textbox", name="Text").press("Control+Enter")
        stop = page.get_by_role("button", name="Stop")
        expect(stop).to_be_visible()
        arrived = router.wait_event("RequestArrived", lambda event: event["rid"] > before, model="gated")
        stop.click()
        expect(page.locator("#state")).to_have_text("Stopped")
        assert router.wait_event("RequestCancelled", rid=arrived["rid"]).get("by", "client") == "client"


def test_what_was_chosen_is_there_next_time(window: Window, router: Router) -> None:
    with window.open("translate") as page:
        page.locator("#model").select_option(LONG)
        page.get_by_label("Into").fill("Finnish")
        page.get_by_role("textbox", name="Text").fill("x")
        page.get_by_role("button", name="Translate").click()
        expect(page.get_by_role("button", name="Copy")).to_be_enabled()
        page.reload()
        expect(page.get_by_label("Into")).to_have_value("Finnish")
        expect(page.locator("#model")).to_have_value(LONG)


@pytest.mark.parametrize("path", ["chat", "translate"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_a_phone(window: Window, path: str, theme: str) -> None:
    with window.open(path, width=NARROW, theme=theme) as page:
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_load_state("load")
        no_overflow(page)
