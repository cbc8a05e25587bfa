"""A swap's page says why then, why these victims, what it cost and what followed, as the replay finds in the log."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.swap_story import kept_by, spared
from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from replay.explain import explain_swap
from tests.dashboard.rig import Dashboard, dashboard_on, text_of
from tests.projections.logs import UNRULY, Story, arrives, started
from tests.replay.recording import Recording

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swaps")
    models = {name: ModelSettings(gpus=(0,)) for name in "ABCD"}
    settings = SchedulerSettings(models=models, gpus=1, max_models_per_gpu=2)
    dice = random.Random(5)
    with Recording(folder / "log", settings, seed=5, manners=UNRULY) as world:
        for at_s in range(60):
            world.arrives(at_s, dice.choice("AABCD"))
        world.run()
    return folder


@pytest.fixture(scope="module")
def dashboard(folder: Path) -> Iterator[Dashboard]:
    with dashboard_on(folder) as running:
        yield running


def story_of(dashboard: Dashboard, swap: int) -> dict[str, Any]:
    answer = dashboard.get(f"/dash/api/swaps/{swap}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def swaps(dashboard: Dashboard) -> list[int]:
    return [row["swap"] for row in dashboard.sql("SELECT swap FROM swaps ORDER BY swap")]


def test_what_it_cost_and_who_left_for_it_is_what_the_replay_finds(dashboard: Dashboard, folder: Path) -> None:
    assert len(swaps(dashboard)) > 10
    for swap in swaps(dashboard):
        told, found = story_of(dashboard, swap), explain_swap(folder / "log", swap)
        if found.outcome in ("done", "failed"):
            phases = [told["swap"][name] for name in ("drain_us", "stop_us", "load_us")]
            assert phases == [found.drain_us, found.stop_us, found.load_us], swap
        assert [row["model"] for row in told["candidates"] if row["chosen"]] == [each.model for each in found.victims]


def test_whom_it_spared_and_why_is_what_the_replay_finds(dashboard: Dashboard, folder: Path) -> None:
    seen = 0
    for swap in swaps(dashboard):
        candidates = story_of(dashboard, swap)["candidates"]
        victims = [row for row in candidates if row["chosen"]]
        forced = story_of(dashboard, swap)["swap"]["why"] == "forced"
        found = {other.model: other.spared_by for other in explain_swap(folder / "log", swap).others}
        for row in candidates:
            if not row["chosen"]:
                seen += 1
                assert kept_by(row, victims, forced=forced) == found[row["model"]], (swap, row)
    assert seen


def test_every_swap_has_a_page_in_words(dashboard: Dashboard) -> None:
    for swap in swaps(dashboard):
        answer = dashboard.get(f"/dash/swaps/{swap}")
        assert answer.status_code == 200, answer.text
        assert f"<h1>Swap {swap}</h1>" in answer.text
        assert "None" not in text_of(answer.text)


def test_the_grace_that_was_over_is_the_one_of_that_moment(tmp_path: Path) -> None:
    """A reload between two swaps changes it; each swap's page goes by its own."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("big", "small"))
        story.at(1, e.SwapBegun(swap=1, target="big", why="grace_over", footprint=(0,)))
        config = SchedulerSettings(models={"big": ModelSettings(), "small": ModelSettings()}, head_grace_us=10_000_000)
        story.at(2, e.ConfigLoaded(config=config))
        story.at(3, e.SwapBegun(swap=2, target="small", why="grace_over", footprint=(0,)))
    with dashboard_on(tmp_path) as dashboard:
        first, second = (story_of(dashboard, swap)["words"]["why"] for swap in (1, 2))

    assert "it has no grace (QUEUE_HEAD_GRACE is 0)" in first
    assert "its grace of 10 s (QUEUE_HEAD_GRACE)" in second


def test_a_swap_under_way_is_asked_for_again_and_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started(NASTY, "small"))
        victims = [e.Victim(model="small", in_flight=1, age_us=5_000_000, gpus=(0,))]
        story.at(1, e.SwapBegun(swap=1, target=NASTY, why="grace_over", victims=victims, footprint=(0,)))
    with dashboard_on(tmp_path) as dashboard:
        html = dashboard.get("/dash/swaps/1?part=1").text
        missing = dashboard.get("/dash/swaps/2")

    assert 'data-live="1"' in html
    assert "Under way." in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert missing.status_code == 404
    assert "Swap 2 is not in the history" in missing.text


def candidate(model: str, **fields: Any) -> dict[str, Any]:
    known = {"chosen": False, "wanted": 0, "in_flight": 0, "age_us": 0, "worth": None, "gpus": [0]}
    return {"model": model, **known, **fields}


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        (candidate("b", wanted=2, age_us=99), "wanted"),
        (candidate("b", in_flight=1, age_us=99), "busy"),
        (candidate("b", age_us=5), "age"),
        (candidate("b", age_us=10), "name"),
        (candidate("b", age_us=99, gpus=[1]), "not needed"),
    ],
)
def test_a_candidate_was_kept_by_the_first_thing_in_which_it_came_after_the_victim(
    other: dict[str, Any], kept: str
) -> None:
    assert kept_by(other, [candidate("a", chosen=True, age_us=10)], forced=False) == kept


def test_a_forced_swap_asks_nobody_who_is_wanted() -> None:
    """So that is not what kept a model, although somebody waits for it."""
    victim, other = candidate("a", chosen=True, age_us=10), candidate("b", wanted=3, age_us=5)

    assert kept_by(other, [victim], forced=False) == "wanted"
    assert kept_by(other, [victim], forced=True) == "age"


def test_by_worth_a_candidate_is_kept_for_what_it_is_worth() -> None:
    victim = candidate("a", chosen=True, worth=3)

    assert kept_by(candidate("b", worth=8), [victim], forced=False) == "worth"
    assert spared([victim, candidate("b", worth=8)], forced=False)[1]["words"] == (
        "stayed: it is used more, or takes longer to load"
    )


def test_a_candidate_is_kept_for_its_load_where_the_longest_loaded_leaves_first() -> None:
    victim = candidate("a", chosen=True, age_us=10)

    assert spared([victim, candidate("b", age_us=5)], forced=False, eviction="fifo")[1]["words"] == (
        "stayed: it was loaded later"
    )


def test_what_left_again_is_what_this_swap_had_loaded(tmp_path: Path) -> None:
    """Loaded by swap 1, gone in a crash, loaded again by swap 2, and evicted for swap 3; told to stop twice."""
    leaving = [e.Victim(model="small", gpus=(0,))]
    with Story(tmp_path / "log") as story:
        story.at(0, started("small", "big"))
        for swap, second in ((1, 1), (2, 20)):
            replica = f"small#0.{swap}"
            story.at(second, e.SwapBegun(swap=swap, target="small", why="idle", footprint=(0,)))
            story.at(second, e.ReplicaSpawnOrdered(replica=replica, model="small", index=0, gpus=(0,), swap=swap))
            story.at(second + 1, e.ReplicaReady(replica=replica, slots=1), e.SwapFinished(swap=swap, target="small"))
        story.at(10, e.ReplicaCrashed(replica="small#0.1"))
        story.at(30, e.SwapBegun(swap=3, target="big", why="idle", victims=leaving, footprint=(0,)))
        story.at(31, e.ReplicaStopOrdered(replica="small#0.2", why="evict", swap=3))
        story.at(35, e.ReplicaStopOrdered(replica="small#0.2", why="evict", swap=3, force=True))
    with dashboard_on(tmp_path) as dashboard:
        first, second, third = (story_of(dashboard, swap) for swap in (1, 2, 3))

    assert first["left_by"] is None
    assert second["left_by"]["swap"] == 3
    assert [row["replica"] for row in third["stopped"]] == ["small#0.2"]


def test_all_who_waited_are_counted_however_few_are_listed(tmp_path: Path) -> None:
    """Seventy requests, each for one second of the load."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"), e.SwapBegun(swap=1, target="A", why="idle", footprint=(0,)))
        story.at(0, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,), swap=1))
        story.at(4, *(arrives(rid, "A", 4) for rid in range(1, 71)))
        story.at(5, e.ReplicaReady(replica="A#0.1", slots=70), e.SwapFinished(swap=1, target="A"))
        story.at(5, *(e.RequestDispatched(rid=rid, replica="A#0.1") for rid in range(1, 71)))
    with dashboard_on(tmp_path) as dashboard:
        html = dashboard.get("/dash/swaps/1").text

    assert "70 requests" in html
    assert "70 s in all" in html
    assert "and 20 more" in html
