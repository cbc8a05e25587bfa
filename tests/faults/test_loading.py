"""Loads that are slow, that hang, that fail, that are wanted twice, and that nobody wants any more."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model


@pytest.mark.parametrize("sign", [{"load_progress": True}, {"load_cpu": True}], ids=["output", "cpu"])
def test_a_slow_load_that_makes_progress_is_left_alone(tmp_path: Path, sign: dict[str, Any]) -> None:
    """Three times the time limit, but with output or CPU time all along: the limit is for stalls, not for slowness."""
    with routed(tmp_path, [Model("a", load_s=2.4, **sign)], LOAD_POLL_TIMEOUT=0.8) as router:
        assert router.chat("a").status == 200
        assert len(router.ledger.events("started")) == 1


def test_a_load_that_stalls_is_given_up_and_tried_once_more(tmp_path: Path) -> None:
    """No sign of life for the limit: ended, started again, and the client never notices."""
    with routed(tmp_path, [Model("a", fail="stall", faulty_loads=1)], LOAD_POLL_TIMEOUT=0.8) as router:
        assert router.chat("a").status == 200
        assert router.wait_event("ReplicaLoadFailed")["kind"] == "stall"
        assert len(processes_of(router, "a")) == 2


def test_a_failed_state_does_not_stick(tmp_path: Path) -> None:
    """Two stalls in a row fail the request with the reason; the next request after the cool-down is served."""
    settings = {"LOAD_POLL_TIMEOUT": 0.6, "COOLDOWN_FIRST": 0.3}
    with routed(tmp_path, [Model("a", fail="stall", faulty_loads=2)], **settings) as router:
        call = router.chat("a")
        assert call.status == 502
        error = call.json()["error"]
        assert error["code"] == "model_load_failed"
        assert "0.6 s" in error["message"]
        router.wait_event("ModelCooledDown")
        time.sleep(0.4)
        assert router.chat("a").status == 200


def test_memory_that_ran_out_once_is_tried_once_more(tmp_path: Path) -> None:
    """The first process dies with CUDA's out-of-memory line, the second finds the memory free: one answer, no error."""
    with routed(tmp_path, [Model("a", fail="oom", faulty_loads=1)]) as router:
        assert router.chat("a").status == 200
        assert router.wait_event("ReplicaLoadFailed")["kind"] == "gpu_oom"


def test_a_gpu_is_free_for_others_after_a_failed_load(tmp_path: Path) -> None:
    """A never fits: at most two tries, an error with the cause, and B on the same GPU is served at once."""
    with routed(tmp_path, [Model("a", fail="oom"), Model("b")], gpu_cap=1) as router:
        call = router.chat("a")
        assert call.status == 502
        assert "out of memory" in call.json()["error"]["message"]
        assert len(processes_of(router, "a")) == 2
        assert router.chat("b").status == 200
        served = router.wait_event("RequestDispatched", lambda event: event["replica"].startswith("b"))
        assert served["at_us"] < router.wait_event("ModelCooledDown", model="a")["until_us"]


@pytest.mark.parametrize("fail", ["missing", "magic", "flag"])
def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path, fail: str) -> None:
    """A missing or broken file, a bad flag: one process, an error, and no second try with the next request."""
    with routed(tmp_path, [Model("a", fail=fail)], COOLDOWN_FIRST=0.1) as router:
        if fail == "missing":
            (tmp_path / "a.gguf").unlink()
        assert router.chat("a").status == 502
        time.sleep(0.3)
        assert router.chat("a").status in (502, 503)
        assert len(router.ledger.events("started")) == 1


def test_fifty_first_requests_load_each_replica_once(tmp_path: Path) -> None:
    """All at once, on every route, to a cold model with two replicas: two processes, fifty answers."""
    routes = ROUTES + WHOLE_ROUTES
    with routed(tmp_path, [Model("a", replicas=2, slots=4, load_s=0.3)]) as router:
        calls = [router.post(routes[n % len(routes)], "a", stream=n % 2 == 0) for n in range(50)]
        assert {call.status for call in calls} == {200}
        assert len(router.ledger.events("started")) == 2


def test_preload_admin_and_requests_together_load_once(tmp_path: Path) -> None:
    """Three reasons to load the same model at the same time, one process."""
    with routed(tmp_path, [Model("a", load_s=0.8, preset={"load-on-startup": "true"})]) as router:
        asked = router.call("POST", "/models/load", {"model": "a"})
        calls = [router.chat("a") for _ in range(3)]
        assert asked.status < 500
        assert [call.status for call in calls] == [200] * 3
        assert len(router.ledger.events("started")) == 1


def test_a_waiter_that_leaves_does_not_take_the_load_with_it(tmp_path: Path) -> None:
    """Two wait for a load, the first leaves: the second is served by the very same process."""
    with routed(tmp_path, [Model("a", load_s=1.0)]) as router:
        first = router.chat("a")
        router.ledger.wait_for("started")
        second = router.chat("a", stream=True)
        router.wait_event("RequestArrived", lambda event: event["rid"] != router.events("RequestArrived")[0]["rid"])
        first.close()
        assert len(list(second.chunks())) == 8
        assert len(router.ledger.events("started")) == 1
        assert not router.ledger.events("sigterm")


def test_a_load_that_nobody_wants_any_more_is_finished_and_the_next_model_follows(tmp_path: Path) -> None:
    """The only waiter leaves during the load, another model waits: no half-killed load, then the other model."""
    with routed(tmp_path, [Model("a", load_s=1.5), Model("b")], gpu_cap=1) as router:
        leaving = router.chat("a")
        router.ledger.wait_for("started")
        other = router.chat("b")
        leaving.close()
        assert other.status == 200
        a = processes_of(router, "a")[0]
        assert (
            router.ledger.wait_for("sigterm", pid=a["pid"])["mono_us"]
            >= router.ledger.wait_for("ready", pid=a["pid"])["mono_us"]
        )
        assert not router.ledger.events("request_start", pid=a["pid"])


def test_a_swap_that_nobody_wants_any_more_is_called_off_while_it_drains(tmp_path: Path) -> None:
    """B's only waiter leaves while A still works: A stays, B is never loaded."""
    with routed(tmp_path, [Model("a", slots=2), Model("b")], gpu_cap=1) as router:
        gate = tmp_path / "gate"
        stream = router.chat("a", stream=True, standin={"tokens": 40, "gate": str(gate)})
        next(stream.chunks())
        leaving = router.chat("b")
        router.wait_event("SwapBegun", target="b")
        leaving.close()
        router.wait_event("SwapAborted", target="b")
        later = router.chat("a", standin={"tokens": 1})
        assert later.status == 200
        gate.touch()
        assert len(list(stream.chunks())) == 39
        assert not processes_of(router, "b")
        assert not router.ledger.events("sigterm")
