"""A pretended world in virtual time: it brings the calls of a workload and does what the scheduler decides.

The scheduler is the live one: the same `step`, with the same facts. Its counterpart in earnest is the shell of the
router (loop, relay, replicas). Nothing fails here; `tests/scheduler/world.py` is the world where everything does.

Invariant: the same workload, settings, costs and seed give the same run, whatever the machine or the hash seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import msgspec

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from replay.cache import PromptCache
from replay.costs import Costs, ModelCosts
from replay.engine import NEVER_US, Engine
from replay.kept_caches import KeptCaches
from replay.measures import Measures, Outcome, Tally, measure
from replay.workload import Call, Happening, Workload
from router.scheduler import State, step

START_US = 1_000_000_000_000
"""Time of the first event: any moment but 0, which means never."""

PROGRESS_EVERY = 250
"""Calls."""

_UNTIMED = e.SlotTiming()

Change = Callable[[SchedulerSettings], SchedulerSettings]
"""Another setting for the whole run, reloads included."""


class World:
    """One run. `run` it once, then ask."""

    def __init__(self, workload: Workload, costs: Costs, *, change: Change | None = None, seed: int = 0) -> None:
        self.workload = workload
        self.costs = costs
        self.seed = seed
        self.state = State()
        self.now_us = START_US
        self.tally = Tally()
        self.outcomes = [
            Outcome(
                model=call.model,
                client=call.client,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                is_generation=call.work == "generation",
            )
            for call in workload.calls
        ]
        self.served: list[str] = []
        """Models in the order in which their requests were dispatched."""
        self.loads: dict[str, int] = {}
        """Processes that became ready, by model."""
        self._change = change or (lambda settings: settings)
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._planned = 0
        self._following: dict[int, list[Call]] = {}
        self._by_rid: dict[int, Call] = {}
        self._where: dict[int, str] = {}
        """rid to the replica that works on it."""
        self._rids: dict[int, int] = {}
        """Number of a call to its rid."""
        self._engines: dict[str, Engine] = {}
        self._caches: dict[str, PromptCache] = {}
        self._costs_of: dict[str, ModelCosts] = {}
        """By replica."""
        self._ordered_us: dict[str, int] = {}
        """Replicas that load, since when."""
        self._drawn: dict[tuple[str, str], int] = {}
        self._last_rid = 0
        self._last_op = 0
        self._has_prefixes = any(call.prefix for call in workload.calls)
        self._is_coupled = any(
            model.prefill.elsewhere or model.decode.elsewhere for model in (*costs.models.values(), costs.default)
        )
        self._kept = KeptCaches(self)
        self._effects: dict[type[e.Decision], Callable[[Any], None]] = {
            e.RequestDispatched: self._serve,
            e.RequestFailed: self._fail,
            e.RequestRejected: self._fail,
            e.SwapBegun: self._count_swap,
            e.SwapAborted: self._count_abort,
            e.ReplicaSpawnOrdered: self._load,
            e.ReplicaStopOrdered: self._stop,
            e.TimerSet: self._arm,
            e.CacheSaveOrdered: self._kept.save,
            e.CacheRestoreOrdered: self._kept.restore,
        }

    def run(self, progress: Callable[[float], None] = lambda share: None) -> Measures:
        """Until nothing is going to happen any more. `progress` hears which share of the calls has come."""
        self._do(e.RouterStarted(config=self._change(self.workload.settings), at_us=self.now_us, run=1))
        opening = []
        for call in self.workload.calls:
            if call.after:
                self._following.setdefault(call.after, []).append(call)
            else:
                opening.append((START_US + call.at_us, call))
        for at_us, what in self.workload.happenings:
            self._plan(START_US + at_us, self._happen, what)
        opening.sort(key=lambda arrival: (arrival[0], arrival[1].number), reverse=True)
        heap = self._heap
        whole = len(opening)
        while opening or heap:
            if opening and (not heap or opening[-1][0] <= heap[0][0]):
                self.now_us, call = opening.pop()
                if len(opening) % PROGRESS_EVERY == 0:
                    progress(1 - len(opening) / whole)
                self._arrive(call)
            else:
                self.now_us, _, what_to_do, about = heappop(heap)
                what_to_do(about)
        self.tally.cache_hits = self.state.caches.hits
        self.tally.prefill_saved_us = self.state.caches.saved_us
        return measure(self.outcomes, self.tally)

    # --- for kept caches ---

    def plan(self, at_us: int, what_to_do: Callable[[Any], None], about: object) -> None:
        self._plan(at_us, what_to_do, about)

    def do(self, fact: e.Fact) -> None:
        self._do(fact)

    def cache_of(self, replica: str) -> PromptCache | None:
        return self._caches.get(replica)

    def costs_of(self, replica: str) -> ModelCosts:
        return self._costs_of[replica]

    # --- the machinery ---

    def _plan(self, at_us: int, what_to_do: Callable[[Any], None], about: object) -> None:
        self._planned += 1
        heappush(self._heap, (at_us, self._planned, what_to_do, about))

    def _do(self, fact: e.Fact) -> None:
        effects = self._effects
        for decision in step(self.state, fact):
            effect = effects.get(type(decision))
            if effect is not None:
                effect(decision)

    def _draw(self, kind: str, model: str, times_us: tuple[int, ...]) -> int:
        """The nth load of a model takes the same time under every setting."""
        drawn = self._drawn.get((kind, model), 0)
        self._drawn[kind, model] = drawn + 1
        if drawn == 0 or len(times_us) == 1:
            return times_us[0]
        return random.Random(f"{self.seed}/{kind}/{model}/{drawn}").choice(times_us[1:])

    def _factor(self, number: int, phase: int, spread: tuple[float, ...]) -> float:
        """By how much this request is slower or faster than reckoned: the same under every setting."""
        if not spread:
            return 1.0
        return spread[crc32(b"%d/%d/%d" % (self.seed, phase, number)) % len(spread)]

    # --- calls ---

    def _arrive(self, call: Call) -> None:
        self._last_rid += 1
        rid = self._last_rid
        self._rids[call.number] = rid
        self._by_rid[rid] = call
        self.outcomes[call.number - 1].arrived_us = self.now_us
        if call.body_us:
            self._plan(self.now_us + call.body_us, self._enter, (rid, call, self.now_us))
        else:
            self._enter((rid, call, self.now_us))
        if call.leaves_after_us >= 0:  # who leaves before its body is in has never arrived
            self._plan(self.now_us + max(call.body_us, call.leaves_after_us), self._leave, rid)

    def _enter(self, arrival: tuple[int, Call, int]) -> None:
        rid, call, arrived_us = arrival
        self._do(
            e.RequestArrived(
                at_us=self.now_us,
                run=1,
                rid=rid,
                arrived_us=arrived_us,
                model=call.model,
                work=call.work,
                priority=call.priority,
                priority_from=call.priority_from,
                key=call.key,
                conversation=call.conversation,
                slots_wanted=call.slots_wanted,
                prefix=[e.PrefixBlock(key, tokens) for key, tokens in call.prefix] if self._keeps_caches else [],
            )
        )

    def _serve(self, order: e.RequestDispatched) -> None:
        rid, replica = order.rid, order.replica
        call = self._by_rid[rid]
        outcome = self.outcomes[call.number - 1]
        if outcome.dispatched_us < 0:
            outcome.dispatched_us = self.now_us
        self.tally.overtakes += order.overtook
        self._where[rid] = replica
        if call.work == "metadata":
            self._plan(self.now_us + self._costs_of[replica].metadata_us, self._answer_metadata, (rid, replica))
            return
        self.served.append(call.model)
        cached = 0
        if self._has_prefixes:
            cached = self._caches[replica].take(rid, call.prefix, call.prompt_tokens)
            outcome.cached_tokens = cached
            if self._keeps_caches:
                self._kept.serving(rid, replica)
        tokens = call.output_tokens
        if 0 <= call.leaves_after_tokens < tokens:
            tokens = call.leaves_after_tokens
        engine = self._engines[replica]
        costs = self._costs_of[replica]
        prompt_factor = self._factor(call.number, 0, costs.prefill.spread)
        answer_factor = self._factor(call.number, 1, costs.decode.spread)
        engine.start(
            self.now_us, rid, (call.prompt_tokens - cached) * prompt_factor, tokens * answer_factor, order.weight
        )
        self._watch(replica, engine)

    def _watch(self, replica: str, engine: Engine) -> None:
        """Look at it again when it has something to tell; if others feel its load, at them as well."""
        next_us = engine.next_us()
        if next_us < NEVER_US:
            self._plan(next_us, self._look, (replica, engine.version))
        if self._is_coupled:
            busy = sum(other.busy for other in self._engines.values())
            for name, other in self._engines.items():
                version = other.version
                other.slow_down(self.now_us, busy - other.busy)
                if other.version != version and (next_us := other.next_us()) < NEVER_US:
                    self._plan(next_us, self._look, (name, other.version))

    def _look(self, about: tuple[str, int]) -> None:
        replica, version = about
        engine = self._engines.get(replica)
        if engine is None or engine.version != version:
            return
        begun, ended = engine.look(self.now_us)
        for job in begun:
            self.outcomes[self._by_rid[job.rid].number - 1].first_us = self.now_us
        for job in ended:
            self._answer(job.rid)
        self._watch(replica, engine)

    def _answer_metadata(self, about: tuple[int, str]) -> None:
        rid, replica = about
        if self._where.get(rid) == replica:  # else it was cut off
            self._answer(rid)

    def _answer(self, rid: int) -> None:
        """The replica is through with it: the answer is complete, or its client has seen enough."""
        call = self._by_rid[rid]
        replica = self._where.pop(rid)
        leaves = 0 <= call.leaves_after_tokens < call.output_tokens and call.work == "generation"
        if self._has_prefixes:
            self._caches[replica].end(rid, call.leaves_after_tokens if leaves else call.output_tokens)
        self._close(rid, call, "cancelled" if leaves else "finished")
        if leaves:
            self._do(e.RequestCancelled(at_us=self.now_us, run=1, rid=rid, replica=replica))
            self._plan(self.now_us + self._costs_of[replica].release_us, self._release, (rid, replica))
        else:
            timing = self._timing(replica, call) if self._keeps_caches and call.work == "generation" else _UNTIMED
            self._do(e.RequestFinished(at_us=self.now_us, run=1, rid=rid, replica=replica, timing=timing))

    @property
    def _keeps_caches(self) -> bool:
        return self.state.settings.keep_caches

    def _timing(self, replica: str, call: Call) -> e.SlotTiming:
        """llama-server's account, as far as decisions about prompt caches depend on it."""
        cached = self.outcomes[call.number - 1].cached_tokens
        read = call.prompt_tokens - cached
        prefill = self._costs_of[replica].prefill
        prompt_us = round(prefill.fixed_us + read * prefill.token_us)
        return e.SlotTiming(cache_n=cached, prompt_n=read, prompt_us=prompt_us, predicted_n=call.output_tokens)

    def _leave(self, rid: int) -> None:
        """The client is gone, in whatever stage its request is."""
        call = self._by_rid.get(rid)
        if call is None:
            return
        replica = self._where.pop(rid, "")
        self._close(rid, call, "cancelled")
        self._do(e.RequestCancelled(at_us=self.now_us, run=1, rid=rid, replica=replica))
        if replica:
            self._let_go(rid, replica)
            self._plan(self.now_us + self._costs_of[replica].release_us, self._release, (rid, replica))

    def _release(self, about: tuple[int, str]) -> None:
        rid, replica = about
        if replica in self._engines:
            self._do(e.SlotReleased(at_us=self.now_us, run=1, rid=rid, replica=replica))

    def _let_go(self, rid: int, replica: str) -> None:
        engine = self._engines.get(replica)
        if engine is not None and engine.remove(self.now_us, rid) is not None:
            self._watch(replica, engine)
        if self._has_prefixes and replica in self._caches:
            self._caches[replica].end(rid, 0)

    def _fail(self, decision: e.RequestFailed | e.RequestRejected) -> None:
        call = self._by_rid.get(decision.rid)
        if call is not None:
            self._close(decision.rid, call, "failed")

    def _close(self, rid: int, call: Call, end: str) -> None:
        """Whatever its end, whoever waited for the answer goes on."""
        outcome = self.outcomes[call.number - 1]
        outcome.end = end
        outcome.ended_us = self.now_us
        del self._by_rid[rid]
        for following in self._following.pop(call.number, ()):
            self._plan(self.now_us + following.think_us, self._arrive, following)

    # --- replicas ---

    def _load(self, order: e.ReplicaSpawnOrdered) -> None:
        costs = self.costs.of(order.model)
        self._costs_of[order.replica] = costs
        self._ordered_us[order.replica] = self.now_us
        self._plan(self.now_us + self._draw("load", order.model, costs.loads_us), self._ready, order)

    def _ready(self, order: e.ReplicaSpawnOrdered) -> None:
        replica = order.replica
        if replica not in self._ordered_us:
            return  # told to stop meanwhile
        costs = self._costs_of[replica]
        load_us = self.now_us - self._ordered_us.pop(replica)
        self.tally.load_us += load_us
        self.loads[order.model] = self.loads.get(order.model, 0) + 1
        self._engines[replica] = Engine(costs, self.now_us)
        if self._has_prefixes:
            self._caches[replica] = PromptCache(costs.slots, costs.host_cache_tokens)
        self._do(e.ReplicaReady(at_us=self.now_us, run=1, replica=replica, slots=costs.slots, load_us=load_us))

    def _stop(self, order: e.ReplicaStopOrdered) -> None:
        self._ordered_us.pop(order.replica, None)
        model = self.state.replicas[order.replica].model
        stop_us = self._draw("stop", model, self._costs_of[order.replica].stops_us)
        self._plan(self.now_us + stop_us, self._stopped, order.replica)

    def _stopped(self, replica: str) -> None:
        for rid in [rid for rid, where in self._where.items() if where == replica]:
            del self._where[rid]
            engine = self._engines.get(replica)
            job = engine.remove(self.now_us, rid) if engine is not None else None
            begun = job is not None and job.phase == 1
            self._do(e.UpstreamLost(at_us=self.now_us, run=1, rid=rid, replica=replica, begun=begun))
        self._kept.gone(replica)
        self._engines.pop(replica, None)
        self._caches.pop(replica, None)
        self._do(e.ReplicaStopped(at_us=self.now_us, run=1, replica=replica))

    # --- swaps, timers, administration ---

    def _count_swap(self, swap: e.SwapBegun) -> None:
        self.tally.evictions += len(swap.victims)
        if swap.target:
            self.tally.loads += 1
            self.tally.forced += swap.why == "forced"

    def _count_abort(self, swap: e.SwapAborted) -> None:
        self.tally.aborted += 1

    def _arm(self, timer: e.TimerSet) -> None:
        self._plan(timer.due_us, self._fire, timer)

    def _fire(self, timer: e.TimerSet) -> None:
        if self.state.timers.get(f"{timer.kind}:{timer.key}") == timer.due_us:
            self._do(e.TimerFired(at_us=self.now_us, run=1, kind=timer.kind, key=timer.key, due_us=timer.due_us))

    def _happen(self, what: Happening) -> None:
        changes: dict[str, Any] = {"at_us": self.now_us, "run": 1, "seq": 0}
        if isinstance(what, e.ConfigLoaded):
            changes["config"] = self._change(what.config)
        else:
            self._last_op += 1
            changes["op"] = self._last_op
            if isinstance(what, e.LoadWished):
                self._last_rid += 1
                changes["rid"] = self._last_rid
        self._do(msgspec.structs.replace(what, **changes))
