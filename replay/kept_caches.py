"""Prompt caches that survive swaps, in the pretended world: the scheduler's orders are carried out and answered.

As the live router does it: a little after its dispatch it is told which slot a request has; a save writes what the slot
holds, a restore puts it back, both take their time by the model's costs; beyond the budget the least recently used file
goes. Nothing fails here. Counterpart: `router.cache_keeper` in earnest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from eventlog import events as e
from replay.cache import Held, PromptCache
from replay.costs import ModelCosts
from router.scheduler import State

TOLD_US = 20_000
"""From a dispatch to the first look at the slots."""


class Stage(Protocol):
    """The part of `world.World` that is used here."""

    state: State
    now_us: int

    def plan(self, at_us: int, what_to_do: Callable[[Any], None], about: object) -> None: ...
    def do(self, fact: e.Fact) -> None: ...
    def cache_of(self, replica: str) -> PromptCache | None: ...
    def costs_of(self, replica: str) -> ModelCosts: ...


class KeptCaches:
    """The files of one run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._files: dict[tuple[str, str], Held] = {}
        self._open: list[e.CacheSaveOrdered | e.CacheRestoreOrdered] = []
        """Orders that are not answered yet."""

    def serving(self, rid: int, replica: str) -> None:
        """A request has been given a slot."""
        self._stage.plan(self._stage.now_us + TOLD_US, self._tell, (rid, replica))

    def save(self, order: e.CacheSaveOrdered) -> None:
        self._begin(order, self._stage.costs_of(order.replica).save_token_us)

    def restore(self, order: e.CacheRestoreOrdered) -> None:
        self._begin(order, self._stage.costs_of(order.replica).restore_token_us)

    def gone(self, replica: str) -> None:
        """The process ended over what it was still to answer."""
        for order in [order for order in self._open if order.replica == replica]:
            self._open.remove(order)
            self._fail(order)

    def _tell(self, about: tuple[int, str]) -> None:
        rid, replica = about
        stage = self._stage
        request, cache = stage.state.requests.get(rid), stage.cache_of(replica)
        slot = cache.slot_of(rid) if cache is not None else None
        if request is None or cache is None or slot is None or request.replica != replica:
            return
        told = e.SlotHolds(
            at_us=stage.now_us,
            run=1,
            replica=replica,
            slot=slot,
            conversation=request.conversation if request.slots_wanted == 1 else "",
            tokens=cache.held_in(slot).tokens,
            rid=rid,
        )
        stage.do(told)

    def _begin(self, order: e.CacheSaveOrdered | e.CacheRestoreOrdered, token_us: float) -> None:
        self._open.append(order)
        took_us = round(order.tokens * token_us)
        self._stage.plan(self._stage.now_us + took_us, self._answer, (order, took_us))

    def _answer(self, about: tuple[e.CacheSaveOrdered | e.CacheRestoreOrdered, int]) -> None:
        order, took_us = about
        if order not in self._open:
            return
        self._open.remove(order)
        stage = self._stage
        cache = stage.cache_of(order.replica)
        known = stage.state.caches.replicas.get(order.replica)
        model = known.model if known is not None else ""
        held = self._files.get((model, order.conversation))
        if isinstance(order, e.CacheSaveOrdered) and cache is not None:
            held = cache.held_in(order.slot)
            self._files[model, order.conversation] = held.copy()
            self._done(order, held.tokens, took_us)
            self._keep_budget()
        elif cache is not None and held is not None and cache.put(order.slot, held.copy()):
            self._done(order, held.tokens, took_us)
        else:
            self._fail(order)

    def _done(self, order: e.CacheSaveOrdered | e.CacheRestoreOrdered, tokens: int, took_us: int) -> None:
        stage = self._stage
        made = e.CacheSaved if isinstance(order, e.CacheSaveOrdered) else e.CacheRestored
        stage.do(
            made(
                at_us=stage.now_us,
                run=1,
                replica=order.replica,
                slot=order.slot,
                conversation=order.conversation,
                tokens=tokens,
                bytes=tokens * stage.costs_of(order.replica).token_bytes,
                took_us=took_us,
            )
        )

    def _fail(self, order: e.CacheSaveOrdered | e.CacheRestoreOrdered) -> None:
        stage = self._stage
        failed = e.CacheSaveFailed if isinstance(order, e.CacheSaveOrdered) else e.CacheRestoreFailed
        stage.do(
            failed(
                at_us=stage.now_us,
                run=1,
                replica=order.replica,
                slot=order.slot,
                conversation=order.conversation,
                reason="its time was over",
            )
        )

    def _keep_budget(self) -> None:
        stage = self._stage
        budget = stage.state.settings.keep_budget_mib << 20
        known = [
            (file.used_us, model, conversation, file.bytes)
            for model, caches in stage.state.caches.models.items()
            for conversation, file in caches.files.items()
        ]
        total = sum(size for _, _, _, size in known)
        for _, model, conversation, size in sorted(known):
            if total <= budget:
                return
            total -= size
            self._files.pop((model, conversation), None)
            stage.do(e.CacheDropped(at_us=stage.now_us, run=1, model=model, conversation=conversation, bytes=size))
