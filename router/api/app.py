"""The FastAPI application: the router's own routes, one error shape for all of them, and their documentation.

What llama-server answers is not here; `front` sends that to the relay. FastAPI's own documentation page fetches its
script from elsewhere, so `/docs` is a page of ours, made of the same `/openapi.json`.
"""

import difflib
import logging
import re
from collections.abc import Collection
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response

from router import errors, routes
from router.api import control, events, history, logs, metrics, models, profiles, props, status, translate, version
from router.api.access import right_for
from router.api.dash import Dash
from router.api.lifecycle import Lifecycle
from router.api.pages import ICON
from router.api.services import Services
from router.problems import shortened

log = logging.getLogger("llama_router.api")


def create_app(services: Services) -> FastAPI:
    """The application on top of these services."""
    app = FastAPI(
        title="llama-router",
        version=services.started.version,
        summary="One OpenAI-compatible endpoint in front of a pile of small GPUs",
        description="The router's own routes. What llama-server answers (chat, completions, embeddings, ...) is passed "
        "through and documented there.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    lifecycle = Lifecycle(services)
    parts = (
        models.routes(services),
        profiles.routes(services),
        status.routes(services, lifecycle),
        control.routes(services, lifecycle),
        metrics.routes(services),
        events.routes(services),
        logs.routes(services),
        props.routes(services),
        version.routes(services),
        history.routes(services, Dash(services)),
        translate.routes(services),
    )
    for part in parts:
        app.include_router(part)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        _say_what_needs_a_key(schema, has_keys=bool(services.config.keys))
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    paths = {route.path for part in parts for route in part.routes if isinstance(route, APIRoute)}
    _answer_errors(app, paths | routes.POST.keys() | routes.GET.keys())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_page(app.openapi(), has_dashboard=services.config.dashboard.on))

    return app


_KEYS: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "One of the keys in `config.json`."},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key."},
    "basic": {"type": "http", "scheme": "basic", "description": "The same key as the password, with any name."},
}


def _say_what_needs_a_key(schema: dict[str, Any], *, has_keys: bool) -> None:
    """A reload may bring the first key, or take away the last one."""
    schema.setdefault("components", {})["securitySchemes"] = _KEYS
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            needs_key = has_keys and right_for(method.upper(), path) != "open"
            operation["security"] = [{name: []} for name in _KEYS] if needs_key else []


def _answer_errors(app: FastAPI, paths: Collection[str]) -> None:
    def answer(request: Request, problem: errors.RouterError, extra: dict[str, str] | None = None) -> Response:
        headers = {name.decode(): value.decode() for name, value in errors.headers(problem)} | (extra or {})
        body = errors.body(problem, errors.dialect_of(request.url.path))
        return Response(body, problem.status, headers)

    @app.exception_handler(errors.RouterError)
    async def ours(request: Request, problem: errors.RouterError) -> Response:
        return answer(request, problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        where = [str(part) for part in first["loc"]]
        if first["type"] == "json_invalid":
            message = f"the body is not JSON: {first['ctx']['error']} (at its character {where[-1]})"
            return answer(request, errors.error("invalid_body", message))
        given = "" if first.get("input") is None else f", not {shortened(repr(first['input']))}"
        message = f"{where[0]} parameter {'.'.join(where[1:])!r}: {first['msg']}{given}"
        return answer(request, errors.error("invalid_parameter", message, status=400, param=where[-1]))

    @app.exception_handler(HTTPException)
    async def http(request: Request, problem: HTTPException) -> Response:
        path = request.url.path
        if isinstance(problem.__cause__, errors.RouterError):  # raised while the body was read
            return answer(request, problem.__cause__)
        known = [method for method, table in (("GET", routes.GET), ("POST", routes.POST)) if path in table]
        if problem.status_code == 404 and request.method in known:
            return answer(request, errors.error("model_required", f"whose {path}? ?model=NAME says it", param="model"))
        if problem.status_code == 404 and not known:
            return answer(request, errors.error("not_found", _unknown_path(path, paths)))
        if problem.status_code in (404, 405):
            allowed = Headers(problem.headers or {}).get("allow", ", ".join(known))
            message = f"{path} does not know {request.method}; it knows {allowed}"
            return answer(request, errors.error("method_not_allowed", message), {"allow": allowed})
        code = "invalid_body" if problem.status_code < 500 else "internal_error"
        return answer(request, errors.error(code, str(problem.detail), status=problem.status_code))

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def unexpected(request: Request, problem: Exception) -> Response:
        log.error("%s %r failed", request.method, request.url.path, exc_info=problem)
        message = f"the router failed on this ({type(problem).__name__}); its log says more"
        return answer(request, errors.error("internal_error", message, status=500))


def _unknown_path(path: str, paths: Collection[str]) -> str:
    near = difflib.get_close_matches(path, sorted(paths), n=1, cutoff=0.7)
    return f"there is no {shortened(path)}" + (f"; did you mean {near[0]}?" if near else "; /docs lists what there is")


def _page(schema: dict[str, Any], *, has_dashboard: bool) -> str:
    # Relative, so that it leads there under the path of a proxy as well.
    back = '<nav><a href="dash">Dashboard</a></nav>' if has_dashboard else ""
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            fields = [field["name"] for field in operation.get("parameters", ()) if field["in"] == "query"]
            query = f"?{'&'.join(fields)}" if fields else ""
            says = ". ".join(filter(None, (operation.get("summary"), operation.get("description"))))
            rows.append(
                f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code><small>{escape(query)}</small></td>"
                f"<td>{_with_code(says)}</td></tr>"
            )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>llama-router API</title>{ICON}"
        "<style>:root{color-scheme:light dark}"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "td{padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}small{opacity:.6}"
        "td:first-child{white-space:nowrap}td:nth-child(2){min-width:8rem;overflow-wrap:anywhere}</style>"
        f"{back}<h1>llama-router {escape(schema['info']['version'])}</h1>"
        f"<p>{_with_code(schema['info']['description'])}</p>"
        f'<p>For machines: <a href="openapi.json">/openapi.json</a></p><table>{"".join(rows)}</table>'
    )


def _with_code(text: str) -> str:
    """As HTML; what stands between backticks is code."""
    return re.sub(r"`+([^`]+)`+", r"<code>\1</code>", escape(text))
