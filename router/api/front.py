"""The one ASGI application that uvicorn serves: sends each request to the relay, to health, or to the FastAPI routes.

It answers `/health` as soon as the socket listens. FastAPI takes a third of a second to import, so that happens in a
thread once there is something to serve; nothing on the data path needs it.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from router import errors, routes
from router.api import access, dash, health
from router.api.cors import App, Cors, Receive, Scope, Send
from router.api.services import Services

log = logging.getLogger("llama_router.api")


class Front:
    """Callable as an ASGI application. Until `serve` is called, everything but health is answered 503."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        """`origins`: pages that may use the router besides its own and those of this machine."""
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
        if path in health.PATHS:
            await health.answer(scope, receive, send, self._services)
        elif self._relay is None or self._app is None:
            problem = errors.error("service_unavailable", "the router is starting", retry_after_s=1)
            await health.send_error(scope, send, problem)
        elif routes.find(scope["method"], path, scope["query_string"]) is not None or path.startswith("/instance/"):
            await self._relay(scope, receive, send)
        else:
            assert self._services is not None
            try:
                access.identify(self._services.config, scope)
            except errors.RouterError as problem:
                await health.send_error(scope, send, problem)
                return
            if path == "/" and scope["method"] in ("GET", "HEAD"):
                await _lead_to_dash(send)
                return
            if dash.is_for_dashboard(scope["method"], path):
                assert self._dash is not None
                await self._dash(scope, receive, send)
                return
            app = self._app.result() if self._app.done() else await asyncio.shield(self._app)
            await app(scope, receive, send)


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
