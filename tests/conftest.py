"""For all tests: no event log is left behind that `replay verify` would not pass."""

from collections.abc import Generator

import pytest

from tests import left_logs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """After the test's own fixtures and those that end with it."""
    yield
    bad = left_logs.take_bad()
    if bad and item.get_closest_marker("damages_log") is None:
        pytest.fail("an event log was left whose decisions do not follow from its facts:\n" + "\n\n".join(bad))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = left_logs.found
    if found.logs:
        proved = f"{found.events:,} events, {found.checkpoints} checkpoints"
        terminalreporter.write_line(f"verified {found.logs} event logs left by routers: {proved}")
