"""The one ASGI application that uvicorn serves: sends each request to the relay, to health, or to the FastAPI routes.

It answers `/health` as soon as the socket listens. FastAPI takes a third of a second to import, so that happens in a
thread once there is something to serve; nothing on the data path needs it.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from router import errors, routes
from router.api import access, dash, head, health, hosts, pages
from router.api.cors import App, Cors, Message, Receive, Scope, Send
from router.api.login import Login
from router.api.services import Services
from router.api.sessions import Sessions
from router.config import Config
from router.headers import value_of

BODY_MAX = 4 << 20
"""Bytes of a body for the router's own routes; the relay has a limit of its own."""

URL_MAX = 16 << 10
"""Of a path with its query; llama-server itself takes half as much. To look into an endless one takes its time."""

log = logging.getLogger("llama_router.api")


class Front:
    """Callable as an ASGI application. Until `serve` is called, everything but health is answered 503."""

    def __init__(self, origins: Collection[str] = (), secret: bytes = b"") -> None:
        """`origins`: pages that may use the router besides its own and those of this machine.

        `secret` signs logins; without one they end with the process.
        """
        self._sessions = Sessions(secret or secrets.token_bytes(32))
        self._login = Login(self._sessions)
        self._guarded = Cors(self._route, origins)
        self._services: Services | None = None
        self._relay: App | None = None
        self._app: asyncio.Task[App] | None = None
        self._dash: App | None = None

    def serve(self, services: Services, relay: App) -> None:
        """From now on requests are taken. `relay` gets those of llama-server's routes."""
        self._services = services
        self._relay = relay
        self._dash = dash.Dash(services)
        self._app = asyncio.create_task(asyncio.to_thread(_create, services))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._guarded(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no websockets here"})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if len(path) + len(scope["query_string"]) > URL_MAX:
            problem = errors.error("uri_too_long", f"the path and its query have more than {URL_MAX} characters")
            await health.send_error(scope, send, problem)
        elif path in health.PATHS:
            await health.answer(scope, receive, send, self._services)
        elif self._relay is None or self._app is None:
            problem = errors.error("service_unavailable", "the router is starting", retry_after_s=1)
            await health.send_error(scope, send, problem)
        elif not hosts.is_own(self._config, value_of(scope["headers"], b"host")):
            await health.send_error(scope, send, _foreign_host(value_of(scope["headers"], b"host")))
        elif routes.find(scope["method"], path, scope["query_string"]) is not None or path.startswith("/instance/"):
            if await self._is_known(scope, send, own=False):
                await self._relay(scope, receive, send)
        else:
            await self._own(scope, receive, pages.guarded(send), self._app)

    async def _own(self, scope: Scope, receive: Receive, send: Send, made: "asyncio.Task[App]") -> None:
        """One of the router's own routes, or a page."""
        if scope["path"] in ("/login", "/logout"):
            await self._login.answer(self._config, scope, receive, send)
            return
        is_open = access.right_for(scope["method"], scope["path"]) == "open"
        if not is_open and not await self._is_known(scope, send, own=True):
            return
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            await _lead_to_dash(send)
            return
        if dash.is_for_dashboard(scope["method"], scope["path"]):
            assert self._dash is not None
            await self._dash(scope, receive, send)
            return
        app = made.result() if made.done() else await asyncio.shield(made)
        receive = _limited(receive, scope)
        if scope["method"] == "HEAD" and not access.changes("HEAD", scope["path"]):
            await head.answer(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    async def _is_known(self, scope: Scope, send: Send, *, own: bool) -> bool:
        """Find out who asks, and for a route of our own whether they may; whoever may not has been answered then."""
        try:
            caller = access.identify(self._config, self._sessions, scope)
            if own:
                access.check(caller, scope["method"], scope["path"])
        except errors.RouterError as problem:
            if problem.status == 401 and _is_for_a_person(scope):
                await _send_to_login(scope, send)
            else:
                await health.send_error(scope, send, problem)
            return False
        return True

    @property
    def _config(self) -> Config:
        assert self._services is not None
        return self._services.config


def _limited(receive: Receive, scope: Scope) -> Receive:
    """Raises 413 once a body is larger than any of the router's own routes has use for."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_MAX:
            raise errors.error("body_too_large", f"{scope['path']} takes a body of at most {BODY_MAX} bytes")
        return message

    return counted


def _is_for_a_person(scope: Scope) -> bool:
    """Whether a browser asks for a page, which a login form may take the place of."""
    return scope["method"] == "GET" and b"text/html" in value_of(scope["headers"], b"accept")


async def _send_to_login(scope: Scope, send: Send) -> None:
    path = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
    # Relative, so that it leads there under the path of a proxy as well.
    up = "../" * (path.partition("?")[0].count("/") - 1)
    location = f"{up}login?next={quote(path, safe='')}".encode()
    fields = [(b"location", location), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 303, "headers": fields})
    await send({"type": "http.response.body", "body": b""})


def _foreign_host(host: bytes) -> errors.RouterError:
    name = host.decode("latin-1")
    return errors.error(
        "host_not_allowed",
        f"without API keys this router answers to names of this machine, not to {name[:200]!r}; "
        "write keys into its configuration, or that name into CORS_ORIGINS",
    )


async def _lead_to_dash(send: Send) -> None:
    """Relative, so that it leads there under the path of a proxy as well."""
    headers = [(b"location", b"dash"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _create(services: Services) -> App:
    from router.api.app import create_app

    app: Any = create_app(services)
    return app  # type: ignore[no-any-return]


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
