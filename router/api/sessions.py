"""The login of pages: a form takes the key once, a signed cookie stands for it afterwards.

The cookie holds the name of the key, when it ends, and a code over both and the key's hash. So nothing is kept here, a
restart logs nobody out, and a key that is changed or taken away ends its logins. No script can read the cookie
(HttpOnly) and no other site's page makes a browser send it (SameSite). The key itself is in no answer and no cookie.
"""

import hashlib
import hmac
import time
from html import escape
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from router import errors
from router.api.pages import ICON
from router.callers import Caller, as_caller, owner_of
from router.config import Config
from router.headers import Fields, value_of

COOKIE = "llama_router_"
LASTS_S = 7 * 86_400
FORM_MAX = 8192
"""Bytes of a login form."""


class Sessions:
    """Makes and checks cookies; `secret` signs them, at least 16 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = hashlib.blake2b(secret, digest_size=32, person=b"sessions").digest()
        # Browsers keep no ports apart: two routers of one machine would end each other's logins.
        self._cookie = COOKIE + hashlib.blake2b(secret, digest_size=4, person=b"cookie").hexdigest()

    def cookie_in(self, headers: Fields) -> str:
        """What a browser sends as ours; empty for nothing."""
        for part in value_of(headers, b"cookie").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return value
        return ""

    def begin(self, config: Config, secret: str) -> str:
        """The value of a cookie for the owner of this key. Raises 401."""
        caller = owner_of(config, secret)
        return self._signed(config, caller.key, int(time.time()) + LASTS_S)

    def caller_of(self, config: Config, cookie: str) -> Caller:
        """Whose cookie this is. Raises 401."""
        name, _, rest = cookie.partition(".")
        until, _, _ = rest.partition(".")
        name = unquote(name, errors="surrogatepass")
        if name not in config.keys or not until.isdecimal() or len(until) > 12:
            raise _over()
        if not hmac.compare_digest(self._signed(config, name, int(until)).encode(), cookie.encode("latin-1")):
            raise _over()
        if int(until) <= time.time():
            raise _over()
        return as_caller(config.keys[name])

    def set_cookie(self, value: str, *, secure: bool) -> str:
        """A Set-Cookie header; an empty value takes the cookie away."""
        lasts_s = LASTS_S if value else 0
        parts = [f"{self._cookie}={value}", "Path=/", f"Max-Age={lasts_s}", "HttpOnly", "SameSite=Strict"]
        return "; ".join([*parts, "Secure"] if secure else parts)

    def _signed(self, config: Config, name: str, until: int) -> str:
        key = config.keys[name]
        told = f"{name}\0{key.sha256}\0{until}".encode("utf-8", "surrogatepass")
        code = hmac.new(self._secret, told, hashlib.sha256).hexdigest()
        # A dot divides the parts; quote() leaves dots alone.
        quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E")
        return f"{quoted}.{until}.{code}"


def is_https(scope: Any) -> bool:
    """Whether the browser came by https, also where a proxy in front ends it. Only ever makes a cookie stricter."""
    headers: Fields = scope["headers"]
    proto = value_of(headers, b"x-forwarded-proto").partition(b",")[0].strip().lower()
    return scope["scheme"] == "https" or proto == b"https" or value_of(headers, b"origin").startswith(b"https://")


def form_in(body: bytes) -> tuple[str, str]:
    """Key and destination of a login form. Raises 400."""
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8, errors="surrogateescape")
    except ValueError:
        raise errors.error("invalid_body", "this is no login form") from None
    return fields.get("key", [""])[0].strip(), fields.get("next", [""])[0]


def destination(asked: str) -> str:
    """Where to go after the login: a path of ours, whatever was asked for."""
    plain = asked.isascii() and asked.isprintable() and "\\" not in asked
    return asked if plain and asked.startswith("/") and not asked.startswith("//") else "/dash"


def page(asked: str, *, problem: str = "", name: str = "") -> bytes:
    """The form. `name`: who is logged in already."""
    told = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    out = ""
    if name:
        out = (
            f'<form method="post" action="logout"><p>Logged in as <b>{escape(name)}</b>. '
            '<button class="plain">Log out</button></p></form>'
        )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>llama-router: log in</title>{ICON}<style>{_STYLE}</style><main><h1>llama-router</h1>{told}{out}"
        '<form method="post" action="login"><label for="key">API key</label>'
        '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
        f'<input type="hidden" name="next" value="{escape(destination(asked))}"><button>Log in</button></form></main>'
    ).encode()


def _over() -> errors.RouterError:
    return errors.error("unauthorized", "this login has ended; log in again at /login, or send an API key")


_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0;min-height:100vh;display:grid;place-items:center}"
    "main{width:min(22rem,90vw)}h1{font-size:1.3rem}label{display:block;margin-bottom:.3rem}"
    "input,button{font:inherit;box-sizing:border-box;width:100%;padding:.5rem .7rem;margin-bottom:.8rem;"
    "border:1px solid #8888;border-radius:.4rem}button{cursor:pointer}.plain{width:auto;padding:.1rem .5rem;margin:0}"
    ".problem{border-left:3px solid #d33;padding-left:.7rem}"
)
