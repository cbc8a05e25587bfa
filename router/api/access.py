"""Who may do what here. Everything is refused that is not allowed below, so a new route is safe before it is listed.

    open      no key: health, the login form, what pages are drawn with
    model     any key: the models that it may use, and pages that hold nothing of others
    look      a key that is not for certain models only: what everybody does, as figures without texts
    admin     a key with the admin right: whatever changes something, and what llama-servers print

Where no keys are configured everybody has every right. What goes to a llama-server asks for any key here; which models
it may use is checked where the model is known (`router.callers`).

A page shows its key by a cookie (`sessions`), which browsers send along with requests that a foreign page sets off.
So a change by cookie is taken only from our own pages.
"""

from typing import Any, Literal

from starlette.requests import Request

from router import errors
from router.api.sessions import Sessions
from router.callers import ANYBODY, SCOPE_KEY, Caller, caller_of, secret_in
from router.config import Config
from router.headers import Fields, value_of

Right = Literal["open", "model", "look", "admin"]

READS = frozenset(("GET", "HEAD", "OPTIONS"))
OPEN = frozenset(("/health", "/v1/health", "/ready", "/v1/ready", "/login", "/logout", "/favicon.ico"))
OPEN_BELOW = ("/dash/static/",)
CHANGES_BY_GET = frozenset(("/unload", "/router/start", "/router/stop", "/router/restart"))
"""For callers of older routers, whose API had no other method."""
ADMIN_READS = ("/logs", "/events", "/config", "/router/config", "/dash/crashes", "/dash/api/crashes")
"""What llama-servers print is in a crash's story as well."""
ASKED_BELOW = ("/dash", "/translate")
"""What is asked here by POST is a question as well, too long for a GET."""
MODEL_READS = (
    *("/", "/v1/models", "/models", "/props", "/v1/props", "/api/version"),
    *("/docs", "/openapi.json", "/chat", "/translate"),
)
NOT_MODEL_READS = ("/models/sse",)
CANCELS = ("/router/inflight/", "/api/inflight/")
"""Whoever asked may cancel: the route itself knows who that was."""


def right_for(method: str, path: str) -> Right:
    """What a request for one of the router's own routes needs."""
    if path in OPEN or path.startswith(OPEN_BELOW):
        return "open"
    if changes(method, path) and not _is_below(path, ASKED_BELOW):
        return "model" if path.startswith(CANCELS) else "admin"
    if _is_below(path, ADMIN_READS):
        return "admin"
    return "model" if _is_below(path, MODEL_READS) and not _is_below(path, NOT_MODEL_READS) else "look"


def changes(method: str, path: str) -> bool:
    """Whether it changes something, going by method and path."""
    return method not in READS or path in CHANGES_BY_GET


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or (root != "/" and path.startswith(f"{root}/")) for root in roots)


def identify(config: Config, sessions: Sessions, scope: Any) -> Caller:
    """Find out who asks, by key or by cookie, and take it down in the scope. Raises 401, or 403 for a foreign page."""
    headers: Fields = scope["headers"]
    method, path = scope["method"], scope["path"]
    if path in CHANGES_BY_GET and method == "GET":
        _refuse_foreign_pages(headers)
    if not config.keys:
        caller = ANYBODY
    elif (cookie := sessions.cookie_in(headers)) and not secret_in(headers):
        caller = sessions.caller_of(config, cookie)
        if changes(method, path):
            require_own_page(headers)
    else:
        caller = caller_of(config, headers)
    scope[SCOPE_KEY] = caller
    return caller


def check(caller: Caller, method: str, path: str) -> None:
    """Raises 403 when this caller may not ask for this."""
    right = right_for(method, path)
    if right == "admin" and not caller.admin:
        raise errors.error("forbidden", f"key {caller.key!r} has no admin right, which this needs")
    if right == "look":
        _check_look(caller)


def _check_look(caller: Caller) -> None:
    if caller.models and not caller.admin:
        raise errors.error("forbidden", f"key {caller.key!r} is for certain models only: it sees nothing of the others")


def caller_in(request: Request) -> Caller:
    """Who asks for one of the router's own routes."""
    caller = request.scope.get(SCOPE_KEY, ANYBODY)
    assert isinstance(caller, Caller)
    return caller


def administrator(request: Request) -> str:
    """The name under which a change stands in the log. Raises 403 for a key without the admin right."""
    caller = caller_in(request)
    if not caller.admin:
        raise errors.error("forbidden", f"key {caller.key!r} has no admin right, which this needs")
    return caller.key or "api"


def onlooker(request: Request) -> None:
    """Raises 403 for a key that is for certain models only."""
    _check_look(caller_in(request))


# --- pages ----------------------------------------------------------------------------------------------------------


def require_own_page(headers: Fields) -> None:
    """Raises 403 unless a page of the router sent this. Browsers say so by one of two headers, programs by neither."""
    site = value_of(headers, b"sec-fetch-site")
    if site:
        own = site == b"same-origin"
    else:
        # Over plain HTTP to another machine there is no Sec-Fetch-Site, but a changing request has an Origin.
        origin = value_of(headers, b"origin").partition(b"://")[2].lower()
        own = bool(origin) and origin == value_of(headers, b"host").lower()
    if not own:
        raise errors.error(
            "origin_not_allowed", "a change by login is taken from the router's own pages only; a program sends its key"
        )


def _refuse_foreign_pages(headers: Fields) -> None:
    """A GET that changes something can be set off by a mere image on any web page; browsers say where it comes from."""
    if value_of(headers, b"sec-fetch-site") not in (b"", b"none", b"same-origin"):
        raise errors.error("origin_not_allowed", "another site's page may not do this; use POST from a program")
