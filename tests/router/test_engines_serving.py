"""A router that runs under an engine: who is loaded beside whom, what the diary says, and a log that verifies."""

from pathlib import Path
from typing import Any

from replay.verify import verify
from tests.standin.fixtures import Model, RouterProcess

ORPHANS = 'matrix: synthesized set "auto:orphans" = (C)'


def routing(use: str, **settings: Any) -> dict[str, Any]:
    return {"routing": {"router": {"use": use, "settings": settings}}}


def loads(router: RouterProcess) -> list[tuple[str, list[str]]]:
    """Targets in order, each with those that left for it."""
    begun = [event for event in router.events("SwapBegun") if event.get("target")]
    return [(event["target"], [victim["model"] for victim in event.get("victims", [])]) for event in begun]


def test_g20_the_line_about_orphans_is_in_the_diary_at_the_start_and_at_each_reload(tmp_path: Path) -> None:
    """And the models, each on a GPU of its own, go by the matrix; under the new one too. The whole log verifies."""
    models = [Model(name, gpus=(gpu,)) for gpu, name in enumerate("ABC")]
    sets = {"pair": "A & B", "rest": "B & +auto:orphans"}
    with RouterProcess(tmp_path, models, top=routing("matrix", matrix={"sets": sets})) as router:
        assert ORPHANS in router.words()
        for name in "ABC":
            assert router.chat(name).status == 200
        assert loads(router) == [("A", []), ("B", []), ("C", ["A"])]

        router.top |= routing("matrix", matrix={"sets": {"all": "A & B & C & +auto:orphans"}})
        router.configure()
        router.hang_up()
        router.wait_words('matrix: synthesized set "auto:orphans" is empty; +auto:orphans terms dropped')
        router.wait_event("ConfigLoaded")
        assert router.chat("A").status == 200
        assert loads(router)[-1] == ("A", [])
    result = verify(tmp_path / "log")
    assert result.ok, result.first
    assert result.differences == 0


def test_a_reload_to_another_engine_unloads_what_it_does_not_let_live_together(tmp_path: Path) -> None:
    """From a GPU each to one model at a time: one of the two leaves, and nobody's request is lost."""
    models = [Model(name, gpus=(gpu,)) for gpu, name in enumerate("AB")]
    with RouterProcess(tmp_path, models) as router:
        assert router.chat("A").status == 200
        assert router.chat("B").status == 200
        router.top |= routing("group")
        router.configure()
        router.hang_up()
        stopped = router.wait_event("ReplicaStopped")
        assert stopped["replica"].startswith("A#")
        assert router.chat("A").status == 200
        assert loads(router)[-1] == ("A", ["B"])
    result = verify(tmp_path / "log")
    assert result.ok, result.first
    assert result.differences == 0


def test_g39_models_that_are_loaded_at_the_start_go_by_the_engine(tmp_path: Path) -> None:
    """The pool has room for one of the two: the second preload evicts the first."""
    models = [
        Model(name, gpus=(gpu,), preset={"load-on-startup": "true"}, entry={"capacities": {"ram": 6}})
        for gpu, name in enumerate("AB")
    ]
    with RouterProcess(tmp_path, models, top=routing("capacity", capacity={"pools": {"ram": 10}})) as router:
        router.wait_event("ReplicaReady", lambda event: event["replica"].startswith("B#"))
        assert loads(router) == [("A", []), ("B", ["A"])]
