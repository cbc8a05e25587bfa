"""Chromium, once for all tests of this folder, and a router with a past: swaps, waits, a cancel, a crash, odd names.

The scope is the folder, not the session: Playwright keeps an event loop in this thread, in which `asyncio.run` of other
tests could not.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")

from playwright.sync_api import Browser, sync_playwright

from tests.browser.rig import FLAGS, LONG, NASTY, Router, Window, chromium, until_told
from tests.standin.client import CutShort
from tests.standin.fixtures import Model

LAST_WORDS = f"GGML_ASSERT(rows > 0) failed {NASTY}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def router(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """Two GPUs, five models. `browser` first: without one, nothing is started."""
    gate = tmp_path_factory.mktemp("gates") / "gate"
    models = [
        Model("small", tokens=20, gap_s=0.005, slots=2),
        Model(LONG, tokens=12, gap_s=0.01, load_s=0.2),
        Model("gated", gpus=(1,), tokens=400, gap_s=0.01, gate=str(gate)),
        Model(NASTY, gpus=(1,), tokens=8),
        Model("dies", gpus=(1,), tokens=60, gap_s=0.005, die_at_chunk=30, last_words=LAST_WORDS),
    ]
    with Router(tmp_path_factory.mktemp("router"), models, QUEUE_HEAD_GRACE=0.3) as running:
        some_past(running)
        yield running


def ask(router: Router, model: str) -> None:
    router.chat(model, stream=True).read()


def some_past(router: Router) -> None:
    """Requests that wait for each other's models, one whose replica dies, and one for a model with an odd name."""

    asking = [threading.Thread(target=ask, args=(router, model)) for model in ("small", "small", LONG, "small", NASTY)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    # By itself: one that dies while it is to make room for another has ended in order.
    with pytest.raises(CutShort):
        ask(router, "dies")
    router.wait_event("ReplicaCrashed", deadline_s=30)
    last = max(event["rid"] for event in router.events("RequestArrived"))
    for rid in range(1, last + 1):
        until_told(router, f"/dash/api/requests/{rid}", {"stage": "ended"})


@pytest.fixture(scope="package")
def window(browser: Browser, router: Router) -> Window:
    return Window(browser, router.base_url)


@pytest.fixture(scope="package")
def past(router: Router) -> dict[str, int]:
    """What there is to look at: `request`, one that waited for a swap; `swap`; `crash`."""
    swap = next(event for event in router.events("SwapBegun") if event.get("target") == LONG)
    crash = router.events("ReplicaCrashed")[0]
    return {"request": swap["cause_rid"], "swap": swap["swap"], "crash": crash["seq"]}


@pytest.fixture
def gate(router: Router) -> Iterator[Path]:
    """While this file is not there, `gated` does not answer."""
    path = Path(next(model.script["gate"] for model in router.models if model.name == "gated"))
    path.unlink(missing_ok=True)
    yield path
    path.touch()
