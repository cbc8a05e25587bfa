"""Another engine on the traffic that came: by `--set`, and back into config.json."""

import json
from pathlib import Path

import pytest

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.alternatives import changed, config_lines, differences
from replay.simulate import load_source, simulate
from replay.workload import WorkloadError
from tests.replay.recording import Recording, all_in_turn
from tests.scheduler.world import Manners

SETTINGS = SchedulerSettings(
    models={name: ModelSettings(gpus=(gpu,), capacities={"ram": 4}) for gpu, name in enumerate("ABC")},
    gpus=3,
    pools={"ram": 10},
)
GROUPS = 'routing.router.settings.groups={"turns":{"members":["A","B"]}}'

POOLS = 'routing.router.settings.capacity.pools={"ram":12,"gpu0":4}'


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPU each, and 50 requests."""
    folder: Path = tmp_path_factory.mktemp("engines")
    with Recording(folder, SETTINGS, manners=Manners(service_s=(0.5, 3.0))) as world:
        all_in_turn(world, 50)
    return folder


@pytest.mark.parametrize(
    ("sets", "more"),
    [
        (["routing.router.use=group"], True),
        (["routing.router.use=group", GROUPS], True),
        (["routing.router.use=matrix", 'routing.router.settings.matrix.sets={"all":"A & B & C"}'], False),
        (["routing.router.use=matrix", 'routing.router.settings.matrix.sets={"two":"A & B | C"}'], True),
        (["routing.router.use=capacity"], True),
        (["routing.router.use=capacity", 'routing.router.settings.capacity.pools={"ram":12}'], False),
        (["routing.router.use=capacity", "capacities.*=ram:1"], False),
    ],
)
def test_an_engine_that_allows_less_makes_more_swaps_than_a_gpu_each(log: Path, sets: list[str], more: bool) -> None:
    result = simulate(load_source([str(log)]), sets=sets)
    assert result.alternative is not None
    assert result.alternative.failed == result.baseline.failed
    assert (result.alternative.swaps > result.baseline.swaps) == more


def test_another_engine_takes_the_place_of_the_cap_unless_that_is_set_too() -> None:
    assert changed(SETTINGS, ["routing.router.use=group"]).max_models_per_gpu == 0
    both = changed(SETTINGS, ["routing.router.use=group", "MAX_MODELS_PER_GPU=2"])
    assert both.max_models_per_gpu == 2
    assert changed(both, ["routing.router.use=residency"]).max_models_per_gpu == 1


@pytest.mark.parametrize(
    "sets",
    [
        ["routing.router.use=group", "routing.router.scope=gpu", GROUPS],
        ["routing.router.use=matrix", 'routing.router.settings.matrix.sets={"one":"A & (B | C)"}'],
        ["routing.router.use=matrix", 'routing.router.settings.matrix.evict_costs={"A":3}', "evict_cost.B=2"],
        ["routing.router.use=capacity", "capacities.A=ram:3+gpu0:2", POOLS],
    ],
)
def test_what_differs_is_said_as_it_is_set(sets: list[str]) -> None:
    after = changed(SETTINGS, sets)
    said = differences(SETTINGS, after)
    assert changed(SETTINGS, said) == after


def test_what_is_recommended_can_be_pasted_into_the_configuration() -> None:
    sets = ["routing.router.use=matrix", 'routing.router.settings.matrix.sets={"one":"A & (B | C)"}', "evict_cost.A=3"]
    said = differences(SETTINGS, changed(SETTINGS, sets))
    pasted = json.loads(config_lines(SETTINGS, said))
    assert pasted["LLM"] == {"A": {"evict_cost": 3}}
    assert pasted["routing"] == {
        "router": {"use": "matrix", "settings": {"matrix": {"sets": {"one": "A & B | A & C"}}}}
    }


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("routing.router.use=groups", "residency, group, matrix or capacity"),
        ("routing.router.settings.groups={", "groups by name"),
        ('routing.router.settings.groups={"x":{"members":["D"]}}', "there is no model 'D'"),
        ('routing.router.settings.matrix.sets={"x":"A &"}', "at character 4"),
        ("capacities.A=ram", "pools and amounts"),
        ("evict_cost.A=-1", "0 or more"),
    ],
)
def test_a_rule_that_is_none_is_told(setting: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        changed(SETTINGS, [setting])


def test_taking_of_a_pool_that_is_none_is_told() -> None:
    with pytest.raises(WorkloadError, match="takes of 'vram', which is no pool"):
        changed(SETTINGS, ["routing.router.use=capacity", "capacities.A=vram:3"])
