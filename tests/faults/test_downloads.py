"""A model from a hub, through the whole router: fetched first, told meanwhile, and only then is anybody evicted."""

import sys
from pathlib import Path

from tests.faults.checks import routed
from tests.standin.fixtures import STANDIN, Model
from tests.standin.ledger import polls

FETCHER = """
import json, os, sys, time

def say(**payload):
    print("cmd_child_to_router:state:" + json.dumps({"state": "downloading", "payload": payload}), flush=True)

folder = os.path.dirname(__file__)
if "--offline" in sys.argv:
    print("E srv  run_download: no such file in the cache", file=sys.stderr, flush=True)
    say(result="download_failed")
else:
    say(url="weights.gguf", downloaded=25, total=100)
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.02)
    if os.path.exists(os.path.join(folder, "broken")):
        print("E srv  run_download: download failed: 404 for org/a", file=sys.stderr, flush=True)
        say(result="download_failed")
    else:
        say(url="weights.gguf", downloaded=100, total=100)
        say(result="download_finished")
sys.stdin.readline()
"""


def hub(folder: Path) -> tuple[list[str], Model]:
    """A llama-server that fetches when it is told to, and a model that it fetches for. `go` lets the download end."""
    (folder / "fetch.py").write_text(FETCHER)
    binary = folder / "llama-server"
    fetch = f'{sys.executable} -IS {folder / "fetch.py"} "$@"'
    serve = f'{" ".join(STANDIN)} "$@"'
    binary.write_text(f'#!/bin/sh\n[ "$LLAMA_SERVER_CHILD_MODE" = download ] && exec {fetch}\nexec {serve}\n')
    binary.chmod(0o755)
    return [str(binary)], Model("a", preset={"hf-repo": "org/a"})


def test_a_download_is_over_before_anything_is_evicted_for_it(tmp_path: Path) -> None:
    """b serves on while a is fetched; how far that is stands in /status, in the list of models and in the log."""
    binary, model = hub(tmp_path)
    with routed(tmp_path, [model, Model("b")], binary=binary, gpu_cap=1) as router:
        assert router.chat("b").status == 200
        waiting = router.chat("a")
        for _ in polls(10, every_s=0.05):
            rows = {row["name"]: row for row in router.status()["models"]}
            if rows["a"]["progress"]:
                break
        assert rows["a"]["progress"] == {"stages": ["download"], "current": "download", "value": 0.25}
        assert router.call("GET", "/v1/models/a").json()["status"]["value"] == "downloading"
        assert router.wait_event("ReplicaLoading", model="a")["value"] == 0.25
        assert router.chat("b").status == 200
        assert router.events("ReplicaStopOrdered") == []
        assert [event["model"] for event in router.events("RequestArrived")] == ["b", "b"]
        (tmp_path / "go").touch()
        assert waiting.status == 200
        arrived = router.events("RequestArrived", model="a")[0]
        done = router.wait_event("ReplicaLoading", model="a", value=1.0)
        assert done["at_us"] <= arrived["at_us"] <= router.events("ReplicaStopOrdered")[0]["at_us"]


def test_a_download_that_fails_costs_nobody_his_place(tmp_path: Path) -> None:
    """The error says what llama-server said; the loaded model stays; the next request tries again."""
    binary, model = hub(tmp_path)
    (tmp_path / "go").touch()
    (tmp_path / "broken").touch()
    with routed(tmp_path, [model, Model("b")], binary=binary, gpu_cap=1) as router:
        assert router.chat("b").status == 200
        call = router.chat("a")
        assert call.status == 502
        error = call.json()["error"]
        assert error["code"] == "model_load_failed"
        assert "404 for org/a" in error["message"]
        assert router.events("ReplicaStopOrdered") == []
        assert "404 for org/a" in router.wait_event("LogLine")["text"]
        (tmp_path / "broken").unlink()
        assert router.chat("a").status == 200


def test_a_stop_during_a_download_leaves_nobody_behind(tmp_path: Path) -> None:
    """The one who waits hears of it, the download ends, the router as well."""
    binary, model = hub(tmp_path)
    with routed(tmp_path, [model], binary=binary) as router:
        waiting = router.chat("a")
        router.wait_event("ReplicaLoading", model="a", value=0.25)
        assert router.stop() == 0
        assert waiting.status == 503
        assert waiting.json()["error"]["code"] == "shutting_down"
