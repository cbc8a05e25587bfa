"""The engine `capacity`: pools, what each model takes of them, and the cheapest way to make room."""

import itertools
import random
from typing import Any

import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler.capacity import cheapest
from tests.scheduler.scenario import Scenario


def takes(gpu: int = 0, *, cost: int | None = None, replicas: int = 1, **pools: int) -> ModelSettings:
    return ModelSettings(gpus=(gpu,), capacities=pools, evict_cost=cost, replicas=replicas)


def capacity(models: dict[str, ModelSettings], pools: dict[str, int], **settings: Any) -> Scenario:
    settings.setdefault("cap", 0)
    return Scenario(models=dict(models), engine="capacity", pools=pools, **settings)


def evicted(story: Scenario, model: str) -> list[str]:
    story.arrives(1000 + story.state.last_rid, model)
    begun = story.last(e.SwapBegun)
    assert begun.target == model
    return [victim.model for victim in begun.victims]


def test_g33_what_fits_evicts_nobody_and_only_what_is_asked_for_starts() -> None:
    story = capacity({name: takes(ram=3) for name in "abc"}, {"ram": 9})
    story.loaded("a")
    assert evicted(story, "b") == []
    assert [name for name in "abc" if story.state.models[name].replicas] == ["a", "b"]


def test_g34_the_page_example_evicts_b_and_c_and_keeps_a() -> None:
    """A, B and C fill the ram; D costs B and C together 2, A alone 100."""
    story = capacity(
        {
            "a": takes(ram=10_000, gpu0=6_000, cost=100),
            "b": takes(ram=5_000, cost=1),
            "c": takes(ram=5_000, cost=1),
            "d": takes(ram=10_000, gpu0=6_000),
        },
        {"ram": 20_000, "gpu0": 12_000},
    )
    story.loaded("a", "b", "c")
    assert evicted(story, "d") == ["b", "c"]
    begun = story.last(e.SwapBegun)
    assert (begun.engine, begun.cost, [victim.cost for victim in begun.victims]) == ("capacity", 2, [1, 1])
    assert [other.model for other in begun.others] == ["a"]


def test_g34_of_equal_cost_the_fewest_leave() -> None:
    story = capacity({"a": takes(ram=2), "b": takes(ram=2), "big": takes(ram=4), "x": takes(ram=4)}, {"ram": 8})
    story.loaded("a", "b", "big")
    assert evicted(story, "x") == ["big"]


def test_g34_of_equally_many_the_first_by_name_leave() -> None:
    story = capacity({name: takes(ram=2) for name in ("d", "b", "a", "c", "x")}, {"ram": 8})
    story.loaded("d", "b", "a", "c")
    assert evicted(story, "x") == ["a"]


def test_g34_a_model_that_frees_nothing_that_is_short_stays_whatever_it_costs() -> None:
    story = capacity(
        {"free": takes(ram=1, cost=0), "a": takes(vram=5, cost=50), "x": takes(ram=1, vram=5)}, {"ram": 9, "vram": 5}
    )
    story.loaded("free", "a")
    assert evicted(story, "x") == ["a"]


def test_g34_the_search_finds_what_trying_every_subset_finds() -> None:
    dice = random.Random(1)
    for nth in range(300):
        pools = dice.choice([1, 1, 2, 3])
        names = [f"m{number}" for number in range(dice.randrange(1, 9))]
        dice.shuffle(names)
        candidates = tuple(
            (name, dice.choice([0, 0, 1, 2, 30]), tuple(dice.choice([0, 1, 2, 5]) for _ in range(pools)))
            for name in sorted(names)
        )
        sums = [sum(frees[pool] for _, _, frees in candidates) for pool in range(pools)]
        need = tuple(dice.randrange(0, total + 1) for total in sums)
        if not any(need):
            continue
        able = [
            (sum(cost for _, cost, _ in some), len(some), tuple(name for name, _, _ in some))
            for count in range(len(candidates) + 1)
            for some in itertools.combinations(candidates, count)
            if all(sum(frees[pool] for _, _, frees in some) >= need[pool] for pool in range(pools))
        ]
        found = cheapest(candidates, need, 100_000)
        assert found.chosen == min(able)[2], f"case {nth}: {candidates} for {need}"
        assert not found.limited


def test_g35_a_start_that_is_pending_counts() -> None:
    """b loads; what it will take is gone for c, which waits until it can ask somebody to leave."""
    story = capacity({"a": takes(0, ram=4), "b": takes(1, ram=4), "c": takes(2, ram=4)}, {"ram": 8})
    story.loaded("a")
    story.arrive({1: "b", 2: "c"})
    story.decides("swap to b (idle)", "spawn b/0", "hold 2 (swapping, hard) for b")


def test_g35_eviction_waits_for_active_requests() -> None:
    story = capacity({"a": takes(0, ram=6), "b": takes(1, ram=6)}, {"ram": 8})
    story.serving((1, "a"))
    story.arrives(2, "b")
    story.decides("swap to b (grace_over) evicting a")
    story.finishes(1)
    story.decides("stop a/0 (evict)")


def test_g35_an_unload_frees_its_capacity_when_the_process_has_stopped() -> None:
    story = capacity({"a": takes(0, ram=6), "b": takes(1, ram=6)}, {"ram": 8})
    story.loaded("a")
    story.unload(1, "a")
    story.arrives(2, "b")
    story.decides("unload a (unload)", "stop a/0 (unload)", "hold 2 (evicting, hard) for a")
    story.stopped("a")
    story.decides("finished unload", "done 1 (done)", "swap to b (idle)", "spawn b/0")


def test_g36_the_search_stops_at_its_limit_and_says_so() -> None:
    """With a low limit the plan is not the cheapest, but it suffices, and nobody leaves without need."""
    dice = random.Random(7)
    models = {f"m{nth:02}": takes(nth, ram=dice.randrange(40, 60), cost=dice.randrange(30, 60)) for nth in range(20)}
    used = sum(model.capacities["ram"] for model in models.values())
    models["x"] = takes(20, ram=used // 2)
    found = {}
    for limit in (30, 100_000):
        story = capacity(models, {"ram": used}, search_nodes=limit)
        story.loaded(*[name for name in models if name != "x"])
        victims = evicted(story, "x")
        begun = story.last(e.SwapBegun)
        found[limit] = begun.cost
        assert begun.search_limited == (limit == 30)
        assert begun.nodes <= limit
        freed = [models[name].capacities["ram"] for name in victims]
        assert sum(freed) >= used // 2
        assert sum(freed) - min(freed) < used // 2, "somebody leaves without need"
    assert found[30] >= found[100_000]


def test_g36_the_same_search_looks_at_the_same_number_of_plans_every_time() -> None:
    candidates = tuple((f"m{nth:02}", nth % 7, (10 + nth * nth % 13, 5 + nth % 5)) for nth in range(30))
    first = cheapest.__wrapped__(candidates, (150, 90), 5_000)
    assert first == cheapest.__wrapped__(candidates, (150, 90), 5_000)
    assert first.nodes <= 5_000


def test_g37_models_that_take_nothing_force_nobody_out() -> None:
    """Even where everything is full."""
    story = capacity({"a": takes(0, ram=8), "b": takes(0), "c": takes(0)}, {"ram": 8})
    story.loaded("a", "b")
    assert evicted(story, "c") == []


def test_g38_a_model_counts_by_its_real_name_once_whatever_it_was_asked_as() -> None:
    """Aliases are resolved before anything is counted: two names, one model, one share of the pool."""
    story = capacity({"a": takes(0, ram=6), "b": takes(1, ram=2)}, {"ram": 8})
    story.loaded("b")
    story.arrives(1, "a", asked="large")
    story.arrives(2, "a", asked="default")
    story.decides("swap to a (idle)", "spawn a/0")


def test_g39_a_preload_goes_by_the_same_rules_and_may_evict_an_earlier_one() -> None:
    story = capacity({"a": takes(0, ram=6), "b": takes(1, ram=6)}, {"ram": 8})
    story.wished(1, 1, "a")
    story.wished(2, 2, "b")
    story.ready("a")
    story.untold()
    story.swapped("a", to="b")
    assert story.loads() == ["a", "b"]
    assert (story.phase("a"), story.phase("b")) == ("absent", "ready")


def test_g40_a_reload_counts_anew_and_what_still_runs_counts_as_it_was_started() -> None:
    """b changes and takes less from now on, but its old process has what it had: x waits until that is gone."""
    story = capacity({"b": takes(0, ram=6), "x": takes(1, ram=4)}, {"ram": 8})
    story.serving((1, "b"))
    story.reloads(b=ModelSettings(gpus=(0,), capacities={"ram": 1}, fingerprint="another"))
    story.decides("unload b (stale)")
    story.arrives(2, "x")
    story.decides("hold 2 (evicting, hard) for b")
    story.finishes(1)
    story.stopped("b")
    assert story.loads() == ["b", "x"]


def test_g40_a_smaller_pool_unloads_the_cheapest_that_make_it_fit() -> None:
    story = capacity({"a": takes(0, ram=4, cost=5), "b": takes(1, ram=4, cost=1)}, {"ram": 8})
    story.loaded("a", "b")
    story.reconfigures(pools={"ram": 6})
    story.decides("unload b (stale)", "stop b/0 (stale)")


def test_g41_what_is_measured_changes_no_plan() -> None:
    """A replica that says it takes far more memory than declared is believed by nobody here."""
    story = capacity({"a": takes(0, ram=2), "b": takes(0, ram=2)}, {"ram": 4})
    story.wished(1, 1, "a")
    story.happens(e.ReplicaReady(replica=story.replica("a"), slots=1, vram=[e.Memory(0, 999_999)]))
    story.untold()
    assert evicted(story, "b") == []


def test_every_replica_takes_its_share() -> None:
    story = capacity({"a": takes(0, ram=2, replicas=3), "b": takes(1, ram=3)}, {"ram": 8})
    story.loaded("a")
    assert evicted(story, "b") == ["a"]


def test_models_of_different_pools_load_at_the_same_time_and_those_of_one_pool_in_turn() -> None:
    models = {"a": takes(0, gpu0=4), "b": takes(1, gpu1=4), "c": takes(2, gpu0=4)}
    story = capacity(models, {"gpu0": 8, "gpu1": 8})
    story.arrive({1: "a", 2: "b", 3: "c"})
    story.decides("swap to a (idle)", "spawn a/0", "swap to b (idle)", "spawn b/0", "hold 3 (swapping, hard) for a")


def test_a_persistent_model_is_never_evicted_and_what_cannot_fit_is_told_at_once() -> None:
    models = {"p": ModelSettings(gpus=(0,), capacities={"ram": 5}, persistent=True), "x": takes(1, ram=5)}
    story = capacity(models, {"ram": 8})
    story.loaded("p")
    story.arrives(1, "x")
    story.decides("fail 1 (503 no_capacity)")
    assert story.last(e.RequestFailed).reason == "it takes 5 of ram, 2 more than there are"


@pytest.mark.parametrize(("cap", "leaves"), [(0, ["b"]), (1, ["a"]), (2, ["b"])])
def test_a_cap_that_is_written_too_is_a_second_rule_and_the_union_has_nobody_too_many(
    cap: int, leaves: list[str]
) -> None:
    """For x, b is the cheaper victim; if the GPU takes one model only, a has to go, and then b need not."""
    models = {"a": takes(0, ram=4, cost=9), "b": takes(1, ram=4, cost=1), "x": takes(0, ram=4)}
    story = capacity(models, {"ram": 8}, cap=cap)
    story.loaded("a", "b")
    assert evicted(story, "x") == leaves
