"""One shape of errors on every route: OpenAI's, with a code for machines and a sentence for people."""

from typing import Any

import pytest

from tests.api.world import World


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "says"),
    [
        ("GET", "/v1/chat/completion", 404, "not_found", "did you mean /v1/chat/completions?"),
        ("GET", "/statsu", 404, "not_found", "did you mean /status?"),
        ("GET", "/nowhere/at/all", 404, "not_found", "/docs"),
        ("GET", "/models/", 404, "model_not_found", "is not configured"),
        ("DELETE", "/status", 405, "method_not_allowed", "it knows GET"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed", "it knows POST"),
        ("GET", "/lora-adapters", 400, "model_required", "?model=NAME"),
        ("GET", "/status?limit=many", 400, "invalid_parameter", "query parameter 'limit'"),
        ("GET", "/events?from=-3", 400, "invalid_parameter", "query parameter 'from'"),
        ("POST", "/api/inflight/soon/cancel", 400, "invalid_parameter", "path parameter 'rid'"),
        ("GET", "/logs/nobody", 404, "model_not_found", "'nobody'"),
    ],
)
def test_every_mistake_gets_the_same_shape(method: str, path: str, status: int, code: str, says: str) -> None:
    """Never an empty body, never FastAPI's `detail`."""

    async def story(world: World) -> None:
        answer = await world.http.request(method, path)
        assert answer.status_code == status
        error: dict[str, Any] = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == code
        assert says in error["message"]
        if status == 405:
            assert answer.headers["allow"] == says.removeprefix("it knows ")

    World.run(story)


def test_a_bug_in_a_route_is_no_bare_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the shape it knows, without a stack trace; the diary gets the trace."""
    monkeypatch.setattr("router.api.status.waits", lambda *_: 1 / 0)

    async def story(world: World) -> None:
        answer = await world.http.get("/status")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
        assert "Traceback" not in answer.text

    World.run(story, raises=False)


def test_the_routes_are_documented_without_the_internet() -> None:
    """Each has a summary; the page fetches nothing from elsewhere and shows them all."""

    async def story(world: World) -> None:
        schema = await world.get("/openapi.json")
        operations = [(path, operation) for path, methods in schema["paths"].items() for operation in methods.values()]
        assert len(operations) > 20
        assert [path for path, operation in operations if not operation.get("summary")] == []
        assert [path for path, operation in operations if operation["security"]] == [], "no key is configured"
        page = (await world.http.get("/docs")).text
        assert all(f"<code>{path}</code>" in page for path, _ in operations)
        assert "src=" not in page
        assert "https://" not in page
        assert "`" not in page
        assert "<code>" in page.replace("<td><code>", "")
        assert '<a href="dash">' in page
        assert '<link rel="icon" href="data:image/svg+xml,' in page

    World.run(story)
