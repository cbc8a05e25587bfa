"""The application that uvicorn serves: who answers what, before and after the start, and to which web pages."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from eventlog import events as e
from router.api.access import CHANGES_BY_GET
from router.api.cors import MAX_AGE_S
from router.api.front import Front
from router.config import KeyConfig, key_digest
from tests.api.world import World

ALLOW_ORIGIN = "access-control-allow-origin"


async def relay(scope: Any, receive: Any, send: Any) -> None:
    """Stands for the data path; like a llama-server, it sends headers for other origins of its own."""
    headers = [(b"content-type", b"application/json"), (b"Access-Control-Allow-Origin", b"*")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"relayed": scope["path"]}).encode()})


def client(front: Front) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://router:11434")


def with_front(story: Any, *origins: str, keys: Mapping[str, KeyConfig] = {}) -> None:
    """A story with a world whose front serves already."""

    async def play(world: World) -> None:
        world.services.config = replace(world.config, keys=keys)
        front = Front(origins)
        front.serve(world.services, relay)
        async with client(front) as http:
            await story(world, http)

    World.run(play)


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_answers_before_anything_else_is_there(path: str) -> None:
    """No services yet: the process lives, which is all that health says. The rest is told to come back."""

    async def story() -> None:
        async with client(Front()) as http:
            assert (await http.get(path)).json() == {"status": "ok"}
            for other in ("/ready", "/v1/models", "/v1/chat/completions"):
                answer = await http.get(other)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")
                assert answer.headers["retry-after"] == "1"

    asyncio.run(story())


def test_health_needs_no_fastapi() -> None:
    """The front is imported, and answers, without the third of a second that FastAPI takes to import."""
    script = "import sys, router.api.front; print('fastapi' in sys.modules, 'duckdb' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["False", "False"]


def test_requests_go_to_the_relay_or_to_the_routers_own_routes() -> None:
    """With a model, /props, /slots and /metrics are a child's; without, the router's. Head and 405 work for health."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        relayed = [
            ("POST", "/v1/chat/completions"),
            ("POST", "/completion"),
            ("GET", "/props?model=alpha"),
            ("GET", "/slots?model=alpha"),
            ("GET", "/metrics?model=alpha"),
            ("GET", "/v1/stream?conv_id=1"),
            ("GET", "/instance/alpha%230.1/health"),
        ]
        for method, path in relayed:
            assert "relayed" in (await http.request(method, path)).json(), path
        assert (await http.get("/props")).json()["role"] == "router"
        assert (await http.get("/slots")).json() == []
        assert (await http.get("/metrics")).text.startswith("# HELP ")
        assert (await http.get("/ready")).json() == {"status": "ready"}
        head = await http.head("/health")
        assert (head.status_code, head.content) == (200, b"")
        wrong = await http.post("/health")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")

    with_front(story)


def test_readiness_goes_off_while_the_log_cannot_be_written_and_at_the_end() -> None:
    """Health stays on in both: the process lives."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        world.loop.available = False
        assert (await http.get("/ready")).json()["error"]["code"] == "log_unavailable"
        assert (await http.get("/health")).status_code == 200
        world.loop.available = True
        await world.post(e.RouterStopping(reason="SIGTERM", deadline_us=world.loop.clock.now_us() + 60_000_000))
        assert (await http.get("/ready")).json()["error"]["code"] == "shutting_down"
        assert (await http.get("/health")).status_code == 200

    with_front(story)


LOCAL_PAGES = [
    "http://router:11434",
    "https://router:11434",
    "http://localhost:3000",
    "https://localhost",
    "http://chat.localhost:8080",
    "http://127.0.0.1:5173",
    "http://[::1]:3000",
    "tauri://localhost",
    "https://chat.example.org",
]


@pytest.mark.parametrize("origin", LOCAL_PAGES)
def test_pages_of_this_machine_and_named_ones_may_ask(origin: str) -> None:
    """Preflights are granted with whatever headers SDKs send; every real answer has exactly one Allow-Origin."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        wanted = "authorization, x-stainless-os, http-referer, x-title, bad header, content-type"
        preflight = await http.options(
            "/v1/chat/completions",
            headers={
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": wanted,
                "access-control-request-private-network": "true",
            },
        )
        assert preflight.status_code == 204
        granted = preflight.headers["access-control-allow-headers"].split(", ")
        assert granted == ["authorization", "x-stainless-os", "http-referer", "x-title", "content-type"]
        assert preflight.headers["access-control-max-age"] == str(MAX_AGE_S) == "86400"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-private-network"] == "true"
        assert preflight.headers.get_list(ALLOW_ORIGIN) == [origin]
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/nothing")):
            answer = await http.request(method, path, headers={"origin": origin})
            assert answer.headers.get_list(ALLOW_ORIGIN) == [origin], path
            assert "Origin" in answer.headers["vary"]

    with_front(story, "https://chat.example.org/")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example"]
)
def test_pages_from_elsewhere_are_refused_before_they_do_anything(origin: str) -> None:
    """A simple POST needs no preflight, so hiding the answer would not be enough."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        answer = await http.post("/models/load", json={"model": "alpha"}, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert ALLOW_ORIGIN not in answer.headers
        preflight = await http.options("/v1/models", headers={"origin": origin, "access-control-request-method": "GET"})
        assert (preflight.status_code, ALLOW_ORIGIN in preflight.headers) == (403, False)
        assert world.happened(e.LoadWished) == []

    with_front(story)


def test_a_star_lets_every_page_in() -> None:
    """For whoever wants that."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        answer = await http.get("/v1/models", headers={"origin": "https://any.example"})
        assert answer.headers.get_list(ALLOW_ORIGIN) == ["https://any.example"]

    with_front(story, "*")


def test_programs_send_no_origin_and_see_none_of_it() -> None:
    """No header for browsers where no browser asks."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        assert ALLOW_ORIGIN not in (await http.get("/v1/models")).headers

    with_front(story)


KEYS = {
    "owner": KeyConfig("owner", key_digest("sk-owner"), admin=True),
    "guest": KeyConfig("guest", key_digest("sk-guest"), models=("beta",)),
}


def test_a_key_is_asked_for_where_keys_are_configured() -> None:
    """Health stays open; everything else wants one of ours, as a bearer token, a password or X-Api-Key."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        for path in ("/v1/models", "/status", "/metrics", "/openapi.json"):
            assert (await http.get(path)).json()["error"]["code"] == "unauthorized", path
            assert (await http.get(path, headers={"authorization": "Bearer sk-wrong"})).status_code == 401
            assert (await http.get(path, headers={"authorization": "Bearer sk-owner"})).status_code == 200
            assert (await http.get(path, headers={"x-api-key": "sk-owner"})).status_code == 200
            assert (await http.get(path, auth=("anybody", "sk-owner"))).status_code == 200
            assert (await http.get(path, auth=("sk-owner", "wrong"))).status_code == 401
            assert (await http.get(path, headers={"authorization": "Basic sk-owner"})).status_code == 401
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 200

    with_front(story, keys=KEYS)


def test_a_key_for_certain_models_sees_those_and_may_not_administer() -> None:
    """It may end its own requests, and no others."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        http.headers["authorization"] = "Bearer sk-guest"
        assert [entry["id"] for entry in (await http.get("/v1/models")).json()["data"]] == ["beta"]
        mine = await world.arrive("beta", key="guest")
        theirs = await world.arrive("beta", key="owner")
        refused = [
            ("POST", "/models/load?model=beta"),
            ("POST", "/models/unload?model=beta"),
            ("POST", "/api/models/unload/beta"),
            ("GET", "/unload"),
            ("POST", "/router/stop"),
            ("POST", "/router/start"),
            ("POST", "/router/restart"),
            ("POST", "/router/drain"),
            ("POST", "/router/gpus/0/out"),
            ("POST", f"/router/inflight/{theirs}/cancel"),
            ("GET", "/logs"),
            ("GET", "/events"),
        ]
        for method, path in refused:
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
        assert (await http.post(f"/router/inflight/{mine}/cancel")).status_code == 200
        assert world.relay.cancelled == [(mine, "admin")]
        http.headers["authorization"] = "Bearer sk-owner"
        await http.post("/models/unload?model=beta&force=true")
        assert world.happened(e.AdminUnload)[0].by == "owner"

    with_front(story, keys=KEYS)


def test_an_image_on_another_page_changes_nothing() -> None:
    """GET aliases are for people and scripts; browsers say when a page of another site causes a request."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        for path in ("/router/stop", "/router/start", "/router/restart", "/unload"):
            answer = await http.get(path, headers={"sec-fetch-site": "cross-site"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), path
        assert world.services.gate.is_open

    with_front(story)


def test_nothing_is_promised_that_the_log_cannot_hold() -> None:
    """While it cannot be written, an administrative call is refused instead of waiting for ever."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        world.loop.available = False
        answer = await http.post("/models/load", json={"model": "alpha", "wait": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_unavailable")
        world.loop.available = True

    with_front(story)


ASKED_OF_THE_DASHBOARD = ("/router/history", "/router/status_timeline")
"""tests/dashboard asks them, where there is one."""
ENDLESS = ("/events", "/logs", "/logs/alpha", "/models/sse")


def test_head_tells_what_get_would_without_its_body_on_every_route_of_our_own() -> None:
    """Monitors ask so. A stream is not begun; what changes something by GET is not changed by HEAD."""

    async def story(world: World, http: httpx.AsyncClient) -> None:
        described = (await http.get("/openapi.json")).json()["paths"]
        known = [re.sub(r"\{.*\}", "alpha", path) for path, methods in described.items() if "get" in methods]
        paths = [path for path in (*known, "/docs", "/openapi.json") if path not in ASKED_OF_THE_DASHBOARD]
        assert len(paths) > 15
        assert set(ENDLESS) <= set(paths)
        for path in paths:
            head = await asyncio.wait_for(http.head(path), 10)
            assert head.content == b"", path
            if path in ENDLESS:
                assert (head.status_code, "content-length" in head.headers) == (200, False), path
            else:
                asked = await http.get(path)
                assert head.status_code == asked.status_code, path
                assert head.headers["content-type"] == asked.headers["content-type"], path
        for path in CHANGES_BY_GET:
            assert (await http.head(path)).status_code == 405, path
        assert (await http.head("/nowhere")).status_code == 404
        assert (await http.head("/v1/models/nobody")).status_code == 404
        assert world.happened(e.AdminUnload) == []

    with_front(story)


def test_head_by_a_key_that_may_not_look_is_refused_as_get_is() -> None:
    async def story(world: World, http: httpx.AsyncClient) -> None:
        guest = {"authorization": "Bearer sk-guest"}
        for path in ("/events", "/status", "/v1/models"):
            assert (await http.head(path)).status_code == 401, path
            asked = (await http.get(path, headers=guest)).status_code
            assert (await http.head(path, headers=guest)).status_code == asked, path
        assert (await http.head("/events", headers=guest)).status_code == 403

    with_front(story, keys={"guest": KeyConfig("guest", key_digest("sk-guest"), models=("beta",))})
