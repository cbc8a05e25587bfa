"""The net under the whole suite: a router's log that does not verify fails the test that left it."""

from pathlib import Path

import pytest

from tests import left_logs
from tests.conftest import pytest_runtest_teardown
from tests.replay.recording import Recording, busy_hour, rewrite


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """These logs are not counted among those of the session."""
    monkeypatch.setattr(left_logs, "found", left_logs.Found())


def teardown(request: pytest.FixtureRequest) -> None:
    hook = pytest_runtest_teardown(request.node)
    next(hook)
    with pytest.raises(StopIteration):
        next(hook)


def test_a_log_that_verifies_fails_nobody(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world)

    left_logs.left(tmp_path)

    teardown(request)
    assert (left_logs.found.logs, left_logs.found.events) == (1, len(world.record))


def test_a_log_that_does_not_verify_fails_the_test(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world)
    rewrite(tmp_path, lambda lines: [line for line in lines if line["type"] != "SwapFinished"])

    left_logs.left(tmp_path)

    with pytest.raises(pytest.fail.Exception, match="SwapFinished"):
        teardown(request)
    teardown(request)


def test_a_damaged_log_fails_the_test(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world)
    (segment,) = tmp_path.glob("events-*")
    segment.write_bytes(segment.read_bytes().replace(b'"run":1', b'"run":2', 1))

    left_logs.left(tmp_path)

    with pytest.raises(pytest.fail.Exception, match="damaged at byte"):
        teardown(request)


@pytest.mark.damages_log
def test_a_test_that_damages_its_log_says_so(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Recording(tmp_path) as world:
        busy_hour(world)
    rewrite(tmp_path, lambda lines: [line for line in lines if line["type"] != "SwapFinished"])

    left_logs.left(tmp_path)

    teardown(request)


def test_a_router_that_never_got_to_its_log_is_no_failure(tmp_path: Path) -> None:
    left_logs.left(tmp_path / "log")

    assert left_logs.take_bad() == []
