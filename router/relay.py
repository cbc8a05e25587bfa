"""The data path: bytes between client and replica, and the facts about them.

A plain ASGI application for the routes in `router.routes`. A scheduled request is read, looked into and reported by
RequestArrived; from then on the scheduler's decisions say what happens to it, and its account is closed by exactly one
RequestFinished, RequestCancelled, RequestFailed or RequestRejected:

    arrived --> waits --dispatched--> connects, sends, relays --> finished
                  ^                        |
                  '------requeued------ upstream lost --> failed

A request has one task and no timeout. A client that leaves is noticed by its connection (`router.client`), not by a
task: the connection to the replica is left in the same moment, unless the request is detached and read to its end.
What passes by the scheduler is in `router.passage`. Nothing here knows why something was decided.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from eventlog.events import (
    ClientDetached,
    Fact,
    Observation,
    RequestArrived,
    RequestCancelled,
    RequestDispatched,
    RequestFailed,
    RequestRejected,
    RequestRequeued,
    RequestSent,
    UpstreamLost,
)
from router import errors, peek, routes
from router.answer import Answer
from router.body import Body, BodyStore, Buffer, ClientGone, Receive
from router.callers import ANYBODY, Caller, Priority, caller_from, priority_of
from router.client import Client, client_of
from router.config import Config
from router.conversations import Streams, Turns
from router.fetching import fetched
from router.flight import By, Flight, Progress
from router.headers import Fields, to_upstream, value_of
from router.naming import Named, resolve
from router.passage import Passage
from router.presets import canonical_name
from router.quotas import Quotas
from router.releases import Releases
from router.reply import Reply, Send
from router.rewrite import rewritten
from router.routes import Route
from router.scheduler import State
from router.upstream import Connection, Endpoint, Pool, UpstreamError, request_head

Scope = Any
T = TypeVar("T")
PEEK_IN_THREAD = 1 << 20
"""A body from this many bytes on is looked into by a thread: hashing it would hold up everybody's tokens."""
SAY_SENT_AFTER_S = 0.01
CONVERSATION_ID_MAX = 1024
"""Bytes of an X-Conversation-Id: those of thousands of streams are remembered for a while."""
CLIENTS_MAX = 1000
"""Fingerprints of clients that are kept ready."""
SESSION_HEADERS = (b"x-session-id", b"x-litellm-session-id")

log = logging.getLogger("llama_router.relay")


class Clock(Protocol):
    def now_us(self) -> int: ...


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    @property
    def clock(self) -> Clock: ...
    @property
    def state(self) -> State: ...
    @property
    def available(self) -> bool: ...
    def post(self, *facts: Fact) -> None: ...
    def note(self, observation: Observation) -> None: ...
    def next_rid(self) -> int: ...
    def on(self, kind: type[Any], handler: Callable[[Any], None]) -> None: ...


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is used here."""

    def endpoint(self, replica: str) -> Endpoint: ...
    def suspect(self, replica: str) -> None: ...
    def needs_download(self, model: str) -> bool: ...
    async def ensure_downloaded(self, model: str) -> None: ...


class Gate(Protocol):
    """Whether requests are taken, as the administrator wants it."""

    is_open: bool


class Relay:
    """Carries requests. One per router; belongs to the event loop's thread."""

    def __init__(
        self,
        loop: Loop,
        replicas: Replicas,
        config: Config,
        salt: bytes,
        *,
        gate: Gate,
    ) -> None:
        """`salt` keys the fingerprints, at most 64 bytes."""
        self.config = config
        """In force; `reconfigure` replaces it."""
        self.streams = Streams()
        self._loop = loop
        self._replicas = replicas
        self._salt = salt
        self._gate = gate
        self._flights: dict[int, Flight] = {}
        self._open: dict[str, int] = {}
        """Requests by model, those that the scheduler has yet to hear of included."""
        self._waiting = 0
        self._pool = Pool()
        self._one_looks = asyncio.Lock()
        """Looking into a large body may take as much memory as the body: one at a time."""
        self._unsaid: dict[int, RequestSent] = {}
        self._is_saying = False
        self._clients: dict[tuple[str, str], str] = {}
        self._turns = Turns()
        self._quotas = Quotas(loop.clock.now_us)
        self._releases = Releases(replicas, loop.post, loop.clock.now_us, self._weight_on)
        self._passage = Passage(self, replicas, lambda: loop.state, loop.post, loop.clock.now_us)
        self._bodies = BodyStore(
            config.run_dir,
            memory_limit=config.limits.body_memory_bytes,
            body_limit=config.limits.max_body_bytes,
        )
        loop.on(RequestDispatched, self._dispatched)
        loop.on(RequestRequeued, self._requeued)
        loop.on(RequestFailed, self._failed)
        loop.on(RequestRejected, self._failed)

    # --- what the rest of the router calls ---

    def reconfigure(self, config: Config) -> None:
        """What comes in from now on is taken by this."""
        self.config = config
        self._bodies.limit(memory=config.limits.body_memory_bytes, body=config.limits.max_body_bytes)

    def cancel(self, rid: int, by: By) -> None:
        """End a request in its client's place. Nothing happens if it has its outcome already."""
        flight = self._flights.get(rid)
        if flight is not None:
            self._cancel(flight, by)

    def cancel_all(self, by: By) -> None:
        """End every request that is still open."""
        for flight in list(self._flights.values()):
            self._cancel(flight, by)

    def close(self) -> None:
        """The router ends, and no request is open: let go of the replicas."""
        self._releases.close()
        self._pool.close()

    def flights(self) -> Iterator[Progress]:
        """Every request that a replica works on. One whose client does not read says nothing about its replica."""
        return (
            flight.progress()
            for flight in self._flights.values()
            if flight.replica and not flight.over and not (flight.connection and flight.connection.paused)
        )

    def is_open(self, rid: int) -> bool:
        """Whether the request has no outcome yet."""
        flight = self._flights.get(rid)
        return flight is not None and not flight.over

    def find_completion(self, completion_id: str, caller: Caller = ANYBODY) -> str | None:
        """The replica that makes the stream with this `id`, if that is the caller's."""
        for flight in self._flights.values():
            if flight.answer is not None and flight.answer.completion_id == completion_id:
                return flight.replica if caller.owns(flight.caller.key) else None
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = routes.find(scope["method"], scope["path"], scope["query_string"])
        assert route is not None, f"{scope['path']} is not a route of the relay"
        client = client_of(scope)
        if client is None:
            raise RuntimeError("the relay is served by uvicorn with http=router.client.ClientProtocol")
        if route.kind in ("generation", "metadata"):
            await self._scheduled(scope, receive, send, client, route)
        elif (way := next(routes.generations_in(scope["method"], scope["path"]), None)) is not None:
            await self._scheduled(scope, receive, send, client, routes.generation_at(way[1]), is_of_a_page=True)
        else:
            await self._unscheduled(scope, receive, send, client, route)

    async def _unscheduled(self, scope: Scope, receive: Receive, send: Send, client: Client, route: Route) -> None:
        headers: Fields = scope["headers"]
        reply = Reply(client, send, scope["http_version"], route.dialect, [])
        try:
            caller = caller_from(scope, self.config)
            body = await self._read(headers, receive)
            try:
                await self._passage.carry(scope, route, caller, body, reply, client)
            finally:
                body.close()
        except ClientGone:
            pass
        except errors.RouterError as error:
            await reply.fail(error)
        except Exception:
            log.exception("%s %r failed for a reason of the router's own", scope["method"], scope["path"])
            await reply.fail(errors.error("internal_error", "the router made a mistake with this request", status=500))

    # --- from the request to its place in the queue ---

    async def _scheduled(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        client: Client,
        route: Route,
        *,
        is_of_a_page: bool = False,
    ) -> None:
        """`is_of_a_page`: the page of a replica asks, whose path names the model."""
        arrived_us = self._loop.clock.now_us()
        rid = self._loop.next_rid()
        headers: Fields = scope["headers"]
        reply = Reply(client, send, scope["http_version"], route.dialect, _own_headers(headers, rid))
        flight: Flight | None = None
        body: Body | None = None
        try:
            self._check_open()
            caller = caller_from(scope, self.config)
            priority = priority_of(self.config, caller, headers)
            conversation_id = _conversation_in(headers)
            self._quotas.admit(caller)
            body = await self._read(headers, receive)
            whose = None
            if is_of_a_page:
                whose, path = self._passage.whose(scope, caller)
                route, scope = routes.generation_at(path), {**scope, "path": path}
            peeked = await self._look(body, headers, route)
            asked = whose or peeked.model or routes.model_of(scope["query_string"])
            named = resolve(self.config, self._loop.state, caller, asked, self._open_requests)
            rewrote: tuple[str, ...] = ()
            if named.model.filters and not _is_form(headers):
                body, rewrote = await self._rewrite(body, named)
                if rewrote:
                    peeked = await self._look(body, headers, route)
                    reply.add(b"x-router-rewrote", ",".join(rewrote).encode())
            await self._have(named.model.name, client, reply, stream=peeked.stream and route.streams)
            if client.gone:
                raise ClientGone
            flight = self._take_off(
                rid, arrived_us, route, reply, body, scope, named, peeked, caller, priority, rewrote, conversation_id
            )
            client.on_gone(partial(self._gone, flight))
            await self._fly(flight)
        except ClientGone:
            pass
        except errors.RouterError as error:
            await reply.fail(error)
        except Exception:
            log.exception("request %d failed for a reason of the router's own", rid)
            if flight is not None:
                self._cancel(flight, "fault")
            await reply.fail(
                errors.error("internal_error", f"the router made a mistake with request {rid}", status=500)
            )
        finally:
            client.forget()
            if flight is not None:
                self._land(flight)
            if body is not None:
                body.close()

    def _open_requests(self, model: str) -> int:
        return self._open.get(model, 0)

    def _check_open(self) -> None:
        if not self._loop.available:
            raise errors.of_decision(503, "log_unavailable", "")
        if not self._gate.is_open:
            raise errors.error("service_unavailable", "the router was told to take no requests: POST /router/start")
        limit = self.config.limits.max_queue
        if limit and self._waiting >= limit:
            raise errors.error("queue_full", f"{self._waiting} requests wait already, MAX_QUEUE is {limit}")

    async def _have(self, model: str, client: Client, reply: Reply, *, stream: bool) -> None:
        """Wait for a model that must be fetched first. Much may have changed by then."""
        if not self._replicas.needs_download(model):
            return
        comment_s = self.config.timings.queue_comment_s if stream else None
        await fetched(self._replicas, model, client, reply, comment_s=comment_s, stopping=self._is_stopping)
        self._check_open()

    def _is_stopping(self) -> bool:
        return bool(self._loop.state.stopping_at_us)

    async def _read(self, headers: Fields, receive: Receive) -> Body:
        length = value_of(headers, b"content-length")
        return await self._bodies.read(
            receive, length=int(length) if length else None, encoding=value_of(headers, b"content-encoding")
        )

    async def _look(self, body: Body, headers: Fields, route: Route) -> peek.Peeked:
        if _is_form(headers):
            function = partial(peek.form_body, content_type=value_of(headers, b"content-type"))
        else:
            function = partial(peek.json_body, route=route, salt=self._salt)
        return await self._with_all_of(body, function)

    async def _rewrite(self, body: Body, named: Named) -> tuple[Body, tuple[str, ...]]:
        """The body as the model's filters leave it, and the parameters that they changed."""
        function = partial(rewritten, filters=named.model.filters, name=canonical_name(named.name))
        result = await self._with_all_of(body, function)
        if result is None:
            return body, ()
        return self._bodies.replaced(body, result[0]), result[1]

    async def _with_all_of(self, body: Body, function: Callable[[Buffer], T]) -> T:
        if body.size < PEEK_IN_THREAD:
            return body.look(function)
        async with self._one_looks:
            return await asyncio.to_thread(body.look, function)

    def _take_off(
        self,
        rid: int,
        arrived_us: int,
        route: Route,
        reply: Reply,
        body: Body,
        scope: Scope,
        named: Named,
        peeked: peek.Peeked,
        caller: Caller,
        priority: Priority,
        rewrote: tuple[str, ...],
        conversation_id: bytes,
    ) -> Flight:
        model = named.model
        headers: Fields = scope["headers"]
        flight = Flight(rid, arrived_us, route, reply, body)
        flight.headers = headers
        query: bytes = scope["query_string"]
        target = route.target(scope["path"]).encode("ascii")
        flight.target = target + b"?" + query if query else target
        flight.model = model.name
        flight.stream = peeked.stream and route.streams
        flight.prompt_tokens = peeked.prompt_tokens
        flight.caller = caller
        flight.slots_wanted = peeked.slots_wanted if route.kind == "generation" else 0
        session = next((value for name in SESSION_HEADERS if (value := value_of(headers, name))), b"")
        salt = self._salt
        if conversation_id or session:
            flight.conversation = peek.fingerprint(salt, conversation_id or session)
        else:
            flight.conversation = peeked.opening
        if conversation_id and self._is_another_s(conversation_id, caller):
            # llama-server would take it for the same conversation: this request is then none that is come back to.
            flight.headers = [field for field in headers if field[0] != b"x-conversation-id"]
        elif conversation_id and flight.stream:
            flight.detached = True
            flight.conversation_id = conversation_id.decode("latin-1")
            self.streams.opened(flight.conversation_id, rid, caller.key)
        address = scope["client"][0] if scope["client"] else ""
        self._flights[rid] = flight
        self._open[model.name] = self._open.get(model.name, 0) + 1
        self._waiting += 1
        self._loop.post(
            RequestArrived(
                rid=rid,
                arrived_us=arrived_us,
                model=model.name,
                asked=named.asked if named.asked != model.name else "",
                via=named.via,
                route=route.name,
                work="metadata" if route.kind == "metadata" else "generation",
                stream=flight.stream,
                detached=flight.detached,
                priority=priority[0],
                priority_from=priority[1],
                key=caller.key,
                client=self._client_print(caller.key, address),
                conversation=flight.conversation,
                session=peek.fingerprint(salt, session) if session else "",
                after_rid=self._turns.last_of(flight.conversation) if flight.conversation else 0,
                slots_wanted=flight.slots_wanted,
                body_bytes=body.size,
                prompt_bytes=peeked.prompt_bytes,
                prompt_tokens=peeked.prompt_tokens,
                max_tokens=peeked.max_tokens,
                messages=peeked.messages,
                tools=peeked.tools,
                prefix=peeked.prefix,
                rewrote=list(rewrote),
            )
        )
        if flight.stream:
            self._arm(flight)
        return flight

    def _is_another_s(self, conversation_id: bytes, caller: Caller) -> bool:
        """Whether the stream of this id was asked for with another key."""
        stream = self.streams.find(conversation_id.decode("latin-1"), self._loop.clock.now_us())
        return stream is not None and not caller.owns(stream.key)

    def _client_print(self, key: str, address: str) -> str:
        known = self._clients.get((key, address))
        if known is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            known = peek.fingerprint(self._salt, key.encode(), b"\0", address.encode())
            self._clients[key, address] = known
        return known

    # --- in the queue and beyond ---

    async def _fly(self, flight: Flight) -> None:
        """From the arrival to the outcome."""
        while flight.cancelled_by is None:
            verdict = await flight.next_verdict()
            if isinstance(verdict, RequestDispatched):
                if await self._attempt(flight, verdict):
                    return
            elif isinstance(verdict, (RequestFailed, RequestRejected)):
                retry_after_us = verdict.retry_after_us if isinstance(verdict, RequestFailed) else 0
                await flight.reply.fail(
                    errors.of_decision(
                        verdict.status, verdict.code, verdict.reason, model=verdict.model, retry_after_us=retry_after_us
                    )
                )
                return
            elif flight.comment_due:
                await self._comment(flight)
        await flight.reply.fail(
            errors.error("request_cancelled", f"request {flight.rid} was cancelled (by: {flight.cancelled_by})")
        )

    async def _attempt(self, flight: Flight, dispatch: RequestDispatched) -> bool:
        """Have one replica answer. False when it did not: the request was cancelled, or the connection lost."""
        replica = dispatch.replica
        clock = self._loop.clock
        answer = flight.answer = Answer(
            flight.rid, flight.dispatched_us, clock.now_us, self._loop.note, partial(self._answered, flight)
        )
        try:
            endpoint = self._replicas.endpoint(replica)
        except KeyError:
            self._lost(flight, replica, "the replica is gone")
            return False
        try:
            return await self._exchange(flight, endpoint, answer) or await self._exchange(
                flight, endpoint, answer, fresh=True
            )
        except UpstreamError as error:
            self._lost(flight, replica, str(error))
            return False

    async def _exchange(self, flight: Flight, endpoint: Endpoint, answer: Answer, *, fresh: bool = False) -> bool:
        """Over one connection. False when that was too old to carry anything: nothing has happened then."""
        began_us = self._loop.clock.now_us()
        timeout_s = self.config.timings.connect_s
        connection = await self._pool.open(endpoint, tap=answer, fresh=fresh, timeout_s=timeout_s)
        try:
            if flight.over:
                raise UpstreamError("cancelled before it was sent")
            flight.connection = connection
            connect_us = self._loop.clock.now_us() - began_us
            fields = to_upstream(flight.headers, key=endpoint.key, length=flight.body.size, decoded=True, close=False)
            await connection.send(request_head(flight.method, flight.target, fields), flight.body.to_send())
            if not flight.over:
                self._sent(flight, connect_us)
            await self._carry(flight, connection, answer)
            return True
        except UpstreamError:
            if connection.is_reused and not connection.has_begun and not flight.over:
                return False
            raise
        finally:
            flight.connection = None
            if self._is_overcommitted(flight.replica):
                connection.close()
            self._pool.give_back(endpoint, connection)

    def _is_overcommitted(self, name: str) -> bool:
        """Whether it has more requests than slots: then another one may be waiting for the thread of this one."""
        replica = self._loop.state.replicas.get(name)
        return replica is None or replica.load > replica.slots

    async def _carry(self, flight: Flight, connection: Connection, answer: Answer) -> None:
        """The replica's answer to the client, as it comes. Headers wait for the first bytes of the body."""
        reply = flight.reply
        while (data := await connection.read()) is None:
            if flight.comment_due:
                await self._comment(flight)
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
        if not data and connection.status >= 400 and not flight.client_gone:
            await reply.fail(errors.without_a_word(f"model {flight.model!r}", connection.status))
            self._finish(flight)
            return
        if not flight.client_gone:
            await reply.begin(connection.status, connection.headers, sse=answer.is_sse)
            flight.body.close()
            reply.on_drain(connection.resume)
            reply.write(data)
        await connection.pour(reply.write)
        if answer.is_cut:
            raise UpstreamError("its stream ended without its last event")
        if not flight.client_gone:
            await reply.end(connection.status)
        self._finish(flight)

    def _land(self, flight: Flight) -> None:
        """The request's task ends: whatever is still open about it is closed."""
        if not flight.over:
            self._cancel(flight, "shutdown")
        if not flight.replica:
            self._waiting -= 1
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.conversation_id:
            self.streams.ended(flight.conversation_id, flight.rid, self._loop.clock.now_us())
        flight.answer = None  # refers to the flight
        del self._flights[flight.rid]
        self._open[flight.model] -= 1

    # --- decisions ---

    def _dispatched(self, decision: RequestDispatched) -> None:
        flight = self._flights.get(decision.rid)
        if flight is None or flight.over:
            # Cancelled in the moment of its dispatch: nothing was sent.
            self._releases.released(decision.rid, decision.replica)
            return
        flight.replica = decision.replica
        flight.dispatched_us = decision.at_us
        self._waiting -= 1
        if flight.conversation_id:
            self.streams.dispatched(flight.conversation_id, flight.rid, decision.replica)
        flight.inbox.append(decision)
        flight.wake()

    def _requeued(self, decision: RequestRequeued) -> None:
        flight = self._flights.get(decision.rid)
        if flight is not None and not flight.over:
            flight.replica = ""
            self._waiting += 1

    def _failed(self, decision: RequestFailed | RequestRejected) -> None:
        flight = self._flights.get(decision.rid)
        if flight is not None and not flight.over:
            flight.over = True
            flight.inbox.append(decision)
            flight.wake()

    # --- what happens to a request besides ---

    def _sent(self, flight: Flight, connect_us: int) -> None:
        """Say that the replica has the request; if it is done with it in a few milliseconds, its end says as much."""
        self._unsaid[flight.rid] = RequestSent(rid=flight.rid, replica=flight.replica, connect_us=connect_us)
        if not self._is_saying:
            self._is_saying = True
            asyncio.get_running_loop().call_later(SAY_SENT_AFTER_S, self._say_sent)

    def _say_sent(self) -> None:
        self._is_saying = False
        self._loop.post(*self._unsaid.values())
        self._unsaid.clear()

    def _say_sent_of(self, rid: int) -> None:
        """Before it is said that the request came to a bad end."""
        sent = self._unsaid.pop(rid, None)
        if sent is not None:
            self._loop.post(sent)

    def _answered(self, flight: Flight) -> None:
        """The replica is done: its bytes go to the client first, but a client that is slow holds up no account."""
        if flight.answer is not None and not flight.answer.is_cut:
            asyncio.get_running_loop().call_soon(self._finish, flight)

    def _finish(self, flight: Flight) -> None:
        if flight.over or flight.answer is None:
            return
        flight.over = True
        self._unsaid.pop(flight.rid, None)
        finished = flight.answer.finished(flight.replica)
        self._loop.post(finished)
        self._quotas.spend(flight.caller, max(0, finished.prompt_tokens) + max(0, finished.completion_tokens))
        if flight.conversation:
            self._turns.finished(flight.conversation, flight.rid)

    def _lost(self, flight: Flight, replica: str, detail: str) -> None:
        if flight.answer is not None:
            flight.answer.flush()
        if flight.over:
            return
        self._say_sent_of(flight.rid)
        begun = flight.reply.begun
        sent = flight.answer.bytes_in if begun and flight.answer is not None else 0
        self._loop.post(UpstreamLost(rid=flight.rid, replica=replica, begun=begun, detail=detail, bytes_out=sent))
        self._replicas.suspect(replica)

    def _gone(self, flight: Flight) -> None:
        """The client's FIN or RST came."""
        if flight.detached and not flight.over:
            flight.client_gone = True
            if flight.connection is not None:
                flight.connection.resume()
            self._loop.post(ClientDetached(rid=flight.rid))
        else:
            self._cancel(flight, "client")

    def _cancel(self, flight: Flight, by: By) -> None:
        if flight.over:
            return
        flight.over = True
        flight.cancelled_by = by
        self._say_sent_of(flight.rid)
        answer = flight.answer
        if answer is not None:
            answer.flush()
        self._loop.post(
            RequestCancelled(
                rid=flight.rid,
                replica=flight.replica,
                by=by,
                bytes_out=answer.bytes_in if answer is not None else 0,
                frames=answer.frames if answer is not None else 0,
            )
        )
        if flight.replica:
            # A frame is a token, or nearly; and the prompt was read, by our own estimate of it.
            self._quotas.spend(flight.caller, flight.prompt_tokens + (answer.frames if answer is not None else 0))
            if flight.connection is not None:
                flight.connection.leave(
                    partial(self._releases.watch, flight.rid, flight.replica, self._loop.clock.now_us())
                )
            else:
                self._releases.released(flight.rid, flight.replica)
        flight.wake()

    def _weight_on(self, replica: str) -> int:
        return sum(
            flight.slots_wanted for flight in self._flights.values() if flight.replica == replica and not flight.over
        )

    # --- signs of life while a stream waits ---

    def _arm(self, flight: Flight) -> None:
        delay_s = self.config.timings.queue_comment_s
        flight.timer = asyncio.get_running_loop().call_later(delay_s, self._comment_is_due, flight)

    def _comment_is_due(self, flight: Flight) -> None:
        flight.comment_due = True
        flight.wake()

    async def _comment(self, flight: Flight) -> None:
        flight.comment_due = False
        if flight.replica:
            text = "working"
        else:
            text = f"queued position={position(self._loop.state, flight.rid)}"
        if not flight.client_gone:
            await flight.reply.comment(text)
        self._arm(flight)


def position(state: State, rid: int) -> int:
    """Place of a request in the queue, from 1, over all models."""
    request = state.requests.get(rid)
    if request is None:
        return 1
    return 1 + sum(bisect_left(ranks, request.rank) for lane in state.lanes.values() for ranks in lane.by_key.values())


def _is_form(headers: Fields) -> bool:
    return value_of(headers, b"content-type").lower().startswith(b"multipart/form-data")


def _conversation_in(headers: Fields) -> bytes:
    """Raises RouterError for an id that is too long to be remembered."""
    conversation_id = value_of(headers, b"x-conversation-id")
    if len(conversation_id) > CONVERSATION_ID_MAX:
        message = f"X-Conversation-Id has {len(conversation_id)} bytes; at most {CONVERSATION_ID_MAX} are taken"
        raise errors.error("invalid_parameter", message, param="X-Conversation-Id")
    return conversation_id


def _own_headers(headers: Fields, rid: int) -> Fields:
    """The request's number, for whoever asks why; and the client's own id, or that number, in the usual place."""
    number = b"%d" % rid
    theirs = value_of(headers, b"x-request-id")
    # Sent back as it came, but for what could not stand in an answer.
    own = theirs if theirs.isascii() and theirs.decode("ascii").isprintable() else b""
    return [(b"x-request-id", own or number), (b"x-router-request", number)]
