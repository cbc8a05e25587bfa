"""Prompt caches that survive swaps: a conversation finds what it left, and whatever goes wrong costs only that."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

FACTS = ("CacheSaved", "CacheSaveFailed", "CacheRestored", "CacheRestoreFailed")


def kept_router(
    folder: Path, *, limit_s: float = 5.0, budget_mib: int = 16, persist: bool = False, **script: Any
) -> Any:
    """Two models on one GPU; `a` has the script, and says that a prompt took it longer to read than any file can."""
    keep = {
        "keepAcrossSwaps": True,
        "keepDirectory": str(folder / "caches"),
        "keepBudgetMiB": budget_mib,
        "keepMinTokens": 100,
        "keepMaxHoldSeconds": limit_s,
        "persist": persist,
    }
    models = [Model("a", prompt_s=60.0, **script), Model("b")]
    return routed(folder, models, top={"promptCache": keep})


def turn(
    router: RouterProcess, number: int, *, opening: str = "once upon a time ", is_kept: bool = True
) -> dict[str, Any]:
    """The conversation's so-many-th turn at `a`, which does not end before the router knows its slot; its timings."""
    messages = [{"role": "user", "content": opening * 100}]
    for nth in range(1, number):
        messages += [{"role": "assistant", "content": f"answer {nth}"}, {"role": "user", "content": f"question {nth}"}]
    gate = router.folder / "gate"
    gate.unlink(missing_ok=True)
    before = router.events("SlotHolds")
    answer = router.chat("a", messages=messages, standin={"gate": str(gate)})
    if is_kept:
        router.wait_event("SlotHolds", lambda event: event not in before, deadline_s=25)
    gate.touch()
    assert answer.status == 200, answer.read()
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def away(router: RouterProcess) -> None:
    """`b` takes the GPU."""
    assert router.chat("b").status == 200


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "caches").glob("*/*") if path.is_file())


def assert_every_order_was_answered_once(router: RouterProcess) -> None:
    def who(events: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
        return sorted((event["replica"], event["slot"]) for event in events)

    orders = router.events("CacheSaveOrdered", "CacheRestoreOrdered")
    assert who(orders) == who(router.events(*FACTS))


def test_a_conversation_finds_its_prompt_cached_after_a_swap(tmp_path: Path) -> None:
    """And its file is private, has a name that says nothing, and is gone with the router."""
    with kept_router(tmp_path) as router:
        assert turn(router, 1)["cache_n"] == 0
        away(router)
        (file,) = files(tmp_path)
        assert turn(router, 2)["cache_n"] > 400
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file)]
        assert modes == [0o700, 0o600]
        assert file.suffix == ".cache"
        assert set(file.stem) <= set("0123456789abcdef")
        status = router.status()["prompt_caches"]
        assert (status["on"], status["files"], status["hits"]) == (True, 1, 1)
        assert status["bytes"] > 10_000
        assert status["saved_us"] > 100_000
    assert files(tmp_path) == []
    assert_every_order_was_answered_once(router)


def test_clients_cannot_write_into_the_directory(tmp_path: Path) -> None:
    """llama-server would let whoever reaches it save a slot under any name, and nobody would keep a budget of that."""
    with kept_router(tmp_path) as router:
        turn(router, 1)
        replica = router.events("ReplicaReady")[0]["replica"].replace("#", "%23")
        for path in (
            "/slots/0?action=save&model=a",
            f"/instance/{replica}/slots/0?action=save",
            "/upstream/a/slots/0?action=restore",
        ):
            refused = router.call("POST", path, {"filename": "mine"})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "forbidden"), path
        assert files(tmp_path) == []


def test_without_the_setting_nothing_is_saved(tmp_path: Path) -> None:
    with routed(tmp_path, [Model("a", prompt_s=60.0), Model("b")]) as router:
        turn(router, 1, is_kept=False)
        away(router)
        assert turn(router, 2, is_kept=False)["cache_n"] == 0
        assert router.status()["prompt_caches"]["on"] is False
    assert router.events("SlotHolds", "CacheSaveOrdered", *FACTS) == []
    assert "--slot-save-path" not in router.ledger.events("started")[0]["argv"]


@pytest.mark.parametrize("how", ["error", "short", "empty", "die"])
def test_a_save_that_goes_wrong_costs_the_cache_and_nothing_else(tmp_path: Path, how: str) -> None:
    with kept_router(tmp_path, save_how=how) as router:
        turn(router, 1)
        away(router)
        assert turn(router, 2)["cache_n"] == 0
        assert len(router.events("CacheSaveFailed")) >= 1
        assert router.events("CacheSaved", "CacheRestoreOrdered", "ModelCooledDown") == []
        assert files(tmp_path) == []
    assert_every_order_was_answered_once(router)


def test_a_save_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    with kept_router(tmp_path, limit_s=0.3, save_s=5.0) as router:
        turn(router, 1)
        away(router)
        assert turn(router, 2)["cache_n"] == 0
        swap = next(event for event in router.events("SwapFinished") if event.get("target") == "b")
        assert 290_000 <= swap["save_us"] < 4_500_000
    assert_every_order_was_answered_once(router)


@pytest.mark.parametrize("how", ["error", "nothing", "die"])
def test_a_restore_that_goes_wrong_costs_the_cache_and_nothing_else(tmp_path: Path, how: str) -> None:
    with kept_router(tmp_path, restore_how=how) as router:
        turn(router, 1)
        away(router)
        assert turn(router, 2)["cache_n"] == 0
        away(router)
        assert turn(router, 3)["cache_n"] == 0
        assert router.events("ModelCooledDown") == []
    assert_every_order_was_answered_once(router)


def test_restores_that_bring_nothing_are_given_up_and_that_is_said(tmp_path: Path) -> None:
    with kept_router(tmp_path, restore_how="nothing") as router:
        for number in range(1, 5):
            turn(router, number)
            away(router)
        assert len(router.events("CacheRestored")) == 2
        given_up = router.wait_event("CacheGivenUp", model="a")
        assert given_up["why"] == "brings_nothing"
        assert router.status()["prompt_caches"]["given_up"] == {"a": "brings_nothing"}
        router.wait_words("prompt caches of a are not kept")
        assert files(tmp_path) == []


def test_a_file_that_was_cut_short_never_reaches_a_llama_server(tmp_path: Path) -> None:
    """A real one does not survive it."""
    with kept_router(tmp_path) as router:
        turn(router, 1)
        away(router)
        (file,) = files(tmp_path)
        os.truncate(file, file.stat().st_size // 2)
        assert turn(router, 2)["cache_n"] == 0
        assert router.ledger.events("restore_begun") == []
        assert "not as long as it was" in router.wait_event("CacheRestoreFailed")["reason"]


def test_a_kill_in_the_middle_of_a_save_leaves_nothing_that_is_restored(tmp_path: Path) -> None:
    """Half of the file is there when the router dies. The next one removes it before it loads anything."""
    with kept_router(tmp_path, limit_s=30.0, save_s=20.0, persist=True) as router:
        turn(router, 1)
        other = router.chat("b")
        router.ledger.wait_for("save_begun")
        for _ in polls(5):
            if any(path.stat().st_size for path in files(tmp_path)):
                break
        router.kill()
        other.close()
        (part,) = files(tmp_path)
        assert part.suffix == ".part"
        router.top["promptCache"]["keepMaxHoldSeconds"] = 0.1
        router.configure()
        router.start()
        assert files(tmp_path) == []
        assert turn(router, 2)["cache_n"] == 0
        assert router.events("CacheFound", "CacheRestoreOrdered") == []
        assert router.ledger.events("restore_begun") == []


def test_a_kill_after_a_save_leaves_nothing_either(tmp_path: Path) -> None:
    """Only a clean end says which files are good."""
    with kept_router(tmp_path, persist=True) as router:
        turn(router, 1)
        away(router)
        router.kill()
        assert len(files(tmp_path)) == 1
        router.start()
        assert files(tmp_path) == []


def test_a_planned_restart_keeps_the_conversation_where_that_is_wanted(tmp_path: Path) -> None:
    """It is saved at the end, found at the start, and restored for the next turn."""
    with kept_router(tmp_path, persist=True) as router:
        turn(router, 1)
        router.stop()
        assert sorted(path.suffix for path in files(tmp_path)) == [".cache", ".json"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
        router.start()
        assert router.wait_event("CacheFound", model="a")["tokens"] > 400
        assert turn(router, 2)["cache_n"] > 400


def test_files_of_other_weights_are_not_used(tmp_path: Path) -> None:
    """Between two runs the model's file is replaced."""
    with kept_router(tmp_path, persist=True) as router:
        turn(router, 1)
        router.stop()
        model = tmp_path / "a.gguf"
        text = model.read_text()
        model.unlink()
        model.write_text(text + " ")
        router.start()
        assert router.wait_event("CacheDropped", why="stale")["conversation"]
        assert turn(router, 2)["cache_n"] == 0
        assert router.events("CacheRestoreOrdered") == []


def test_a_reload_that_does_not_shape_the_cache_keeps_the_conversation(tmp_path: Path) -> None:
    """More threads: A is unloaded once it is idle, saved before, and restored for the next turn."""
    with kept_router(tmp_path) as router:
        turn(router, 1)
        weights = router.models[0].file(tmp_path)
        before = weights.stat()
        router.models[0].preset["threads"] = "3"
        router.configure()
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        router.hang_up()
        router.wait_event("SwapFinished", predicate=lambda swap: not swap.get("target"))
        assert len(router.events("CacheSaved")) == 1
        assert turn(router, 2)["cache_n"] > 400
        assert "3" in router.ledger.events("started")[-1]["argv"]


def test_the_budget_is_kept_by_the_least_recently_used(tmp_path: Path) -> None:
    """Room for one of two conversations of 650 KiB each; the one that was quiet for longer goes."""
    with kept_router(tmp_path, budget_mib=1) as router:
        turn(router, 1, opening="many words and more words ")
        away(router)
        turn(router, 1, opening="other words and more words ")
        away(router)
        first, second = router.events("CacheSaved")
        assert len(files(tmp_path)) == 1
        assert files(tmp_path)[0].stat().st_size == second["bytes"]
        assert router.wait_event("CacheDropped")["conversation"] == first["conversation"]
