"""Every route of llama-server that is carried, through the whole router, with /v1 and without."""

from pathlib import Path
from typing import Any

import pytest

from router import routes
from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess, body_for, form_of

GENERATIONS = [path for path, route in routes.POST.items() if route.kind == "generation"]
METADATA = [path for path, route in routes.POST.items() if route.kind == "metadata"]
READY = list(routes.GET)


def ask(router: RouterProcess, path: str) -> Any:
    """The least that the route asks for, answered in one piece."""
    short = path.removeprefix("/v1")
    if short.endswith("/audio/transcriptions"):
        form = form_of({"model": "a", "language": "en"})
        return router.call("POST", path, form, Content_Type="multipart/form-data; boundary=standin")
    messages = [{"role": "user", "content": "hello"}]
    others: dict[str, dict[str, Any]] = {
        "/tokenize": {"content": "hello"},
        "/detokenize": {"tokens": [1, 2]},
        "/apply-template": {"messages": messages},
        "/chat/completions/input_tokens": {"messages": messages},
        "/responses/input_tokens": {"input": "hello"},
        "/messages/count_tokens": {"messages": messages},
        "/reranking": {"query": "hello", "documents": ["hello"]},
    }
    return router.call("POST", path, {"model": "a", **others[short]} if short in others else body_for(path, "a"))


def test_every_generation_route_is_answered_with_v1_and_without(tmp_path: Path) -> None:
    """Each is an arrival that takes a slot, under one name whatever the form of its path."""
    with routed(tmp_path, [Model("a", tokens=2)]) as router:
        statuses = {path: ask(router, path).status for path in GENERATIONS}
        assert statuses == dict.fromkeys(GENERATIONS, 200)
        arrived = router.events("RequestArrived")
        assert [event["route"] for event in arrived] == [routes.POST[path].name for path in GENERATIONS]
        weights = {event["route"]: event.get("slots_wanted", 1) for event in arrived}
        assert all(weight == (2 if route == "/rerank" else 1) for route, weight in weights.items()), "two documents"
        assert len(GENERATIONS) == 24


def test_every_metadata_route_is_answered_and_takes_no_slot(tmp_path: Path) -> None:
    """The only slot is taken by a long stream: questions are answered all the same."""
    with routed(tmp_path, [Model("a", tokens=10_000, gap_s=0.05)]) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        statuses = {path: ask(router, path).status for path in METADATA}
        assert statuses == dict.fromkeys(METADATA, 200)
        stream.close()
        assert len(METADATA) == 12


@pytest.mark.parametrize("loaded", [True, False])
def test_questions_to_a_model_reach_it_or_say_that_it_is_not_loaded(tmp_path: Path, loaded: bool) -> None:
    """GET with `?model=` asks a process that is up and never starts one."""
    with routed(tmp_path, [Model("a", tokens=2, preset={"metrics": "true"})]) as router:
        if loaded:
            assert router.chat("a").status == 200
        for path in READY:
            call = router.call("GET", f"{path}?model=a")
            if loaded:
                assert call.status == (403 if path.endswith("/tools") else 200), path  # it was started without tools
            else:
                assert (call.status, call.json()["error"]["code"]) == (409, "model_not_loaded"), path
        assert len(router.events("ReplicaSpawnOrdered")) == loaded
