"""The pretend worlds under each engine: everything ends once, and nobody is started beside whom the engine forbids."""

import pytest

from eventlog import events as e
from router.scheduler import digest
from tests.scheduler.chaos import ramble
from tests.scheduler.reference_engines import resources
from tests.scheduler.repeating import wrong
from tests.scheduler.test_world import REQUESTS, world_of

ENGINES = ("group", "matrix", "capacity")
WORLDS = 50


@pytest.mark.parametrize("engine", ENGINES)
def test_every_request_ends_once_in_every_world_of_an_engine(engine: str) -> None:
    evictions = 0
    for seed in range(WORLDS):
        try:
            world = world_of(seed, engine=engine)
            world.run()
            world.assert_nothing_is_left()
            assert len(world.outcomes) == REQUESTS
            assert digest(world.refold()) == digest(world.state)
        except Exception as error:
            raise wrong("world", seed, error, engine) from error
        evictions += sum(
            bool(event.victims and event.target) for event in world.record if isinstance(event, e.SwapBegun)
        )
    assert evictions > 2 * WORLDS, "an engine that evicts nobody is not tried"


@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_happens_an_engine_decides_as_the_naive_reference_does(engine: str) -> None:
    for seed in range(WORLDS):
        try:
            chaos = ramble(seed, 60, engine)
            assert digest(chaos.refold()) == digest(chaos.state)
        except Exception as error:
            raise wrong("chaos", seed, error, engine) from error


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_that_compete_for_nothing_do_not_wait_for_each_other(engine: str) -> None:
    """Whoever waits for another's claim or swap shares a GPU with it, or is its rival."""
    waits = 0
    for seed in range(30):
        world = world_of(seed, faults=False, engine=engine)
        world.run()
        models: dict[int, str] = {}
        footprints: dict[str, set[int]] = {}
        for event in world.record:
            match event:
                case e.RequestArrived() | e.LoadWished():
                    models[event.rid] = event.model
                case e.SwapBegun():
                    whom = event.target or ", ".join(victim.model for victim in event.victims)
                    footprints[whom] = set(event.footprint)
                case e.RequestHeld():
                    footprints[f"rid:{event.rid}"] = set(event.footprint)
                    for blocker in event.blocked_by if event.why in ("claimed", "swapping") else ():
                        waits += 1
                        other = models[int(blocker[4:])] if blocker.startswith("rid:") else blocker
                        shared: set[object] = footprints[blocker] & set(event.footprint)
                        if other in world.state.models:
                            shared |= resources(world.state, event.model) & resources(world.state, other)
                        assert shared, f"{event.model} waits for {other} in world {seed}, and they share nothing"
    assert waits > 30
