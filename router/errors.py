"""Every error that a client can get from the router: one tree, two dialects.

    RouterError                what went wrong, for whoever asked: message, status, machine-readable code
    ├── ClientError     4xx    the request can be put right by its sender
    ├── ReplicaError    502/3  a llama-server could not be started, died, or answered what is no answer
    └── ServiceError    50x    the router itself cannot serve now: it drains, its log cannot be written, no room

The code says exactly what happened and never changes its meaning; the message says what, which value, and what would be
right. There is one 429, for a key that is used beyond what its owner allowed per minute: overload waits in the queue
and is never refused with it. Mistakes in the configuration are not in this tree
(`router.config.ConfigErrors`), since no client ever sees them; and a broken invariant is an AssertionError.

An error leaves as JSON in the shape of the API that was called (OpenAI's, or Anthropic's on /v1/messages), or as a
frame of a stream that has begun. This module knows those shapes and nothing of sockets.
"""

import difflib
import json
from collections.abc import Iterable
from typing import Any, Literal

Dialect = Literal["openai", "anthropic"]

CLIENT_CODES = {
    "invalid_http": 400,
    "invalid_body": 400,
    "invalid_parameter": 400,
    "model_required": 400,
    "model_already_loaded": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "origin_not_allowed": 403,
    "host_not_allowed": 403,
    "model_not_found": 404,
    "replica_not_found": 404,
    "request_not_found": 404,
    "conversation_not_found": 404,
    "gpu_not_found": 404,
    "profile_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "model_not_loaded": 409,
    "body_too_large": 413,
    "uri_too_long": 414,
    "unsupported_encoding": 415,
    "invalid_config": 422,
    "rate_limit_exceeded": 429,
    "headers_too_large": 431,
}
REPLICA_CODES = {
    "upstream_error": 502,
    "upstream_crashed": 502,
    "upstream_stalled": 502,
    "model_load_failed": 502,
    "model_cooling_down": 503,
    "model_loading": 503,
    "model_unloaded": 503,
}
SERVICE_CODES = {
    "internal_error": 500,
    "no_capacity": 503,
    "queue_full": 503,
    "request_cancelled": 503,
    "log_unavailable": 503,
    "service_unavailable": 503,
    "shutting_down": 503,
}
CODES = {**CLIENT_CODES, **REPLICA_CODES, **SERVICE_CODES}
"""Each code with its usual status."""
RETRY_AFTER_S = {"queue_full": 5, "log_unavailable": 5, "service_unavailable": 5, "shutting_down": 5}
"""What passes by itself, and when to ask again where nothing better is known; a restart takes seconds."""


class RouterError(Exception):
    """Something went wrong on the way to an answer.

    `status` is the HTTP status, `code` one of `CODES`, `param` the field of the request at fault, `retry_after_s` whole
    seconds after which asking again makes sense.
    """

    def __init__(
        self, message: str, *, status: int, code: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        assert status != 429 or code == "rate_limit_exceeded", "overload waits in the queue; it is never refused"
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.fields: list[tuple[bytes, bytes]] = []
        """Further headers of an answer that is this error."""


class ClientError(RouterError):
    """The request can be put right by its sender."""


class ReplicaError(RouterError):
    """A llama-server could not be started, died, or answered what is no answer."""


class ServiceError(RouterError):
    """The router itself cannot serve now."""


def error(
    code: str,
    message: str,
    *,
    status: int | None = None,
    param: str | None = None,
    retry_after_s: int | None = None,
) -> RouterError:
    """The error of the right branch for `code`, with its usual status unless another is given.

    A code that is not in `CODES` (a newer decision in an older log, say) keeps its name and needs a status.
    """
    if status is None:
        status = CODES[code]
    if retry_after_s is None:
        retry_after_s = RETRY_AFTER_S.get(code)
    if code in REPLICA_CODES:
        branch: type[RouterError] = ReplicaError
    else:
        branch = ClientError if status < 500 else ServiceError
    return branch(message, status=status, code=code, param=param, retry_after_s=retry_after_s)


def of_decision(status: int, code: str, reason: str, *, model: str = "", retry_after_us: int = 0) -> RouterError:
    """What the client of a RequestFailed or RequestRejected is told."""
    message = reason or _DEFAULT_REASONS.get(code, "the request could not be served")
    if model and repr(model) not in message:
        message = f"model {model!r}: {message}"
    return error(code, message, status=status, retry_after_s=-(-retry_after_us // 1_000_000) or None)


def without_a_word(who: str, status: int) -> RouterError:
    """In place of an error of llama-server's HTTP library, which has no body: what its sender may do about it.

    `who` answered so, as "model 'm'".
    """
    code = "body_too_large" if status == 413 else "upstream_error"
    why = _WITHOUT_A_WORD.get(status, "and does not say why")
    return error(code, f"{who}: llama-server answers {status}, {why}", status=status)


_WITHOUT_A_WORD = {
    400: "as it does to more than 100 headers, or to one of more than 8 KiB",
    413: "since the body is larger than it takes, 100 MiB mostly",
    414: "since the path with its query is longer than it takes, 8 KiB mostly",
}
_DEFAULT_REASONS = {
    "upstream_crashed": "the llama-server that worked on this request died",
    "upstream_stalled": "the llama-server fell silent over this request",
    "upstream_error": "the llama-server broke the connection before its answer was complete",
    "model_load_failed": "it could not be loaded",
    "model_cooling_down": "it failed to load a moment ago and is not tried again yet",
    "model_unloaded": "it was unloaded while the request waited",
    "no_capacity": "it can never fit on the GPUs there are",
    "log_unavailable": "the event log cannot be written, so no new request is accepted",
    "shutting_down": "the router is stopping",
}


def model_required(known: Iterable[str]) -> RouterError:
    """No model in the request, and more than one it could mean."""
    return error("model_required", f"'model' is missing; {_configured(known)}", param="model")


def model_not_found(asked: str, known: Iterable[str]) -> RouterError:
    """`known` holds what may be told: listed models and their aliases."""
    names = list(known)
    near = near_misses(asked, names)
    advice = f"did you mean {' or '.join(map(repr, near))}?" if near else _configured(names)
    return error("model_not_found", f"model {_short(asked)!r} is not configured; {advice}", param="model")


def near_misses(asked: str, known: Iterable[str], at_most: int = 3) -> list[str]:
    """The names most like `asked`, best first; case is ignored here, so that a wrong case is the nearest miss."""
    folded: dict[str, list[str]] = {}
    for name in known:
        folded.setdefault(name.casefold(), []).append(name)
    close = difflib.get_close_matches(_short(asked).casefold(), folded, n=at_most, cutoff=0.6)
    return [name for key in close for name in folded[key]][:at_most]


def _configured(known: Iterable[str]) -> str:
    names = sorted(set(known))
    if not names:
        return "no model is configured"
    shown = ", ".join(map(repr, names[:10]))
    return f"configured: {shown}" + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


# --- what goes over the wire ----------------------------------------------------------------------------------------


def dialect_of(path: str) -> Dialect:
    """The dialect in which the client of this path expects errors."""
    return "anthropic" if path.removeprefix("/v1").startswith("/messages") else "openai"


def openai_body(err: RouterError) -> bytes:
    """{"error": {"message", "type", "param", "code"}}"""
    return _json({"error": {"message": err.message, "type": _openai_type(err), "param": err.param, "code": err.code}})


def anthropic_body(err: RouterError) -> bytes:
    """{"type": "error", "error": {"type", "message", "code"}}; `code` is ours, the rest is Anthropic's."""
    return _json(
        {"type": "error", "error": {"type": _anthropic_type(err), "message": err.message, "code": err.code}},
    )


def body(err: RouterError, dialect: Dialect) -> bytes:
    """The JSON body of an answer that is this error."""
    return anthropic_body(err) if dialect == "anthropic" else openai_body(err)


def headers(err: RouterError) -> list[tuple[bytes, bytes]]:
    """Headers that go with the body: type, when to come back, how to authenticate."""
    fields = [(b"content-type", b"application/json")]
    if err.retry_after_s is not None:
        fields.append((b"retry-after", str(err.retry_after_s).encode()))
    if err.status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    fields.extend(err.fields)
    return fields


def sse_frame(err: RouterError, dialect: Dialect = "openai") -> bytes:
    """The last frame of a stream that has begun; the connection is closed after it, without [DONE]."""
    if dialect == "anthropic":
        return b"event: error\ndata: " + anthropic_body(err) + b"\n\n"
    return b"data: " + openai_body(err) + b"\n\n"


def _openai_type(err: RouterError) -> str:
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(err.status, "invalid_request_error" if err.status < 500 else "server_error")


def _anthropic_type(err: RouterError) -> str:
    named = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    return named.get(err.status, "invalid_request_error" if err.status < 500 else "api_error")


def _json(value: dict[str, Any]) -> bytes:
    # A message may quote bytes of a client or of a child: a lone surrogate becomes \udcXX, which JSON allows.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
