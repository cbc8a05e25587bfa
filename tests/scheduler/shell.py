"""What the scheduler's tests stand on: a scheduler whose every decision is checked, and a ledger of the world.

The ledger is kept from facts and decisions alone and knows nothing of the state: which processes exist, what each of
them works on, which requests have ended and how. So the scheduler is never its own judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from router.scheduler import State, digest, dump, fold, next_decision, restore
from router.scheduler.invariants import check, check_decision
from tests.scheduler import reference_engines as engines

SECOND = 1_000_000
START_US = 1_000_000 * SECOND
"""Time of the first event: any moment but 0, which means never."""
DECISIONS_MAX = 2_000


@dataclass
class Process:
    """A llama-server, as the world has it."""

    replica: str
    model: str
    gpus: tuple[int, ...]
    ready: bool = False
    told_to_stop: bool = False
    slots: int = 0
    works_on: dict[int, int] = field(default_factory=dict)
    """rid to weight, for somebody."""
    lets_go: dict[int, int] = field(default_factory=dict)
    """rid to weight, for a client that is gone."""


class Shell:
    """Takes facts, and keeps the scheduler to its word."""

    def __init__(self, settings: SchedulerSettings, carried: e.Carried | None = None, *, strict: bool = True) -> None:
        """`strict`: also prove that no rule writes to the state; slow on large ones."""
        self.state = State()
        self.settings = settings
        self.strict = strict
        self.now_us = START_US
        self.seq = 0
        self.record: list[e.Event] = []
        """Facts and decisions, stamped as in the log."""
        self.waiting: set[int] = set()
        self.running: dict[int, str] = {}
        self.outcomes: dict[int, str] = {}
        self.generations: set[int] = set()
        self.processes: dict[str, Process] = {}
        self.processes_ever: set[str] = set()
        self.open_ops: set[int] = set()
        self.done_ops: dict[int, str] = {}
        self.timers: dict[tuple[str, str], int] = {}
        self.open_saves: dict[tuple[str, int], str] = {}
        """Ordered and not answered: (replica, slot) to its conversation."""
        self.open_restores: dict[tuple[str, int], tuple[str, int]] = {}
        """The same, with the time until which they may hold anybody up."""
        self.files: set[tuple[str, str]] = set()
        """(model, conversation) that is in a file."""
        self.models: dict[str, str] = {}
        """Replica to its model, for ever."""
        self.happens(e.RouterStarted(config=settings, carried=carried or e.Carried()))

    def happens(self, fact: e.Fact) -> list[e.Decision]:
        """Take one fact; the decisions that follow are checked one by one, each against the state it was made from."""
        stamped = self._stamp(fact, 0)
        self._note_fact(stamped)
        fold(self.state, stamped)
        decisions: list[e.Decision] = []
        while (decision := self._decide()) is not None:
            check_decision(self.state, decision)
            self.look_at(decision)
            self._note_decision(decision)
            fold(self.state, self._stamp(decision, stamped.seq))
            decisions.append(decision)
            assert len(decisions) < DECISIONS_MAX, f"no end of decisions: {decisions[-4:]}"
        check(self.state)
        self.look_at(None)
        return decisions

    def look_at(self, decision: e.Decision | None) -> None:
        """For more checks: called before each decision is folded, and with None when all is settled."""

    def through_a_checkpoint(self) -> None:
        """Go on from what a checkpoint holds."""
        restored = restore(dump(self.state))
        assert digest(restored) == digest(self.state)
        self.state = restored

    def refold(self) -> State:
        """The state that the record gives, without deciding anything."""
        state = State()
        for event in self.record:
            fold(state, event)
        return state

    def _decide(self) -> e.Decision | None:
        if not self.strict:
            return next_decision(self.state)
        before = dump(self.state)
        decision = next_decision(self.state)
        assert bytes(before) == bytes(dump(self.state)), f"a rule wrote to the state before {decision}"
        return decision

    def _stamp(self, event: e.Event, cause: int) -> e.Event:
        self.seq += 1
        stamped = msgspec.structs.replace(event, seq=self.seq, at_us=self.now_us, run=1, cause=cause)
        self.record.append(stamped)
        return stamped

    # --- the ledger: facts ---

    def _note_fact(self, fact: e.Event) -> None:
        match fact:
            case e.RequestArrived():
                assert fact.rid not in self.waiting | self.outcomes.keys()
                self.waiting.add(fact.rid)
                if fact.work == "generation":
                    self.generations.add(fact.rid)
            case e.LoadWished() | e.AdminUnload() | e.AdminDrain() | e.AdminCancel() | e.AdminGpu():
                self.open_ops.add(fact.op)
            case e.RequestFinished():
                if self.running.get(fact.rid) == fact.replica:
                    self._put_down(fact.rid)
                    self._end(fact.rid, "finished")
            case e.UpstreamLost():
                if self.running.get(fact.rid) == fact.replica:
                    self._put_down(fact.rid)
                    self.waiting.add(fact.rid)
            case e.RequestCancelled() if fact.rid in self.waiting or fact.rid in self.running:
                process = self.processes.get(self.running.get(fact.rid, ""))
                if process is not None:
                    process.lets_go[fact.rid] = process.works_on[fact.rid]
                self._put_down(fact.rid)
                self._end(fact.rid, "cancelled")
            case e.SlotReleased():
                process = self.processes.get(fact.replica)
                if process is not None:
                    process.lets_go.pop(fact.rid, None)
            case e.ReplicaReady():
                process = self.processes.get(fact.replica)
                if process is not None:
                    process.ready, process.slots = True, max(1, fact.slots)
            case e.ReplicaLoadFailed() | e.ReplicaStopped() | e.ReplicaCrashed():
                self.processes.pop(fact.replica, None)
            case e.CacheSaved():
                assert self.open_saves.pop((fact.replica, fact.slot)) == fact.conversation
                self.files.add((self.models[fact.replica], fact.conversation))
            case e.CacheSaveFailed():
                assert self.open_saves.pop((fact.replica, fact.slot)) == fact.conversation
            case e.CacheRestored():
                assert self.open_restores.pop((fact.replica, fact.slot))[0] == fact.conversation
            case e.CacheRestoreFailed():
                assert self.open_restores.pop((fact.replica, fact.slot))[0] == fact.conversation
                self.files.discard((self.models[fact.replica], fact.conversation))
            case e.CacheDropped():
                self.files.discard((fact.model, fact.conversation))
            case e.CacheFound():
                self.files.add((fact.model, fact.conversation))
            case e.TimerFired():
                self.timers.pop((fact.kind, fact.key), None)

    def _put_down(self, rid: int) -> None:
        process = self.processes.get(self.running.pop(rid, ""))
        if process is not None:
            process.works_on.pop(rid, None)

    def _end(self, rid: int, outcome: str) -> None:
        assert rid not in self.outcomes, f"request {rid} ends twice: {self.outcomes[rid]}, then {outcome}"
        self.outcomes[rid] = outcome
        self.waiting.discard(rid)

    # --- the ledger: decisions ---

    def _note_decision(self, decision: e.Decision) -> None:
        match decision:
            case e.RequestDispatched():
                assert decision.rid in self.waiting, f"request {decision.rid} is dispatched, but does not wait"
                process = self.processes[decision.replica]
                assert process.ready, f"request {decision.rid} goes to {process.replica}, which is not ready"
                assert not process.told_to_stop, f"request {decision.rid} goes to {process.replica}, which stops"
                for (replica, _), (_, until_us) in self.open_restores.items():
                    waits = replica == process.replica and self.now_us < until_us
                    assert not waits or not self.state.settings.keep_caches, f"{replica} still restores"
                self.waiting.remove(decision.rid)
                self.running[decision.rid] = decision.replica
                process.works_on[decision.rid] = decision.weight
                load = sum(process.works_on.values()) + sum(process.lets_go.values())
                free = self.state.settings.overcommit
                assert free < 0 or load <= process.slots + free, (
                    f"{process.replica} has {load} in {process.slots} slots"
                )
            case e.RequestRequeued():
                assert decision.rid in self.waiting, f"request {decision.rid} goes back, but was not lost"
            case e.RequestFailed() | e.RequestRejected():
                assert decision.rid in self.waiting, f"request {decision.rid} fails, but does not wait"
                self._end(decision.rid, f"{decision.status} {decision.code}")
            case e.ReplicaSpawnOrdered():
                self._note_spawn(decision)
            case e.ReplicaStopOrdered():
                process = self.processes[decision.replica]
                assert not process.told_to_stop, f"{process.replica} is told to stop twice"
                process.told_to_stop = True
                serves = [rid for rid in process.works_on if rid in self.generations]
                assert decision.force or not serves, f"{process.replica} is stopped while it serves {serves}"
            case e.AdminDone():
                assert decision.op in self.open_ops, (
                    f"operation {decision.op} is answered twice, or was never asked for"
                )
                self.open_ops.remove(decision.op)
                self.done_ops[decision.op] = decision.outcome
            case e.CacheSaveOrdered():
                self._note_save(decision)
            case e.CacheRestoreOrdered():
                self._note_restore(decision)
            case e.TimerSet():
                self.timers[decision.kind, decision.key] = decision.due_us
            case e.TimerCancelled():
                del self.timers[decision.kind, decision.key]

    def _note_save(self, decision: e.CacheSaveOrdered) -> None:
        process = self.processes[decision.replica]
        assert process.ready, f"{process.replica} is to save, but is not ready"
        assert not process.told_to_stop, f"{process.replica} is to save, but stops"
        assert all(replica != process.replica for replica, _ in self.open_saves), (
            f"{process.replica} saves twice at once"
        )
        assert decision.limit_us <= self.state.settings.keep_hold_us
        assert decision.worth_us > decision.cost_us
        self.open_saves[decision.replica, decision.slot] = decision.conversation

    def _note_restore(self, decision: e.CacheRestoreOrdered) -> None:
        process = self.processes[decision.replica]
        assert process.ready, f"{process.replica} is to restore, but is not ready"
        assert not process.told_to_stop, f"{process.replica} is to restore, but stops"
        assert not process.works_on, f"{process.replica} is to restore, but works on {process.works_on}"
        assert (process.model, decision.conversation) in self.files, f"there is no file of {decision.conversation}"
        assert 0 <= decision.slot < process.slots
        assert decision.limit_us <= self.state.settings.keep_hold_us
        until_us = self.now_us + decision.limit_us
        self.open_restores[decision.replica, decision.slot] = (decision.conversation, until_us)

    def _note_spawn(self, decision: e.ReplicaSpawnOrdered) -> None:
        assert decision.replica not in self.processes_ever, f"{decision.replica} is not a new name"
        self.processes_ever.add(decision.replica)
        self.models[decision.replica] = decision.model
        for gpu in decision.gpus:
            there = {process.model for process in self.processes.values() if gpu in process.gpus}
            if decision.model in there:
                continue
            cap = self.state.settings.max_models_per_gpu
            assert not cap or len(there | {decision.model}) <= cap, (
                f"{decision.model} joins {sorted(there)} on GPU {gpu}, of {cap}"
            )
        if decision.model not in {process.model for process in self.processes.values()}:
            there = {process.model for process in self.processes.values()}
            legal = engines.legal_with(self.state, self.state.models[decision.model], there)
            assert self.state.settings.engine == "residency" or legal, f"{decision.model} joins {sorted(there)}"
        self.processes[decision.replica] = Process(decision.replica, decision.model, decision.gpus)

    # --- at the end ---

    def assert_nothing_is_left(self) -> None:
        """Everything asked for has ended once, and the state remembers nobody."""
        assert not self.waiting, f"requests {sorted(self.waiting)} never ended: {self.state.requests}"
        assert not self.running, f"requests {self.running} still run"
        assert not self.open_saves, f"saves {self.open_saves} were never answered"
        assert not self.open_restores, f"restores {self.open_restores} were never answered"
        assert not self.open_ops, f"operations {sorted(self.open_ops)} were never answered: {self.state.admin}"
        state = self.state
        left = (state.requests, state.lanes, state.unforced, state.running, state.swaps, state.wishes, state.admin)
        assert not any(left), f"the state still holds {left}"
        assert state.caches.replicas.keys() <= state.replicas.keys()
        for caches in state.caches.replicas.values():
            assert not caches.saving
            assert not caches.restoring
        for replica in state.replicas.values():
            assert (replica.load, replica.in_flight, replica.releasing, replica.alone) == (0, {}, {}, 0)
        for model in state.models.values():
            assert not model.in_flight
            assert set(model.conversations.values()) <= self.processes_ever
            assert model.replicas or not model.conversations, f"{model.name} is gone, its conversations are not"
        assert all(kind == "ttl" for kind, _ in self.timers), f"timers are left: {self.timers}"
