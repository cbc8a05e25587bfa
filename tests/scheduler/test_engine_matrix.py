"""The engine `matrix`: combinations that may be loaded together, and the cheapest one is kept."""

from typing import Any

from eventlog import events as e
from eventlog.settings import MatrixSet, ModelSettings
from tests.scheduler.scenario import Scenario


def one_set(*combinations: str) -> tuple[MatrixSet, ...]:
    return (named("only", *combinations),)


def named(name: str, *combinations: str) -> MatrixSet:
    return MatrixSet(name=name, combinations=tuple(tuple(sorted(one)) for one in combinations))


def matrix(models: str, sets: tuple[MatrixSet, ...], **settings: Any) -> Scenario:
    """Each model on a GPU of its own; names are letters."""
    on_gpus: dict[str, Any] = {name: (gpu,) for gpu, name in enumerate(models)}
    return Scenario(models=on_gpus, cap=0, engine="matrix", matrix=sets, **settings)


def evicted(story: Scenario, model: str) -> list[str]:
    story.arrives(1000 + story.state.last_rid, model)
    begun = story.last(e.SwapBegun)
    assert begun.target == model
    return sorted(victim.model for victim in begun.victims)


def test_g12_one_of_two_beside_a_third() -> None:
    """(g | q) & v: v stays when g and q take turns."""
    story = matrix("gqv", one_set("gv", "qv"))
    story.loaded("g", "v")
    assert evicted(story, "q") == ["g"]


def test_g13_a_model_that_runs_is_served_and_nobody_leaves() -> None:
    story = matrix("ab", one_set("a", "b"))
    story.loaded("a")
    story.arrives(1, "a")
    story.decides("dispatch 1 to a/0 (least_busy)")


def test_g13_the_set_that_costs_least_is_kept() -> None:
    """x may be with a, or with b and c: two leave rather than one that is dear, and one rather than two cheap ones."""
    sets = one_set("ax", "bcx", "abc")
    story = matrix("abcx", sets)
    story.loaded("a", "b", "c")
    assert evicted(story, "x") == ["a"]
    dear = matrix("abcx", sets, matrix_evict_costs={"a": 3})
    dear.loaded("a", "b", "c")
    assert evicted(dear, "x") == ["b", "c"]


def test_g13_only_sets_that_hold_the_model_count() -> None:
    """All that runs is in a set, but x is not in it."""
    story = matrix("abx", one_set("ab", "x"))
    story.loaded("a", "b")
    assert evicted(story, "x") == ["a", "b"]


def test_g13_of_equal_sets_the_first_defined_counts() -> None:
    for first, second, leaves in [("ax", "bx", ["b"]), ("bx", "ax", ["a"])]:
        story = matrix("abx", (named("one", first), named("two", second), named("both", "ab")))
        story.loaded("a", "b")
        assert evicted(story, "x") == leaves
        assert story.last(e.SwapBegun).set_name == "one"


def test_g13_within_a_set_the_first_alternative_counts() -> None:
    for combinations, leaves in [(("ax", "bx"), ["b"]), (("bx", "ax"), ["a"])]:
        story = matrix("abx", (named("one", *combinations), named("both", "ab")))
        story.loaded("a", "b")
        assert evicted(story, "x") == leaves


def test_g13_the_decision_carries_the_set_and_the_costs() -> None:
    story = matrix("abx", (named("one", "ab"), named("two", "ax")), matrix_evict_costs={"b": 7})
    story.loaded("a", "b")
    assert evicted(story, "x") == ["b"]
    begun = story.last(e.SwapBegun)
    assert (begun.engine, begun.set_name, begun.cost) == ("matrix", "two", 7)
    assert [victim.cost for victim in begun.victims] == [7]


def test_g14_a_part_of_a_combination_is_allowed_and_nothing_is_preloaded() -> None:
    story = matrix("abc", one_set("abc"))
    story.arrives(1, "a")
    story.decides("swap to a (idle)", "spawn a/0")
    story.ready("a")
    assert evicted(story, "c") == []
    assert story.phase("b") == "absent"


def test_g15_a_model_in_no_set_runs_alone() -> None:
    story = matrix("abx", one_set("ab"))
    story.loaded("a", "b")
    assert evicted(story, "x") == ["a", "b"]
    story.swapped("a", "b", to="x")
    assert evicted(story, "a") == ["x"]


def test_g16_a_cost_is_that_of_the_matrix_then_of_the_model_then_1() -> None:
    sets = one_set("ax", "bx", "ab")
    models: dict[str, Any] = {name: ModelSettings(gpus=(gpu,)) for gpu, name in enumerate("abx")}
    story = Scenario(
        models={**models, "a": ModelSettings(gpus=(0,), evict_cost=2)}, cap=0, engine="matrix", matrix=sets
    )
    story.loaded("a", "b")
    assert evicted(story, "x") == ["b"]
    other = Scenario(
        models={**models, "a": ModelSettings(gpus=(0,), evict_cost=2)},
        cap=0,
        engine="matrix",
        matrix=sets,
        matrix_evict_costs={"b": 3},
    )
    other.loaded("a", "b")
    assert evicted(other, "x") == ["a"]


def test_a_set_without_a_persistent_model_that_runs_cannot_be_had() -> None:
    """It would be cheaper to keep a, but p never leaves."""
    models: dict[str, Any] = {name: ModelSettings(gpus=(gpu,)) for gpu, name in enumerate("apx")}
    models["p"] = ModelSettings(gpus=(1,), persistent=True)
    sets = one_set("ax", "px", "ap")
    story = Scenario(models=models, cap=0, engine="matrix", matrix=sets, matrix_evict_costs={"a": 9})
    story.loaded("a", "p")
    assert evicted(story, "x") == ["a"]
    never = Scenario(models=models, cap=0, engine="matrix", matrix=one_set("ax", "ap"))
    never.loaded("a", "p")
    never.arrives(1, "x")
    never.decides("fail 1 (503 no_capacity)")


def test_a_load_that_a_set_allows_beside_another_does_not_wait_for_it() -> None:
    """(g | q) & v: v depends on neither; g and q wait for each other."""
    story = matrix("gqv", one_set("gv", "qv"))
    story.arrive({1: "g", 2: "v", 3: "q"})
    story.decides("swap to g (idle)", "spawn g/0", "swap to v (idle)", "spawn v/0", "hold 3 (swapping, hard) for g")


def test_a_model_that_still_stops_is_waited_for() -> None:
    """An unload of a is under way: x may not be started beside it, and b need not leave for it."""
    story = matrix("abx", one_set("ab", "bx"))
    story.loaded("a", "b")
    story.unload(1, "a")
    story.arrives(2, "x")
    story.decides("unload a (unload)", "stop a/0 (unload)", "hold 2 (evicting, hard) for a")
    story.stopped("a")
    assert story.loads() == ["a", "b", "x"]
    assert story.phase("b") == "ready"


def test_a_matrix_of_scope_gpu_only_concerns_models_that_share_a_gpu() -> None:
    models: dict[str, Any] = {"a": (0,), "b": (1,), "x": (1,)}
    story = Scenario(models=models, cap=0, engine="matrix", matrix=one_set("a", "b", "x"), scope="gpu")
    story.loaded("a", "b")
    assert evicted(story, "x") == ["b"]


def test_a_reload_to_other_sets_unloads_what_costs_least() -> None:
    story = matrix("abc", one_set("abc"), matrix_evict_costs={"b": 5})
    story.loaded("a", "b", "c")
    story.reconfigures(matrix=one_set("ac", "bc"))
    story.decides("unload a (stale)", "stop a/0 (stale)")
    story.stopped("a")
    story.decides("finished unload")


def test_a_load_that_a_reload_forbids_in_the_middle_is_planned_anew() -> None:
    """b may be beside a when its swap begins, and no more once v has gone: nothing is started beside a."""
    story = matrix("abv", one_set("ab", "av"))
    story.loaded("a")
    story.serving((1, "v"))
    story.arrives(2, "b")
    story.decides("swap to b (grace_over) evicting v")
    story.reconfigures(matrix=one_set("a", "b", "av"))
    story.finishes(1)
    story.stopped("v")
    story.decides("stop v/0 (evict)", "failed swap to b", "swap to b (idle) evicting a", "stop a/0 (evict)")
    story.stopped("a")
    story.decides("spawn b/0")
