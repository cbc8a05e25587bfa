"""The list of models, loading and unloading."""

import asyncio
import json
from urllib.parse import quote

import pytest

from eventlog import events as e
from router.api import operations
from router.config import Cost, ReasoningEffort
from router.download import DownloadFailed
from tests.api.world import World, model


def test_the_list_is_complete_with_nothing_loaded() -> None:
    """Context per request from the preset, reasoning levels, prices, aliases; no unlisted model, no phantom entry."""

    async def story(world: World) -> None:
        listed = await world.get("/v1/models")
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["qwen", "tiny"]
        qwen, tiny = listed["data"]
        assert (qwen["object"], qwen["owned_by"], qwen["aliases"]) == ("model", "llamacpp", ["q", "gpt-4"])
        assert qwen["status"]["value"] == "unloaded"
        assert "failed" not in qwen["status"]
        assert qwen["meta"]["n_ctx"] == qwen["context_length"] == 16384
        assert qwen["reasoning_effort"] == {"options": ["low", "high"], "default": "high", "disable": "none"}
        assert qwen["cost"] == {"input": 0.4, "cached_input": 0.15, "output": 2.5}
        assert qwen["pricing"] == {
            "prompt": "0.0000004",
            "completion": "0.0000025",
            "input_cache_read": "0.00000015",
        }
        assert qwen["architecture"]["input_modalities"] == ["text", "image", "audio"]
        assert "n_ctx" not in tiny["meta"]
        assert "pricing" not in tiny
        assert (await world.get("/models")) == listed
        assert world.happened(e.Decision) == []

    World.run(
        story,
        model(
            "qwen",
            aliases=("q", "gpt-4"),
            context_hint=16384,
            options={"model": "/m.gguf", "mmproj": "/p.gguf"},
            reasoning_effort=ReasoningEffort(("low", "high"), "high", "none"),
            cost=Cost(0.4, 0.15, 2.5),
        ),
        model("tiny"),
        model("hidden", unlisted=True),
    )


def test_the_context_that_the_child_told_wins_and_outlives_it() -> None:
    """Loaded, the child's own word; unloaded again, still that: unloaded does not mean unknown."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        loaded = (await world.get("/v1/models/alpha"))["meta"]
        assert (loaded["n_ctx"], loaded["n_ctx_from"]) == (4096, "replica")
        await world.http.post("/models/unload", json={"model": "alpha", "wait": True})
        unloaded = await world.get("/v1/models/alpha")
        assert unloaded["status"]["value"] == "unloaded"
        assert unloaded["meta"]["n_ctx"] == 4096

    World.run(story, model("alpha", context_hint=8192))


def test_a_load_in_progress_says_how_far_it_is() -> None:
    """In the words of llama-server's router mode, which its web UI shows."""

    async def story(world: World) -> None:
        world.replicas.loads = False
        answer = await world.http.post("/models/load", json={"model": "alpha"})
        assert answer.json() == {"success": True, "model": "alpha", "outcome": "pending"}
        replica = world.happened(e.ReplicaSpawnOrdered)[0].replica
        world.loop.note(e.ReplicaLoading(replica=replica, stage="text_model", value=0.25))
        world.loop.flush_observations()
        status = (await world.get("/v1/models/alpha"))["status"]
        assert status["value"] == "loading"
        assert status["progress"] == {"stages": ["text_model"], "current": "text_model", "value": 0.25}
        world.replicas.ready(replica)
        await world.until(lambda: bool(world.happened(e.AdminDone)))
        status = (await world.get("/v1/models/alpha"))["status"]
        assert (status["value"], "progress" in status) == ("loaded", False)

    World.run(story)


def test_what_has_to_be_fetched_is_fetched_before_anything_is_evicted_for_it() -> None:
    """The wish is made when the weights are here; until then the model says how far they are, and others stay."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "beta", "wait": True})
        world.replicas.missing["alpha"] = asyncio.get_running_loop().create_future()
        answer = await world.http.post("/models/load", json={"model": "alpha"})
        assert answer.json()["outcome"] == "pending"
        waiting = asyncio.create_task(world.http.post("/models/load", json={"model": "alpha", "wait": True}))
        world.loop.note(e.ReplicaLoading(model="alpha", stage="download", value=0.5))
        world.loop.flush_observations()
        status = (await world.get("/v1/models/alpha"))["status"]
        assert status["value"] == "downloading"
        assert status["progress"] == {"stages": ["download"], "current": "download", "value": 0.5}
        rows = {row["name"]: row for row in (await world.get("/status"))["models"]}
        assert rows["alpha"]["progress"]["value"] == 0.5
        assert rows["beta"]["phase"] == "ready"
        assert [wish.model for wish in world.happened(e.LoadWished)] == ["beta"]
        world.loop.note(e.ReplicaLoading(model="alpha", stage="download", value=1.0))
        world.replicas.missing["alpha"].set_result(None)
        assert (await waiting).json()["outcome"] in ("done", "already")
        assert (await world.get("/v1/models/alpha"))["status"]["value"] == "loaded"
        assert [wish.model for wish in world.happened(e.LoadWished)] == ["beta", "alpha", "alpha"]

    World.run(story)


def test_a_model_that_could_not_be_fetched_is_a_failed_load_and_nobody_left_for_it() -> None:
    """The one who waits has the reason; for the others it is in the diary."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "beta", "wait": True})
        missing = world.replicas.missing["alpha"] = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(world.http.post("/models/load", json={"model": "alpha", "wait": True}))
        await asyncio.sleep(0)
        missing.set_exception(DownloadFailed("the download of model 'alpha' (org/a) failed: 404"))
        answer = await waiting
        assert answer.status_code == 502
        error = answer.json()["error"]
        assert (error["code"], "404" in error["message"]) == ("model_load_failed", True)
        assert (await world.get("/v1/models/beta"))["status"]["value"] == "loaded"
        assert [wish.model for wish in world.happened(e.LoadWished)] == ["beta"]

    World.run(story)


def test_what_is_to_be_loaded_at_the_start_is_wished_for_in_order_and_what_is_missing_follows() -> None:
    """A download holds up none of the others."""

    async def story(world: World) -> None:
        world.replicas.missing["alpha"] = asyncio.get_running_loop().create_future()
        operations.preload(world.services)
        await world.until(lambda: len(world.happened(e.AdminDone)) == 2)
        world.replicas.missing["alpha"].set_result(None)
        await world.until(lambda: len(world.happened(e.AdminDone)) == 3)
        wishes = world.happened(e.LoadWished)
        assert [(wish.model, wish.by) for wish in wishes] == [(name, "preload") for name in ("beta", "gamma", "alpha")]

    names = ("alpha", "beta", "gamma")
    World.run(story, *(model(name, gpus=(n,), load_on_startup=True) for n, name in enumerate(names)), gpus=3)


def test_a_failed_load_is_told_with_its_reason_and_its_event() -> None:
    """The one who waits gets the error; the list says failed, with the exit code and where to look in the log."""

    async def story(world: World) -> None:
        world.replicas.loads = False
        waiting = asyncio.create_task(world.http.post("/models/load", json={"model": "alpha", "wait": True}))
        await world.until(lambda: bool(world.happened(e.ReplicaSpawned)))
        replica = world.happened(e.ReplicaSpawned)[0].replica
        reason = "failed to open /m.gguf: No such file or directory"
        await world.post(e.ReplicaLoadFailed(replica=replica, kind="missing_file", reason=reason, exit_code=1))
        answer = await waiting
        assert answer.status_code == 502
        error = answer.json()["error"]
        assert error["code"] == "model_load_failed"
        assert reason in error["message"]
        status = (await world.get("/v1/models/alpha"))["status"]
        assert (status["failed"], status["exit_code"], status["value"]) == (True, 1, "unloaded")
        failed = world.happened(e.ReplicaLoadFailed)[0]
        assert (status["failure"]["kind"], status["failure"]["event"]) == ("missing_file", failed.seq)
        assert status["cooling_down"]["until_us"] is None

    World.run(story)


def test_a_planned_unload_is_no_failure() -> None:
    """Its process was ended by a signal, as it was asked to."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        answer = await world.http.post("/models/unload", json={"model": "alpha", "wait": True})
        assert answer.json()["outcome"] == "done"
        assert "failed" not in (await world.get("/v1/models/alpha"))["status"]

    World.run(story)


def test_load_and_unload_know_what_they_cannot_do() -> None:
    """No model 422, unknown 404 with the near miss, running or not running already 400; waiting is idempotent."""

    async def story(world: World) -> None:
        for verb in ("load", "unload"):
            missing = await world.http.post(f"/models/{verb}", json={})
            assert (missing.status_code, missing.json()["error"]["code"]) == (422, "model_required")
            unknown = await world.http.post(f"/models/{verb}", json={"model": "alpa"})
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert "'alpha'" in unknown.json()["error"]["message"]
            broken = await world.http.post(f"/models/{verb}", content=b'{"model": ')
            assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_body")
        idle = await world.http.post("/models/unload", json={"model": "alpha"})
        assert (idle.status_code, idle.json()["error"]["code"]) == (400, "model_not_loaded")
        first = await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        assert first.json()["outcome"] == "done"
        again = await world.http.post("/models/load", json={"model": "alpha"})
        assert (again.status_code, again.json()["error"]["code"]) == (400, "model_already_loaded")
        waited = await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        assert waited.status_code == 200

    World.run(story)


def test_an_unload_waits_for_running_requests() -> None:
    """It is answered at once as pending; the replica is stopped when its request has ended."""

    async def story(world: World) -> None:
        rid = await world.arrive("alpha")
        answer = await world.http.post("/models/unload", json={"model": "alpha"})
        assert answer.json()["outcome"] == "pending"
        assert world.happened(e.ReplicaStopOrdered) == []
        await world.finish(rid)
        await world.until(lambda: bool(world.happened(e.ReplicaStopped)))
        assert not world.happened(e.ReplicaStopOrdered)[0].force

    World.run(story)


def test_a_forced_unload_cuts_running_requests() -> None:
    """The replica is stopped under its request."""

    async def story(world: World) -> None:
        await world.arrive("alpha")
        await world.http.post("/models/unload", json={"model": "alpha", "force": True})
        await world.until(lambda: bool(world.happened(e.ReplicaStopOrdered)))
        assert world.happened(e.ReplicaStopOrdered)[0].force

    World.run(story)


@pytest.mark.parametrize("path", ["/unload", "/api/models/unload"])
def test_everything_can_be_unloaded_at_once(path: str) -> None:
    """As llama-swap's clients do it: a plain OK."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        answer = await world.http.post(path, params={"wait": "true"})
        assert (answer.status_code, answer.text) == (200, "OK")
        assert world.loop.state.replicas == {}

    World.run(story)


AWKWARD = ["org/Model-7B:Q4_K_M", "a b", "Grüße/模型", "100%", "..", "../etc/passwd", "-x", "load", "a%2Fb", "q?x#y"]


@pytest.mark.parametrize("name", AWKWARD)
def test_any_model_name_works_in_a_path(name: str) -> None:
    """Slashes, colons, spaces, other alphabets, percent signs and dots are part of names, not of paths."""
    encoded = "".join(f"%{byte:02X}" for byte in name.encode())

    async def story(world: World) -> None:
        assert (await world.get("/v1/models/" + encoded))["id"] == name
        if "/" in name and ".." not in name:
            assert (await world.get("/v1/models/" + quote(name)))["id"] == name
        answer = await world.http.post("/api/models/unload/" + encoded)
        assert answer.status_code == 200
        assert world.happened(e.AdminUnload)[0].model == name

    World.run(story, model(name), model("other"))


def test_an_alias_finds_its_model_and_a_wrong_case_does_not() -> None:
    """Names are case-sensitive; the nearest one is told."""

    async def story(world: World) -> None:
        assert (await world.get("/v1/models/q"))["id"] == "Qwen"
        answer = await world.http.get("/v1/models/qwen")
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'Qwen'" in error["message"]

    World.run(story, model("Qwen", aliases=("q",)))


def test_looking_neither_loads_nor_refreshes() -> None:
    """Ten polls of every page that reads: no decision, no fact, the order of eviction stays as it was."""

    async def story(world: World) -> None:
        await world.http.post("/models/load", json={"model": "alpha", "wait": True})
        used_us = world.loop.state.models["alpha"].used_us
        before = len(world.seen)
        for path in ("/v1/models", "/models/alpha", "/status", "/running", "/router", "/props", "/slots", "/metrics"):
            for _ in range(10):
                assert (await world.http.get(path)).status_code == 200
        assert len(world.seen) == before
        assert world.loop.state.models["alpha"].used_us == used_us

    World.run(story)


def test_changes_of_state_are_pushed() -> None:
    """The web UI follows a load by `/models/sse` and sees it end."""

    async def story(world: World) -> None:
        async with world.stream("/models/sse") as stream:
            await asyncio.sleep(0)
            await world.http.post("/models/load", json={"model": "alpha", "wait": True})
            told = []
            async for frame in stream.frames():
                told.append(json.loads(frame.removeprefix("data: ")))
                if told[-1]["data"]["status"] == "loaded":
                    break
        assert stream.headers["x-accel-buffering"] == "no"
        assert {(one["model"], one["event"]) for one in told} == {("alpha", "model_status")}

    World.run(story)
