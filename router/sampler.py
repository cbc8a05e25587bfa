"""Asks the llama-servers every few seconds what they do, and notes it: SlotsSampled and MetricsSampled.

Only replicas that work, or did until a moment ago, are asked; polling must not wake one that sleeps, and it refreshes
nothing in the scheduler. Nothing decides by these samples.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

from eventlog.events import MetricsSampled, Observation, SlotsSampled
from router.clock import RunClock
from router.probe import COUNT_MAX
from router.scheduler.state import Replica, State
from router.upstream import Endpoint, UpstreamError, fetch

log = logging.getLogger("llama_router.sampler")

EVERY_S = 5.0
TIMEOUT_S = 2.0
RECENTLY_US = 15_000_000
"""How long after its last request a model's counters are still read."""


class Loop(Protocol):
    """The part of `router.loop.Loop` that is used here."""

    @property
    def clock(self) -> RunClock: ...
    @property
    def state(self) -> State: ...
    def note(self, observation: Observation) -> None: ...


class Sampler:
    """Runs until cancelled. One replica that does not answer delays no other."""

    def __init__(self, loop: Loop, endpoint: Callable[[str], Endpoint], *, every_s: float = EVERY_S) -> None:
        """`endpoint(replica)` says where it listens; KeyError if it is gone."""
        self._loop = loop
        self._endpoint = endpoint
        self._every_s = every_s
        self._refusing: set[tuple[str, str]] = set()
        """(replica, path) that the child does not serve: it was started without the option."""

    async def run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self._every_s)

    async def sample(self) -> None:
        """One round."""
        state = self._loop.state
        self._refusing = {(replica, path) for replica, path in self._refusing if replica in state.replicas}
        rounds = []
        for replica in state.replicas.values():
            if replica.phase != "ready" or replica.suspect:
                continue
            if replica.in_flight:
                rounds.append(self._slots(replica))
            if replica.in_flight or self._was_used(replica):
                rounds.append(self._metrics(replica))
        await asyncio.gather(*rounds)

    def _was_used(self, replica: Replica) -> bool:
        # Not the state's own time: that stands still while nothing happens, and an idle child must be left alone.
        used_us = self._loop.state.models[replica.model].used_us
        return self._loop.clock.now_us() - used_us < RECENTLY_US

    async def _slots(self, replica: Replica) -> None:
        body = await self._ask(replica.id, "/slots")
        if body is None:
            return
        try:
            slots = json.loads(body)
            busy = sum(bool(slot["is_processing"]) for slot in slots)
            used = [_context_used(slot) for slot in slots]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            log.debug("replica %s answered /slots with %r", replica.id, body[:200])
            return
        self._loop.note(SlotsSampled(replica=replica.id, busy=busy, slots=len(slots), context_used=used))

    async def _metrics(self, replica: Replica) -> None:
        body = await self._ask(replica.id, "/metrics")
        if body is not None and (values := parse(body.decode(errors="replace"))):
            self._loop.note(MetricsSampled(replica=replica.id, values=values))

    async def _ask(self, replica: str, path: str) -> bytes | None:
        if (replica, path) in self._refusing:
            return None
        try:
            answer = await fetch(self._endpoint(replica), "GET", path, timeout_s=TIMEOUT_S)
        except (KeyError, UpstreamError, TimeoutError):
            return None
        if answer.status in (404, 501):
            self._refusing.add((replica, path))
        return answer.body if answer.status == 200 else None


def parse(text: str) -> dict[str, float]:
    """The samples of a Prometheus page that have no labels, by name."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or "{" in line:
            continue
        name, _, rest = line.partition(" ")
        try:
            value = float(rest.split()[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):  # JSON, and so the log, has no other numbers
            values[name] = value
    return values


def _context_used(slot: dict[str, Any]) -> int:
    """Tokens that a slot holds, from whichever of its fields this llama-server has; 0 when it does not say."""
    decoded = 0
    following = slot.get("next_token")
    if isinstance(following, list):
        following = following[0] if following else None
    if isinstance(following, dict):
        decoded = int(following.get("n_decoded", 0))
    return min(int(slot.get("n_prompt_tokens", slot.get("n_past", 0))) + decoded, COUNT_MAX)
