"""The page for Prometheus: its format, that it agrees with the log, and that nobody is disturbed by it."""

import re
from collections import Counter
from typing import Any

from eventlog import events as e
from eventlog.reader import read
from router.api.exposition import CONTENT_TYPE, Family, Histogram, text_of
from router.gpus import Sample
from tests.api.world import World, model

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Samples:
    """A strict reader of the text format 0.0.4; what Prometheus would refuse fails the test."""
    assert text.endswith("\n")
    samples: Samples = {}
    kind = name = ""
    closed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            closed.add(name)
            name = line.split(" ", 3)[2]
            assert name not in closed, f"{name} is in two places"
            assert len(line.split(" ", 3)) == 4
        elif line.startswith("# TYPE "):
            _, _, typed, kind = line.split(" ")
            assert typed == name
            assert kind in ("counter", "gauge", "histogram")
            if kind == "counter":
                assert name.endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            sample, inside, value = match.groups()
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert sample in [name + suffix for suffix in suffixes], line
            labels = LABEL.findall(inside or "")
            assert LABEL.sub("", inside or "") == "", line
            key = (sample, tuple(sorted(labels)))
            assert key not in samples, f"{line} comes twice"
            samples[key] = float(value)
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def scrape(world: World) -> Samples:
    answer = await world.http.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    return parse(answer.text)


def test_fifty_requests_are_counted_as_the_log_has_them() -> None:
    """Finished, failed, rejected and cancelled over two swapping models: the page and the log's file agree."""

    async def story(world: World) -> None:
        for number in range(50):
            name = ("alpha", "beta")[number % 4 == 0]
            rid = await world.arrive(name)
            if number % 10 == 9:
                await world.post(e.RequestCancelled(rid=rid, replica=world.loop.state.requests[rid].replica, frames=2))
                await world.post(e.SlotReleased(rid=rid, replica=next(iter(world.loop.state.replicas))))
            else:
                await world.finish(
                    rid, prompt_tokens=100, cached_tokens=60, completion_tokens=20, frames=21, first_token_us=40_000
                )
        await world.arrive("nobody")
        samples = await scrape(world)
        logged = list(read(world.config.log_dir))
        models = {event.rid: event.model for event in logged if isinstance(event, e.RequestArrived)}
        finished = Counter(models[event.rid] for event in logged if isinstance(event, e.RequestFinished))
        assert sum(finished.values()) == 45
        total = "llama_router_requests_total"
        for name, count in finished.items():
            assert value(samples, total, model=name, outcome="finished", code="200") == count
            assert value(samples, "llama_router_prompt_tokens_total", model=name) == 100 * count
            assert value(samples, "llama_router_cached_tokens_total", model=name) == 60 * count
            assert value(samples, "llama_router_completion_tokens_total", model=name) == 20 * count
            assert value(samples, "llama_router_first_token_seconds_count", model=name) == count
            assert value(samples, "llama_router_first_token_seconds_bucket", model=name, le="0.05") == count
            assert value(samples, "llama_router_first_token_seconds_bucket", model=name, le="0.025") == 0
        # A model that is not configured must not make a label of what a client sent.
        assert value(samples, total, model="", outcome="rejected", code="model_not_found") == 1
        cancelled = sum(v for (n, labels), v in samples.items() if n == total and ("outcome", "cancelled") in labels)
        assert cancelled == 5
        by_type = Counter(type(event).__name__ for event in logged if not isinstance(event, e.SegmentOpened))
        for kind, count in by_type.items():
            assert value(samples, "llama_router_log_events_total", type=kind) == count
        written = sum(path.stat().st_size for path in world.config.log_dir.glob("events-*"))
        assert value(samples, "llama_router_log_bytes", stream="events") == written
        evicted = Counter(
            victim.model for event in logged if isinstance(event, e.SwapBegun) for victim in event.victims
        )
        for name, count in evicted.items():
            assert value(samples, "llama_router_evictions_total", model=name) == count
        gone = Counter(
            gpu for event in logged if isinstance(event, e.SwapBegun) for victim in event.victims for gpu in victim.gpus
        )
        for gpu, count in gone.items():
            assert value(samples, "llama_router_gpu_evictions_total", gpu=str(gpu)) == count
        loads = Counter(event.replica.split("#")[0] for event in logged if isinstance(event, e.ReplicaReady))
        for name, count in loads.items():
            assert value(samples, "llama_router_loads_total", model=name, result="ok") == count
            assert value(samples, "llama_router_load_seconds_sum", model=name) == 2 * count

    World.run(story)


def test_gauges_show_the_moment() -> None:
    """Queue, slots, processes, GPUs; what NVML does not tell is left out."""

    async def story(world: World) -> None:
        for _ in range(5):
            await world.arrive("alpha")
        world.gpus.latest[0] = Sample(gpu=0, utilisation_percent=40, used_mib=1024, total_mib=2048, power_mw=-1)
        samples = await scrape(world)
        assert value(samples, "llama_router_queued", model="alpha") == 3
        assert value(samples, "llama_router_queued", model="beta") == 0
        assert value(samples, "llama_router_in_flight", model="alpha") == 2
        assert value(samples, "llama_router_slots", model="alpha") == 2
        assert value(samples, "llama_router_replicas", model="alpha", phase="ready") == 1
        assert value(samples, "llama_router_gpu_memory_used_bytes", gpu="0") == 1 << 30
        assert value(samples, "llama_router_gpu_in_flight", gpu="0") == 2
        assert value(samples, "llama_router_gpu_resident", gpu="0", model="alpha") == 1
        assert value(samples, "llama_router_gpu_utilisation_ratio", gpu="0") == 0.4
        assert ("llama_router_gpu_power_watts", (("gpu", "0"),)) not in samples
        assert value(samples, "process_resident_memory_bytes") > 1 << 20
        assert value(samples, "process_cpu_seconds_total") > 0

    World.run(story)


def test_the_childrens_own_metrics_come_from_the_last_sample() -> None:
    """Under llama-server's names, labelled; gone with the process; a scrape asks no child."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        (replica,) = world.loop.state.replicas
        sampled: dict[str, float] = {
            "llamacpp:prompt_tokens_total": 7,
            "llamacpp:kv_cache_usage_ratio": 0.25,
            "1bad": 1,
        }
        world.loop.note(e.MetricsSampled(replica=replica, values=sampled))
        world.loop.flush_observations()
        samples = await scrape(world)
        assert value(samples, "llamacpp:prompt_tokens_total", model="alpha", replica=replica) == 7
        assert value(samples, "llamacpp:kv_cache_usage_ratio", model="alpha", replica=replica) == 0.25
        await world.http.post("/models/unload", json={"model": "alpha", "wait": True})
        assert not any(name.startswith("llamacpp:") for name, _ in await scrape(world))

    World.run(story)


def test_crashes_failures_and_swaps_called_off_are_told_apart() -> None:
    """Each with its cause."""

    async def story(world: World) -> None:
        await world.finish(await world.arrive("alpha"))
        (replica,) = world.loop.state.replicas
        await world.post(e.ReplicaCrashed(replica=replica, cause_of_exit="signal", signal=11))
        world.replicas.loads = False
        await world.arrive("beta")
        loading = world.happened(e.ReplicaSpawnOrdered)[-1].replica
        await world.post(e.ReplicaLoadFailed(replica=loading, kind="missing_file", reason="no file"))
        samples = await scrape(world)
        assert value(samples, "llama_router_crashes_total", model="alpha", cause="signal") == 1
        assert value(samples, "llama_router_loads_total", model="beta", result="missing_file") == 1
        assert value(samples, "llama_router_gpu_crashes_total", gpu="0") == 1
        assert value(samples, "llama_router_swaps_total", model="beta", result="failed") == 1
        assert value(samples, "llama_router_gpu_swaps_total", gpu="0", result="failed") == 1
        assert value(samples, "llama_router_cooldowns_total", model="beta") == 1
        failed: dict[str, Any] = {"model": "beta", "outcome": "failed", "code": "model_load_failed"}
        assert value(samples, "llama_router_requests_total", **failed) == 1

    World.run(story)


def test_names_with_quotes_and_newlines_stay_inside_their_label() -> None:
    """A model may be called anything."""
    name = 'a"b\\c\nd'
    family = Family("x_total", "counter", "text\nof two lines", ("model",))
    family.add(name, by=2)
    samples = parse(text_of([family]).decode())
    assert samples == {("x_total", (("model", 'a\\"b\\\\c\\nd'),)): 2}


def test_buckets_of_a_histogram_add_up() -> None:
    """Each counts all that is not above its bound; the last counts everything."""
    histogram = Histogram("t_seconds", "times", (), (0.1, 1, 10))
    for seconds in (0.05, 0.1, 0.5, 5, 50):
        histogram.observe(value=seconds)
    samples = parse(text_of([histogram]).decode())
    buckets = [value(samples, "t_seconds_bucket", le=bound) for bound in ("0.1", "1", "10", "+Inf")]
    assert buckets == [2, 3, 4, 5]
    assert value(samples, "t_seconds_count") == 5
    assert value(samples, "t_seconds_sum") == 55.65


def test_the_page_is_valid_before_anything_has_happened() -> None:
    """An empty family is a family."""

    async def story(world: World) -> None:
        await scrape(world)

    World.run(story, model("only"))
