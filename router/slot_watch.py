"""Which slot of a llama-server holds which conversation: SlotHolds, learned from `/slots` while a request runs.

A chat answer does not name its slot, and `/slots` does not name requests. But a slot counts its tasks: one that is at
work on a task not seen before belongs to a request that was sent since. Requests and tasks are matched in the order in
which they were sent, and only when there are as many of one as of the other; until then the question is asked again, at
growing intervals. A wrong guess costs a cache: whoever saves a slot compares the tokens that were in it.

Nothing is asked while prompt caches are not kept.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from eventlog.events import Event, Fact, RequestDispatched, SlotHolds
from router import probe
from router.scheduler.state import Replica, Request, State
from router.upstream import Endpoint

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.5
"""Longer than the second of silence after which llama-server looks for clients that are gone."""
ASK_TIMEOUT_S = 5.0


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    @property
    def state(self) -> State: ...
    def post(self, *facts: Fact) -> None: ...
    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]: ...


class SlotWatch:
    """One task per replica with requests whose slot is not known. Belongs to the event loop's thread."""

    def __init__(self, loop: Loop, endpoint: Callable[[str], Endpoint]) -> None:
        """`endpoint(replica)` says where it listens; KeyError if it is gone."""
        self._loop = loop
        self._endpoint = endpoint
        self._placed: dict[str, dict[int, int]] = {}
        """Replica to slot to the task that was matched there last."""
        self._known: dict[str, set[int]] = {}
        """Replica to rids whose slot was told."""
        self._watches: dict[str, asyncio.Task[None]] = {}
        loop.subscribe(self._look_at)

    def stop(self) -> None:
        for task in self._watches.values():
            task.cancel()

    def _look_at(self, event: Event) -> None:
        if not isinstance(event, RequestDispatched) or not self._loop.state.settings.keep_caches:
            return
        name = event.replica
        if name not in self._watches:
            self._watches[name] = asyncio.get_running_loop().create_task(self._watch(name))

    async def _watch(self, name: str) -> None:
        """Until every request there has its slot, or is over."""
        try:
            await self._place_all(name)
        finally:
            # In the same step as the last look: a request that is dispatched next begins a watch of its own.
            del self._watches[name]

    async def _place_all(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while (replica := self._loop.state.replicas.get(name)) is not None and self._unplaced(replica):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if await self._ask(name):
                pause_s = FIRST_PAUSE_S
        live = self._loop.state.replicas
        for gone in [other for other in self._known if other not in live]:
            self._known.pop(gone, None)
            self._placed.pop(gone, None)

    def _unplaced(self, replica: Replica) -> list[int]:
        """Generations there, cancelled ones included, whose slot is not known; in the order in which they were sent."""
        known = self._known.setdefault(replica.id, set())
        known &= {*replica.in_flight, *replica.releasing}
        working = [rid for rid, weight in (*replica.releasing.items(), *replica.in_flight.items()) if weight]
        return [rid for rid in working if rid not in known]

    async def _ask(self, name: str) -> bool:
        """One look. Whether it has told anything."""
        try:
            endpoint = self._endpoint(name)
        except KeyError:
            return False
        work = await probe.work(endpoint, ASK_TIMEOUT_S)
        replica = self._loop.state.replicas.get(name)
        if work is None or replica is None:
            return False
        placed = self._placed.setdefault(name, {})
        fresh = sorted(
            (slot.task, number) for number, slot in enumerate(work) if slot.busy and placed.get(number) != slot.task
        )
        waiting = self._unplaced(replica)
        weight = sum(self._weight(replica, rid) for rid in waiting)
        if not waiting or weight != len(fresh):
            return False
        numbers = iter(fresh)
        for rid in waiting:
            for _ in range(self._weight(replica, rid)):
                task, number = next(numbers)
                placed[number] = task
                self._tell(replica, number, rid, work[number].held)
        return True

    def _weight(self, replica: Replica, rid: int) -> int:
        return replica.in_flight.get(rid, replica.releasing.get(rid, 0))

    def _tell(self, replica: Replica, slot: int, rid: int, tokens: int) -> None:
        """What takes several slots, or belongs to no conversation, leaves nothing that is worth a file."""
        self._known.setdefault(replica.id, set()).add(rid)
        request: Request | None = self._loop.state.requests.get(rid)
        conversation = ""
        if request is not None and self._weight(replica, rid) == 1 and request.slots_wanted == 1:
            conversation = request.conversation
        self._loop.post(SlotHolds(replica=replica.id, slot=slot, conversation=conversation, tokens=tokens, rid=rid))
