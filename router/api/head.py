"""HEAD on the router's own routes, which uptime monitors ask by: what GET would answer, without its body."""

from router.api.cors import App, Message, Receive, Scope, Send

SCOPE_HEAD = "llama_router.head"
"""In the scope of a GET whose body nobody will read; a route that asks somebody else for it asks by HEAD."""


async def answer(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Ask `app` by GET; `send` gets its status and headers only.

    The answer is over with them, so a route that would stream for ever (`/events`, `/logs`) receives `http.disconnect`
    and ends as for a client that has left.
    """

    async def without_body(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    await app({**scope, "method": "GET", SCOPE_HEAD: True}, receive, without_body)
