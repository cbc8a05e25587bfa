"""Unloading from /dash: one model or all, when their work is done or now, and who gets to know of it beforehand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.rig import LONG, NARROW, NASTY, WIDE, Router, Window, no_overflow, number_of, refuse
from tests.browser.test_dash import RANGE, of_model, ready
from tests.standin.client import Call
from tests.standin.fixtures import Model


@pytest.fixture(scope="module")
def router(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """One of its own: what fails here is not in the numbers that others count."""
    gate = tmp_path_factory.mktemp("gates") / "gate"
    models = [
        Model("small", tokens=20, gap_s=0.005, slots=2),
        Model(LONG, tokens=12, gap_s=0.01),
        Model("gated", gpus=(1,), gap_s=0.01, gate=str(gate)),
        Model(NASTY, gpus=(1,), tokens=8),
    ]
    with Router(tmp_path_factory.mktemp("router"), models) as running:
        yield running


@pytest.fixture(scope="module")
def window(browser: Browser, router: Router) -> Window:
    return Window(browser, router.base_url)


def streaming(router: Router, gate: Path, model: str = "gated") -> Call:
    """A request whose answer has begun; it goes on until somebody ends it."""
    gate.touch()
    call = router.chat(model, stream=True, standin={"tokens": 10_000, "gap_s": 0.05})
    next(call.chunks())
    return call


def dialog(page: Page) -> Any:
    return page.get_by_role("dialog")


def choose(page: Page, name: str) -> None:
    dialog(page).get_by_role("button", name=name, exact=True).click()


def emptied(page: Page, router: Router) -> None:
    """Every GPU is empty, on the page and in fact."""
    for card in page.locator("#gpus > article").all():
        expect(card.get_by_text("No model is loaded.")).to_be_visible()
    status = router.status()
    assert [gpu["residents"] for gpu in status["gpus"]] == [[], []]
    assert {model["phase"] for model in status["models"]} == {"absent"}


def test_everything_is_unloaded_at_once_where_nobody_uses_it(window: Window, router: Router) -> None:
    for model in ("small", NASTY):
        router.chat(model).read()
    with window.open(RANGE) as page:
        ready(page)
        everything = page.get_by_role("button", name="Unload all")
        everything.click()
        expect(dialog(page)).to_contain_text("2 models: nobody uses them at the moment.")
        choose(page, "Keep them")
        assert not router.events("AdminDrain")
        everything.click()
        choose(page, "Unload")
        emptied(page, router)
        expect(everything).to_be_disabled()
        assert router.events("AdminDrain")[-1].get("force", False) is False


def test_unloading_a_model_waits_for_its_stream_and_can_still_be_hurried(
    window: Window, router: Router, gate: Path
) -> None:
    """The answer is whole; while it lasts, the same button offers to cut it off."""
    call = router.chat("gated", stream=True)
    router.wait_event("RequestSent", rid=number_of(call))
    with window.open(RANGE) as page:
        ready(page)
        row = of_model(page, "models", "gated")
        row.get_by_role("button").click()
        expect(dialog(page)).to_contain_text("1 request runs on it.")
        expect(dialog(page)).to_contain_text("When done: running answers end first.")
        choose(page, "When done")
        expect(page.locator(".toast").last).to_contain_text("gated is unloaded once its work is done.")
        expect(row).to_contain_text("Finishing its work")
        row.get_by_role("button").click()
        expect(dialog(page)).to_contain_text("It leaves already, once its work is done.")
        choose(page, "Keep it")
        gate.touch()
        assert "[DONE]" in call.frames_to_the_end()[0][-1]
        expect(row).to_contain_text("Not loaded")


def test_unloading_by_force_ends_a_stream_with_its_error_and_fails_what_waits(
    window: Window, router: Router, gate: Path
) -> None:
    """Said in the dialog before; done by keys alone, and Enter at once would have kept it."""
    call = streaming(router, gate)
    waiting = router.chat("gated")
    with window.open(RANGE) as page:
        ready(page)
        expect(of_model(page, "waiting", "gated")).to_have_count(1)
        button = of_model(page, "models", "gated").get_by_role("button")
        button.focus()
        page.keyboard.press("Enter")
        expect(dialog(page)).to_contain_text("1 request runs on it. 1 request waits for it.")
        expect(dialog(page)).to_contain_text("Now: running answers end with an error; requests that wait for it fail.")
        page.keyboard.press("Enter")
        expect(dialog(page)).to_have_count(0)
        expect(button).to_be_focused()
        expect(button).not_to_have_attribute("aria-busy", "true")
        page.keyboard.press("Enter")
        expect(dialog(page).get_by_role("button", name="Keep it")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        expect(dialog(page).get_by_role("button", name="Unload now")).to_be_focused()
        page.keyboard.press("Enter")
        frames, proper_end = call.frames_to_the_end()
        assert "model_unloaded" in frames[-1]
        assert not proper_end
        assert (waiting.status, waiting.json()["error"]["code"]) == (503, "model_unloaded")
        expect(of_model(page, "models", "gated")).to_contain_text("Not loaded")


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "dark"), (NARROW, "light")])
def test_everything_is_unloaded_by_force_and_a_long_name_breaks_nothing(
    window: Window, router: Router, gate: Path, width: int, theme: str
) -> None:
    call = streaming(router, gate)
    other = streaming(router, gate, LONG)
    with window.open(RANGE, width=width, theme=theme) as page:
        ready(page)
        of_model(page, "models", LONG).get_by_role("button").click()
        expect(dialog(page)).to_contain_text(f"Unload {LONG}?")
        no_overflow(page)
        inside = "(box) => box.scrollWidth <= box.clientWidth"
        assert dialog(page).evaluate(inside)
        assert page.locator("#models-wrap").evaluate(inside)
        choose(page, "Keep it")
        page.get_by_role("button", name="Unload all").click()
        expect(dialog(page)).to_contain_text("2 requests run on them.")
        choose(page, "Unload now")
        for cut in (call, other):
            frames, proper_end = cut.frames_to_the_end()
            assert "model_unloaded" in frames[-1]
            assert not proper_end
        emptied(page, router)
        assert router.events("AdminDrain")[-1]["force"] is True


def test_a_refusal_to_unload_everything_is_said(window: Window, router: Router) -> None:
    router.chat("small").read()
    with window.open(RANGE, allowed=(503,)) as page:
        ready(page)
        refuse(page, "**/router/drain**", 503, "the log cannot be written")
        page.get_by_role("button", name="Unload all").click()
        choose(page, "Unload")
        expect(page.get_by_role("alert")).to_contain_text("the log cannot be written")
