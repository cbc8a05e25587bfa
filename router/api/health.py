"""`/health` and `/ready`: plain ASGI, so that they answer before the rest of the HTTP surface is even imported.

Health says that the process lives and its event loop turns; it does not depend on any model. Readiness says whether a
new request would be taken.
"""

from typing import Any

import msgspec

from router import errors
from router.api.cors import Receive, Scope, Send
from router.api.services import Services

HEALTH = frozenset(("/health", "/v1/health"))
READY = frozenset(("/ready", "/v1/ready"))
PATHS = HEALTH | READY


async def answer(scope: Scope, receive: Receive, send: Send, services: Services | None) -> None:
    """Answer a request for one of `PATHS`; `services` is None while the router still starts."""
    status, content = 200, {"status": "ok"} if scope["path"] in HEALTH else {"status": "ready"}
    if scope["method"] not in ("GET", "HEAD"):
        await send_error(scope, send, errors.error("method_not_allowed", f"{scope['path']} knows GET and HEAD"))
        return
    if scope["path"] in READY:
        problem = why_not_ready(services)
        if problem is not None:
            await send_error(scope, send, problem)
            return
    await _send(scope, send, status, [(b"content-type", b"application/json")], msgspec.json.encode(content))


def why_not_ready(services: Services | None) -> errors.RouterError | None:
    """The error that a new request would get now."""
    if services is None:
        return errors.error("service_unavailable", "the router is starting", retry_after_s=1)
    if services.loop.state.stopping_at_us:
        return errors.error("shutting_down", "the router is stopping")
    if not services.loop.available:
        return errors.error("log_unavailable", "the event log cannot be written, so no new request is accepted")
    if not services.gate.is_open:
        return errors.error("service_unavailable", "the router was stopped; POST /router/start starts it again")
    return None


async def send_error(scope: Scope, send: Send, problem: errors.RouterError) -> None:
    """An error as the whole answer, in the dialect of the path."""
    body = errors.body(problem, errors.dialect_of(scope["path"]))
    await _send(scope, send, problem.status, errors.headers(problem), body)


async def _send(scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    payload: dict[str, Any] = {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
    await send(payload)
