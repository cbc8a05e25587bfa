"""A model from a hub is fetched, with its progress told, before it is anybody's turn to be evicted for it."""

import asyncio
import sys
from pathlib import Path

import pytest

from eventlog.events import ReplicaLoading
from router.config import ModelConfig, Timings
from router.download import DownloadFailed
from tests.router.replica_world import World, play

FETCHER = """
import json, os, sys, time
from pathlib import Path

def say(**payload):
    print("cmd_child_to_router:state:" + json.dumps({"state": "downloading", "payload": payload}), flush=True)

here = Path(os.environ["CACHE"], "weights.gguf")
with Path(os.environ["CACHE"], "runs").open("a") as runs:
    runs.write("offline " if "--offline" in sys.argv else "online ")
assert os.environ["LLAMA_SERVER_CHILD_MODE"] == "download"
assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
fails = os.environ["FAILS"]
if fails == "old":
    print("I srv    load_model: loading model 'x'", flush=True)
elif "--offline" in sys.argv and not here.exists() or fails == "always":
    print("E srv  run_download: download failed for model name=x: 404", file=sys.stderr, flush=True)
    say(result="download_failed")
elif fails == "silent":
    say(url="a", downloaded=10, total=400)
else:
    for done in () if here.exists() else range(0, 401, 100):
        say(url="a", downloaded=done, total=400)
        time.sleep(0.3)
    here.touch()
    say(result="download_finished")
sys.stdin.readline()
"""


def fetching(world: World, fails: str = "") -> Path:
    """Configure a model that a stand-in of llama-server's download mode fetches into a folder."""
    script = world.tmp_path / "fetch.py"
    script.write_text(FETCHER)
    object.__setattr__(world.config, "llama_server", (sys.executable, str(script)))
    env = {"CACHE": str(world.tmp_path), "FAILS": fails}
    world.models["m"] = ModelConfig(name="m", hf_repo="org/m", argv=("--hf-repo", "org/m"), env=env)
    return world.tmp_path / "runs"


def test_what_is_missing_is_fetched_once_for_all_who_wait(tmp_path: Path) -> None:
    """The cache is asked first; one download serves everybody; afterwards nobody asks again."""

    async def story(world: World) -> None:
        runs = fetching(world)
        assert world.replicas.needs_download("m")
        await asyncio.gather(*(world.replicas.ensure_downloaded("m") for _ in range(3)))
        assert not world.replicas.needs_download("m")
        await world.replicas.ensure_downloaded("m")
        assert runs.read_text().split() == ["offline", "online"]
        told = [note for note in world.loop.notes if isinstance(note, ReplicaLoading)]
        assert {(note.replica, note.model, note.stage) for note in told} == {("", "m", "download")}
        assert 0 < told[0].value < 1
        assert told[-1].value == 1.0
        assert world.loop.story == []

    play(tmp_path, story)


def test_what_is_in_the_cache_needs_no_network(tmp_path: Path) -> None:
    """A machine without a line serves what it has."""

    async def story(world: World) -> None:
        runs = fetching(world)
        (tmp_path / "weights.gguf").touch()
        await world.replicas.ensure_downloaded("m")
        assert runs.read_text().split() == ["offline"]

    play(tmp_path, story)


def test_a_download_that_fails_says_why_and_may_be_tried_again(tmp_path: Path) -> None:
    """The sentence is for the client who asked for the model."""

    async def story(world: World) -> None:
        fetching(world, "always")
        with pytest.raises(DownloadFailed, match=r"download of model 'm' \(org/m\) failed: .*404"):
            await world.replicas.ensure_downloaded("m")
        assert world.replicas.needs_download("m")

    play(tmp_path, story)


def test_a_download_that_goes_silent_is_given_up(tmp_path: Path) -> None:
    """With how far it came."""

    async def story(world: World) -> None:
        fetching(world, "silent")
        (tmp_path / "weights.gguf").touch()
        with pytest.raises(DownloadFailed, match=r"nothing came for 0\.5 s after 10 bytes"):
            await world.replicas.ensure_downloaded("m")

    play(tmp_path, story, timings=Timings(load_stall_s=0.5))


def test_a_build_that_knows_no_downloading_is_ended_once_it_begins_to_load(tmp_path: Path) -> None:
    """It fetches before it loads, so by then everything is here."""

    async def story(world: World) -> None:
        fetching(world, "old")
        await world.replicas.ensure_downloaded("m")
        assert not world.replicas.needs_download("m")

    play(tmp_path, story)


def test_one_who_stops_waiting_does_not_stop_the_download_and_a_shutdown_does(tmp_path: Path) -> None:
    """Clients come and go; the model is still wanted by the others."""

    async def story(world: World) -> None:
        fetching(world)
        impatient = asyncio.create_task(world.replicas.ensure_downloaded("m"))
        patient = asyncio.create_task(world.replicas.ensure_downloaded("m"))
        await world.loop.sees(ReplicaLoading)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert not patient.done()
        await world.replicas.stop_all()
        with pytest.raises(DownloadFailed, match="called off"):
            await patient

    play(tmp_path, story)


def test_a_model_from_a_file_needs_no_download(tmp_path: Path) -> None:
    """Nothing is run for it."""

    async def story(world: World) -> None:
        world.model("m")
        assert not world.replicas.needs_download("m")
        await world.replicas.ensure_downloaded("m")
        assert world.loop.notes == []

    play(tmp_path, story)
