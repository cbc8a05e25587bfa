"""Silence: of a server that is stuck, and of one that is only slow. Only the first is ended."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.client import is_chunk
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess

QUICK_STALL = {"STALL_STREAM_TIMEOUT": 1.5, "STALL_FIRST_TIMEOUT": 1.5}


def test_a_server_that_goes_silent_in_its_streams_is_replaced(tmp_path: Path) -> None:
    """/health is fine and pings arrive, but no token after the third, on any route: found by the missing tokens.

    Each client gets an error in its dialect instead of waiting for ever, and the next request a new process.
    """
    model = Model("a", slots=7, gap_s=0.02, silent_at_chunk=4, ping_s=0.1, faulty_loads=1)
    with routed(tmp_path, [model], **QUICK_STALL) as router:
        for call in [router.post(path, "a", stream=True) for path in ROUTES]:
            seen, proper = call.frames_to_the_end()
            assert not proper
            assert sum(map(is_chunk, seen)) == 3
            assert "upstream_stalled" in seen[-1]
            assert "[DONE]" not in "".join(seen)
        assert router.wait_event("ReplicaStalled")["silent_us"] >= 1_500_000
        assert len(list(router.chat("a", stream=True).chunks())) == 8
        assert len(processes_of(router, "a")) == 2


def test_a_server_that_goes_silent_before_its_answers_is_replaced_and_they_are_asked_again(tmp_path: Path) -> None:
    """Nothing was sent yet and nothing moves inside: a new process answers, and no client notices."""
    model = Model("a", slots=18, stuck=True, faulty_loads=1)
    with routed(tmp_path, [model], **QUICK_STALL) as router:
        calls = [router.post(path, "a") for path in ROUTES + WHOLE_ROUTES]
        calls += [router.post(path, "a", stream=True) for path in ROUTES]
        assert {call.status for call in calls} == {200}
        assert all(call.read() for call in calls)
        assert len(processes_of(router, "a")) == 2


def test_a_long_prompt_that_is_being_read_is_no_silence(tmp_path: Path) -> None:
    """No token for twice the limit, but the slot tells that the prompt is being worked on: left alone."""
    with routed(tmp_path, [Model("a", slots=2, first_byte_s=3.5)], **QUICK_STALL) as router:
        prompt = [{"role": "user", "content": "long " * 400}]
        calls = [router.chat("a", messages=prompt, stream=stream) for stream in (True, False)]
        assert [call.status for call in calls] == [200, 200]
        assert not router.events("ReplicaStalled")
        assert len(processes_of(router, "a")) == 1


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Every limit of the router is a fraction of the time that the answers take."""
    short = {"HEALTH_CHECK_TIMEOUT": 0.5, "HEALTH_CHECK_INTERVAL": 0.1, "LOAD_POLL_TIMEOUT": 1.0}
    short |= {"CONNECT_TIMEOUT": 0.5, "QUEUE_FORCE_LOAD_TIMEOUT": 0.5, "GRACEFUL_KILL_TIMEOUT": 0.5}
    models = [Model("a", slots=32, tokens=2)]
    with routed(tmp_path_factory.mktemp("patient"), models, **short) as router:
        yield router


def test_the_first_byte_may_take_as_long_as_it_takes(patient: RouterProcess) -> None:
    """A long prompt on a slow machine, on every route, streaming or not: no timeout of ours ends it."""
    modes = [(path, True) for path in ROUTES] + [(path, False) for path in ROUTES + WHOLE_ROUTES]
    begun = time.monotonic()
    calls = [patient.post(path, "a", stream=stream, standin={"first_byte_s": 3.0}) for path, stream in modes]
    assert [call.status for call in calls] == [200] * len(modes)
    assert all(call.read() for call in calls)
    assert time.monotonic() - begun >= 3.0
    assert len(patient.ledger.events("started")) == 1


def test_tokens_may_come_slowly_when_they_always_do(patient: RouterProcess) -> None:
    """A second between tokens is this model's norm, not a stall."""
    calls = [patient.post(path, "a", stream=True, standin={"tokens": 3, "gap_s": 1.0}) for path in ROUTES]
    assert [len(list(call.chunks())) for call in calls] == [3] * len(ROUTES)
    assert not patient.events("ReplicaStalled")


def test_a_setting_of_0_means_no_limit(tmp_path: Path) -> None:
    """Not `at once`: nothing is refused, forced or unloaded."""
    zero = {"QUEUE_FORCE_LOAD_TIMEOUT": 0, "GLOBAL_TTL": 0, "MAX_QUEUE": 0, "QUEUE_HEAD_GRACE": 0}
    with routed(tmp_path, [Model("a", tokens=3, gap_s=0.05)], **zero) as router:
        calls = [router.chat("a") for _ in range(10)]
        assert [call.status for call in calls] == [200] * 10
        time.sleep(0.5)
        assert not router.ledger.events("sigterm")
