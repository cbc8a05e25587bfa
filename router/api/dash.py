"""What the dashboard's process answers, at the router's own port: a plain way through, which no request waits for.

Pages, their assets and the history go to the process over its UNIX socket and come back as they are, streams included;
the scheduler knows nothing of it. While the process is down, or still builds its tables, a browser gets a calm page
that reloads itself, and everybody else an error in the usual shape.

Every link in a page is relative to it, so that a proxy may serve the router under any path. Counterpart:
`router.dashboard`, which runs the process.
"""

import asyncio
import base64
import hashlib
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from router import errors
from router.api.cors import Receive, Scope, Send
from router.api.services import Services
from router.body import Body, BodyStore, ClientGone
from router.client import Client, client_of
from router.headers import Fields, to_upstream, value_of
from router.reply import Reply
from router.upstream import Connection, Endpoint, UpstreamError, request_head

PAGES = frozenset(("/dash", "/chat", "/translate"))
LANGUAGES = "/translate/languages"
CONNECT_S = 2.0
BEGIN_S = 60.0
"""Until an answer begins; no question takes longer than half of it."""
BODY_MAX = 1 << 20
RELOAD_S = 2
NOT_READY = b"x-not-ready"
"""The header by which the process says that its tables are still being built."""
FOR_THE_ROUTER = frozenset((b"cookie",))
"""Credentials end here, those in cookies as well."""


def is_for_dashboard(method: str, path: str) -> bool:
    """Whether the process answers this. What is asked of a page by POST is the router's own."""
    return (
        path.startswith("/dash/")
        or path == "/dash"
        or (method in ("GET", "HEAD") and (path in PAGES or path == LANGUAGES))
    )


class Dash:
    """ASGI application that passes requests to the dashboard's process."""

    def __init__(self, services: Services) -> None:
        self._endpoint = services.dashboard
        self._bodies = BodyStore(services.config.run_dir, memory_limit=BODY_MAX, body_limit=BODY_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of(scope)
        if client is None:
            raise RuntimeError("the dashboard is served by uvicorn with http=router.client.ClientProtocol")
        reply = Reply(client, send, scope["http_version"], "openai", [])
        if self._endpoint is None:
            await _tell(scope, send, _switched_off())
            return
        try:
            body = await self._bodies.read(receive)
        except ClientGone:
            return
        except errors.RouterError as problem:
            await reply.fail(problem)
            return
        try:
            await self._pass(scope, send, self._endpoint, body, reply, client)
        finally:
            body.close()

    async def _pass(
        self, scope: Scope, send: Send, endpoint: Endpoint, body: Body, reply: Reply, client: Client
    ) -> None:
        connection: Connection | None = None
        try:
            bodyless = scope["method"] == "HEAD"
            connection = await Connection.open(endpoint, bodyless=bodyless, timeout_s=CONNECT_S)
            client.on_gone(connection.close)
            if client.gone:
                return
            async with asyncio.timeout(BEGIN_S):
                await connection.send(_head(scope, body.size), body.to_send())
                await connection.start()
            if value_of(connection.headers, NOT_READY):
                await _tell(scope, send, _building(await _read(connection)))
                return
            await reply.begin(connection.status, connection.headers, sse=connection.is_sse)
            reply.flush()
            reply.on_drain(connection.resume)
            await connection.pour(reply.write)
            await reply.end(connection.status)
        except (UpstreamError, TimeoutError) as error:
            if client.gone:
                return
            if reply.started:
                await reply.fail(errors.error("service_unavailable", "the dashboard has ended"))
            else:
                await _tell(scope, send, _away(error))
        finally:
            client.forget()
            if connection is not None:
                connection.close()


def _head(scope: Scope, size: int) -> bytes:
    headers: Fields = [field for field in scope["headers"] if field[0] not in FOR_THE_ROUTER]
    method: str = scope["method"]
    length = size if size or method not in ("GET", "HEAD") else None
    target: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    fields = to_upstream(headers, key="", length=length, plain=False)
    return request_head(method.encode(), target + (b"?" + query if query else b""), fields)


async def _read(connection: Connection) -> bytes:
    pieces = []
    while data := await connection.read():
        pieces.append(data)
    return b"".join(pieces)


# --- when there is no answer ------------------------------------------------------------------------------------------


def _away(error: Exception) -> errors.RouterError:
    """The socket is not there, or nobody listens, while the process starts; otherwise it takes too long."""
    if isinstance(error, TimeoutError):
        return errors.error("service_unavailable", f"the dashboard did not answer within {BEGIN_S:g} s", status=504)
    return errors.error("service_unavailable", "the dashboard is starting", retry_after_s=RELOAD_S)


def _building(body: bytes) -> errors.RouterError:
    message: str = msgspec.json.decode(body)["error"]["message"]
    return errors.error("service_unavailable", message, retry_after_s=RELOAD_S)


def _switched_off() -> errors.RouterError:
    return errors.error("not_found", "the dashboard is switched off: DASHBOARD is false in the configuration")


async def _tell(scope: Scope, send: Send, problem: errors.RouterError) -> None:
    """As a page to somebody who looks at it, else as JSON."""
    fields = [field for field in errors.headers(problem) if field[0] != b"content-type"]
    if b"text/html" in value_of(scope["headers"], b"accept"):
        body = _page(problem).encode()
        fields += [(b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", POLICY)]
    else:
        body = errors.body(problem, "openai")
        fields.append((b"content-type", b"application/json"))
    fields += [(b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": problem.status, "headers": fields})
    rest: dict[str, Any] = {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
    await send(rest)


STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf8; --text: #1d2126; --soft: #646b73; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e8e9ea; --soft: #989fa6; } }
body { margin: 0; min-height: 100vh; display: grid; place-content: center; padding: 1rem; box-sizing: border-box;
  background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif; text-align: center; }
h1 { font-size: 1.25rem; font-weight: 600; margin: 0 0 .25rem; overflow-wrap: anywhere; }
p { margin: 0; color: var(--soft); max-width: 32rem; }
"""
POLICY = b"default-src 'none'; style-src 'sha256-%b'; frame-ancestors 'self'" % base64.b64encode(
    hashlib.sha256(STYLE.encode()).digest()
)


def _page(problem: errors.RouterError) -> str:
    """Needs nothing but itself, since nobody is there who could serve it more."""
    waits = problem.retry_after_s is not None
    again = f'<meta http-equiv="refresh" content="{problem.retry_after_s}">' if waits else ""
    heading = problem.message[:1].upper() + problem.message[1:]
    rest = "This page tries again by itself." if waits else "Models are served as usual."
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">{again}<title>llama-router</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(heading)}</h1>"
        f"<p>{rest}{' Models are served as usual.' if waits else ''}</p></main></body></html>"
    )
