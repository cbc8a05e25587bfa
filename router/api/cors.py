"""Cross-origin access, around every answer of the router, the relayed ones included. Plain ASGI.

A page may talk to the router when it comes from the router itself, from this machine, or from an origin that the owner
named. Any other page is refused before it can do anything: browsers send simple POSTs without asking first, and hiding
the answer from the page would not undo a load. Programs send no Origin and are not concerned.

A child may send headers of its own for this; they are taken out, because a browser rejects a second Allow-Origin.
"""

import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from router import errors

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_AGE_S = 86_400
METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
USUAL_HEADERS = b"authorization, content-type, x-api-key, x-conversation-id"

_LOOPBACK = re.compile(rb"https?://(localhost|[a-z0-9.-]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)
_LOCAL_APP = re.compile(rb"(tauri|app|file|vscode-webview)://.*", re.IGNORECASE)
"""Pages of programs on this machine; no web page can claim such an origin."""
_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


class Cors:
    """Wraps an application. `origins` are allowed besides our own and this machine's; `*` among them allows all."""

    def __init__(self, app: App, origins: Collection[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = asked = host = None
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
            elif name == b"host":
                host = value
            elif name == b"access-control-request-method":
                asked = value
        if origin is None:
            await self._app(scope, receive, send)
            return
        if not self.allows(origin, host):
            await _refuse(scope, origin, send)
        elif scope["method"] == "OPTIONS" and asked is not None:
            await _answer_preflight(scope, origin, send)
        else:
            await self._app(scope, receive, _with_origin(send, origin))

    def allows(self, origin: bytes, host: bytes | None) -> bool:
        """Whether a page of this origin may talk to the router as `host` reached it."""
        # Behind a proxy that ends TLS the page's scheme is not ours, so only host and port are compared.
        if host is not None and origin.partition(b"://")[2].lower() == host.lower():
            return True
        if _LOOPBACK.fullmatch(origin) or _LOCAL_APP.fullmatch(origin):
            return True
        return b"*" in self._origins or origin.lower() in self._origins


def _with_origin(send: Send, origin: bytes) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *_without_foreign(message),
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"*"),
                (b"vary", b"Origin"),
            ]
        await send(message)

    return marked


def _without_foreign(message: Message) -> list[tuple[bytes, bytes]]:
    return [
        (name, value) for name, value in message.get("headers", ()) if not name.lower().startswith(b"access-control-")
    ]


async def _answer_preflight(scope: Scope, origin: bytes, send: Send) -> None:
    wanted: list[bytes] = []
    private = False
    for name, value in scope["headers"]:
        if name == b"access-control-request-headers":
            wanted += [part.strip() for part in value.split(b",")]
        elif name == b"access-control-request-private-network":
            private = value == b"true"
    # Whatever is asked for is granted (SDKs send x-stainless-* and the like), but only well-formed names are echoed.
    granted = b", ".join(name for name in wanted if _TOKEN.fullmatch(name)) or USUAL_HEADERS
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", granted),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]
    if private:
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, origin: bytes, send: Send) -> None:
    shown = origin.decode("latin-1")
    problem = errors.error(
        "origin_not_allowed",
        f"pages of {shown!r} may not use this router: allowed are its own, those of this machine, and those it names",
        status=403,
    )
    body = errors.body(problem, errors.dialect_of(scope["path"]))
    headers = [*errors.headers(problem), (b"content-length", b"%d" % len(body)), (b"vary", b"Origin")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
