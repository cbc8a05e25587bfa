"""The projection behind status pages and metrics, event by event: what an ending changes, and what it does not."""

from types import SimpleNamespace
from typing import Any

from eventlog import events as e
from router.api.counters import Counters
from router.api.exposition import text_of
from router.api.listing import load_progress, status
from router.api.view import View
from tests.api.world import World


def view_of(*events: e.Event) -> View:
    view = View()
    for event in events:
        view.take(event)
    return view


ARRIVED = e.RequestArrived(rid=1, arrived_us=1, model="a")
ORDERED = e.ReplicaSpawnOrdered(replica="a#0.1", model="a", index=0)


def test_a_request_that_comes_back_has_no_tokens_yet() -> None:
    """Those of the attempt that was lost are not those of the next."""
    view = view_of(
        ARRIVED,
        e.RequestDispatched(rid=1, replica="a#0.1", at_us=5),
        e.FirstByte(rid=1, status=200, after_us=3),
        e.TokensStreamed(rid=1, gaps_us=[1, 1, 1]),
        e.RequestRequeued(rid=1, replica="a#0.1", attempt=2, why="upstream_lost"),
    )
    request = view.requests[1]
    assert (request.replica, request.frames, request.dispatched_us, request.first_byte_us) == ("", 0, -1, -1)


def test_a_failure_is_forgotten_once_its_model_has_been_ready() -> None:
    """Unloaded again in order, it is no failed model."""
    failed = e.ReplicaLoadFailed(replica="a#0.1", kind="exit", reason="it died", exit_code=1)
    assert view_of(ORDERED, failed).model("a").failure is not None
    again = e.ReplicaSpawnOrdered(replica="a#0.2", model="a", index=0)
    ready, stopped = e.ReplicaReady(replica="a#0.2", slots=1), e.ReplicaStopped(replica="a#0.2")
    assert view_of(ORDERED, failed, again, ready, stopped).model("a").failure is None


def test_a_load_is_as_far_as_the_slowest_of_its_processes() -> None:
    """One that is ready already holds nothing up."""
    replicas = [f"a#{index}.{index + 1}" for index in range(3)]
    view = view_of(
        *(e.ReplicaSpawnOrdered(replica=name, model="a", index=index) for index, name in enumerate(replicas)),
        e.ReplicaReady(replica=replicas[0], slots=1),
        e.ReplicaLoading(replica=replicas[1], model="a", stage="weights", value=0.2),
        e.ReplicaLoading(replica=replicas[2], model="a", stage="warm-up", value=0.9),
    )
    services: Any = SimpleNamespace(view=view)
    model: Any = SimpleNamespace(replicas=replicas)
    assert load_progress(services, model) == {"stages": ["weights"], "current": "weights", "value": 0.2}


def test_a_process_that_a_signal_ended_has_the_exit_code_that_a_shell_would_tell() -> None:
    async def story(world: World) -> None:
        world.replicas.loads = False
        await world.arrive("alpha")
        (order,) = world.happened(e.ReplicaSpawnOrdered)
        await world.post(e.ReplicaLoadFailed(replica=order.replica, kind="missing_file", reason="gone", signal=9))
        services = world.services
        told = status(services, services.config.models["alpha"], services.view.model("alpha"))
        assert (told["failed"], told["exit_code"], told["failure"]["signal"]) == (True, 137, 9)

    World.run(story)


def test_a_wait_in_the_queue_is_counted_once_whatever_becomes_of_the_attempt() -> None:
    counters = Counters()
    counters.names = frozenset("a")
    for event in (
        ARRIVED,
        e.RequestDispatched(rid=1, replica="a#0.1", waited_us=2_000_000),
        e.RequestRequeued(rid=1, replica="a#0.1", attempt=2, why="upstream_lost"),
        e.RequestDispatched(rid=1, replica="a#0.2", waited_us=9_000_000, attempt=2),
    ):
        counters.take(event)
    page = text_of([counters.waits]).decode()
    assert 'llama_router_queue_wait_seconds_count{model="a"} 1' in page
    assert 'llama_router_queue_wait_seconds_sum{model="a"} 2' in page
