"""Who asks: the API key of a request, and what it may use."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from router import errors
from router.config import Config, ModelConfig
from router.headers import Fields, value_of


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key, or anybody where no keys are configured; `models` empty: all of them."""

    key: str = ""
    priority: int = 0
    models: tuple[str, ...] = ()


ANYBODY = Caller()


def caller_of(config: Config, headers: Fields) -> Caller:
    """By `Authorization: Bearer`, the password of `Basic`, or `X-Api-Key`.

    Raises RouterError when a key is needed and none of ours is there.
    """
    if not config.keys:
        return ANYBODY
    scheme, _, secret = value_of(headers, b"authorization").decode("latin-1").partition(" ")
    if scheme.lower() == "basic":
        secret = _password(secret)
    elif scheme.lower() != "bearer":
        secret = value_of(headers, b"x-api-key").decode("latin-1")
    if not secret:
        raise errors.error("unauthorized", "an API key is needed, as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'")
    key = config.key_for(secret.strip())
    if key is None:
        raise errors.error("unauthorized", "this API key is not known here")
    return Caller(key.name, key.priority, key.models)


def _password(credentials: str) -> str:
    """Of `user:password` in base64, the only form in which some clients and browsers can send a key."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def resolve(config: Config, caller: Caller, asked: str | None) -> tuple[str, ModelConfig]:
    """The name that was used, and the model that it means. Raises RouterError: missing, unknown, or not for this key.

    Without a name it is DEFAULT_MODEL, or the only model there is; never whichever happens to be loaded.
    """
    if asked is None:
        asked = config.default_model or (next(iter(config.models)) if len(config.models) == 1 else None)
        if asked is None:
            raise errors.model_required(_tellable(config, caller))
    model = config.resolve(asked)
    if model is None:
        raise errors.model_not_found(asked, _tellable(config, caller))
    if caller.models and model.name not in caller.models:
        raise errors.error("forbidden", f"key {caller.key!r} may not use model {asked!r}", param="model")
    return asked, model


def _tellable(config: Config, caller: Caller) -> Iterable[str]:
    return [name for name in config.listed_names() if not caller.models or config.names[name] in caller.models]
