"""What the router says it is doing: /status, /running, /router and what each queued request waits for."""

import os
from pathlib import Path
from typing import Any

import pytest

from eventlog import events as e
from eventlog.reader import read
from router.api.view import View
from router.api.waiting import waits
from router.scheduler import State, fold
from tests.api.world import World, model
from tests.replay.make_golden import GOLDEN, unpacked


async def queue(world: World) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await world.get("/status"))["queue"]
    return rows


def eta_us(world: World, after_us: int, rid: int) -> int:
    """Of the one request that waits, as it is estimated so long after this one was dispatched."""
    view = world.services.view
    (wait,) = waits(world.loop.state, view, view.requests[rid].dispatched_us + after_us)
    assert wait.eta_us is not None
    return wait.eta_us


def test_each_queued_request_shows_its_place_and_what_it_waits_for() -> None:
    """Two slots are taken, two more wait for slots, two wait for a swap; a place is given up and all move on."""

    async def story(world: World) -> None:
        running = [await world.arrive("alpha") for _ in range(2)]
        waiting = [await world.arrive("alpha") for _ in range(2)]
        swapping = [await world.arrive("beta", key="bob", priority=0) for _ in range(2)]
        status = await world.get("/status")
        assert status["pid"] == os.getpid()
        assert [row["rid"] for row in status["in_flight"]] == running
        rows = status["queue"]
        assert [row["position"] for row in rows] == [1, 2, 3, 4]
        assert [row["rid"] for row in rows] == waiting + swapping
        replica = world.happened(e.ReplicaSpawnOrdered)[0].replica
        assert rows[0]["blocked_by"] == {"why": "slots", "by": [replica]}
        assert rows[2]["blocked_by"]["why"] == "protected"
        assert rows[2]["blocked_by"]["by"] == ["alpha"]
        assert rows[3]["blocked_by"] == {"why": "order", "by": [f"rid:{swapping[0]}"]}
        assert all(row["waited_us"] >= 0 for row in rows)
        assert rows[3]["key"] == "bob"
        await world.post(e.RequestCancelled(rid=waiting[0]))
        rows = await queue(world)
        assert [(row["position"], row["rid"]) for row in rows] == [
            (1, waiting[1]),
            (2, swapping[0]),
            (3, swapping[1]),
        ]

    World.run(story)


def test_a_request_that_must_run_alone_waits_for_an_empty_replica_and_says_so() -> None:
    """Its connection broke once. A slot is free, but another request is at work there."""

    async def story(world: World) -> None:
        first, _ = [await world.arrive("alpha") for _ in range(2)]
        (replica,) = world.loop.state.replicas
        await world.post(e.UpstreamLost(rid=first, replica=replica))
        await world.post(e.ReplicaAnswered(replica=replica))
        (wait,) = await queue(world)
        assert (wait["rid"], wait["attempt"]) == (first, 2)
        assert wait["blocked_by"] == {"why": "alone", "by": [replica]}

    World.run(story)


def test_a_request_behind_a_load_is_told_when_its_turn_comes() -> None:
    """Nothing is known before the first load; afterwards the estimate is made of what loads and requests took."""

    async def story(world: World) -> None:
        world.replicas.loads = False
        first = await world.arrive("alpha")
        (row,) = await queue(world)
        assert row["blocked_by"] == {"why": "loading", "by": ["alpha"]}
        assert row["eta_us"] is None
        world.replicas.ready(world.happened(e.ReplicaSpawnOrdered)[-1].replica)
        await world.until(lambda: bool(world.happened(e.RequestDispatched)))
        await world.finish(first)
        await world.arrive("alpha")
        await world.arrive("alpha")
        await world.arrive("alpha")
        await world.arrive("alpha")
        third, fourth = await queue(world)
        # Two slots, 3 s per request, both just begun.
        assert 2_000_000 < third["eta_us"] <= fourth["eta_us"] <= 3_000_000

    World.run(story)


def test_an_estimate_of_a_swap_adds_drain_stop_and_load() -> None:
    """beta was loaded once (2 s) and alpha stopped once (0.5 s): a queued request for beta knows what it is in for."""

    async def story(world: World) -> None:
        for name in ("alpha", "beta", "alpha"):
            await world.finish(await world.arrive(name))
        world.replicas.stops = False
        running = await world.arrive("alpha")
        rid = await world.arrive("beta")
        now_us = world.services.view.requests[running].dispatched_us + 1_000_000
        (wait,) = waits(world.loop.state, world.services.view, now_us)
        assert wait.request.rid == rid
        # 2 s are left of a request of 3 s, 0.5 s to stop, 2 s to load.
        assert wait.eta_us == 2_000_000 + 500_000 + 2_000_000

    World.run(story)


def test_how_long_things_take_is_known_from_the_log_of_earlier_runs() -> None:
    """Durations are remembered; who was in flight, which processes lived and what context they had are not."""

    async def story(world: World) -> None:
        for name in ("alpha", "beta", "alpha"):
            await world.finish(await world.arrive(name))
        await world.arrive("beta")
        view = View()
        view.remember(world.seen)
        assert (view.requests, view.replicas) == ({}, {})
        alpha = view.model("alpha")
        assert list(alpha.load_us) == [2_000_000, 2_000_000]
        assert (list(alpha.stop_us), list(alpha.service_us)) == ([500_000, 500_000], [3_000_000, 3_000_000])
        assert (alpha.slot_ctx, alpha.slots, alpha.failure) == (0, 0, None)

    World.run(story)


def test_a_gpu_is_swapping_before_serving_before_idle() -> None:
    """A load on GPU 1 shows there and nowhere else; a request at work makes its GPU serve."""

    async def story(world: World) -> None:
        async def words() -> dict[str, str]:
            said: dict[str, str] = (await world.get("/router"))["gpu_status"]
            return said

        assert await words() == {"0": "idle", "1": "idle", "2": "idle"}
        rid = await world.arrive("alpha")
        assert await words() == {"0": "serving", "1": "idle", "2": "idle"}
        world.replicas.loads = False
        await world.arrive("wide")
        assert await words() == {"0": "serving", "1": "swapping", "2": "swapping"}
        await world.finish(rid)
        assert await words() == {"0": "idle", "1": "swapping", "2": "swapping"}

    World.run(story, model("alpha"), model("wide", gpus=(1, 2)), gpus=3)


def test_gpus_show_samples_and_residents() -> None:
    """What NVML told, None where it did not, and who lives there with how much memory."""

    async def story(world: World) -> None:
        world.replicas.loads = False
        await world.arrive("alpha")
        replica = world.happened(e.ReplicaSpawnOrdered)[-1].replica
        world.replicas.ready(replica, vram=[e.Memory(0, 700)])
        await world.until(lambda: bool(world.happened(e.ReplicaReady)))
        first, second = (await world.get("/router/gpu"))["gpus"]
        assert (first["name"], first["used_mib"], first["utilisation_percent"]) == ("Card A", 1024, 40)
        assert first["power_mw"] is None
        assert first["residents"] == [{"model": "alpha", "phase": "ready", "in_flight": 1, "vram_mib": 700}]
        assert (second["name"], second["used_mib"], second["residents"]) == ("", None, [])

    World.run(story, model("alpha"), gpus=2)


def test_the_router_at_a_glance() -> None:
    """The fields that the seed router's API had, under their names."""

    async def story(world: World) -> None:
        await world.arrive("wide")
        shown = await world.get("/router")
        assert shown["status"] == "active"
        assert shown["ports"] == {"router": 11434}
        assert (shown["num_gpus"], shown["max_models_per_gpu"], shown["eviction_policy"]) == (2, 1, "lru")
        assert shown["model_gpus"] == {"wide": [0, 1]}
        (instance,) = shown["instances"]
        assert (instance["model"], instance["gpus"], instance["phase"]) == ("wide", [0, 1], "ready")
        assert (instance["in_flight"], instance["slots"]) == (1, 2)
        models = (await world.get("/router/models"))["models"]
        assert (models[0]["name"], models[0]["in_flight"], models[0]["queued"]) == ("wide", 1, 0)

    World.run(story, model("wide", gpus=(0, 1)), gpus=2)


def test_running_lists_the_loaded_models() -> None:
    """One resident, one row; secrets of its command line are blotted out."""

    async def story(world: World) -> None:
        assert (await world.get("/running")) == {"running": []}
        await world.arrive("alpha")
        (row,) = (await world.get("/running"))["running"]
        assert (row["model"], row["state"], row["ttl"]) == ("alpha", "ready", 60)
        assert row["cmd"] == "llama-server --hf-token *** --model /m.gguf"

    World.run(story, model("alpha", ttl_s=60.0, argv=("--hf-token", "hf_secret", "--model", "/m.gguf")), model("b"))


def test_a_long_queue_is_cut_where_asked_and_counted_whole() -> None:
    """`limit` bounds the listing, never the count."""

    async def story(world: World) -> None:
        world.replicas.loads = False
        for _ in range(5):
            await world.arrive("alpha")
        status = await world.get("/status?limit=2")
        assert (status["queued"], len(status["queue"])) == (5, 2)

    World.run(story)


def test_streams_that_have_just_begun_are_expected_to_use_their_limit_of_tokens() -> None:
    """Requests of 3 s went before. Two of 600 tokens begin, at 100 ms each: who waits is not told that it is soon."""

    async def story(world: World) -> None:
        short = e.SlotTiming(predicted_n=30, predicted_us=3_000_000)
        await world.finish(await world.arrive("alpha"), timing=short)
        for _ in range(2):
            await world.arrive("alpha", max_tokens=600)
        rid = await world.arrive("alpha", max_tokens=10)
        await world.arrive("alpha")
        third, fourth = await queue(world)
        assert third["rid"] == rid
        assert 55_000_000 < third["eta_us"] <= 60_000_000
        assert third["eta_us"] <= fourth["eta_us"] <= 60_000_000

    World.run(story)


def test_clients_that_ask_for_far_more_tokens_than_they_get_do_not_frighten_those_who_wait() -> None:
    """Answers so far had 30 of 600 tokens: two streams with that limit end in 3 s, unless they have more already."""

    async def story(world: World) -> None:
        short = e.SlotTiming(predicted_n=30, predicted_us=3_000_000)
        await world.finish(await world.arrive("alpha", max_tokens=600), timing=short)
        running = [await world.arrive("alpha", max_tokens=600) for _ in range(2)]
        await world.arrive("alpha", max_tokens=600)
        (soon,) = await queue(world)
        assert 0 < soon["eta_us"] <= 3_000_000
        for rid in running:
            await world.post(e.TokensStreamed(rid=rid, gaps_us=[100_000] * 40))
        assert 50_000_000 < eta_us(world, 4_000_000, running[0]) <= 56_000_000

    World.run(story)


def test_the_speed_of_a_stream_itself_counts_more_than_that_of_others() -> None:
    """Others made 7 tokens in 3 s; these two have made 100 tokens of 600 in 2 s and have 10 s to go."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        running = [await world.arrive("alpha", max_tokens=600) for _ in range(2)]
        await world.arrive("alpha")
        for rid in running:
            await world.post(e.TokensStreamed(rid=rid, gaps_us=[20_000] * 100))
        assert 9_000_000 < eta_us(world, 2_000_000, running[0]) <= 10_000_000

    World.run(story)


def test_a_request_that_outlasts_all_before_it_leaves_the_estimate_open() -> None:
    """Requests took 3 s; these two run for longer already, and nobody knows when they end."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        for _ in range(3):
            await world.arrive("alpha")
        now_us = world.loop.clock.now_us()
        (soon,) = waits(world.loop.state, world.services.view, now_us)
        (late,) = waits(world.loop.state, world.services.view, now_us + 4_000_000)
        assert soon.eta_us is not None
        assert soon.eta_us > 0
        assert late.eta_us is None

    World.run(story)


def test_who_must_wait_for_anothers_swap_comes_after_it() -> None:
    """alpha runs, beta waits for its GPU, then alpha again: first beta's swap and request, then the swap back."""

    async def story(world: World) -> None:
        for name in ("alpha", "beta", "alpha"):
            await world.finish(await world.arrive(name))
        world.replicas.stops = False
        await world.arrive("alpha")
        await world.arrive("beta")
        await world.arrive("alpha")
        first, second = waits(world.loop.state, world.services.view, world.loop.clock.now_us())
        assert (first.request.model, second.request.model) == ("beta", "alpha")
        assert first.eta_us is not None
        assert second.eta_us is not None
        # beta's request of 3 s, its stop of 0.5 s, and a load of 2 s.
        assert second.eta_us == first.eta_us + 3_000_000 + 500_000 + 2_000_000

    World.run(story)


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.ndjson.gz")))
def test_every_moment_of_a_log_has_estimates_that_are_no_nonsense(tmp_path: Path, name: str) -> None:
    """Under every engine, with crashes and reloads: a time of 0 or more, or none, for each that waits."""
    state, view = State(), View()
    known = 0
    for event in read(unpacked(GOLDEN / name, tmp_path)):
        view.take(event)
        if isinstance(event, e.Fact | e.Decision):
            fold(state, event)
            etas = [wait.eta_us for wait in waits(state, view, event.at_us)]
            assert all(eta_us is None or eta_us >= 0 for eta_us in etas)
            known += sum(eta_us is not None for eta_us in etas)
    assert known
