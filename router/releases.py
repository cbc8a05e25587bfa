"""When a slot is really free after a cancel.

A closed connection tells llama-server that its client is gone, and it closes its side when it has noticed
(`Connection.leave`). But it ends the batch that it computes first: up to 20 s in a long prefill on a slow CPU. `/slots`
shows it, and is itself answered only between batches. One watch per replica asks until no more slots work than requests
of ours are alive there, or until the replica itself is gone.

`/slots` alone would not do: it shows no request that is still unread, and one of ours that has yet to begin hides one
that has yet to end. And who asks it more often than once a second keeps llama-server from noticing anything: it looks
for its client only when it has heard nothing for a second, of any request.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from eventlog.events import Fact, SlotReleased
from router.upstream import Endpoint, UpstreamError, fetch

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.5
"""Longer than the second of silence after which llama-server looks for its clients."""
ASK_TIMEOUT_S = 30.0
GIVE_UP_S = 300.0
"""A slot that still works so long after its cancel is reported free all the same: its replica is watched elsewhere."""

log = logging.getLogger("llama_router.releases")


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is used here."""

    def endpoint(self, replica: str) -> Endpoint: ...


class _Slot(msgspec.Struct):
    is_processing: bool = False


_slots = msgspec.json.Decoder(list[_Slot])


class Releases:
    """Posts one SlotReleased for every request that it is given."""

    def __init__(
        self,
        replicas: Replicas,
        post: Callable[[Fact], None],
        now_us: Callable[[], int],
        weight_alive: Callable[[str], int],
    ) -> None:
        """`weight_alive` says how many slots of a replica our own requests may be using at this moment."""
        self._replicas = replicas
        self._post = post
        self._now_us = now_us
        self._weight_alive = weight_alive
        self._waiting: dict[str, dict[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def watch(self, rid: int, replica: str, since_us: int) -> None:
        """The request was cancelled at `since_us` and its connection is closed: report when its slot is free."""
        if self._is_over:
            return
        waiting = self._waiting.get(replica)
        if waiting is not None:
            waiting[rid] = since_us
            return
        self._waiting[replica] = {rid: since_us}
        task = asyncio.get_running_loop().create_task(self._watch(replica))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def released(self, rid: int, replica: str) -> None:
        """The request never reached the replica: report at once."""
        self._post(SlotReleased(rid=rid, replica=replica))

    def close(self) -> None:
        """The router ends: nobody is there to be told. Connections that end later begin no watch."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def _watch(self, replica: str) -> None:
        waiting = self._waiting[replica]
        pause_s = FIRST_PAUSE_S
        try:
            while waiting:
                asked = dict(waiting)
                if await self._let_go(replica):
                    self._report(replica, asked)
                    pause_s = FIRST_PAUSE_S
                    continue
                limit_us = self._now_us() - int(GIVE_UP_S * 1e6)
                late = {rid: since_us for rid, since_us in waiting.items() if since_us < limit_us}
                if late:
                    log.warning("%s still works %d s after its requests %s were cancelled", replica, GIVE_UP_S, [*late])
                    self._report(replica, late)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            del self._waiting[replica]
            if not self._is_over:
                self._report(replica, waiting)

    def _report(self, replica: str, rids: dict[int, int]) -> None:
        now_us = self._now_us()
        for rid, since_us in [*rids.items()]:
            self._waiting.get(replica, {}).pop(rid, None)
            self._post(SlotReleased(rid=rid, replica=replica, took_us=now_us - since_us))

    async def _let_go(self, replica: str) -> bool:
        """Whether nothing cancelled can be running there any more."""
        try:
            endpoint = self._replicas.endpoint(replica)
        except KeyError:
            return True
        alive_before = self._weight_alive(replica)
        try:
            answer = await fetch(endpoint, "GET", "/slots", timeout_s=ASK_TIMEOUT_S)
        except (UpstreamError, TimeoutError):
            return False
        if answer.status != 200:
            # Slots are not shown (--no-slots): its answer came between batches, which is the best sign there is.
            return True
        try:
            busy = sum(slot.is_processing for slot in _slots.decode(answer.body))
        except msgspec.DecodeError:
            return True
        return busy <= min(alive_before, self._weight_alive(replica))
