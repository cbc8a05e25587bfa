"""Logs of children, props, slots and version."""

from urllib.parse import quote

from eventlog import events as e
from tests.api.world import World, model


def test_what_a_model_prints_comes_as_plain_text() -> None:
    """Past lines first, unless they are not wanted; an alias means its model."""

    async def story(world: World) -> None:
        world.replicas.printed = {"org/a b": [b"one\n", b"two\n"], None: [b"all\n"]}
        answer = await world.http.get("/logs/" + quote("org/a b"))
        assert answer.text == "history of org/a b\none\ntwo\n"
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-accel-buffering"] == "no"
        assert (await world.http.get("/logs/short?no-history")).text == "one\ntwo\n"
        assert (await world.http.get("/logs?no-history")).text == "all\n"

    World.run(story, model("org/a b", aliases=("short",)))


def test_bare_props_speak_for_the_router_and_load_nothing() -> None:
    """In the shape that the web UI knows from llama-server's router mode; no context that would be a lie."""

    async def story(world: World) -> None:
        props = await world.get("/props")
        assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 2, True)
        assert "n_ctx" not in props["default_generation_settings"]
        assert "ui_settings" in props
        assert world.happened(e.Decision) == []

    World.run(story, model("alpha"), gpus=2)


def test_bare_slots_show_the_last_sample_of_each_replica() -> None:
    """None where there is no sample yet."""

    async def story(world: World) -> None:
        await world.arrive("alpha")
        (row,) = await world.get("/slots")
        assert (row["model"], row["slots"], row["dispatched"], row["busy"]) == ("alpha", 2, 1, None)
        world.loop.note(e.SlotsSampled(replica=row["replica"], busy=1, slots=2, context_used=[512, 0]))
        world.loop.flush_observations()
        (row,) = await world.get("/slots")
        assert (row["busy"], row["context_used"]) == (1, [512, 0])

    World.run(story)


def test_versions() -> None:
    """Of the router and of what it runs."""

    async def story(world: World) -> None:
        assert (await world.get("/api/version")) == {"version": "0.1.0", "llama_server": "", "llama_build": "b9000"}

    World.run(story)
