"""For all tests: no event log is left behind that `replay verify` would not pass."""

import signal
from collections.abc import Generator
from typing import Any

import pytest

from tests import left_logs
from tests.standin import client

client.kept = set()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores it, and so would every process that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: one that is begun last is what everybody else waits for."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """After the test's own fixtures and those that end with it."""
    client.close_all()
    yield
    client.close_all()
    bad = left_logs.take_bad()
    if bad and item.get_closest_marker("damages_log") is None:
        pytest.fail("an event log was left whose decisions do not follow from its facts:\n" + "\n\n".join(bad))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes tells the one that started them."""
    if hasattr(session.config, "workeroutput"):
        found = left_logs.found
        left = {"logs": found.logs, "events": found.events, "checkpoints": found.checkpoints}
        session.config.workeroutput["left"] = left


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_logs.found.add(**getattr(node, "workeroutput", {}).get("left", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = left_logs.found
    if found.logs:
        proved = f"{found.events:,} events, {found.checkpoints} checkpoints"
        terminalreporter.write_line(f"verified {found.logs} event logs left by routers: {proved}")
