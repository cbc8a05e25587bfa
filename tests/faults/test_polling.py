"""Looking costs nothing: dashboards and plug-ins that poll never load a model and never keep one loaded."""

import threading
from pathlib import Path

from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess

LOOKS = [
    "/health",
    "/v1/health",
    "/v1/models",
    "/v1/models/a",
    "/models",
    "/metrics",
    "/status",
    "/router",
    "/router/models",
    "/router/gpu",
    "/props",
    "/props?model=a",
    "/slots?model=a",
    "/metrics?model=a",
    "/lora-adapters?model=a",
    "/v1/stream?conv_id=none&from=0",
]


def test_no_look_loads_a_model(tmp_path: Path) -> None:
    """Every GET there is, on a cold router: answered without a bare 500, and no process is started."""
    with routed(tmp_path, [Model("a"), Model("b")]) as router:
        for path in LOOKS:
            call = router.call("GET", path)
            assert call.status < 500 or call.json()["error"]["code"], path
        assert router.call("POST", "/v1/streams/lookup", {"conversation_ids": ["none"]}).status == 200
        assert not router.ledger.lines()


def test_no_look_keeps_a_model_loaded(tmp_path: Path) -> None:
    """Polled ten times a second, the idle model is unloaded all the same, and stays so."""
    with routed(tmp_path, [Model("a")], GLOBAL_TTL=1.0) as router:
        assert router.chat("a").status == 200
        end = router.ledger.wait_for("request_end")
        stop = threading.Event()
        poller = threading.Thread(target=poll, args=(router, stop))
        poller.start()
        try:
            term = router.ledger.wait_for("sigterm")
        finally:
            stop.set()
            poller.join()
        assert (term["mono_us"] - end["mono_us"]) / 1e6 >= 0.9
        assert len(router.ledger.events("started")) == 1


def poll(router: RouterProcess, stop: threading.Event) -> None:
    while not stop.wait(0.1):
        for path in LOOKS:
            router.call("GET", path).read()


def test_idle_time_counts_from_the_end_of_a_generation(tmp_path: Path) -> None:
    """A generation longer than the idle limit is not cut by it."""
    with routed(tmp_path, [Model("a", tokens=20, gap_s=0.1)], GLOBAL_TTL=0.5) as router:
        assert len(list(router.chat("a", stream=True).chunks())) == 20
        end = router.ledger.wait_for("request_end")
        term = router.ledger.wait_for("sigterm")
        assert (term["mono_us"] - end["mono_us"]) / 1e6 >= 0.45
        assert router.ledger.wait_for("exit")["how"] == "exit:0"
