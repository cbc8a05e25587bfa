"""A pretend world in virtual time: it answers everything that the scheduler orders, well or badly, by a seed.

Its counterpart is the real shell (loop, relay, replicas). Every draw is keyed by what it is for, not by the order of
drawing, so two runs that differ in one setting still meet the same service times and the same misfortunes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from tests.scheduler.shell import SECOND, START_US, Shell

EVENTS_MAX = 50_000
"""More events than this in one world: it goes round in circles."""

FAILURES: tuple[e.LoadFailure, ...] = ("gpu_oom", "exit", "signal", "stall", "missing_file", "bad_flag", "host_oom")


@dataclass(frozen=True)
class Manners:
    """How long things take, as (least, most) seconds, and how often they go wrong, as probabilities."""

    load_s: tuple[float, float] = (6.0, 6.0)
    stop_s: tuple[float, float] = (0.0, 0.0)
    service_s: tuple[float, float] = (1.0, 1.0)
    release_s: tuple[float, float] = (0.0, 0.0)
    """From a cancel to the slot being free."""
    report_s: tuple[float, float] = (0.0, 0.0)
    """From the end of a process to each broken connection being noticed."""
    slots: tuple[int, int] = (1, 1)
    load_fails: float = 0.0
    crashes: float = 0.0
    """Of the attempts of requests: the process dies in the middle."""
    stalls: float = 0.0
    breaks: float = 0.0
    """The connection breaks; the process lives and answers a probe."""
    begun: float = 0.5
    """Of the broken connections: the client has seen a part of the answer."""
    late_timers: float = 0.0
    """A timer comes up to 5 s late, and twice."""


class World(Shell):
    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        seed: int = 0,
        manners: Manners | None = None,
        carried: e.Carried | None = None,
        strict: bool = False,
    ) -> None:
        self.seed = seed
        self.manners = manners or Manners()
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.planned = 0
        self.last_rid = 0
        self.last_op = 0
        self.service_us: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        super().__init__(settings, carried, strict=strict)

    # --- what is going to happen ---

    def plan(self, at_us: int, what: Callable[[], None]) -> None:
        self.planned += 1
        heappush(self.heap, (at_us, self.planned, what))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.plan(self.now_us + round(seconds * SECOND), what)

    def arrives(
        self,
        at_s: float,
        model: str,
        *,
        service_s: float | None = None,
        leaves_after_s: float | None = None,
        body_s: float = 0.0,
        **fields: object,
    ) -> int:
        """A request whose headers are complete at `at_s` and whose body is in `body_s` later. Returns its rid.

        To be called in the order of `at_s`. `leaves_after_s`: the client hangs up then, whatever the stage.
        """
        self.last_rid += 1
        rid = self.last_rid
        at_us = START_US + round(at_s * SECOND)
        if service_s is not None:
            self.service_us[rid] = round(service_s * SECOND)
        fact = e.RequestArrived(rid=rid, arrived_us=at_us, model=model, **fields)  # type: ignore[arg-type]
        self.plan(at_us + round(body_s * SECOND), lambda: self._do(fact))
        if leaves_after_s is not None:
            self.plan(at_us + round((body_s + leaves_after_s) * SECOND), lambda: self._client_leaves(rid))
        return rid

    def next_op(self) -> int:
        self.last_op += 1
        return self.last_op

    def next_rid(self) -> int:
        self.last_rid += 1
        return self.last_rid

    def fact_at(self, at_s: float, fact: e.Fact) -> None:
        self.plan(START_US + round(at_s * SECOND), lambda: self._do(fact))

    def run(self) -> None:
        """Until nothing is going to happen any more."""
        events = 0
        while self.heap:
            self.now_us, _, what = heappop(self.heap)
            what()
            events += 1
            assert events < EVENTS_MAX, f"no end: {len(self.state.requests)} requests, swaps {self.state.swaps}"

    # --- draws ---

    def chance(self, probability: float, *key: object) -> bool:
        return probability > 0 and self._random(*key).random() < probability

    def between(self, range_s: tuple[float, float], *key: object) -> float:
        least, most = range_s
        return least if least == most else self._random(*key).uniform(least, most)

    def _random(self, *key: object) -> random.Random:
        return random.Random(f"{self.seed}/{'/'.join(map(str, key))}")

    # --- effects ---

    def _do(self, *facts: e.Fact) -> None:
        for fact in facts:
            for decision in self.happens(fact):
                self._carry_out(decision)

    def _carry_out(self, decision: e.Decision) -> None:
        match decision:
            case e.ReplicaSpawnOrdered():
                self._load(decision)
            case e.ReplicaStopOrdered():
                seconds = self.between(self.manners.stop_s, "stop", decision.replica)
                self.later(seconds, lambda: self._process_ends(e.ReplicaStopped(replica=decision.replica)))
            case e.RequestDispatched():
                self._serve(decision)
            case e.TimerSet():
                self._arm(decision)

    def _load(self, order: e.ReplicaSpawnOrdered) -> None:
        replica = order.replica
        key = ("load", order.model, order.index, replica)
        seconds = self.between(self.manners.load_s, *key)
        fact: e.Fact = e.ReplicaReady(replica=replica, slots=round(self.between(self.manners.slots, *key, "slots")))
        if self.chance(self.manners.load_fails, *key, "fails"):
            kind = self._random(*key, "kind").choice(FAILURES)
            fact = e.ReplicaLoadFailed(replica=replica, kind=kind, reason="as drawn")
        self.later(seconds / 100, lambda: self._if_alive(replica, e.ReplicaSpawned(replica=replica, pid=4711)))
        self.later(seconds, lambda: self._if_alive(replica, fact))

    def _if_alive(self, replica: str, fact: e.Fact) -> None:
        """A report may cross with the order to stop; it may not come after the end."""
        if replica in self.processes:
            self._do(fact)

    def _serve(self, order: e.RequestDispatched) -> None:
        rid, replica = order.rid, order.replica
        key = ("serve", rid, order.attempt)
        service_us = self.service_us.get(rid, round(self.between(self.manners.service_s, *key) * SECOND))
        fate = self._finish
        middle = self._random(*key, "middle").random()
        if self.chance(self.manners.crashes, *key, "crash"):
            fate, service_us = self._crash, round(service_us * middle)
        elif self.chance(self.manners.stalls, *key, "stall"):
            fate, service_us = self._stall, round(service_us * middle)
        elif self.chance(self.manners.breaks, *key, "break"):
            fate, service_us = self._break, round(service_us * middle)
        self.plan(self.now_us + service_us, lambda: fate(rid, replica))

    def _finish(self, rid: int, replica: str) -> None:
        if self.running.get(rid) == replica and replica in self.processes:
            self._do(e.RequestFinished(rid=rid, replica=replica))

    def _crash(self, rid: int, replica: str) -> None:
        if self.running.get(rid) == replica and replica in self.processes:
            self._process_ends(e.ReplicaCrashed(replica=replica, cause_of_exit="signal", signal=11))

    def _stall(self, rid: int, replica: str) -> None:
        if self.running.get(rid) == replica and replica in self.processes:
            self._do(e.ReplicaStalled(replica=replica, silent_us=60 * SECOND, norm_us=SECOND, rids=[rid]))

    def _break(self, rid: int, replica: str) -> None:
        if self.running.get(rid) == replica and replica in self.processes:
            self._lose(rid, replica)
            self.later(0.5, lambda: self._if_alive(replica, e.ReplicaAnswered(replica=replica)))

    def _process_ends(self, fact: e.ReplicaStopped | e.ReplicaCrashed) -> None:
        """Broken connections are noticed before or after the end of the process itself."""
        process = self.processes.get(fact.replica)
        if process is None:
            return
        first = self.chance(0.5, "first", fact.replica)
        for rid in list(process.works_on):
            if first:
                self._lose(rid, fact.replica)
            else:
                delay_s = self.between(self.manners.report_s, "report", rid, fact.replica)
                self.later(delay_s, lambda rid=rid: self._lose(rid, fact.replica))  # type: ignore[misc]
        self._do(fact)

    def _lose(self, rid: int, replica: str) -> None:
        if self.running.get(rid) == replica:
            begun = self.chance(self.manners.begun, "begun", rid, replica)
            self._do(e.UpstreamLost(rid=rid, replica=replica, begun=begun, detail="as drawn"))

    def _client_leaves(self, rid: int) -> None:
        if rid in self.outcomes:
            return
        replica = self.running.get(rid, "")
        self._do(e.RequestCancelled(rid=rid, replica=replica))
        if replica:
            seconds = self.between(self.manners.release_s, "release", rid)
            self.later(seconds, lambda: self._do(e.SlotReleased(rid=rid, replica=replica)))

    def _arm(self, timer: e.TimerSet) -> None:
        fired = e.TimerFired(kind=timer.kind, key=timer.key, due_us=timer.due_us)

        def fire() -> None:
            if self.timers.get((timer.kind, timer.key)) == timer.due_us:
                self._do(fired)

        key = ("timer", timer.kind, timer.key, timer.due_us)
        if self.chance(self.manners.late_timers, *key):
            late_s = self.between((0.0, 5.0), *key, "late")
            self.plan(timer.due_us + round(late_s * SECOND), fire)
            self.plan(timer.due_us + round((late_s + 0.1) * SECOND), lambda: self._do(fired))
        else:
            self.plan(timer.due_us, fire)

    # --- what came of it ---

    def order(self) -> list[int]:
        """rids in the order of their dispatch."""
        return [event.rid for event in self.record if isinstance(event, e.RequestDispatched)]

    def loads(self) -> list[tuple[float, str, str]]:
        """(seconds from the start, target, why) of every swap that loads."""
        return [
            ((event.at_us - START_US) / SECOND, event.target, event.why)
            for event in self.record
            if isinstance(event, e.SwapBegun) and event.target
        ]
