"""Has llama-servers save and restore their slots, as the scheduler orders it, and says how that ended: once per order.

    CacheSaveOrdered    -> POST /slots/N?action=save     -> CacheSaved | CacheSaveFailed
    CacheRestoreOrdered -> POST /slots/N?action=restore  -> CacheRestored | CacheRestoreFailed

The files are `router.cache_store`'s. A file that llama-server would choke on must not reach it: one that is cut short
ends the process (measured), so sizes are compared before. What a slot holds is told by `router.slot_watch`.

While `keepAcrossSwaps` is off this does nothing and makes nothing.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec

from eventlog.events import (
    CacheDropped,
    CacheFound,
    CacheGivenUp,
    CacheRestored,
    CacheRestoreFailed,
    CacheRestoreOrdered,
    CacheSaved,
    CacheSaveFailed,
    CacheSaveOrdered,
    Event,
    Fact,
    LogLine,
    Observation,
    ReplicaReady,
)
from router.cache_settings import weights_identity
from router.cache_store import CacheStore, Entry, Unusable, Why
from router.config import Config
from router.places import directory_id
from router.scheduler.state import State
from router.upstream import Endpoint, UpstreamError, fetch

LEAST_S = 0.05
"""For an answer, however short the limit."""
TOLERANCE = 16
"""One in so many tokens: by so much a slot may hold more or less than it should, since some answers are cut off."""

log = logging.getLogger("llama_router.caches")


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    @property
    def state(self) -> State: ...
    def post(self, *facts: Fact) -> None: ...
    def note(self, observation: Observation) -> None: ...
    def on(self, kind: type, handler: Callable[..., None]) -> None: ...
    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]: ...


class _Answer(msgspec.Struct):
    """Of both actions."""

    n_saved: int = 0
    n_written: int = 0
    n_restored: int = 0


_answer = msgspec.json.Decoder(_Answer)


class CacheKeeper:
    """One per router. Belongs to the event loop's thread."""

    def __init__(self, loop: Loop, config: Config, endpoint: Callable[[str], Endpoint]) -> None:
        """`endpoint(replica)` says where it listens; KeyError if it is gone. Looks at what an earlier run has left."""
        self._loop = loop
        self._endpoint = endpoint
        self._config = config
        self._store: CacheStore | None = None
        self._weights: dict[str, str] = {}
        """Replica to what it has loaded: weights and llama-server."""
        self._tasks: set[asyncio.Task[None]] = set()
        loop.on(CacheSaveOrdered, self._begin_save)
        loop.on(CacheRestoreOrdered, self._begin_restore)
        loop.on(CacheGivenUp, self._given_up)
        loop.subscribe(self._watch)
        self._open()

    @property
    def directory(self) -> Path | None:
        """Where llama-servers are to save slots; None: nowhere."""
        return self._store.directory if self._store is not None and self._store.usable else None

    def found(self) -> list[Fact]:
        """What an earlier run has left, to be told right after RouterStarted."""
        return [
            CacheFound(
                model=entry.model,
                conversation=entry.conversation,
                tokens=entry.tokens,
                bytes=entry.bytes,
                prefix=entry.prefix,
                shape=entry.shape,
                used_us=entry.used_us,
            )
            for entry in self._store or ()
        ]

    def reconfigure(self, config: Config) -> None:
        """From now on; the directory stays. Files of models that are configured otherwise go."""
        self._config = config
        keep = config.keep
        if self._store is None:
            self._open()
        elif not keep.on:
            self._store.close(persist=False)
            self._store = None
        else:
            self._store.set_budget(keep.budget_mib << 20)
            self._drop_stale(self._store)

    async def close(self) -> None:
        """Every replica is gone: answer what is still open, and leave or remove the files."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._store is not None:
            self._store.close(persist=self._config.keep.persist)

    def _open(self) -> None:
        keep = self._config.keep
        if keep.on:
            directory = keep.directory / f"llama-router-{directory_id(self._config.log_dir)}"
            self._store = CacheStore(directory, keep.budget_mib << 20, self._dropped)
            self._drop_stale(self._store)

    def _drop_stale(self, store: CacheStore) -> None:
        shapes = {name: model.cache_shape for name, model in self._config.scheduler.models.items()}
        store.drop_where(lambda entry: entry.shape != shapes.get(entry.model, ""), "stale")

    def _dropped(self, entry: Entry, why: Why) -> None:
        self._loop.post(CacheDropped(model=entry.model, conversation=entry.conversation, bytes=entry.bytes, why=why))

    def _given_up(self, decision: CacheGivenUp) -> None:
        said = {"brings_nothing": "restored ones bring nothing", "crash": "its process died over one"}[decision.why]
        text = f"prompt caches of {decision.model} are not kept across swaps any more: {said}"
        log.warning(text)
        self._loop.note(LogLine(level="warning", text=text))
        if self._store is not None:
            self._store.drop_where(lambda entry: entry.model == decision.model, "given_up")

    # --- what replicas have loaded ---

    def _watch(self, event: Event) -> None:
        if isinstance(event, ReplicaReady):
            path = event.model_path
            replica = self._loop.state.replicas.get(event.replica)
            if replica is not None and replica.model in self._config.models:
                path = path or self._config.models[replica.model].model_path
            self._weights[event.replica] = f"{event.build} {weights_identity(path)}"
            live = self._loop.state.replicas
            for name in [name for name in self._weights if name not in live]:
                del self._weights[name]

    def _fingerprint(self, replica: str) -> str:
        """Of all that a cache in this replica depends on. Raises Unusable when its weights cannot be told."""
        caches = self._loop.state.caches.replicas.get(replica)
        weights = self._weights.get(replica, " ")
        if caches is None or not caches.shape or weights.endswith(" "):
            raise Unusable("its weights cannot be told from others")
        return hashlib.blake2b(f"{caches.shape} {weights}".encode(), digest_size=16).hexdigest()

    # --- orders ---

    def _begin_save(self, order: CacheSaveOrdered) -> None:
        self._begin(self._carry_out(order, self._save(order), CacheSaved, CacheSaveFailed))

    def _begin_restore(self, order: CacheRestoreOrdered) -> None:
        self._begin(self._carry_out(order, self._restore(order), CacheRestored, CacheRestoreFailed))

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(
        self,
        order: CacheSaveOrdered | CacheRestoreOrdered,
        work: Coroutine[Any, Any, Entry],
        done: type[CacheSaved | CacheRestored],
        failed: type[CacheSaveFailed | CacheRestoreFailed],
    ) -> None:
        """The scheduler waits for an answer, whatever comes of the work."""
        began_ns = time.monotonic_ns()
        replica, slot, conversation = order.replica, order.slot, order.conversation
        fact: Fact
        try:
            entry = await work
        except Exception as error:
            broke = isinstance(error, UpstreamError)
            fact = failed(replica=replica, slot=slot, conversation=conversation, reason=_said(error), broke=broke)
        else:
            fact = done(
                replica=replica,
                slot=slot,
                conversation=conversation,
                tokens=entry.tokens,
                bytes=entry.bytes,
                took_us=(time.monotonic_ns() - began_ns) // 1000,
            )
        self._loop.post(fact)

    async def _save(self, order: CacheSaveOrdered) -> Entry:
        store = self._store
        if store is None:
            raise Unusable("prompt caches are not kept any more")
        caches = self._loop.state.caches.replicas.get(order.replica)
        holding = caches.saving.get(order.slot) if caches is not None else None
        if caches is None or holding is None:
            raise Unusable("it is not wanted any more")
        fingerprint = self._fingerprint(order.replica)
        name = store.begin(order.bytes)
        try:
            answer = await self._ask(order.replica, order.slot, "save", name, order.limit_us)
            if abs(answer.n_saved - order.tokens) > max(TOLERANCE, order.tokens // TOLERANCE):
                raise Unusable(f"the slot holds {answer.n_saved} tokens, not {order.tokens}")
            entry = Entry(
                name=name,
                model=caches.model,
                conversation=order.conversation,
                tokens=answer.n_saved,
                bytes=answer.n_written,
                fingerprint=fingerprint,
                shape=caches.shape,
                prefix=holding.prefix,
                used_us=holding.used_us,
            )
            store.commit(name, entry)
        except Exception:
            store.abort(name)
            raise
        return entry

    async def _restore(self, order: CacheRestoreOrdered) -> Entry:
        store = self._store
        replica = self._loop.state.replicas.get(order.replica)
        if store is None or replica is None:
            raise Unusable("it is not wanted any more")
        try:
            entry = store.find(replica.model, order.conversation, self._fingerprint(order.replica))
            answer = await self._ask(order.replica, order.slot, "restore", entry.name, order.limit_us)
            if answer.n_restored != entry.tokens:
                raise Unusable(f"{answer.n_restored} tokens came back, not {entry.tokens}")
        except Exception:
            store.forget(replica.model, order.conversation)
            raise
        return entry

    async def _ask(self, replica: str, slot: int, action: str, name: str, limit_us: int) -> _Answer:
        """Raises Unusable, KeyError, UpstreamError or TimeoutError."""
        answer = await fetch(
            self._endpoint(replica),
            "POST",
            f"/slots/{slot}?action={action}",
            headers=[(b"Content-Type", b"application/json")],
            body=msgspec.json.encode({"filename": name}),
            timeout_s=max(LEAST_S, limit_us / 1e6),
        )
        if answer.status != 200:
            raise Unusable(f"llama-server answered {answer.status}: {answer.body[:200].decode(errors='replace')}")
        try:
            return _answer.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise Unusable(f"llama-server's answer cannot be read: {error}") from error


def _said(error: Exception) -> str:
    """In words; a mistake of ours is in the diary as well."""
    if not isinstance(error, Unusable | KeyError | UpstreamError | TimeoutError):
        log.error("a prompt cache was lost for an error of the router", exc_info=error)
        return f"an error of the router: {error!r}"
    if isinstance(error, TimeoutError):
        return "it took longer than a swap may be held up"
    if isinstance(error, KeyError):
        return "its process is gone"
    return str(error)
