"""`routing` of config.json: the engines' settings, priorities, every mistake in them, and what `check --plan` shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from eventlog.settings import GroupSettings, ModelSettings, SchedulerSettings
from router import cli
from router.config import Config
from router.outlook import outlook
from router.problems import Problem
from tests.router.config_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def routed(desk: Desk, router: Any = None, *, scheduler: Any = None, names: str = "abc", **entries: Any) -> Desk:
    """Models of these names, `entries` of some of them, and this `routing`."""
    models = {name: entries.get(name, {}) for name in names}
    routing = {"router": router, "scheduler": scheduler}
    desk.models(**models)
    return desk.config({"LLM": models, "routing": {key: value for key, value in routing.items() if value is not None}})


def groups(**groups: Any) -> dict[str, Any]:
    return {"use": "group", "settings": {"groups": groups}}


def matrix(**settings: Any) -> dict[str, Any]:
    return {"use": "matrix", "settings": {"matrix": settings}}


def pools(**pools: Any) -> dict[str, Any]:
    return {"use": "capacity", "settings": {"capacity": {"pools": pools}}}


def problems(desk: Desk) -> list[Problem]:
    return list(desk.mistakes())


def only(desk: Desk) -> Problem:
    (problem,) = problems(desk)
    return problem


# --- which engine ---------------------------------------------------------------------------------------------------


def test_g01_without_routing_the_cap_per_gpu_holds(desk: Desk) -> None:
    settings = routed(desk).load().scheduler
    assert (settings.engine, settings.max_models_per_gpu) == ("residency", 1)


def test_g01_another_engine_takes_the_place_of_the_cap_unless_that_is_written_too(desk: Desk) -> None:
    settings = routed(desk, {"use": "group"}).load().scheduler
    assert (settings.engine, settings.scope, settings.max_models_per_gpu) == ("group", "", 0)
    assert desk.load({"MAX_MODELS_PER_GPU": "2"}).scheduler.max_models_per_gpu == 2


def test_g02_settings_of_other_engines_may_stand_beside_those_of_the_chosen_one(desk: Desk) -> None:
    settings = {
        "groups": {"one": {"members": ["a"]}},
        "matrix": {"sets": {"s": "a & b"}},
        "capacity": {"pools": {"ram": 8}},
    }
    for use in ("residency", "group", "matrix", "capacity"):
        loaded = routed(desk, {"use": use, "settings": settings}).load().scheduler
        assert loaded.engine == use
        assert (list(loaded.groups), len(loaded.matrix), loaded.pools) == (["one"], 1, {"ram": 8})


def test_settings_without_use_do_nothing_and_that_is_said(desk: Desk) -> None:
    config = routed(desk, {"settings": {"groups": {"one": {"members": ["a"]}}}}).load()
    assert config.scheduler.engine == "residency"
    assert any("groups do nothing" in warning for warning in config.warnings)


def test_an_unknown_engine_is_a_mistake_with_the_nearest_name(desk: Desk) -> None:
    problem = only(routed(desk, {"use": "groups"}))
    assert (problem.section, problem.key, problem.nearest) == ("routing.router", "use", "group")


def test_a_scope_is_for_groups_and_the_matrix_only(desk: Desk) -> None:
    assert routed(desk, {"use": "group", "scope": "gpu"}).load().scheduler.scope == "gpu"
    config = routed(desk, {**pools(ram=8), "scope": "gpu"}).load()
    assert any("does nothing with capacity" in warning for warning in config.warnings)
    assert only(routed(desk, {"use": "group", "scope": "host"})).key == "scope"


@pytest.mark.parametrize("use", ["matrix", "capacity"])
def test_an_engine_without_its_settings_is_a_mistake(desk: Desk, use: str) -> None:
    assert f"routing.router.settings.{use}" in only(routed(desk, {"use": use})).message


# --- group ----------------------------------------------------------------------------------------------------------


def test_g03_a_group_has_three_flags_with_their_defaults(desk: Desk) -> None:
    loaded = routed(desk, groups(main={"members": ["a", "b"]}, small={"swap": False, "members": ["c"]})).load()
    assert loaded.scheduler.groups == {
        "main": GroupSettings(members=("a", "b"), swap=True, exclusive=True, persistent=False),
        "small": GroupSettings(members=("c",), swap=False),
    }


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"one": {"members": ["a"]}, "two": {"members": ["a"]}}, "'a' is also in the group 'one'"),
        ({"one": {"members": ["a", "a"]}}, "'a' is in this group twice"),
        ({"one": {"members": ["d"]}}, "there is no model 'd'"),
        ({"one": {"members": ["also"]}}, "'also' is an alias; here stands the model itself"),
        ({"one": {}}, "the models of this group are missing"),
        ({"one": {"members": ["a"], "swop": True}}, "there is no such key here"),
        ({"one": {"members": ["a"], "swap": "yes"}}, "not a value for this key"),
        ([], "this holds groups by name"),
    ],
)
def test_g06_a_model_is_in_one_group_by_its_own_name(desk: Desk, written: Any, says: str) -> None:
    router = {"use": "group", "settings": {"groups": written}}
    problem = only(routed(desk, router, b={"aliases": ["also"]}))
    assert says in problem.message
    assert problem.file.endswith("config.json")


def test_g08_where_a_group_that_is_not_exclusive_can_join_one_that_is_the_owner_is_told(desk: Desk) -> None:
    config = routed(desk, groups(small={"exclusive": False, "members": ["a"]}, main={"members": ["b", "c"]})).load()
    (warning,) = config.warnings
    assert "'small'" in warning
    assert "main" in warning
    assert not routed(desk, groups(main={"members": ["a", "b"]})).load().warnings


# --- matrix ---------------------------------------------------------------------------------------------------------


def test_g10_vars_stand_for_models(desk: Desk) -> None:
    loaded = routed(desk, matrix(vars={"x": "a", "b": "c"}, sets={"s": "x & b"})).load()
    (found,) = loaded.scheduler.matrix
    assert found.combinations == (("a", "c"),)


@pytest.mark.parametrize("var", ["x:y", "", "x" * 33, "x_y", "x y"])
def test_g10_a_var_has_a_short_plain_name(desk: Desk, var: str) -> None:
    problem = only(routed(desk, matrix(vars={var: "a"}, sets={})))
    assert problem.allowed == "1 to 32 letters, digits, dots and hyphens"


def test_g10_a_var_names_a_model_that_exists(desk: Desk) -> None:
    assert "there is no model 'd'" in only(routed(desk, matrix(vars={"x": "d"}))).message


def test_g11_a_mistake_in_a_set_is_told_with_file_key_value_and_place(desk: Desk) -> None:
    problem = only(routed(desk, matrix(sets={"fine": "a", "wrong": "(a | b & c"})))
    assert (problem.section, problem.key) == ("routing.router.settings.matrix.sets", "wrong")
    assert problem.value == "(a | b & c"
    assert 'at character 11: expected "&", "|" or ")", found the end\n    (a | b & c\n              ^' in str(problem)


def test_g16_costs_are_positive_and_name_a_var_or_a_model(desk: Desk) -> None:
    written = {"x": 50, "b": 30}
    loaded = routed(desk, matrix(vars={"x": "a"}, evict_costs=written, sets={"s": "a"})).load()
    assert loaded.scheduler.matrix_evict_costs == {"a": 50, "b": 30}
    for wrong in ({"a": 0}, {"a": -1}, {"a": 1.5}, {"d": 1}, {"x": 1, "a": 1}):
        assert len(problems(routed(desk, matrix(vars={"x": "a"}, evict_costs=wrong, sets={})))) == 1


def test_g20_the_line_about_orphans_is_in_the_configuration_for_the_start_and_each_reload(desk: Desk) -> None:
    loaded = routed(desk, matrix(sets={"s": "a & +auto:orphans"})).load()
    assert loaded.notes == ('matrix: synthesized set "auto:orphans" = (b | c)',)
    assert routed(desk, matrix(sets={"s": "a & b"})).load().notes == ()


# --- capacity -------------------------------------------------------------------------------------------------------


def test_g30_pools_have_any_names_and_positive_whole_limits(desk: Desk) -> None:
    assert routed(desk, pools(**{"ram of host 1": 64, "gpu0": 2**63 - 1})).load().scheduler.pools["gpu0"] == 2**63 - 1
    for wrong in (0, -1, 1.5, "8", True, 2**63):
        assert only(routed(desk, pools(ram=wrong))).section == "routing.router.settings.capacity.pools"


def test_g31_a_model_takes_nothing_unless_it_says_so(desk: Desk) -> None:
    loaded = routed(desk, pools(ram=8), a={"capacities": {"ram": 8}}, b={"capacities": {"ram": 0}}).load().scheduler
    assert [model.capacities for model in loaded.models.values()] == [{"ram": 8}, {"ram": 0}, {}]


@pytest.mark.parametrize(
    ("capacities", "says"),
    [
        ({"rum": 1}, "there is no such pool"),
        ({"ram": 9}, "this model can never be loaded: it takes 9 of ram"),
        ({"ram": 1.5}, "not a value for this key"),
        ({"ram": -1}, "not a value for this key"),
        ({"ram": 2**63}, "not a value for this key"),
    ],
)
def test_g31_what_a_model_takes_exists_fits_and_is_a_whole_number(desk: Desk, capacities: Any, says: str) -> None:
    problem = only(routed(desk, pools(ram=8), a={"capacities": capacities}))
    assert says in problem.message
    assert problem.section == "LLM.a.capacities"


def test_g31_a_sum_that_is_too_large_for_a_number_is_a_mistake(desk: Desk) -> None:
    most = 2**63 - 1
    entries = {name: {"capacities": {"ram": most}} for name in "ab"}
    assert "too large a number" in only(routed(desk, pools(ram=most), **entries)).message
    costs = {name: {"evict_cost": most} for name in "ab"}
    assert "too large a number" in only(routed(desk, pools(ram=most), **costs)).message


def test_g31_replicas_take_their_share_each(desk: Desk) -> None:
    problem = only(routed(desk, pools(ram=8), a={"capacities": {"ram": 3}, "num_instance": 3}))
    assert "3 replicas take 9 of ram" in problem.message


def test_g32_an_evict_cost_is_a_whole_number_of_0_or_more(desk: Desk) -> None:
    loaded = routed(desk, pools(ram=8), a={"evict_cost": 7}, b={"evict_cost": 0}).load().scheduler
    assert [model.evict_cost for model in loaded.models.values()] == [7, 0, None]
    for wrong in (-1, 1.5, "1"):
        assert only(routed(desk, pools(ram=8), a={"evict_cost": wrong})).key == "evict_cost"


# --- what can never be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("router", "key"),
    [
        ({"use": "group"}, "gpus"),
        (matrix(sets={"s": "p", "t": "b"}), "gpus"),
        (pools(ram=8), "capacities"),
    ],
)
def test_a_model_that_could_only_be_in_the_place_of_a_persistent_one_is_a_mistake(
    desk: Desk, router: Any, key: str
) -> None:
    takes = {"capacities": {"ram": 5}} if key == "capacities" else {}
    problem = only(routed(desk, router, names="pb", p={**takes, "gpus": [1], "persistent": True}, b=takes))
    assert (problem.section, problem.key) == ("LLM.b", key)
    assert "can never be loaded under the engine" in problem.message


def test_all_mistakes_of_routing_are_told_at_once(desk: Desk) -> None:
    router = {
        "use": "capacity",
        "settings": {
            "groups": {"one": {"members": ["d"]}},
            "matrix": {"sets": {"s": "a &", "t": "d"}},
            "capacity": {"pools": {"ram": 0}},
        },
    }
    found = problems(routed(desk, router, scheduler={"use": "lifo"}, a={"evict_cost": -1}))
    assert len(found) == 6


# --- priorities -----------------------------------------------------------------------------------------------------


def fifo(**settings: Any) -> dict[str, Any]:
    return {"use": "fifo", "settings": {"fifo": settings}}


def priorities(config: Config) -> list[int]:
    return [model.priority for model in config.scheduler.models.values()]


def test_g50_the_queue_has_a_priority_for_each_model_0_by_default(desk: Desk) -> None:
    assert priorities(routed(desk, scheduler=fifo(priority={"a": 10, "b": -1})).load()) == [10, -1, 0]
    assert priorities(routed(desk, b={"priority": 3}).load()) == [0, 3, 0]


@pytest.mark.parametrize(
    ("priority", "says"),
    [
        ({"d": 1}, "there is no model 'd'"),
        ({"a": 1.5}, "not a value"),
        ({"b": 4}, "LLM.b says another priority: 3"),
    ],
)
def test_g50_a_priority_is_of_a_model_that_exists_a_whole_number_and_said_once(
    desk: Desk, priority: Any, says: str
) -> None:
    assert says in only(routed(desk, scheduler=fifo(priority=priority), b={"priority": 3})).message


def test_whose_header_counts_is_everybody_nobody_or_a_list_of_keys(desk: Desk) -> None:
    assert routed(desk).load().priority_header is False
    assert routed(desk, scheduler=fifo(priority_header=True)).load().priority_header is True
    problem = only(routed(desk, scheduler=fifo(priority_header=["alice"])))
    assert "there is no API key 'alice'" in problem.message
    models = {"a": {}}
    desk.models(**models).config(
        {"LLM": models, "keys": {"alice": "x"}, "routing": {"scheduler": fifo(priority_header=["alice"])}}
    )
    assert desk.load().priority_header == ("alice",)
    assert only(routed(desk, scheduler=fifo(priority_header=3))).key == "priority_header"


# --- check --plan ---------------------------------------------------------------------------------------------------

PAGE = {
    "a": {"capacities": {"ram": 10_000, "gpu0": 6_000}, "evict_cost": 100},
    "b": {"capacities": {"ram": 5_000}, "evict_cost": 1},
    "c": {"capacities": {"ram": 5_000}, "evict_cost": 1},
    "d": {"capacities": {"ram": 10_000, "gpu0": 6_000}},
}


@pytest.fixture
def page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return routed(desk, pools(ram=20_000, gpu0=12_000), names="abcd", **PAGE).move_in(monkeypatch)


def test_check_shows_for_each_model_who_would_leave_from_which_states(
    page: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--plan"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "loaded by capacity: ram 20000, gpu0 12000" in lines
    table = lines[lines.index("TO LOAD EVICTS WHEN LOADED") + 1 :]
    assert table == ["a nobody whatever is loaded", "b d d, a", "c d d, a", "d b, c a, b, c", "2 states"]


def test_check_shows_the_same_as_json(page: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["engine"], plan["complete"]) == ("capacity", True)
    assert {"model": "d", "beside": ["a", "b", "c"], "evicts": ["b", "c"], "never": ""} in plan["loads"]


def test_a_plan_of_very_many_states_is_cut_and_says_so() -> None:
    """64 models on 8 GPUs can be loaded in millions of ways."""
    models = {f"m{nth}": ModelSettings(gpus=(nth % 8,)) for nth in range(64)}
    found = outlook(SchedulerSettings(models=models, gpus=8))
    assert (len(found.states), found.complete) == (32, False)
    assert all(len(state) == 8 for state in found.states)
    assert all(len(load.evicts) == 1 for load in found.loads)


def test_the_plan_under_the_cap_is_one_model_for_another(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    routed(desk, b={"gpus": [1]}).move_in(monkeypatch)
    assert cli.main(["check", "--plan"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "a c c, b" in lines
    assert "b nobody whatever is loaded" in lines


# --- selectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("router", "says"),
    [
        ({"use": "group"}, "loading b evicts a"),
        (matrix(sets={"s": "a | b"}), "loading b evicts a"),
        (pools(ram=8), "loading b evicts a"),
    ],
)
def test_g38_targets_of_a_spillover_must_fit_together_under_the_engine(desk: Desk, router: Any, says: str) -> None:
    takes = {"capacities": {"ram": 5}} if router["use"] == "capacity" else {}
    models = {"a": {"gpus": [0], **takes}, "b": {"gpus": [1], **takes}}
    desk.models(**models).config(
        {
            "LLM": models,
            "routing": {"router": router},
            "selectors": {"either": {"strategy": "spillover", "targets": ["a", "b"]}},
        }
    )
    problem = only(desk)
    assert says in problem.message
    assert (problem.section, problem.key) == ("selectors.either", "targets")
