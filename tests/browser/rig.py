"""A real browser on a real router with its dashboard: pages that may not complain, ask elsewhere, or fail.

    with window.open("dash/requests/7") as page:      # a Playwright page; leaving it checks what it did

Counterpart: `conftest`, which starts Chromium once for all tests of this folder.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, TimeoutError, expect

from tests.standin.client import Call
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

LONG = "Qwen3-Coder-480B-A35B-Instruct-1M-UD-Q4_K_XL-a-name-of-eighty-characters-in-all-ok"
NASTY = "<img src=x onerror=alert(1)>"
WIDE, NARROW = 1440, 390
PATIENCE_MS = 30_000
FRAME_MS = 50
expect.set_options(timeout=PATIENCE_MS)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def chromium() -> str:
    """Its path; the test is skipped where there is none, and fails in CI, which installs it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    reason = "no Chromium on PATH: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Window:
    """Pages of one router, each in a context of its own: nothing is left from one to the next."""

    def __init__(self, browser: Browser, base_url: str) -> None:
        """`base_url`: where the router's "/" is, without the slash."""
        self.browser = browser
        self.base_url = base_url

    @contextmanager
    def open(
        self, path: str, *, width: int = WIDE, theme: str = "light", allowed: tuple[int, ...] = (), **options: Any
    ) -> Iterator[Page]:
        """The page at this path. `allowed`: statuses of failed answers that belong to the test."""
        scheme: Any = theme
        viewport: Any = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce", **options)
        context.set_default_timeout(PATIENCE_MS)
        watched = Watched(context, self.base_url, allowed)
        page = context.new_page()
        try:
            page.goto(f"{self.base_url}/{path}", wait_until="load")
            yield page
        except AssertionError as error:
            error.add_note(f"problems of the page: {watched.problems}")
            raise
        finally:
            context.close()
        assert not watched.problems, watched.problems


class Watched:
    """What the pages of a context do that they should not."""

    def __init__(self, context: BrowserContext, base_url: str, allowed: tuple[int, ...]) -> None:
        self.problems: list[str] = []
        self._origin = urlsplit(base_url)[:2]
        self._allowed = allowed
        context.on("console", lambda message: self._said(message.type, message.text))
        context.on("weberror", lambda error: self.problems.append(f"error: {error.error}"))
        context.on("request", self._asks)
        context.on("response", self._answered)
        context.on("requestfailed", self._failed)
        context.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _said(self, kind: str, text: str) -> None:
        # Chromium's own words about a failed answer, which is looked at below.
        if kind in ("error", "warning") and not (self._allowed and "Failed to load resource" in text):
            self.problems.append(f"{kind}: {text}")

    def _asks(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts[:2] != self._origin:
            self.problems.append(f"asked elsewhere: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self._allowed:
            self.problems.append(f"{response.status}: {response.url}")

    def _failed(self, request: Request) -> None:
        # A stream or a question that its page has let go of, or that was under way when the page was left.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed ({request.failure}): {request.url}")


def no_overflow(page: Page) -> None:
    """Nothing sticks out to the side; what is wide scrolls in a box of its own."""
    sizes = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    wide, there = page.evaluate(sizes)
    for _ in range(PATIENCE_MS // FRAME_MS):
        if wide <= there:
            return
        page.wait_for_timeout(FRAME_MS)  # figures follow a moment after the window
        wide, there = page.evaluate(sizes)
    raise AssertionError(f"{page.url} is {wide} px wide on {there}")


def refuse(page: Page, path: str, status: int, message: str) -> None:
    """Whatever the page asks of this path (a pattern) is answered with this error."""
    body = json.dumps({"error": {"message": message}})
    page.route(path, lambda route: route.fulfill(status=status, content_type="application/json", body=body))


def is_silent(page: Page, ms: int) -> bool:
    """Whether the page asks for nothing for so long."""
    try:
        with page.expect_request("**", timeout=ms):
            pass
    except TimeoutError:
        return True
    return False


class Router(RouterProcess):
    """A router on stand-ins, with its dashboard."""

    def __init__(self, folder: Path, models: list[Model], **settings: Any) -> None:
        super().__init__(folder, models, DASHBOARD=True, **settings)

    def __enter__(self) -> "Router":
        super().__enter__()
        until_ready(self)
        return self


def until_ready(router: RouterProcess, deadline_s: float = 30.0) -> None:
    for _ in polls(deadline_s, every_s=0.05):
        if router.call("GET", "/dash").status == 200:
            return
    raise AssertionError(f"the dashboard does not answer:\n{router.words()}")


def until_told(router: RouterProcess, path: str, wanted: Mapping[str, Any], deadline_s: float = 30.0) -> dict[str, Any]:
    """The object `request`, `swap` or whatever is first in the answer, once it has these values."""
    told: dict[str, Any] = {}
    for _ in polls(deadline_s, every_s=0.05):
        call = router.call("GET", path)
        told = call.json() if call.status == 200 else {}
        first = next(iter(told.values()), {}) if told else {}
        if all(first.get(name) == value for name, value in wanted.items()):
            return told
    raise AssertionError(f"{path} never told {wanted}: {told}")


def number_of(call: Call) -> int:
    """The number of the request, once its answer has begun."""
    return int(call.header("X-Router-Request"))
