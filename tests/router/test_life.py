"""The life of a model in a router that serves: loaded in order, found by its names, unloaded for idleness or by hand.

The rules are tested in tests/scheduler; here they meet real processes, the API and the command line.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import main
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls


def until_phase(router: RouterProcess, **phases: str) -> None:
    """Until /status shows these models so."""
    rows = {}
    for _ in polls(10.0, every_s=0.02):
        rows = {row["name"]: row["phase"] for row in router.status()["models"]}
        if phases.items() <= rows.items():
            return
    raise AssertionError(f"{rows}, not {phases}")


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """One GPU for each model; B is loaded before A at the start, C is not listed."""
    first = {"load-on-startup": "true"}
    models = [
        Model("B", gpus=(1,), preset=first, entry={"aliases": ["bee", "Bee"]}, tokens=400, gap_s=0.02),
        Model("A", gpus=(0,), preset=first, entry={"env": {"EXTRA": "1"}}),
        Model("C", gpus=(2,), entry={"unlisted": True}),
    ]
    with RouterProcess(tmp_path_factory.mktemp("life"), models) as running:
        yield running


def test_s07_preloads_come_in_the_order_of_the_configuration(router: RouterProcess) -> None:
    until_phase(router, A="ready", B="ready", C="absent")
    assert [(wish["model"], wish["by"]) for wish in router.events("LoadWished")] == [("B", "preload"), ("A", "preload")]


def test_s08_s09_a_model_is_found_by_each_of_its_names_and_told_only_if_listed(router: RouterProcess) -> None:
    """Names keep their case: two aliases that differ in it alone are two aliases."""
    listed = router.call("GET", "/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["B", "A"]
    assert listed[0]["aliases"] == ["bee", "Bee"]
    assert router.asks("C") == 200
    for name in ("bee", "Bee"):
        call = router.chat(name, standin={"tokens": 1})
        assert call.status == 200
        call.read()
        logged = router.wait_event("RequestArrived", rid=int(call.header("x-router-request")))
        assert (logged["model"], logged["asked"]) == ("B", name)
    assert router.asks("BEE") == 404


def test_q14_an_unload_lets_a_stream_end_and_one_by_force_cuts_it(
    router: RouterProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drained, the client has all of its stream; by force it has an error frame, and no [DONE]."""
    until_phase(router, B="ready")
    stream = router.chat("B", stream=True, standin={"tokens": 60})
    next(stream.chunks())
    assert main(["unload", "bee", "--url", router.base_url]) == 0
    assert len(list(stream.chunks())) + 1 == 60
    until_phase(router, B="absent")
    stream = router.chat("B", stream=True)
    next(stream.chunks())
    assert main(["unload", "B", "--force", "--url", router.base_url]) == 0
    frames, _ = stream.frames_to_the_end()
    assert "model_unloaded" in frames[-1]
    assert capsys.readouterr().out == "bee is unloaded\nB is unloaded\n"
    assert [event.get("force", False) for event in router.events("ReplicaStopOrdered", why="unload")] == [False, True]


def test_everything_is_unloaded_by_one_call_and_comes_back_by_request(router: RouterProcess) -> None:
    assert router.asks("A") == 200
    assert main(["unload", "--all", "--url", router.base_url]) == 0
    until_phase(router, A="absent", B="absent", C="absent")
    assert router.asks("A") == 200


def test_s04_s05_ttl_counts_from_the_end_of_a_request_and_a_process_gets_its_time_to_end(tmp_path: Path) -> None:
    """A load and an answer that are both longer than the ttl; then a process that does not want to end."""
    models = [
        Model(
            "A",
            entry={"ttl": 0.5},
            preset={"stop-timeout": "0.3"},
            load_s=0.9,
            tokens=30,
            gap_s=0.03,
            ignore_term=True,
        )
    ]
    with RouterProcess(tmp_path, models) as router:
        assert router.asks("A") == 200
        stopped = router.wait_event("ReplicaStopped")
        ordered = router.events("ReplicaStopOrdered")[0]
        finished = router.events("RequestFinished")[0]
        assert ordered["why"] == "ttl"
        assert 500_000 <= ordered["at_us"] - finished["at_us"] < 5_000_000
        assert finished["took_us"] > 500_000
        assert stopped["escalated"] is True
        assert 300_000 <= stopped["took_us"] < 3_000_000
        assert len(router.events("ReplicaSpawned")) == 1


def test_a_persistent_model_stays_and_its_neighbour_goes(tmp_path: Path) -> None:
    """With room for two on the GPU: the third takes the place of the one that may leave, although it is younger."""
    models = [Model("kept", entry={"persistent": True}), Model("B"), Model("C")]
    with RouterProcess(tmp_path, models, MAX_MODELS_PER_GPU=2) as router:
        for name in ("kept", "B", "C"):
            assert router.asks(name) == 200
        until_phase(router, kept="ready", B="absent", C="ready")
        assert [victim["model"] for victim in router.events("SwapBegun")[-1]["victims"]] == ["B"]
        assert main(["unload", "kept", "--url", router.base_url]) == 0
        until_phase(router, kept="absent")


def test_q13_a_model_that_may_sleep_is_resident_all_the_same(tmp_path: Path) -> None:
    """llama-server frees the weights by itself and wakes for the next request: one process, which counts to the cap."""
    models = [Model("a", preset={"sleep-idle-seconds": "1"}), Model("b")]
    with RouterProcess(tmp_path, models) as router:
        assert [router.asks("a"), router.asks("a")] == [200, 200]
        (spawned,) = router.events("ReplicaSpawned")
        argv = Path(f"/proc/{spawned['pid']}/cmdline").read_bytes().split(b"\0")
        assert argv[argv.index(b"--sleep-idle-seconds") + 1] == b"1"
        assert router.asks("b") == 200
        swap = router.events("SwapBegun")[-1]
        assert (swap["target"], [victim["model"] for victim in swap["victims"]]) == ("b", ["a"])
