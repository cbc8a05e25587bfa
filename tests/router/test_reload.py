"""SIGHUP: a new configuration while serving."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.standin.fixtures import Model, RouterProcess

GAP_S = 0.05


def test_a_changed_model_is_replaced_and_nobody_elses_stream_notices(tmp_path: Path) -> None:
    """B's options change while A streams: A lives on in its process, and B comes back with the new ones."""
    models = [Model("A", gpus=(0,), tokens=40, gap_s=GAP_S), Model("B", gpus=(1,))]
    with RouterProcess(tmp_path, models) as router:
        assert router.chat("B").status == 200
        stream = router.chat("A", stream=True)
        router.wait_event("RequestDispatched", rid=2)
        router.models[1].preset["ctx-size"] = "8192"
        router.configure()
        router.hang_up()
        router.wait_event("ConfigLoaded")
        assert router.chat("B").status == 200
        assert b"[DONE]" in stream.read()
        spawned = [event["replica"] for event in router.events("ReplicaSpawned")]
        assert [replica.split("#")[0] for replica in spawned] == ["B", "A", "B"]
        started = router.ledger.events("started")
        assert ["8192" in line["argv"] for line in started] == [False, False, True]


def test_a_configuration_with_mistakes_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    """The reason is in the diary, and the next request is served as before."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.chat("A").status == 200
        config = json.loads((tmp_path / "config.json").read_text())
        config["ROUTER"]["MAX_MODELS_PER_GPU"] = "many"
        (tmp_path / "config.json").write_text(json.dumps(config))
        router.hang_up()
        router.wait_words("the old one stays in force")
        assert "MAX_MODELS_PER_GPU" in router.words()
        assert router.chat("A").status == 200
        assert router.events("ConfigLoaded") == []


def test_settings_of_the_queue_take_effect_without_touching_a_model(tmp_path: Path) -> None:
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.chat("A").status == 200
        router.settings["QUEUE_HEAD_GRACE"] = 30
        router.configure()
        router.hang_up()
        loaded = router.wait_event("ConfigLoaded")
        assert loaded["config"]["head_grace_us"] == 30_000_000
        assert router.chat("A").status == 200
        assert len(router.events("ReplicaSpawned")) == 1


def test_a_router_that_ends_is_not_killed_by_a_wish_to_read_anew(tmp_path: Path) -> None:
    """The signal's usual meaning is the end of the process, and comes back when the event loop closes."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.chat("A").status == 200
        assert router.process
        router.process.terminate()
        while router.process.poll() is None:
            router.hang_up()
            with suppress(subprocess.TimeoutExpired):
                router.process.wait(0.002)
        assert router.process.returncode == 0
        router.start()
