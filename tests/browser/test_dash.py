"""/dash in a browser, beyond what every page must do: figures, ranges, and that nothing is lost while it changes."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboard import units
from dashboard.assets import assets
from tests.browser.rig import LONG, NARROW, PATIENCE_MS, WIDE, Router, Window, is_silent, no_overflow, refuse
from tests.browser.test_numbers import sql

RANGE = "dash?range=1h"

expect.set_options(timeout=PATIENCE_MS)


def tile(page: Page, name: str) -> Any:
    return page.locator(f'[data-tile="{name}"] .tile-value')


def rows(page: Page, body: str) -> Any:
    return page.locator(f"#{body} > tr")


def of_model(page: Page, body: str, model: str) -> Any:
    """Rows of a table that are about this model."""
    return rows(page, body).filter(has=page.locator(f".name[title={json.dumps(model)}]"))


def ready(page: Page) -> None:
    """Numbers and lists are there, and changes are heard of."""
    expect(tile(page, "requests")).not_to_have_text(re.compile("^(00,000|–)$"))
    expect(page.locator("#live-text")).to_have_text("Live")


def settled(page: Page) -> None:
    """The figures are drawn as well."""
    ready(page)
    expect(page.locator(".figure .loading, .figure.stale")).to_have_count(0)


# --- what is on it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_everything_is_drawn_and_nothing_sticks_out(window: Window, width: int, theme: str) -> None:
    with window.open(RANGE, width=width, theme=theme) as page:
        settled(page)
        for figure in ("residency", "queue", "tokens"):
            assert page.locator(f'[data-panel="{figure}"] svg.main-svg').first.is_visible()
        expect(rows(page, "models")).to_have_count(5)
        assert rows(page, "crashes").count() == 1
        no_overflow(page)


def test_tokens_and_waits_are_those_of_sql(window: Window, router: Router) -> None:
    with window.open(RANGE) as page:
        ready(page)
        (counted,) = sql(
            router,
            "SELECT count(*) AS requests, sum(prompt_tokens)::BIGINT AS prompt, sum(completion_tokens)::BIGINT AS made,"
            " quantile_cont(wait_us, 0.5) AS wait_us FROM requests",
        )
        expect(tile(page, "prompt")).to_have_text(units.number(counted["prompt"]))
        expect(tile(page, "generated")).to_have_text(units.number(counted["made"]))
        expect(tile(page, "wait")).to_have_text(units.duration(counted["wait_us"]))
        assert rows(page, "requests").count() == min(counted["requests"], 25)


def test_the_scripts_say_values_as_the_pages_made_by_the_server_do(window: Window) -> None:
    with window.open(RANGE) as page:
        script = f"./dash/static/{assets().version}/lib/format.js"

        def said(function: str, value: float | None) -> Any:
            return page.evaluate(
                "async ([script, name, value]) => (await import(script))[name](value)",
                [page.evaluate("(path) => new URL(path, location).href", script), function, value],
            )

        for us in (None, 0, 850, 80_000, 999_499, 999_600, 1_250_000, 90_000_000, 200_000_000, 7_500_000_000, 4e11):
            assert said("duration", us) == units.duration(us)
        for number in (None, 0, 1234567, 0.12345, 99.96, 1234.6):
            assert said("number", number) == units.number(number)
        for mib in (None, 900, 24576):
            assert said("mib", mib) == units.mib(mib)
        for share in (None, 0, 0.004, 0.42, 1):
            assert said("percent", share) == units.percent(share)


# --- filters ------------------------------------------------------------------------------------------------------


def test_filters_stand_in_the_address_and_outlast_a_reload(window: Window, router: Router) -> None:
    (wanted,) = sql(router, f"SELECT count(*) AS n FROM requests WHERE model = '{LONG}'")
    with window.open(RANGE) as page:
        ready(page)
        everything = rows(page, "requests").count()
        page.select_option("#model", LONG)
        expect(rows(page, "requests")).to_have_count(wanted["n"])
        expect(of_model(page, "requests", LONG)).to_have_count(wanted["n"])
        expect(tile(page, "requests")).to_have_text(str(wanted["n"]))
        assert f"model={LONG}" in page.url
        page.reload()
        ready(page)
        expect(rows(page, "requests")).to_have_count(wanted["n"])
        expect(page.locator("#model")).to_have_value(LONG)
        page.go_back()
        expect(rows(page, "requests")).to_have_count(everything)
        page.select_option("#outcome", "not_ok")
        expect(of_model(page, "requests", "dies")).to_have_count(1)
        expect(rows(page, "requests")).to_have_count(1)
        page.select_option("#outcome", "rejected")
        expect(page.locator("#requests-state")).to_have_text("No request fits these filters.")


def test_a_page_of_the_history_that_is_not_there_is_the_last_one(window: Window) -> None:
    with window.open(f"{RANGE}&page=99") as page:
        ready(page)
        expect(rows(page, "requests")).not_to_have_count(0)
        assert "page=99" not in page.url


def test_a_range_is_chosen_by_button_by_date_or_by_drawing_over_a_figure(window: Window) -> None:
    with window.open(RANGE) as page:
        settled(page)
        page.click('[data-range="6h"]')
        page.wait_for_url("**range=6h")
        expect(page.locator('[data-range="6h"]')).to_have_attribute("aria-pressed", "true")
        settled(page)
        ground = page.locator('[data-panel="queue"] .nsewdrag').first
        width = ground.evaluate("(node) => node.getBoundingClientRect().width")
        ground.hover(position={"x": width * 0.2, "y": 20})
        box = ground.bounding_box()
        assert box is not None
        page.mouse.down()
        page.mouse.move(box["x"] + width * 0.5, box["y"] + 25, steps=5)
        page.mouse.up()
        page.wait_for_url("**since=*")
        given = dict(part.split("=") for part in page.url.partition("?")[2].split("&"))
        drawn_s = int(given["until"]) - int(given["since"])
        assert 0.25 * 6 * 3600 < drawn_s < 0.35 * 6 * 3600
        expect(page.locator("#custom")).to_be_visible()
        expect(tile(page, "requests")).to_have_text("0")
        expect(page.locator('[data-panel="queue"] .empty')).to_have_text("No requests in this time.")
        page.fill("#from", "2030-01-01T00:00:00")
        page.click("#custom button")
        expect(page.locator("#custom-problem")).to_have_text("From must be before until.")


# --- it follows ---------------------------------------------------------------------------------------------------


def test_a_request_appears_runs_and_ends_while_the_page_is_looked_at(window: Window, router: Router, gate: Any) -> None:
    with window.open(RANGE) as page:
        ready(page)
        page.evaluate("window.same = true")
        before = rows(page, "requests").count()
        call = router.chat("gated", stream=True)
        expect(of_model(page, "running", "gated")).to_have_count(1)
        expect(rows(page, "requests")).to_have_count(before + 1)
        expect(rows(page, "requests").first).to_contain_text("Running")
        gate.touch()
        call.read()
        expect(of_model(page, "running", "gated")).to_have_count(0)
        expect(rows(page, "requests").first).to_contain_text("Answered")
        assert page.evaluate("window.same")


def test_what_is_typed_and_scrolled_stays_while_everything_is_brought_up_to_date(
    window: Window, router: Router
) -> None:
    with window.open(RANGE) as page:
        ready(page)
        page.focus("#outcome")
        page.evaluate("scrollTo(0, 700)")
        before = page.locator("#requests > tr").first.get_attribute("data-key")
        router.chat("small", stream=True).read()
        expect(page.locator("#requests > tr").first).not_to_have_attribute("data-key", str(before))
        assert page.evaluate("document.activeElement.id") == "outcome"
        assert page.evaluate("scrollY") == 700


def test_the_focus_stays_with_its_request_when_another_leaves_and_goes_on_when_its_own_does(
    window: Window, router: Router
) -> None:
    """Somebody works with the keyboard while the queue moves on."""
    status = router.status()
    queued = [1, 2, 3, 4]

    def tell(route: Any) -> None:
        waits = {"model": "small", "kind": "generation", "waited_us": 0, "eta_us": None}
        queue = [waits | {"rid": rid, "position": rid, "blocked_by": {"why": "order", "by": []}} for rid in queued]
        route.fulfill(json=status | {"queue": queue, "queued": len(queue)})

    with window.open(RANGE) as page:
        ready(page)
        page.route("**/status*", tell)
        expect(rows(page, "waiting")).to_have_count(4)
        page.get_by_role("button", name="Cancel request 2").focus()
        for leaves, focused in ((1, 2), (2, 3), (3, 4)):
            queued.remove(leaves)
            expect(rows(page, "waiting")).to_have_count(len(queued))
            expect(page.get_by_role("button", name=f"Cancel request {focused}")).to_be_focused()


def test_an_answer_that_comes_late_does_not_take_the_place_of_a_newer_one(window: Window, router: Router) -> None:
    """One `/status` hangs; meanwhile something is done on the page, and it is asked anew."""
    status = router.status()
    old = status | {"version": "of-before"}
    held: list[Any] = []

    def first_hangs(route: Any) -> None:
        if held:
            route.fulfill(json=status)
        else:
            held.append(route)

    with window.open(RANGE) as page:
        ready(page)
        page.route("**/models/*load", lambda route: route.fulfill(json={"outcome": "pending"}))
        page.route("**/status*", first_hangs)
        while not held:
            page.wait_for_timeout(50)
        before = page.locator("#router-facts").text_content()
        with page.expect_response("**/status*"):
            of_model(page, "models", "small").get_by_role("button").click()
            dialog = page.get_by_role("dialog").get_by_role("button").last
            if page.get_by_role("dialog").count():
                dialog.click()
        held[0].fulfill(json=old)
        with page.expect_response("**/status*"):
            pass
        assert before is not None
        assert "of-before" not in (page.locator("#router-facts").text_content() or "")


def test_a_lost_connection_is_said_and_found_again(window: Window, router: Router) -> None:
    """The dashboard's process is killed; the router starts it again, and the page goes on by itself."""
    with window.open(RANGE, allowed=(502, 503)) as page:
        ready(page)
        page.evaluate("window.same = true")
        page.route("**/dash/api/stream", lambda route: route.fulfill(status=503, body=""))
        page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
        expect(page.locator("#live-text")).to_have_text("Connection lost")
        before = rows(page, "requests").count()
        router.chat("small", stream=True).read()
        expect(rows(page, "requests")).to_have_count(before + 1)
        page.unroute("**/dash/api/stream")
        expect(page.locator("#live-text")).to_have_text("Live")
        assert page.evaluate("window.same")


def test_a_hidden_page_asks_for_nothing(window: Window) -> None:
    with window.open(RANGE) as page:
        settled(page)
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        expect(page.locator("#live-text")).to_have_text("Paused")
        # Longer than it is ever silent while it is looked at; what had begun before may still come to its end.
        assert any(is_silent(page, 2500) for _ in range(8))
        page.evaluate(hide, False)
        expect(page.locator("#live-text")).to_have_text("Live")


# --- what can be done ---------------------------------------------------------------------------------------------


def test_loading_asks_first_where_something_may_have_to_leave(window: Window, router: Router) -> None:
    router.chat("small").read()
    with window.open(RANGE) as page:
        ready(page)
        of_model(page, "models", LONG).get_by_role("button").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("On its GPUs there is: small.")
        dialog.get_by_role("button", name="Keep it").click()
        expect(dialog).to_have_count(0)
        wished = len(router.events("LoadWished", model=LONG))
        of_model(page, "models", LONG).get_by_role("button").click()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert len(router.events("LoadWished", model=LONG)) == wished
        of_model(page, "models", LONG).get_by_role("button").click()
        page.get_by_role("dialog").get_by_role("button", name="Load it").click()
        expect(of_model(page, "models", LONG)).to_contain_text("Loaded")


def test_a_running_request_and_a_queued_one_are_cancelled(window: Window, router: Router, gate: Any) -> None:
    running = router.chat("gated", stream=True)
    queued = router.chat("gated", stream=True)
    with window.open(RANGE) as page:
        ready(page)
        expect(of_model(page, "waiting", "gated")).to_contain_text("All slots of its model are busy")
        for body in ("waiting", "running"):
            row = of_model(page, body, "gated").first
            rid = int(row.get_attribute("data-key") or 0)
            row.get_by_role("button", name="Cancel").click()
            expect(page.get_by_role("dialog")).to_contain_text(f"Cancel request {rid}?")
            page.get_by_role("dialog").get_by_role("button", name="Cancel the request").click()
            expect(page.locator(".toast").last).to_contain_text(f"Request {rid} is cancelled.")
            assert router.wait_event("RequestCancelled", rid=rid)["by"] == "admin"
        expect(rows(page, "running")).to_have_count(0)
        expect(rows(page, "waiting")).to_have_count(0)
    frames, proper_end = running.frames_to_the_end()
    assert "request_cancelled" in frames[-1]
    assert not proper_end
    assert (queued.status, queued.json()["error"]["code"]) == (503, "request_cancelled")


def test_what_cannot_be_done_is_said(window: Window, router: Router) -> None:
    """Somebody else was quicker: the model is gone already."""
    router.chat("small").read()
    with window.open(RANGE, allowed=(400,)) as page:
        ready(page)
        refuse(page, "**/models/unload", 400, "not loaded <b>now</b>")
        of_model(page, "models", "small").get_by_role("button").click()
        expect(page.get_by_role("alert")).to_have_text("not loaded <b>now</b>×")
        page.get_by_role("alert").get_by_role("button", name="Close").click()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_what_the_owner_should_know_stands_at_the_top_until_it_is_over(window: Window, router: Router) -> None:
    status = router.status()
    status |= {"log_available": False, "warnings": ["<b>small</b> takes more of GPU 0 than it declares"]}
    status["config"] = {"problems": ["config.json:3: 'gpus' is no list"], "needs_restart": ["API-port"]}
    with window.open(RANGE) as page:
        ready(page)
        page.route("**/status*", lambda route: route.fulfill(json=status))
        notes = page.locator("#notices .note")
        expect(notes).to_have_count(4)
        expect(notes.first).to_contain_text("The event log cannot be written")
        expect(notes.nth(1)).to_contain_text("The last reload was refused")
        expect(notes.nth(1)).to_contain_text("'gpus' is no list")
        expect(notes.last).to_have_text("<b>small</b> takes more of GPU 0 than it declares")
        page.unroute("**/status*")
        expect(notes).to_have_count(0)


# --- in the dark, and of nothing --------------------------------------------------------------------------------


def test_the_theme_is_switched_kept_and_followed_by_the_figures(window: Window) -> None:
    with window.open(RANGE, theme="light") as page:
        settled(page)
        ground = "getComputedStyle(document.body).backgroundColor"
        ink = "getComputedStyle(document.querySelector('[data-panel=queue] .ytick text')).fill"
        light, light_ink = page.evaluate(ground), page.evaluate(ink)
        page.click("#theme")
        page.click("#theme")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.wait_for_function(f"{ground} !== '{light}'")
        page.wait_for_function(f"{ink} !== '{light_ink}'")
        dark = page.evaluate(ground)
        page.reload()
        assert page.evaluate(ground) == dark


def test_on_a_router_without_a_past_everything_says_so(window: Window) -> None:
    """Asked for a time in which nothing was, which is what an empty log gives for any time."""
    with window.open("dash?since=1000000000&until=1000003600") as page:
        settled(page)
        expect(tile(page, "requests")).to_have_text("0")
        expect(tile(page, "success")).to_have_text("–")
        for figure in ("residency", "gpus", "queue", "tokens"):
            expect(page.locator(f'[data-panel="{figure}"] .empty')).to_be_visible()
        expect(page.locator("#requests-state")).to_have_text("No requests in this time.")
        expect(page.locator("#crashes-state")).to_have_text("Nothing crashed in this time.")
