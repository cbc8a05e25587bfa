"""A router with keys, in a real browser: the form, what its cookie opens and changes, and the way out."""

from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from router.config import key_digest
from tests.browser.rig import Window, number_of
from tests.standin.client import CutShort
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

KEY = "lr-browser-6d0f2f6e8c1b4f0a"
GUEST = "lr-browser-91b4d3c07aa25e6f"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def guarded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    keys = {
        "owner": {"key": f"sha256:{key_digest(KEY)}", "admin": True},
        "guest": {"key": f"sha256:{key_digest(GUEST)}"},
    }
    models = [Model("a", tokens=10_000, gap_s=0.05)]
    with RouterProcess(tmp_path_factory.mktemp("guarded"), models, top={"keys": keys}, DASHBOARD=True) as router:
        for _ in polls(30, every_s=0.05):
            if router.call("GET", "/dash", **BEARER).status == 200:
                break
        yield router


def test_a_person_logs_in_uses_the_pages_and_logs_out(browser: Browser, guarded: RouterProcess) -> None:
    """No page complains or asks elsewhere: the policy, the cookie and the origin of a click fit together."""
    body = {"model": "a", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    call = guarded.call("POST", "/v1/chat/completions", body, **BEARER)
    rid = number_of(call)
    with Window(browser, guarded.base_url).open("dash", allowed=(401,)) as page:
        assert urlsplit(page.url).path == "/login"
        page.get_by_label("API key").fill("lr-wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known here")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/dash")
        assert page.evaluate("document.cookie") == "", "no script sees it"
        page.get_by_role("button", name=f"Cancel request {rid}").click()
        page.get_by_role("button", name="Cancel the request").click()
        assert guarded.wait_event("RequestCancelled", rid=rid)["by"] == "admin"
        page.goto(f"{guarded.base_url}/login")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_text("Logged in as")).to_have_count(0)
        page.goto(f"{guarded.base_url}/dash")
        assert urlsplit(page.url).path == "/login"
    with suppress(CutShort):
        call.read()


def test_a_guest_sees_what_is_loaded_and_is_told_that_unloading_is_not_for_guests(
    browser: Browser, guarded: RouterProcess
) -> None:
    """Nothing is unloaded: neither one model nor all of them, by whichever button."""
    body = {"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}], "standin": {"tokens": 1}}
    guarded.call("POST", "/v1/chat/completions", body, **BEARER).read()
    with Window(browser, guarded.base_url).open("dash", allowed=(403,)) as page:
        page.get_by_label("API key").fill(GUEST)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/dash")
        page.get_by_role("button", name="Unload all").click()
        page.get_by_role("dialog").get_by_role("button", name="Unload", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("key 'guest' has no admin right")
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Unload a", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("key 'guest' has no admin right")
    assert not [*guarded.events("AdminDrain"), *guarded.events("AdminUnload")]
