"""The routes of llama-server that the relay carries, and what the router must know about each.

A generation takes slots and waits for its turn; metadata only needs the model loaded. Everything else here passes by
the scheduler: `ready` routes go straight to a replica that is up, `stream` routes to the one that has the conversation,
`instance` and `upstream` ones to whom their path names. But a generation is one wherever it is asked for.

llama-server knows some paths only with /v1, some only without, and for some the two differ in meaning
(`/completions` speaks its native dialect, `/v1/completions` OpenAI's): a path that it knows is forwarded as it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs

Kind = Literal["generation", "metadata", "ready", "stream", "lookup", "control", "instance", "upstream"]
Dialect = Literal["openai", "anthropic", "responses"]
Prompt = Literal["messages", "prompt", "input", "other"]


@dataclass(frozen=True, slots=True)
class Route:
    """`name` is the path without /v1; `prompt` says where in the body the prompt is."""

    name: str
    kind: Kind
    prompt: Prompt = "other"
    dialect: Dialect = "openai"
    streams: bool = False
    """Whether `"stream": true` makes it answer with server-sent events."""
    v1: Literal["both", "only", "never"] = "both"
    """Whether llama-server knows the path with /v1."""

    def target(self, path: str) -> str:
        """The path to ask llama-server for, which knows no other form, when a client asked for `path`."""
        if self.v1 == "both":
            return path
        return "/v1" + self.name if self.v1 == "only" else self.name


_POST = (
    Route("/chat/completions", "generation", "messages", streams=True),
    Route("/completions", "generation", "prompt", streams=True),
    Route("/completion", "generation", "prompt", streams=True, v1="never"),
    Route("/responses", "generation", "input", dialect="responses", streams=True),
    Route("/messages", "generation", "messages", dialect="anthropic", streams=True, v1="only"),
    Route("/infill", "generation", "prompt", streams=True, v1="never"),
    Route("/embedding", "generation", v1="never"),
    Route("/embeddings", "generation"),
    Route("/rerank", "generation"),
    Route("/reranking", "generation"),
    Route("/systemone", "generation", v1="only"),
    Route("/audio/transcriptions", "generation", streams=True),
    Route("/tokenize", "metadata", v1="never"),
    Route("/detokenize", "metadata", v1="never"),
    Route("/apply-template", "metadata", v1="never"),
    Route("/chat/completions/input_tokens", "metadata"),
    Route("/responses/input_tokens", "metadata"),
    Route("/messages/count_tokens", "metadata", dialect="anthropic", v1="only"),
    Route("/lora-adapters", "ready", v1="never"),
    Route("/tools", "ready", v1="never"),
    Route("/chat/completions/control", "control", v1="only"),
    Route("/streams/lookup", "lookup", v1="only"),
)
_GET = (
    Route("/props", "ready", v1="never"),
    Route("/slots", "ready", v1="never"),
    Route("/metrics", "ready", v1="never"),
    Route("/lora-adapters", "ready", v1="never"),
    Route("/tools", "ready", v1="never"),
)
_STREAM = Route("/stream", "stream", v1="only")
_INSTANCE = Route("/instance", "instance")
_UPSTREAM = Route("/upstream", "upstream")
_PROPS = Route("/props", "ready", v1="never")

POST: dict[str, Route] = {prefix + route.name: route for route in _POST for prefix in ("", "/v1")}
GET: dict[str, Route] = {prefix + route.name: route for route in _GET for prefix in ("", "/v1")}

_GENERATIONS = {path: route for path, route in POST.items() if route.kind == "generation"} | {
    # Older builds have it, in OpenAI's words; the router itself does not offer it.
    "/api/chat": Route("/api/chat", "generation", "messages", streams=True, v1="never")
}
"""Of a replica's own paths, those that generate."""


def find(method: str, path: str, query: bytes) -> Route | None:
    """The route of this request, or None when it is not the relay's.

    The GET routes and POST /props belong to the relay only when `?model=` says whose they are.
    """
    if method == "POST":
        route = POST.get(path)
        if route is not None:
            return route
        plain = path.removeprefix("/v1")
        if plain.startswith("/slots/"):
            return Route(plain, "ready", v1="never")
        if plain == "/props" and model_of(query) is not None:
            return _PROPS
    if method in ("GET", "HEAD"):
        route = GET.get(path)
        if route is not None:
            return route if model_of(query) is not None else None
    if method in ("GET", "DELETE") and (path == "/v1/stream" or path.startswith("/v1/stream/")):
        return _STREAM
    if path.startswith("/instance/"):
        return _INSTANCE
    return _UPSTREAM if path.startswith("/upstream/") else None


def generations_in(method: str, path: str) -> Iterator[tuple[str, str]]:
    """How a path below /instance/ or /upstream/ can be read as a generation: whose, and the path of it.

    A model's own page asks there for its answers. Its name may hold slashes, so there can be several ways.
    """
    if method == "POST" and path.startswith(("/instance/", "/upstream/")):
        whose = path.split("/", 2)[2]
        for asked in sorted(_GENERATIONS, key=len, reverse=True):  # whose it is comes shortest first
            if len(whose) > len(asked) and whose.endswith(asked):
                yield whose[: -len(asked)], asked


def generation_at(path: str) -> Route:
    """The route of a path that `generations_in` has given."""
    return _GENERATIONS[path]


_FOR_ALL = frozenset(("/props", "/lora-adapters", "/tools", "/cors-proxy"))


def is_for_admins(method: str, path: str) -> bool:
    """Whether this changes a llama-server for all who use it, makes it do something else than answer, or tells of all.

    Slots are erased, adapters weighed, properties set, tools run and pages fetched for whoever asks next as well.
    """
    plain = path.removeprefix("/v1")
    if plain in ("/streams", "/cors-proxy"):
        return True
    return method not in ("GET", "HEAD", "OPTIONS") and (plain in _FOR_ALL or plain.startswith("/slots/"))


def model_of(query: bytes) -> str | None:
    """The model that `?model=` names."""
    return field_of(query, "model") if b"model=" in query else None


def field_of(query: bytes, name: str) -> str | None:
    """The first value of a field of the query; None when it is absent or empty."""
    values = parse_qs(query.decode("latin-1")).get(name)
    return values[0] if values else None
