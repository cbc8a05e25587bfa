"""SIGHUP, POST /router/reload, watched files: a new configuration while serving."""

import asyncio
import json
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from replay.verify import verify
from router.cli import main
from router.config import Config, key_digest
from router.reload import Reloader, Signature
from tests.router.config_desk import Desk
from tests.router.replica_world import RecordingLoop
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

GAP_S = 0.05


def test_a_changed_model_is_replaced_and_nobody_elses_stream_notices(tmp_path: Path) -> None:
    """B's options change while A streams: A lives on in its process, and B comes back with the new ones."""
    models = [Model("A", gpus=(0,), tokens=40, gap_s=GAP_S), Model("B", gpus=(1,))]
    with RouterProcess(tmp_path, models) as router:
        assert router.asks("B") == 200
        stream = router.chat("A", stream=True)
        router.wait_event("RequestDispatched", rid=2)
        router.models[1].preset["ctx-size"] = "8192"
        router.configure()
        router.hang_up()
        router.wait_event("ConfigLoaded")
        assert router.asks("B") == 200
        assert b"[DONE]" in stream.read()
        spawned = [event["replica"] for event in router.events("ReplicaSpawned")]
        assert [replica.split("#")[0] for replica in spawned] == ["B", "A", "B"]
        started = router.ledger.events("started")
        assert ["8192" in line["argv"] for line in started] == [False, False, True]


def test_a_configuration_with_mistakes_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    """The reason is in the diary, and the next request is served as before."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.asks("A") == 200
        config = json.loads((tmp_path / "config.json").read_text())
        config["ROUTER"]["MAX_MODELS_PER_GPU"] = "many"
        (tmp_path / "config.json").write_text(json.dumps(config))
        router.hang_up()
        router.wait_words("the old one stays in force")
        assert "MAX_MODELS_PER_GPU" in router.words()
        assert router.asks("A") == 200
        assert router.events("ConfigLoaded") == []


def test_settings_of_the_queue_take_effect_without_touching_a_model(tmp_path: Path) -> None:
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.asks("A") == 200
        router.settings["QUEUE_HEAD_GRACE"] = 30
        router.configure()
        router.hang_up()
        loaded = router.wait_event("ConfigLoaded")
        assert loaded["config"]["head_grace_us"] == 30_000_000
        assert router.asks("A") == 200
        assert len(router.events("ReplicaSpawned")) == 1


def test_a_router_that_ends_is_not_killed_by_a_wish_to_read_anew(tmp_path: Path) -> None:
    """The signal's usual meaning is the end of the process, and comes back when the event loop closes."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.asks("A") == 200
        assert router.process
        router.process.terminate()
        while router.process.poll() is None:
            router.hang_up()
            with suppress(subprocess.TimeoutExpired):
                router.process.wait(0.002)
        assert router.process.returncode == 0
        router.start()


def spoil(router: RouterProcess) -> None:
    """A mistake in config.json."""
    config = json.loads((router.folder / "config.json").read_text())
    config["ROUTER"]["MAX_MODELS_PER_GPU"] = "many"
    (router.folder / "config.json").write_text(json.dumps(config))


def test_a_reload_by_http_says_what_changed_and_its_log_verifies_across_it(tmp_path: Path) -> None:
    """One model comes, one goes, one changes; the third is not touched, and its process is the same afterwards."""
    models = [Model("A", gpus=(0,)), Model("B", gpus=(1,)), Model("C", gpus=(2,))]
    with RouterProcess(tmp_path, models) as router:
        for name in "ABC":
            assert router.asks(name) == 200
        before = {row["model"]: row["pid"] for row in router.call("GET", "/router").json()["instances"]}
        assert router.status()["config"] is None
        router.models = [models[0], models[1], Model("D", gpus=(2,))]
        router.models[1].preset["ctx-size"] = "8192"
        router.settings["EVENT_LOG_KEEP_DAYS"] = 3
        router.configure()
        answer = router.call("POST", "/router/reload").json()
        assert {
            key: answer[key] for key in ("outcome", "added", "removed", "changed", "settings", "needs_restart")
        } == {
            "outcome": "done",
            "added": ["D"],
            "removed": ["C"],
            "changed": ["B"],
            "settings": ["EVENT_LOG_KEEP_DAYS 0 -> 3"],
            "needs_restart": ["log"],
        }
        assert router.status()["config"]["added"] == ["D"]
        assert router.asks("C") == 404
        for name in "ABD":
            assert router.asks(name) == 200
        after = {row["model"]: row["pid"] for row in router.call("GET", "/router").json()["instances"]}
        assert after["A"] == before["A"]
        assert after["B"] != before["B"]
        assert router.events("ConfigLoaded")[0]["by"] == "api"
        assert [event["why"] for event in router.events("ReplicaStopOrdered")] == ["stale", "stale"]
    result = verify(router.log_dir)
    assert result.ok
    assert not result.differences


def test_a_reload_with_a_mistake_is_refused_with_the_reason_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the answer, on the command line, in /status and in the log; then it is put right."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        assert router.asks("A") == 200
        spoil(router)
        answer = router.call("POST", "/router/reload")
        assert answer.status == 422
        error = answer.json()["error"]
        assert error["code"] == "invalid_config"
        assert "MAX_MODELS_PER_GPU" in error["message"]
        assert main(["reload", "--url", router.base_url]) == 1
        assert "a whole number from 1" in capsys.readouterr().err
        assert main(["status", "--url", router.base_url]) == 0
        assert "the last reload was refused" in capsys.readouterr().out
        told = router.status()["config"]
        assert "MAX_MODELS_PER_GPU" in told["problems"][0]
        line = router.wait_event("LogLine", lambda event: "mistakes" in event["text"])
        assert line["level"] == "error"
        assert router.asks("A") == 200
        router.configure()
        assert main(["reload", "--url", router.base_url]) == 0
        assert capsys.readouterr().out == "the configuration is in force (nothing changed)\n"
        assert router.status()["config"]["problems"] == []
        assert len(router.events("ReplicaSpawned")) == 1


def test_a_reload_names_each_setting_that_changed_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting with both values, an object of config.json and the keys by name, on the command line and in /status."""
    secret = "a-secret-of-some-length"
    with RouterProcess(tmp_path, [Model("A")], QUEUE_HEAD_GRACE=5) as router:
        router.settings["QUEUE_HEAD_GRACE"] = 6
        router.models[0].entry["ttl"] = 60
        router.top |= {
            "routing": {"scheduler": {"settings": {"fifo": {"priority": {"A": 3}}}}},
            "keys": {"ann": {"key": secret, "admin": True}},
        }
        router.configure()
        assert main(["reload", "--url", router.base_url]) == 0
        told = "changed: QUEUE_HEAD_GRACE 5 -> 6, routing, keys"
        assert f"({told}; models changed: A)" in capsys.readouterr().out
        status = router.call("GET", "/status", authorization=f"Bearer {secret}").json()
        assert status["config"]["settings"] == ["QUEUE_HEAD_GRACE 5 -> 6", "routing", "keys"]
        assert secret not in json.dumps(status)
        assert key_digest(secret) not in json.dumps(status)


def test_two_saves_in_a_row_are_one_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files look different at two looks, then the same: they are read once, and not again before they change."""
    monkeypatch.setattr("router.reload.WATCH_EVERY_S", 0.001)
    desk = Desk(tmp_path)
    config = replace(desk.models(m={}).load(), watch_config=True)
    reads: list[str] = []
    looks: list[int] = []

    def read() -> Config:
        reads.append((desk.here / "config.json").read_text())
        return config

    class Watched(Reloader):
        """Saves the file just before its second and third look, and long after, at the tenth."""

        def _signature(self) -> Signature:
            looks.append(len(looks))
            if len(looks) in (2, 3, 10):
                desk.config({"LLM": {"m": {}}, "ROUTER": {"QUEUE_HEAD_GRACE": len(looks)}})
            return super()._signature()

    async def story() -> None:
        loop = RecordingLoop()
        reloader = Watched(config, read, lambda config, by: None, loop=loop, now_us=lambda: 1)
        watching = asyncio.create_task(reloader.watch())
        async with asyncio.timeout(30):
            while len(looks) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        watching.cancel()
        assert reloader.last is not None
        assert reloader.last.by == "a change of the files"

    asyncio.run(story())
    assert [json.loads(text)["ROUTER"]["QUEUE_HEAD_GRACE"] for text in reads] == [3, 10]


def test_watched_files_are_read_again_and_a_bad_one_only_once(tmp_path: Path) -> None:
    """A mistake is told and not read again and again; putting it right is the next change."""
    with RouterProcess(tmp_path, [Model("A")], WATCH_CONFIG=True) as router:
        for grace_s in (10, 20):
            router.settings["QUEUE_HEAD_GRACE"] = grace_s
            router.configure()
        loaded = router.wait_event("ConfigLoaded", lambda event: event["config"]["head_grace_us"] == 20_000_000)
        assert loaded["by"] == "a change of the files"
        spoil(router)
        router.wait_words("the old one stays in force")
        router.settings["QUEUE_HEAD_GRACE"] = 30
        router.configure()
        router.wait_event("ConfigLoaded", lambda event: event["config"]["head_grace_us"] == 30_000_000)
        assert router.words().count("the old one stays in force") == 1


def test_files_are_not_watched_unless_that_is_asked_for(tmp_path: Path) -> None:
    """A reload that switches it on is followed by one for the next change; nothing happened before."""
    with RouterProcess(tmp_path, [Model("A")]) as router:
        router.settings["WATCH_CONFIG"] = True
        router.configure()
        assert router.call("POST", "/router/reload").json()["outcome"] == "done"
        router.settings["QUEUE_HEAD_GRACE"] = 7
        router.configure()
        router.wait_event("ConfigLoaded", lambda event: event["config"].get("head_grace_us") == 7_000_000)
        assert [event["by"] for event in router.events("ConfigLoaded")] == ["api", "a change of the files"]


def test_a_new_model_that_is_to_be_loaded_at_the_start_is_loaded(tmp_path: Path) -> None:
    """Without a request; what was loaded before stays where it is."""
    with RouterProcess(tmp_path, [Model("A", gpus=(0,))]) as router:
        assert router.asks("A") == 200
        router.models.append(Model("B", gpus=(1,), preset={"load-on-startup": "true"}))
        router.configure()
        assert router.call("POST", "/router/reload").json()["added"] == ["B"]
        wish = router.wait_event("LoadWished")
        assert (wish["model"], wish["by"]) == ("B", "reload")
        for _ in polls(10.0, every_s=0.02):
            if {row["name"]: row["phase"] for row in router.status()["models"]} == {"A": "ready", "B": "ready"}:
                break
        assert len(router.events("ReplicaSpawned")) == 2


def test_a_change_of_another_setting_of_such_a_model_does_not_load_it(tmp_path: Path) -> None:
    """Its place was given to another model, which stays; the option itself, newly given, is a wish."""
    models = [Model("A", preset={"load-on-startup": "true"}), Model("B"), Model("C", gpus=(1,))]
    with RouterProcess(tmp_path, models, MAX_MODELS_PER_GPU=1) as router:
        router.wait_event("ReplicaReady")
        assert router.asks("B") == 200
        models[0].entry["ttl"] = 900
        models[2].preset["load-on-startup"] = "true"
        router.configure()
        assert sorted(router.call("POST", "/router/reload").json()["changed"]) == ["A", "C"]
        router.wait_event("LoadWished", lambda wish: wish["model"] == "C")
        assert router.asks("C") == 200
        wishes = [(wish["model"], wish["by"]) for wish in router.events("LoadWished")]
        assert wishes == [("A", "preload"), ("C", "reload")]
        assert router.status()["models"][1]["phase"] == "ready"


def test_what_waited_for_a_setting_is_loaded_with_its_new_options(tmp_path: Path) -> None:
    """One reload makes room for B, which waits, and changes it: its process is started as it is configured now."""
    models = [Model("A", gap_s=GAP_S), Model("B")]
    with RouterProcess(tmp_path, models, MAX_MODELS_PER_GPU=1, QUEUE_HEAD_GRACE=600) as router:
        stream = router.chat("A", stream=True, standin={"tokens": 1000})
        next(stream.chunks())
        waiting = router.chat("B")
        router.wait_event("RequestHeld", rid=2)
        router.settings["MAX_MODELS_PER_GPU"] = 2
        models[1].preset["ctx-size"] = "8192"
        router.configure()
        router.hang_up()
        assert waiting.status == 200
        stream.close()
        assert ["8192" in line["argv"] for line in router.ledger.events("started")] == [False, True]


def test_limits_of_requests_count_at_once(tmp_path: Path) -> None:
    """Also on a connection that was made before."""
    with RouterProcess(tmp_path, [Model("A")], MAX_BODY_MIB=8) as router:
        large = json.dumps({"model": "A", "messages": [], "more": "x" * (2 << 20)}).encode()
        assert router.call("POST", "/v1/chat/completions", large).status == 200
        with socket.create_connection(router.address, timeout=10) as idle:
            router.settings |= {"MAX_BODY_MIB": 1, "MAX_HEAD_KIB": 1}
            router.configure()
            answer = router.call("POST", "/router/reload").json()
            assert answer["needs_restart"] == []
            idle.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * 2000 + b"\r\n\r\n")
            assert b" 431 " in idle.recv(65536)
        assert router.call("POST", "/v1/chat/completions", large).status == 413


def test_what_is_taken_at_the_start_stays_as_it_was_until_the_next(tmp_path: Path) -> None:
    """Each reload names it, as long as the files say something else than what is in force."""
    desk = Desk(tmp_path)
    before = desk.models(m={}).load()
    desk.config({"LLM": {"m": {}}, "ROUTER": {"HOST": "0.0.0.0", "EVENT_LOG_DIR": "/tmp/x", "DASHBOARD": False}})
    applied: list[Config] = []

    async def story() -> None:
        reloader = Reloader(
            before,
            desk.load,
            lambda config, by: applied.append(config),
            loop=RecordingLoop(),
            now_us=lambda: 1,
        )
        for _ in range(2):
            assert (await reloader.reload("a test")).needs_restart == ("host", "log_dir", "dashboard")
        desk.config({"LLM": {"m": {}}, "ROUTER": {"QUEUE_HEAD_GRACE": 7}})
        assert (await reloader.reload("a test")).needs_restart == ()

    asyncio.run(story())
    assert [(one.host, one.log_dir, one.dashboard) for one in applied] == [
        (before.host, before.log_dir, before.dashboard)
    ] * 3
    assert applied[-1].scheduler.head_grace_us == 7_000_000
