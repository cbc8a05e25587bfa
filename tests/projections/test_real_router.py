"""The log of a real router, with real processes: what its tables say is what its clients saw."""

from pathlib import Path

from tests.projections.logs import ask, project
from tests.standin.fixtures import Model, RouterProcess


def test_the_tables_say_what_the_clients_saw(tmp_path: Path) -> None:
    """Two models share a GPU: a swap; a stream with its tokens; a request for a model that there is not."""
    with RouterProcess(tmp_path, [Model("a", tokens=12, gap_s=0.01), Model("b", tokens=5)]) as router:
        assert router.chat("a", stream=True).status == 200
        assert router.chat("b").status == 200
        assert router.chat("nobody").status == 404

    with project(router.log_dir, tmp_path / "db") as projector:
        first, second = ask(projector, "FROM requests ORDER BY rid")
        swaps = ask(projector, "FROM swaps ORDER BY swap")
        replicas = ask(projector, "FROM replicas ORDER BY seq")
        [run] = ask(projector, "FROM runs")
        [timing] = ask(projector, "FROM token_timings WHERE rid = ?", first["rid"])
        left = ask(projector, "SELECT model, chosen FROM swap_candidates")
        homes = ask(projector, "SELECT DISTINCT gpu, model FROM residency ORDER BY model")
        depth = ask(projector, "SELECT queued, in_flight FROM queue_depth ORDER BY seq DESC LIMIT 1")

    assert [(row["model"], row["outcome"], row["status"]) for row in (first, second)] == [
        ("a", "ok", 200),
        ("b", "ok", 200),
    ]
    assert (first["stream"], second["stream"]) == (True, False)
    assert first["completion_tokens"] == 12
    assert first["frames"] >= timing["frames"] >= 12, "the last second's may end with frames that carry no token"
    for row in (first, second):
        assert 0 < row["load_wait_us"] <= row["wait_us"] < row["ttft_us"] <= row["total_us"]
        assert row["swap"] == swaps[row["rid"] - 1]["swap"]
    assert [(swap["target"], swap["outcome"]) for swap in swaps[:2]] == [("a", "ok"), ("b", "ok")]
    assert left[0] == {"model": "a", "chosen": True}
    assert [replica["model"] for replica in replicas] == ["a", "b"]
    assert all(replica["ending"] == "stopped" and replica["pid"] for replica in replicas)
    assert homes == [{"gpu": 0, "model": "a"}, {"gpu": 0, "model": "b"}]
    assert depth == [{"queued": 0, "in_flight": 0}]
    assert run["stopped_us"]
