"""Who may do what here. Keys are checked before a route is reached; a key for certain models may not administer.

The data path checks by itself (`router.callers`), since there the model counts as well.
"""

from typing import Any

from starlette.requests import Request

from router import errors
from router.callers import ANYBODY, Caller, caller_of
from router.config import Config

CALLER = "llama_router.caller"
"""Where the caller stands in the scope of a request."""


def identify(config: Config, scope: Any) -> None:
    """Take the caller down in the scope. Raises 401."""
    scope[CALLER] = caller_of(config, scope["headers"])


def caller_in(request: Request) -> Caller:
    caller = request.scope.get(CALLER, ANYBODY)
    assert isinstance(caller, Caller)
    return caller


def administrator(request: Request) -> str:
    """The name under which a change stands in the log. Raises 403 for a key that is limited to certain models."""
    caller = caller_in(request)
    if caller.models:
        raise errors.error("forbidden", f"key {caller.key!r} is for certain models only: it may not administer")
    return caller.key or "api"
