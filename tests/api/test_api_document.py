"""docs/api.md has every route and every error that there is, and no other."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from router import errors, routes
from router.api.access import right_for
from router.api.app import create_app
from tests.api.world import World

DOC = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
PASSED, OWN = DOC.partition("## Answered by the router")[::2]
QUOTED = r"`(GET|POST|PUT|DELETE)[ ,`]*([^`?\s]+)`"


@pytest.fixture(scope="module")
def own_routes() -> dict[tuple[str, str], bool]:
    """Method and path, and whether the schema has it."""
    found: dict[tuple[str, str], bool] = {}

    async def story(world: World) -> None:
        for route in flat(create_app(world.services).routes):
            for method in route.methods:
                found[method, route.path.replace(":path}", "}")] = route.include_in_schema

    World.run(story)
    return found


def flat(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """Newer versions of FastAPI keep what they include as it is."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif (inner := getattr(route, "original_router", None)) is not None:
            yield from flat(inner.routes)


def rows() -> dict[tuple[str, str], str]:
    """Method and path to the right that the table says."""
    table = OWN.partition("## Errors")[0]
    found = {}
    for line in re.findall(r"^\| (`.*?) \| (\w+|by page) \|", table, re.MULTILINE):
        found |= dict.fromkeys(re.findall(QUOTED, line[0]), line[1])
    return found


def test_every_route_of_the_router_is_in_the_document(own_routes: dict[tuple[str, str], bool]) -> None:
    """Those of the schema in the table, with the right that each needs; those for older callers by name."""
    said = rows()
    assert {route for route, shown in own_routes.items() if shown} - said.keys() == set()
    for (method, path), right in said.items():
        if right != "by page":
            assert right == right_for(method, path), f"{method} {path}"
    named = set(re.findall(QUOTED, OWN))
    beside = {"/v1/props", "/v1/slots", "/models/{name}", "/docs"}
    assert {route for route in own_routes if route[1] not in beside} - named == set()


def test_no_route_is_in_the_document_that_is_not_there(own_routes: dict[tuple[str, str], bool]) -> None:
    elsewhere = {"/health", "/ready", "/login", "/logout", "/dash", "/chat", "/translate", "/openapi.json"}
    known = {path for _, path in own_routes}
    assert {path for _, path in rows()} - known - elsewhere == set()
    assert known, "the application has routes"


def test_every_route_of_a_llama_server_is_in_the_document() -> None:
    said = set(re.findall(r"`(?:POST |GET |DELETE )?(/[\w/-]+)", PASSED))
    names = {route.name for route in (*routes.POST.values(), *routes.GET.values())}
    assert {name for name in names if name not in said and f"/v1{name}" not in said} == set()


def test_every_error_is_in_the_document_with_its_status() -> None:
    told = [(code, int(status)) for status, code in re.findall(r"^\| (\d{3}) \| `(\w+)` \|", DOC, re.MULTILINE)]
    assert told == list(errors.CODES.items())
