"""Profiles and selectors: what may be configured, and which model a name means when it is asked for."""

from pathlib import Path
from typing import Any

import pytest

from router import errors
from router.callers import ANYBODY, Caller
from router.config import Config
from router.naming import resolve
from router.scheduler.state import Lane, Model, State
from tests.router.config_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def write(desk: Desk, *, profiles: Any = None, selectors: Any = None, **entries: Any) -> Desk:
    desk.models(**entries)
    top: dict[str, Any] = {"LLM": entries}
    top |= {"profiles": profiles} if profiles is not None else {}
    top |= {"selectors": selectors} if selectors is not None else {}
    return desk.config(top)


ABC: dict[str, Any] = {"a": {"aliases": ["first"]}, "b": {"gpus": [1]}, "c": {"gpus": [2]}}
WORKERS = {"strategy": "spillover", "targets": ["a", "b", "c"], "spillover": 2}


def config_of(desk: Desk, **top: Any) -> Config:
    return write(desk, **top, **ABC).load()


def state_of(profile: str = "", **models: tuple[str, int, int]) -> State:
    """Per model its phase, requests in flight, requests that wait."""
    state = State(profile=profile)
    for name, (phase, in_flight, waiting) in models.items():
        state.models[name] = Model(name=name, mask=1, phase=phase, in_flight=in_flight)  # type: ignore[arg-type]
        if waiting:
            state.lanes[name] = Lane(length=waiting)
    return state


# --- what may be configured -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"selectors": []}, "selectors holds objects by name"),
        ({"selectors": {"s": None}}, "this holds several values"),
        ({"selectors": {" ": {"strategy": "pin", "targets": ["a"]}}}, "a name cannot be empty"),
        ({"selectors": {"a": {"strategy": "pin", "targets": ["b"]}}}, "a model has this name"),
        ({"selectors": {"first": {"strategy": "pin", "targets": ["b"]}}}, "a model has this name or alias"),
        ({"selectors": {"s": {"targets": ["a"]}}}, "how it picks is missing"),
        ({"selectors": {"s": {"strategy": "random", "targets": ["a"]}}}, "warm, pin, spillover"),
        ({"selectors": {"s": {"strategy": "pin"}}}, "the models to pick from are missing"),
        ({"selectors": {"s": {"strategy": "pin", "targets": ["ab"]}}}, "there is no such model"),
        (
            {"selectors": {"s": {"strategy": "pin", "targets": ["t"]}, "t": {"strategy": "pin", "targets": ["a"]}}},
            "cannot pick another selector",
        ),
        ({"selectors": {"s": {"strategy": "spillover", "targets": ["a", "first"]}}}, "is there twice"),
        ({"selectors": {"s": {"strategy": "spillover", "targets": ["a"], "spillover": 0}}}, "a whole number from 1"),
        ({"selectors": {"s": {**WORKERS, "spilover": 1}}}, "did you mean 'spillover'"),
        ({"profiles": {"p": {"pins": ["a"]}}}, "these are no replacements"),
        ({"profiles": {"p": {"pins": {"x": "nobody"}}}}, "no such model, alias or selector"),
        ({"profiles": {"p": {"pin": {}}}}, "did you mean 'pins'"),
    ],
)
def test_a_mistake_in_profiles_or_selectors_is_found(desk: Desk, top: dict[str, Any], said: str) -> None:
    mistakes = "\n\n".join(map(str, write(desk, **top, **ABC).mistakes()))
    assert said in mistakes


def test_targets_of_spillover_that_cannot_be_loaded_together_are_a_mistake(desk: Desk) -> None:
    """Two models on one GPU that takes one; on different GPUs, or with room for two, they can."""
    both_on_0 = {"a": {}, "b": {}, "c": {"gpus": [1]}}
    selectors = {"s": {"strategy": "spillover", "targets": ["a", "b"]}}
    mistake = write(desk, selectors=selectors, **both_on_0).mistake()
    assert "cannot be loaded together" in mistake.message
    assert desk.mistakes({"MAX_MODELS_PER_GPU": 2}) == []
    write(desk, selectors={"s": {"strategy": "warm", "targets": ["a", "b"]}}, **both_on_0).load()


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"strip": ["x"]}, "did you mean 'stripParams'"),
        ({"stripParams": ["model"]}, "cannot be stripped"),
        ({"setParams": {"model": "x"}}, "cannot be set"),
        ({"setParams": ["x"]}, "an object such as"),
        ({"setParamsByID": {"x": 1}}, "`model` cannot be set"),
        ({"setParams": {"two words": 1}}, "an object such as"),
    ],
)
def test_a_mistake_in_filters_is_found(desk: Desk, filters: Any, said: str) -> None:
    assert said in str(desk.models(a={"filters": filters}).mistake())


def test_names_with_parameters_of_their_own_are_aliases(desk: Desk) -> None:
    """And as unique as others are."""
    by_name = {"a": {"x": 1}, "a:high": {"x": 2}, "first": {"x": 3}}
    config = desk.models(a={"aliases": ["first"], "filters": {"setParamsByID": by_name}}).load()
    assert config.models["a"].aliases == ("first", "a:high")
    assert config.names["a:high"] == "a"
    assert "is also an alias" in str(
        desk.models(a={"filters": {"setParamsByID": {"x": {}}}}, b={"aliases": ["x"]}).mistake()
    )


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
def test_s18_the_masks_of_gpus_are_never_a_models_own(desk: Desk, name: str) -> None:
    assert "write the GPUs into `gpus`" in str(desk.models(a={"env": {name: "1"}}).mistake())


# --- which model is meant -------------------------------------------------------------------------------------------


def test_a_profile_in_force_replaces_names_and_switches_some_off(desk: Desk) -> None:
    """Even the name of a model; without the profile all is as it was."""
    profiles = {"p": {"pins": {"best": "b", "a": "first", "c": "b", "off": None}}, "q": {"pins": {}}}
    config = config_of(desk, profiles=profiles)
    for asked, meant in (("best", "b"), ("a", "a"), ("c", "b"), ("first", "a")):
        assert resolve(config, state_of("p"), ANYBODY, asked).model.name == meant
    assert resolve(config, state_of("p"), ANYBODY, "best").via == "profile p"
    assert resolve(config, state_of("p"), ANYBODY, "first").via == ""
    assert resolve(config, state_of("q"), ANYBODY, "c").model.name == "c"
    for state, asked in ((state_of("p"), "off"), (state_of(), "best"), (state_of("gone"), "best")):
        with pytest.raises(errors.RouterError) as problem:
            resolve(config, state, ANYBODY, asked)
        assert problem.value.status == 404


def test_a_profile_can_lead_to_a_selector(desk: Desk) -> None:
    config = config_of(
        desk,
        profiles={"p": {"pins": {"best": "s"}}},
        selectors={"s": {"strategy": "pin", "targets": ["b"]}},
    )
    named = resolve(config, state_of("p"), ANYBODY, "best")
    assert (named.asked, named.model.name, named.via) == ("best", "b", "profile p, selector s")


@pytest.mark.parametrize(
    ("models", "picked"),
    [
        ({}, "a"),
        ({"b": ("loading", 0, 3)}, "b"),
        ({"b": ("loading", 0, 3), "c": ("ready", 9, 9)}, "c"),
        ({"a": ("absent", 0, 1), "b": ("ready", 1, 0), "c": ("ready", 0, 0)}, "b"),
        ({"b": ("stopping", 0, 0)}, "a"),
    ],
)
def test_s15_warm_picks_the_loaded_one_else_the_one_that_is_coming(
    desk: Desk, models: dict[str, tuple[str, int, int]], picked: str
) -> None:
    config = config_of(desk, selectors={"s": {"strategy": "warm", "targets": ["a", "b", "c"]}})
    assert resolve(config, state_of(**models), ANYBODY, "s").model.name == picked


@pytest.mark.parametrize(
    ("models", "picked"),
    [
        ({}, "a"),
        ({"a": ("ready", 1, 0)}, "a"),
        ({"a": ("ready", 2, 0)}, "b"),
        ({"a": ("ready", 1, 1), "b": ("loading", 0, 1)}, "b"),
        ({"a": ("ready", 2, 0), "c": ("ready", 0, 0)}, "c"),
        ({"a": ("ready", 2, 3), "b": ("ready", 2, 0), "c": ("ready", 2, 1)}, "b"),
        ({"a": ("ready", 2, 0), "b": ("ready", 2, 0), "c": ("ready", 2, 0)}, "a"),
    ],
)
def test_s15_spillover_fills_a_target_before_it_loads_the_next(
    desk: Desk, models: dict[str, tuple[str, int, int]], picked: str
) -> None:
    config = config_of(desk, selectors={"s": WORKERS})
    assert resolve(config, state_of(**models), ANYBODY, "s").model.name == picked


@pytest.mark.parametrize("strategy", ["pin", "warm", "spillover"])
def test_a_target_that_cools_down_is_passed_over_unless_all_do(desk: Desk, strategy: str) -> None:
    config = config_of(desk, selectors={"s": {**WORKERS, "strategy": strategy}})
    state = state_of(a=("absent", 0, 0), b=("absent", 0, 0), c=("absent", 0, 0))
    state.models["a"].cooldown_until_us = -1
    assert resolve(config, state, ANYBODY, "s").model.name == "b"
    for model in state.models.values():
        model.cooldown_until_us = -1
    assert resolve(config, state, ANYBODY, "s").model.name == "a"


def test_a_key_for_certain_models_gets_only_these(desk: Desk) -> None:
    config = config_of(desk, selectors={"s": {"strategy": "pin", "targets": ["a", "b"]}})
    assert resolve(config, state_of(), Caller("k", models=("b",)), "s").model.name == "b"
    with pytest.raises(errors.RouterError) as problem:
        resolve(config, state_of(), Caller("k", models=("c",)), "s")
    assert problem.value.status == 403
