"""What passes by the scheduler: questions to a replica that is up, and streams that somebody comes back to.

    ready      GET /props, /slots, /metrics ... ?model=   a replica of that model, if it is loaded; never loads it
    instance   /instance/{replica}/...                    that replica: its web UI, its slots; no generation
    upstream   /upstream/{model}/...                      likewise, by model
    stream     GET, DELETE /v1/stream                     the replica that has the conversation
    lookup     POST /v1/streams/lookup                    every replica that has one of them
    control    POST /v1/chat/completions/control          the replica that makes this completion

No slot is counted and nothing is logged, since no decision depends on it. A client that leaves closes the connection. A
generation that the page of a replica asks for is a request like any other, for the model of that replica (`whose`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode

import msgspec

from eventlog.events import ClientReattached, Fact
from router import errors, routes
from router.body import Body
from router.callers import Caller
from router.client import Client
from router.config import Config, ModelConfig
from router.conversations import Streams
from router.flight import By
from router.headers import Fields, to_upstream, value_of
from router.naming import resolve
from router.reply import Reply
from router.routes import Route
from router.scheduler.state import Replica, State
from router.upstream import Connection, Endpoint, UpstreamError, fetch, request_head

Scope = Any
LOOKUP_TIMEOUT_S = 5.0
AS_IT_IS = "surrogateescape"
POSITION_DIGITS = 15
"""A place in a stream that is told with more of them is none."""


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is used here."""

    def endpoint(self, replica: str) -> Endpoint: ...


class Flights(Protocol):
    """The part of `router.relay.Relay` that is used here."""

    config: Config
    streams: Streams

    def cancel(self, rid: int, by: By) -> None: ...
    def is_open(self, rid: int) -> bool: ...
    def find_completion(self, completion_id: str, caller: Caller) -> str | None: ...


class _Control(msgspec.Struct):
    id: str = ""
    model: str | None = None


class _Lookup(msgspec.Struct):
    conversation_ids: list[str] = []


class Passage:
    """Carries what needs no place in the queue."""

    def __init__(
        self,
        flights: Flights,
        replicas: Replicas,
        state: Callable[[], State],
        post: Callable[[Fact], None],
        now_us: Callable[[], int],
    ) -> None:
        self._flights = flights
        self._replicas = replicas
        self._state = state
        self._post = post
        self._now_us = now_us

    async def carry(self, scope: Scope, route: Route, caller: Caller, body: Body, reply: Reply, client: Client) -> None:
        """Answer one request. Raises RouterError before anything was answered."""
        path: str = scope["path"]
        # Written anew, so that the child reads in it what was read here: it knows %uXXXX, for one.
        query = _canonical(scope["query_string"])
        quoted = quote(route.target(path))
        plain = True
        if route.kind == "ready":
            _check_admin(caller, scope["method"], path)
            replica = self._ready(self._resolve(caller, routes.model_of(query)).name)
        elif route.kind == "stream":
            # By its build llama-server takes the id from the path or the query: it finds the one that was checked.
            in_path = path.removeprefix("/v1/stream").removeprefix("/")
            conversation_id = in_path or routes.field_of(query, "conv_id") or ""
            if not conversation_id:
                raise errors.error("invalid_parameter", "whose stream? ?conv_id=ID says it", param="conv_id")
            found = await self._stream(scope["method"], query, conversation_id, caller, reply)
            if found is None:
                return
            replica, quoted = found, "/v1/stream" + (f"/{quote(in_path, safe='')}" if in_path else "")
            query = _canonical(query, without="conv_id", **({} if in_path else {"conv_id": conversation_id}))
        elif route.kind == "lookup":
            await self._lookup(_decode(_Lookup, body), caller, reply)
            return
        elif route.kind == "control":
            replica = self._maker_of(_decode(_Control, body), caller)
        else:
            raw: bytes = scope.get("raw_path") or quote(path).encode()
            name, slash, rest = self._split(route, raw.decode("ascii"), caller)
            if not slash:
                await self._redirect(b"./" + raw.rpartition(b"/")[2] + b"/", query, reply)
                return
            inside = "/" + unquote(rest)
            inner = routes.find(scope["method"], inside, query)
            if inner is not None and inner.kind in ("stream", "lookup"):
                # Its conversations may be with another replica of the model, and with another key.
                await self.carry({**scope, "path": inside}, inner, caller, body, reply, client)
                return
            if inner is not None and inner.kind == "control":
                name = self._maker_of(_decode(_Control, body), caller, there=name)
            _check_admin(caller, scope["method"], inside)
            replica, quoted, plain = name, quote(inside), False
        if self._flights.config.keep.on and scope["method"] == "POST" and _moves_a_slot(unquote(quoted), query):
            message = "slots are saved and restored by the router while promptCache.keepAcrossSwaps is on"
            raise errors.error("forbidden", message)
        await self._pass(scope, replica, quoted.encode() + (b"?" + query if query else b""), body, reply, client, plain)

    def whose(self, scope: Scope, caller: Caller) -> tuple[str, str]:
        """The model for which a page under /instance/ or /upstream/ asks for a generation, and the path of that.

        The model need not be loaded any more. Raises RouterError for a name that means nothing.
        """
        config = self._flights.config
        ways = list(routes.generations_in(scope["method"], scope["path"]))
        for name, path in ways:
            model = config.resolve(name) or config.resolve(name.rpartition("#")[0])
            if model is not None:
                return model.name, path
        name, path = ways[0]
        if scope["path"].startswith("/upstream/"):
            return self._resolve(caller, name).name, path
        return self._named(name).model, path

    # --- which replica ---

    def _resolve(self, caller: Caller, asked: str | None) -> ModelConfig:
        return resolve(self._flights.config, self._state(), caller, asked).model

    def _ready(self, model: str) -> str:
        """The least busy replica that is up."""
        state = self._state()
        known = state.models.get(model)
        up = [state.replicas[replica] for replica in (known.replicas if known is not None else ())]
        up = [replica for replica in up if replica.phase == "ready"]
        if not up:
            raise errors.error("model_not_loaded", f"model {model!r} is not loaded, and this route does not load it")
        return min(up, key=_busyness).id

    def _split(self, route: Route, raw: str, caller: Caller) -> tuple[str, str, str]:
        """`/instance/{replica}/rest` and `/upstream/{model}/rest` as replica, slash, rest. Names may hold slashes."""
        if caller.is_limited and not caller.admin:
            message = f"key {caller.key!r} has limits, and this goes around the queue that keeps them"
            raise errors.error("forbidden", message)
        parts = raw.split("/")[2:]
        if route.kind == "instance":
            replica = self._named(unquote(parts[0]))
            self._resolve(caller, replica.model)
            return replica.id, "/" if len(parts) > 1 else "", "/".join(parts[1:])
        config = self._flights.config
        most = 1 + max((name.count("/") for name in config.names), default=0)
        sizes = range(min(len(parts), most), 0, -1)
        size = next((n for n in sizes if config.resolve(unquote("/".join(parts[:n]))) is not None), 1)
        model = self._resolve(caller, unquote("/".join(parts[:size])))
        return self._ready(model.name), "/" if size < len(parts) else "", "/".join(parts[size:])

    def _named(self, name: str) -> Replica:
        """By id, by `model#index`, by number among those that run, or by model if it is loaded."""
        state = self._state()
        running = sorted(state.replicas.values(), key=lambda replica: (replica.model, replica.index))
        for replica in running:
            if name in (replica.id, f"{replica.model}#{replica.index}"):
                return replica
        if name.isdecimal() and len(name) < 10 and int(name) < len(running):
            return running[int(name)]
        model = self._flights.config.resolve(name)
        if model is not None:
            return state.replicas[self._ready(model.name)]
        ids = ", ".join(repr(replica.id) for replica in running) or "none"
        raise errors.error("replica_not_found", f"no replica {name!r} is running; running: {ids}")

    async def _stream(
        self, method: str, query: bytes, conversation_id: str, caller: Caller, reply: Reply
    ) -> str | None:
        """The replica that has this conversation; None when the answer has been given here."""
        stream = self._flights.streams.find(conversation_id, self._now_us())
        if stream is None or not caller.owns(stream.key):
            raise _unknown_conversation(conversation_id)
        is_open = self._flights.is_open(stream.rid)
        if method == "DELETE" and is_open:
            self._flights.cancel(stream.rid, "delete")
        if not stream.replica:
            if method == "DELETE":
                await reply.begin(204, [], sse=False)
                await reply.end(204)
                return None
            raise errors.error(
                "model_loading", f"conversation {conversation_id!r} waits for its model", retry_after_s=1
            )
        if method == "GET" and is_open:
            position = routes.field_of(query, "from") or "0"
            from_bytes = int(position) if position.isdecimal() and len(position) <= POSITION_DIGITS else 0
            self._post(ClientReattached(rid=stream.rid, from_bytes=from_bytes))
        return stream.replica

    def _maker_of(self, control: _Control, caller: Caller, *, there: str = "") -> str:
        """`there`: the replica whose page asks, which may make it beside the relay."""
        replica = self._flights.find_completion(control.id, caller)
        if replica is None and there and caller.admin:
            replica = there
        if replica is not None:
            return replica
        model = self._state().replicas[there].model if there else self._resolve(caller, control.model).name
        ready = there or self._ready(model)
        # It may be another key's, or have been made beside the relay: then there is nobody to guess for.
        if len(self._state().models[model].replicas) > 1 or not caller.admin:
            raise errors.error("request_not_found", f"no stream with id {control.id!r} is being made", param="id")
        return ready

    async def _lookup(self, asked: _Lookup, caller: Caller, reply: Reply) -> None:
        """What every replica knows of the conversations that went to it, as one list."""
        by_replica: dict[str, list[str]] = {}
        for conversation_id in asked.conversation_ids:
            stream = self._flights.streams.find(conversation_id, self._now_us())
            if stream is not None and stream.replica and caller.owns(stream.key):
                by_replica.setdefault(stream.replica, []).append(conversation_id)
        answers = await asyncio.gather(*(self._ask(replica, ids) for replica, ids in by_replica.items()))
        body = msgspec.json.encode([session for answer in answers for session in answer])
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await reply.begin(200, fields, sse=False)
        reply.write(body)
        await reply.end(200)

    async def _ask(self, replica: str, conversation_ids: list[str]) -> list[msgspec.Raw]:
        body = msgspec.json.encode(_Lookup(conversation_ids))
        headers = [(b"content-type", b"application/json")]
        try:
            endpoint = self._replicas.endpoint(replica)
            answer = await fetch(
                endpoint, "POST", "/v1/streams/lookup", headers=headers, body=body, timeout_s=LOOKUP_TIMEOUT_S
            )
            return msgspec.json.decode(answer.body, type=list[msgspec.Raw]) if answer.status == 200 else []
        except (KeyError, UpstreamError, TimeoutError, msgspec.DecodeError):
            return []

    # --- to it and back ---

    async def _pass(
        self, scope: Scope, replica: str, target: bytes, body: Body, reply: Reply, client: Client, plain: bool
    ) -> None:
        try:
            endpoint = self._replicas.endpoint(replica)
        except KeyError:
            raise errors.error("replica_not_found", f"replica {replica!r} is gone") from None
        method: str = scope["method"]
        headers: Fields = scope["headers"]
        connection: Connection | None = None
        try:
            timeout_s = self._flights.config.timings.connect_s
            connection = await Connection.open(endpoint, bodyless=method == "HEAD", timeout_s=timeout_s)
            client.on_gone(connection.close)
            if client.gone:  # while the connection was made: nobody will call back any more
                return
            length = body.size if body.size or method not in ("GET", "HEAD", "DELETE", "OPTIONS") else None
            fields = to_upstream(headers, key=endpoint.key, length=length, decoded=True, plain=plain)
            await connection.send(request_head(method.encode(), target, fields), body.to_send())
            await connection.start()
            if plain and connection.status >= 400 and value_of(connection.headers, b"content-length") == b"0":
                raise errors.without_a_word(f"replica {replica!r}", connection.status)
            await reply.begin(connection.status, connection.headers, sse=connection.is_sse)
            reply.flush()
            reply.on_drain(connection.resume)
            await connection.pour(reply.write)
            await reply.end(connection.status)
        except UpstreamError as error:
            await reply.fail(errors.error("upstream_error", f"replica {replica!r}: {error}"))
        finally:
            client.forget()
            if connection is not None:
                connection.close()

    async def _redirect(self, to: bytes, query: bytes, reply: Reply) -> None:
        """Pages of a child refer to their parts relative to a directory."""
        location = to + (b"?" + query if query else b"")
        await reply.begin(307, [(b"location", location), (b"content-length", b"0")], sse=False)
        await reply.end(307)


def _check_admin(caller: Caller, method: str, path: str) -> None:
    """Raises 403 for what concerns all who use that llama-server, unless this key may administer."""
    if not caller.admin and routes.is_for_admins(method, path):
        message = f"key {caller.key!r} has no admin right, which {path} needs: it concerns all who use this model"
        raise errors.error("forbidden", message)


def _canonical(query: bytes, *, without: str = "", **more: str) -> bytes:
    """The same fields, each written in the one way that everybody reads alike; bytes that are no text stay bytes."""
    pairs = parse_qsl(query.decode(errors=AS_IT_IS), keep_blank_values=True, errors=AS_IT_IS)
    fields = [pair for pair in pairs if pair[0] != without]
    return urlencode([*more.items(), *fields], quote_via=quote, errors=AS_IT_IS).encode("ascii")


def _busyness(replica: Replica) -> tuple[int, int]:
    return replica.load, replica.index


def _unknown_conversation(conversation_id: str) -> errors.RouterError:
    return errors.error("conversation_not_found", f"no stream is known for conversation {conversation_id!r}")


def _decode(kind: type[Any], body: Body) -> Any:
    try:
        return body.look(lambda view: msgspec.json.decode(view, type=kind))
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.error("invalid_body", f"the body is not what this route takes: {error}") from error


def _moves_a_slot(path: str, query: bytes) -> bool:
    """Whether a slot is to be written to a file or read from one: names that nobody keeps a budget of."""
    actions = parse_qs(query.decode("latin-1")).get("action", [])
    return "/slots/" in path and any(action in ("save", "restore") for action in actions)
