"""Administration over HTTP: start and stop, GPUs, drains, cancelling."""

import asyncio
from typing import Any

import pytest

from eventlog import events as e
from router import errors
from router.api import lifecycle, operations
from router.api.health import why_not_ready
from tests.api.world import World, model


def test_a_reload_that_the_log_could_not_take_is_refused() -> None:
    """Two at once are answered, each with what came of it; while the log takes nothing, a third is not begun."""

    async def story(world: World) -> None:
        answers = await asyncio.gather(*(world.http.post("/router/reload") for _ in range(2)))
        assert [answer.json()["outcome"] for answer in answers] == ["done", "done"]
        world.loop.available = False
        refused = await world.http.post("/router/reload")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "log_unavailable")

    World.run(story)


def test_a_cancelled_request_ends_in_its_clients_place() -> None:
    """Its slot is free again, the log says who did it, and the next one takes its place."""

    async def story(world: World) -> None:
        first, second, third = [await world.arrive("alpha") for _ in range(3)]
        rows = (await world.get("/api/inflight"))["inflight"]
        assert [(row["id"], row["state"]) for row in rows] == [
            (first, "running"),
            (second, "running"),
            (third, "queued"),
        ]
        answer = await world.http.post(f"/api/inflight/{second}/cancel")
        assert answer.json() == {"cancelled": second}
        assert world.relay.cancelled == [(second, "admin")]
        assert world.happened(e.RequestCancelled)[0].by == "admin"
        rows = (await world.get("/router/inflight"))["inflight"]
        assert [(row["id"], row["state"]) for row in rows] == [(first, "running"), (third, "running")]
        gone = await world.http.post(f"/router/inflight/{second}/cancel")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")

    World.run(story)


def test_a_gpu_goes_out_of_service_and_comes_back() -> None:
    """What is on it is unloaded, its models wait; back in, they load."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        answer = await world.http.post("/router/gpus/0/out", params={"wait": "true"})
        assert answer.json() == {"gpu": 0, "action": "out", "outcome": "done"}
        assert world.loop.state.replicas == {}
        rid = await world.arrive("alpha")
        (row,) = (await world.get("/status"))["queue"]
        assert row["blocked_by"]["why"] == "gpu_out"
        assert (await world.get("/router/gpu"))["gpus"][0]["out_of_service"] is True
        await world.http.post("/router/gpus/0/in", params={"wait": "true"})
        await world.until(lambda: world.loop.state.requests[rid].replica != "")

    World.run(story)


def test_a_gpu_that_does_not_exist_and_a_verb_that_does_not() -> None:
    """Both are told in the one shape of errors."""

    async def story(world: World) -> None:
        missing = await world.http.post("/router/gpus/7/out", params={"wait": "true"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "gpu_not_found")
        below = await world.http.post("/router/gpus/-1/out")
        assert (below.status_code, below.json()["error"]["code"]) == (404, "gpu_not_found")
        wrong = await world.http.post("/router/gpus/0/off")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_parameter")
        assert wrong.json()["error"]["param"] == "action"
        assert "'off'" in wrong.json()["error"]["message"]

    World.run(story)


def test_a_drain_unloads_everything_once_it_is_idle() -> None:
    """The running request ends first."""

    async def story(world: World) -> None:
        rid = await world.arrive("alpha")
        assert (await world.http.post("/router/drain")).json() == {"outcome": "pending"}
        waiting = asyncio.create_task(world.http.post("/router/drain", params={"wait": "true"}))
        await world.finish(rid)
        assert (await waiting).json() == {"outcome": "done"}
        assert world.loop.state.replicas == {}

    World.run(story)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_stopped_router_refuses_new_requests_and_starts_again(method: str) -> None:
    """Those that are in end first, then every model is unloaded; a start loads what belongs to the start."""

    async def story(world: World) -> None:
        rid = await world.arrive("alpha")
        answer = await world.http.request(method, "/router/stop")
        assert answer.json() == {"status": "stopping"}
        problem = why_not_ready(world.services)
        assert problem is not None
        assert (problem.status, problem.code) == (503, "service_unavailable")
        assert (await world.get("/router"))["gpu_status"] == {"0": "stopping", "1": "stopping"}
        await world.finish(rid)
        await world.until(lambda: not world.loop.state.replicas)
        assert (await world.get("/router"))["status"] == "inactive"
        answer = await world.http.request(method, "/router/start")
        assert answer.json() == {"status": "active"}
        assert why_not_ready(world.services) is None
        await world.until(lambda: bool(world.loop.state.replicas))
        assert [replica.model for replica in world.loop.state.replicas.values()] == ["first"]

    World.run(story, model("alpha"), model("first", load_on_startup=True, gpus=(1,)), gpus=2)


def test_a_restart_leaves_no_process_of_before() -> None:
    """With `wait` it is answered when the router takes requests again."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        (before,) = world.loop.state.replicas
        answer = await world.http.post("/router/restart", params={"wait": "true"})
        assert answer.json() == {"status": "active"}
        assert before not in world.loop.state.replicas

    World.run(story)


def test_a_stop_after_a_restart_stays_a_stop() -> None:
    """The last call counts, though the restart has yet to unload what it waits for."""

    async def story(world: World) -> None:
        rid = await world.arrive("alpha")
        assert (await world.http.post("/router/restart")).json() == {"status": "stopping"}
        stopping = asyncio.create_task(world.http.post("/router/stop", params={"wait": "true"}))
        await asyncio.sleep(0)
        await world.finish(rid)
        assert (await stopping).json() == {"status": "inactive"}
        await asyncio.sleep(0.01)
        assert (await world.get("/router"))["status"] == "inactive"

    World.run(story)


def test_a_stop_unloads_all_though_the_first_try_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is while the log cannot be written: nobody else would try again."""
    monkeypatch.setattr(lifecycle, "AGAIN_S", 0.0)
    drain = operations.drain
    tries = 0

    async def refused_once(*given: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise errors.of_decision(503, "log_unavailable", "")
        return await drain(*given, **more)

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        monkeypatch.setattr(operations, "drain", refused_once)
        answer = await world.http.post("/router/stop", params={"wait": "true"})
        assert (answer.json(), tries) == ({"status": "inactive"}, 2)

    World.run(story)
