"""Who asks: the API key of a request, and what it may use. What a name means for whom is in `router.naming`."""

import base64
import time
from dataclasses import dataclass
from typing import Any, Literal

from router import errors
from router.config import Config, KeyConfig
from router.headers import Fields, value_of
from router.model_entry import PRIORITY

Priority = tuple[int, Literal["", "header", "key"]]
"""A place in the queue, and who asks for it; nobody: that of the model counts."""

SCOPE_KEY = "llama_router.caller"
"""Where the caller stands in the scope of a request once somebody has found out."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key, or anybody where no keys are configured."""

    key: str = ""
    """Its name; empty where no keys are configured."""
    admin: bool = True
    priority: int = 0
    models: tuple[str, ...] = ()
    """Those that it may use; empty for all."""
    max_parallel: int = 0
    rpm: int = 0
    tpm: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether it may use less than there is, so that it must not go around the queue."""
        return bool(self.max_parallel or self.rpm or self.tpm)

    def owns(self, key: str) -> bool:
        """Whether it may see and end what was asked with this key."""
        return self.admin or self.key == key


ANYBODY = Caller()


def caller_from(scope: Any, config: Config) -> Caller:
    """The caller of this request, found out here unless that has been done. Raises RouterError."""
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, Caller) else caller_of(config, scope["headers"])


def caller_of(config: Config, headers: Fields) -> Caller:
    """By `Authorization: Bearer`, the password of `Basic`, or `X-Api-Key`.

    Raises RouterError when a key is needed and none of ours is there.
    """
    if not config.keys:
        return ANYBODY
    secret = secret_in(headers)
    if not secret:
        raise errors.error("unauthorized", "an API key is needed, as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'")
    return owner_of(config, secret)


def secret_in(headers: Fields) -> str:
    """The key that a program sends; empty for none."""
    scheme, _, secret = _text(value_of(headers, b"authorization")).partition(" ")
    if scheme.lower() == "basic":
        secret = _password(secret)
    elif scheme.lower() != "bearer":
        secret = _text(value_of(headers, b"x-api-key"))
    return secret.strip()


def _text(value: bytes) -> str:
    """A header, as UTF-8 where it is that, as terminals and most programs send it; else byte by byte."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def owner_of(config: Config, secret: str) -> Caller:
    """Whose key this is. Raises 401; what was sent is never quoted."""
    key = config.key_for(secret)
    if key is None:
        raise errors.error("unauthorized", "this API key is not known here")
    return as_caller(key)


def as_caller(key: KeyConfig) -> Caller:
    """What the owner of a key may do. Raises 401 for a key that has expired."""
    if key.expires_s and key.expires_s <= time.time():
        raise errors.error("unauthorized", f"the API key {key.name!r} has expired")
    return Caller(key.name, key.admin, key.priority, key.models, key.max_parallel, key.rpm, key.tpm)


def _password(credentials: str) -> str:
    """Of `user:password` in base64, the only form in which some clients and browsers can send a key."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def priority_of(config: Config, caller: Caller, headers: Fields) -> Priority:
    """The place in the queue that a request asks for, and who says so: its header, where that counts, else its key.

    `X-Priority` of whoever may not set it is passed over. Raises RouterError when it is no whole number in range.
    """
    said = value_of(headers, b"x-priority").strip()
    allowed = config.priority_header
    if said and (allowed is True or (allowed and caller.key in allowed)):
        try:
            priority: int = PRIORITY(int(said))
        except ValueError:
            message = f"X-Priority: {said[:40].decode('latin-1')!r} is not a whole number from -1000000 to 1000000"
            raise errors.error("invalid_parameter", message, param="X-Priority") from None
        return priority, "header"
    return caller.priority, "key" if caller.priority else ""
