"""`/login` and `/logout`: a form that takes a key and leaves a cookie. Plain ASGI; what is in them is in `sessions`."""

from router import errors
from router.api import health, sessions
from router.api.access import require_own_page
from router.api.cors import Receive, Scope, Send
from router.api.sessions import FORM_MAX, Sessions
from router.config import Config
from router.routes import field_of


class Login:
    """Answers both paths."""

    def __init__(self, made: Sessions) -> None:
        self._sessions = made

    async def answer(self, config: Config, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method, path = scope["method"], scope["path"]
        try:
            if path == "/logout" and method == "POST":
                require_own_page(scope["headers"])
                await _go(send, "/login", self._sessions.set_cookie("", secure=sessions.is_https(scope)))
            elif path == "/login" and method == "POST":
                require_own_page(scope["headers"])
                await self._log_in(config, scope, receive, send)
            elif path == "/login" and method in ("GET", "HEAD"):
                asked = field_of(scope["query_string"], "next") or ""
                if config.keys:
                    await _show(send, scope, 200, sessions.page(asked, name=self._name(config, scope)))
                else:
                    await _go(send, sessions.destination(asked))
            else:
                knows = "POST" if path == "/logout" else "GET, HEAD and POST"
                raise errors.error("method_not_allowed", f"{path} knows {knows}")
        except errors.RouterError as problem:
            await health.send_error(scope, send, problem)

    async def _log_in(self, config: Config, scope: Scope, receive: Receive, send: Send) -> None:
        secret, asked = sessions.form_in(await _body(receive))
        try:
            cookie = self._sessions.begin(config, secret)
        except errors.RouterError as problem:
            await _show(send, scope, problem.status, sessions.page(asked, problem=problem.message))
            return
        await _go(send, sessions.destination(asked), self._sessions.set_cookie(cookie, secure=sessions.is_https(scope)))

    def _name(self, config: Config, scope: Scope) -> str:
        """Who is logged in; empty for nobody."""
        try:
            return self._sessions.caller_of(config, self._sessions.cookie_in(scope["headers"])).key
        except errors.RouterError:
            return ""


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        body += piece
        if len(body) > FORM_MAX:
            raise errors.error("body_too_large", f"a login form has at most {FORM_MAX} bytes")
        if not message.get("more_body"):
            return body


async def _go(send: Send, to: str, cookie: str = "") -> None:
    # Relative, so that it leads there under the path of a proxy as well.
    fields = [(b"location", f".{to}".encode("ascii")), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    if cookie:
        fields.append((b"set-cookie", cookie.encode("latin-1")))
    await send({"type": "http.response.start", "status": 303, "headers": fields})
    await send({"type": "http.response.body", "body": b""})


async def _show(send: Send, scope: Scope, status: int, page: bytes) -> None:
    fields = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", b"%d" % len(page)),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else page})
