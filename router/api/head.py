"""HEAD on the router's own routes: what GET would answer, without its body.

Uptime monitors ask by HEAD. A route that would stream for ever (`/events`, `/logs`) is left as soon as its headers are
known, as a client that leaves would do it.
"""

import asyncio

from router.api.cors import App, Message, Receive, Scope, Send
from router.headers import value_of

SCOPE_HEAD = "llama_router.head"
"""In the scope of a GET whose body nobody will read; a route that asks somebody else for it asks by HEAD."""


async def answer(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Ask `app` by GET; `send` gets its status and headers only."""
    is_endless = False

    async def without_body(message: Message) -> None:
        nonlocal is_endless
        if message["type"] != "http.response.start":
            return
        await send(message)
        await send({"type": "http.response.body", "body": b""})
        is_endless = not value_of(message["headers"], b"content-length")
        if is_endless:
            asking.cancel()

    asking = asyncio.ensure_future(app({**scope, "method": "GET", SCOPE_HEAD: True}, receive, without_body))
    try:
        await asking
    except asyncio.CancelledError:
        if not is_endless:
            asking.cancel()
            raise
