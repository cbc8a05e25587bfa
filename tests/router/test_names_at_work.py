"""Profiles, selectors and filters in a router that serves: what clients get, the log says, and a restart keeps."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.cli import main
from tests.standin.fixtures import Model, RouterProcess

TOP = {
    "profiles": {
        "work": {"description": "by day", "pins": {"best": "a", "b": None}},
        "home": {"pins": {"best": "workers"}},
    },
    "selectors": {
        "workers": {"strategy": "spillover", "targets": ["a", "b"], "spillover": 1, "name": "The workers"},
        "hidden": {"strategy": "pin", "targets": ["a"], "unlisted": True},
    },
}
FILTERS = {
    "stripParams": "temperature, top_p",
    "setParams": {"top_k": 40},
    "setParamsByID": {"a:high": {"effort": "high"}},
}


def models() -> list[Model]:
    return [Model("a", gpus=(0,), slots=2, entry={"filters": FILTERS}), Model("b", gpus=(1,))]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with RouterProcess(tmp_path_factory.mktemp("names"), models(), top=TOP) as running:
        yield running


def switch(router: RouterProcess, profile: str | None) -> Any:
    return router.call("PUT", "/api/profiles/active", {"profile": profile}).json()


def arrival(router: RouterProcess, call: Any) -> dict[str, Any]:
    """What the log says of a request."""
    return router.wait_event("RequestArrived", rid=int(call.header("x-router-request")))


def test_s12_filters_change_the_body_and_say_so(router: RouterProcess) -> None:
    """The stand-in says what it got; a model without filters gets what was sent."""
    sent = {"model": "a:high", "messages": [{"role": "user", "content": "é"}], "temperature": 0.5, "seed": 7}
    body = json.dumps(sent, indent=2).encode()
    call = router.call("POST", "/v1/chat/completions", body)
    assert call.status == 200
    call.read()
    assert call.header("x-router-rewrote") == "temperature,top_k,effort"
    messages = json.dumps(sent["messages"], indent=2).replace("\n", "\n  ")
    got = f'{{"model":"a:high","messages":{messages},"seed":7,"top_k":40,"effort":"high"}}'
    assert call.header("x-standin-sha256") == hashlib.sha256(got.encode()).hexdigest()
    logged = arrival(router, call)
    assert (logged["model"], logged["asked"]) == ("a", "a:high")
    assert logged["rewrote"] == ["temperature", "top_k", "effort"]
    assert logged["body_bytes"] == len(got.encode())
    plain = router.call("POST", "/v1/chat/completions", json.dumps(sent | {"model": "b"}).encode())
    assert plain.status == 200
    plain.read()
    assert plain.header("x-router-rewrote") == ""
    assert "rewrote" not in arrival(router, plain)


def test_filters_leave_an_upload_as_it_is(router: RouterProcess) -> None:
    """Its parameters are parts of a form, beside the file."""
    parts = [b'form-data; name="model"\r\n\r\na', b'form-data; name="temperature"\r\n\r\n0.5']
    form = b"".join(b"--standin\r\nContent-Disposition: " + part + b"\r\n" for part in parts) + b"--standin--\r\n"
    kind = "multipart/form-data; boundary=standin"
    call = router.call("POST", "/v1/audio/transcriptions", form, Content_Type=kind)
    assert call.status == 200
    call.read()
    assert call.header("x-standin-sha256") == hashlib.sha256(form).hexdigest()
    assert call.header("x-router-rewrote") == ""


def test_s14_a_profile_changes_what_names_mean_and_is_an_event(
    router: RouterProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """By HTTP and by command; the log has each switch and, of each request, what was asked for and what it got."""
    listed = router.call("GET", "/api/profiles").json()
    assert listed["active"] is None
    assert listed["profiles"][0] == {"name": "work", "description": "by day", "pins": {"best": "a", "b": None}}
    assert router.asks("best") == 404
    assert switch(router, "work")["active"] == "work"
    assert router.status()["profile"] == "work"
    call = router.chat("best")
    assert call.status == 200
    call.read()
    logged = arrival(router, call)
    assert (logged["model"], logged["asked"], logged["via"]) == ("a", "best", "profile work")
    off = router.chat("b")
    assert off.status == 404
    assert "switched off by the profile 'work'" in off.json()["error"]["message"]
    assert main(["profile", "--none", "--url", router.base_url]) == 0
    assert main(["profile", "home", "--url", router.base_url]) == 0
    assert main(["profile", "--url", router.base_url]) == 0
    assert capsys.readouterr().out == (
        "no profile is in force\nprofile home is in force\n  work: best = a, b = none\n* home: best = workers\n"
    )
    assert router.asks("b") == 200
    unknown = router.call("PUT", "/api/profiles/active", {"profile": "nowhere"})
    assert unknown.status == 404
    assert "'work', 'home'" in unknown.json()["error"]["message"]
    assert main(["profile", "--none", "--url", router.base_url]) == 0
    assert [event["profile"] for event in router.events("ProfileChanged")] == ["work", "", "home", ""]


def test_s15_spillover_starts_the_next_model_under_load(router: RouterProcess) -> None:
    """Two at once go to two models, although both came before the scheduler had heard of either."""
    gate = router.folder / "gate"
    calls = [router.chat("workers", standin={"gate": str(gate)}) for _ in range(2)]
    router.wait_event("RequestArrived", lambda event: event.get("asked") == "workers" and event["model"] == "b")
    gate.touch()
    assert [call.status for call in calls] == [200, 200]
    assert all(call.read() for call in calls)
    chosen = [arrival(router, call) for call in calls]
    assert sorted(event["model"] for event in chosen) == ["a", "b"]
    assert {(event["asked"], event["via"]) for event in chosen} == {("workers", "selector workers")}
    [listed] = [entry for entry in router.call("GET", "/v1/models").json()["data"] if "selector" in entry]
    assert (listed["id"], listed["name"]) == ("workers", "The workers")
    assert listed["selector"] == {"strategy": "spillover", "targets": ["a", "b"]}


def test_a_profile_outlives_the_router_until_a_reload_takes_it_away(tmp_path: Path) -> None:
    """It is carried in the log; its loss is a fact there too."""
    with RouterProcess(tmp_path, models(), top=TOP) as router:
        switch(router, "work")
        router.stop()
        router.start()
        assert router.status()["profile"] == "work"
        call = router.chat("best")
        assert call.status == 200
        call.read()
        assert arrival(router, call)["via"] == "profile work"
        router.top["profiles"] = {}
        router.configure()
        assert router.call("POST", "/router/reload").json()["outcome"] == "done"
        assert router.status()["profile"] is None
        assert router.events("ProfileChanged")[-1]["by"] == "reload"
        assert router.asks("best") == 404
