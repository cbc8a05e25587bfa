"""Hundreds of pretend worlds, each with its own traffic and misfortunes: everything ends once, nothing is left over."""

import random

import pytest

from eventlog import events as e
from eventlog.settings import KeySettings, ModelSettings, SchedulerSettings
from router.scheduler import digest
from tests.scheduler.chaos import TOPOLOGIES, with_engine
from tests.scheduler.repeating import wrong
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners, World

WORLDS = 300
REQUESTS = 30


def world_of(seed: int, *, requests: int = REQUESTS, faults: bool = True, keys: bool = True, engine: str = "") -> World:
    """A world with traffic for a minute or so, and with administrators."""
    dice = random.Random(seed)
    topology = TOPOLOGIES[dice.choice(sorted(TOPOLOGIES))]
    settings = SchedulerSettings(
        models={
            name: ModelSettings(
                gpus=gpus,
                replicas=dice.choice([1, 1, 2]),
                priority=dice.choice([0, 0, 1]),
                ttl_us=dice.choice([0, 0, 20 * SECOND]),
            )
            for name, gpus in topology.items()
        },
        gpus=3,
        max_models_per_gpu=dice.choice([1, 1, 2]),
        eviction=dice.choice(["lru", "fifo"]),
        head_grace_us=dice.choice([0, 2, 10, 1000]) * SECOND,
        head_grace_from=dice.choice(["head", "arrival"]),
        force_load_us=dice.choice([30, 300]) * SECOND,
        keys={"limited": KeySettings(max_parallel=2)} if keys else {},
    )
    if engine:
        settings = with_engine(settings, engine, random.Random(f"{engine}/{seed}").choice)
    rare = 0.03 if faults else 0.0
    manners = Manners(
        load_s=(1.0, 8.0),
        stop_s=(0.1, 2.0),
        service_s=(0.1, 4.0),
        release_s=(0.0, 3.0),
        report_s=(0.0, 0.5),
        slots=(1, 4),
        load_fails=4 * rare,
        crashes=rare,
        stalls=rare,
        breaks=rare,
        late_timers=0.2 if faults else 0.0,
    )
    world = World(settings, seed=seed, manners=manners)
    every_s = dice.choice([0.1, 0.7, 2.0])
    at_s = 0.0
    for _ in range(requests):
        at_s += dice.expovariate(1 / every_s)
        world.arrives(
            at_s,
            dice.choice(sorted(topology)),
            body_s=dice.choice([0.0, 0.0, 1.0]),
            leaves_after_s=dice.choice([None, None, None, 0.0, 3.0]) if faults else None,
            priority=dice.choice([0, 0, 0, 5]),
            key=dice.choice(["", "limited"]),
            work=dice.choice(["generation"] * 4 + ["metadata"]),
            slots_wanted=dice.choice([1, 1, 1, 3]),
            conversation=dice.choice(["", "x", "y", "z"]),
        )
    for _ in range(dice.randrange(6) if faults else 0):
        at_s = dice.uniform(0, at_s)
        model, op = dice.choice(sorted(topology)), world.next_op()
        calls: list[e.Fact] = [
            e.LoadWished(op=op, rid=world.next_rid(), model=model),
            e.AdminUnload(op=op, model=model, force=dice.random() < 0.3),
            e.AdminDrain(op=op),
        ]
        world.fact_at(at_s, dice.choice(calls))
        if dice.random() < 0.3:
            gpu = dice.randrange(3)
            world.fact_at(at_s, e.AdminGpu(op=world.next_op(), gpu=gpu, action="out"))
            world.fact_at(at_s + dice.uniform(0, 30), e.AdminGpu(op=world.next_op(), gpu=gpu, action="in"))
    return world


@pytest.mark.parametrize("tens", range(WORLDS // 10))
def test_every_request_ends_once_in_every_world(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            world = world_of(seed)
            world.run()
            world.assert_nothing_is_left()
            assert len(world.outcomes) == REQUESTS
            assert digest(world.refold()) == digest(world.state)
        except Exception as error:
            raise wrong("world", seed, error) from error


def test_a_clock_that_goes_back_lets_a_cool_down_go_on() -> None:
    """A world in which a cool-down was over, and then was not."""
    world = world_of(2460, engine="group")
    world.run()
    assert not world.waiting


def test_in_a_world_without_faults_every_request_is_answered() -> None:
    for seed in range(40):
        world = world_of(seed, faults=False)
        world.run()
        assert set(world.outcomes.values()) == {"finished"}, f"world {seed}: {world.outcomes}"


def test_no_model_is_evicted_before_it_has_served_anybody() -> None:
    """A load pays out. (Where a key reaches its limit during the load, it may not.)"""
    served = wasted = 0
    for seed in range(60):
        world = world_of(seed, faults=False, keys=False)
        world.run()
        used: dict[str, bool] = {}
        for event in world.record:
            if isinstance(event, e.ReplicaReady):
                used.setdefault(event.replica.rpartition("#")[0], False)
            elif isinstance(event, e.RequestDispatched):
                used[event.replica.rpartition("#")[0]] = True
            elif isinstance(event, e.SwapBegun):
                for victim in event.victims:
                    served += used[victim.model]
                    wasted += not used.pop(victim.model)
    assert served > 200
    assert wasted == 0


def test_more_grace_means_fewer_loads() -> None:
    """Three models on one GPU, backlog from the start: each step of grace trades order for cache."""
    loads = []
    for grace_s in (0, 5, 20, 1000):
        world = World(
            SchedulerSettings(models={name: ModelSettings() for name in "ABC"}, head_grace_us=grace_s * SECOND),
            manners=Manners(load_s=(6.0, 6.0), service_s=(1.0, 1.0), slots=(4, 4)),
        )
        for nth in range(120):
            world.arrives(nth * 0.3, "ABC"[nth * nth % 3 or nth % 2])
        world.run()
        loads.append(len(world.loads()))
    assert loads == sorted(loads, reverse=True)
    assert loads[0] > 3 * loads[-1]
    assert loads[-1] <= 4


@pytest.mark.slow
def test_hundreds_of_longer_worlds() -> None:
    for seed in range(10_000, 10_300):
        try:
            world = world_of(seed, requests=80)
            world.run()
            world.assert_nothing_is_left()
        except Exception as error:
            raise AssertionError(f"world {seed}: {error}") from error
