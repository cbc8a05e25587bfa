"""The language of the scheduler's tests: things happen at a time, and the decisions that follow are told in words.

    story = Scenario(models={"A": (0,), "B": (0,)})
    story.arrives(1, "A")
    story.decides("swap to A (idle)", "spawn A/0")
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A")

The invariants of the state and of the decisions are checked after every fact. `decides` must name all decisions since the last call; timers are left out unless `timers=True`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from router.scheduler import State, digest, dump, restore, step
from router.scheduler.invariants import check, check_decision

SECOND = 1_000_000


class Scenario:
    """A scheduler, a clock, and no world: whatever happens is said by the test."""

    def __init__(
        self,
        models: dict[str, tuple[int, ...] | ModelSettings],
        *,
        gpus: int = 0,
        slots: int = 1,
        cap: int = 1,
        grace_s: float = 0,
        force_s: float = 300,
        carried: e.Carried | None = None,
        **settings: Any,
    ) -> None:
        named = {
            name: model if isinstance(model, ModelSettings) else ModelSettings(gpus=model)
            for name, model in models.items()
        }
        used = [gpu for model in named.values() for gpu in model.gpus]
        self.slots = slots
        self.state = State()
        self.now_us = 0
        self.seq = 0
        self.facts: list[e.Fact] = []
        self.said: list[e.Decision] = []
        self.log: list[e.Decision] = []
        self.settings = SchedulerSettings(
            models=named,
            gpus=gpus or max(used, default=0) + 1,
            max_models_per_gpu=cap,
            head_grace_us=round(grace_s * SECOND),
            force_load_us=round(force_s * SECOND),
            **settings,
        )
        self.happens(e.RouterStarted(config=self.settings, carried=carried or e.Carried()))

    # --- what happens ---

    def happens(self, fact: e.Fact) -> list[e.Decision]:
        """Take one fact; its decisions are checked and kept."""
        self.seq += 1
        stamped = msgspec.structs.replace(fact, seq=self.seq, at_us=self.now_us, run=1)
        self.facts.append(stamped)
        before = restore(dump(self.state))
        decisions = step(self.state, stamped)
        check(self.state)
        check_decision(before, stamped, decisions)
        self.said += decisions
        self.log += decisions
        return decisions

    def after(self, seconds: float) -> None:
        """Time passes; timers that are due fire on the way, in order."""
        until_us = self.now_us + round(seconds * SECOND)
        while self.state.timers:
            name, due_us = min(self.state.timers.items(), key=lambda timer: (timer[1], timer[0]))
            if due_us > until_us:
                break
            self.now_us = max(self.now_us, due_us)
            kind, key = name.split(":", 1)
            self.happens(e.TimerFired(kind=kind, key=key, due_us=due_us))
        self.now_us = until_us

    def arrives(self, rid: int, model: str, **fields: Any) -> None:
        self.happens(e.RequestArrived(rid=rid, arrived_us=self.now_us, model=model, **fields))

    def wished(self, op: int, rid: int, model: str) -> None:
        self.happens(e.LoadWished(op=op, rid=rid, model=model))

    def ready(self, model: str, index: int = 0, slots: int = 0) -> None:
        self.happens(e.ReplicaReady(replica=self.replica(model, index), slots=slots or self.slots))

    def load_fails(self, model: str, index: int = 0, kind: e.LoadFailure = "exit", reason: str = "it died") -> None:
        self.happens(e.ReplicaLoadFailed(replica=self.replica(model, index), kind=kind, reason=reason))

    def stopped(self, model: str, index: int = 0) -> None:
        self.happens(e.ReplicaStopped(replica=self.replica(model, index)))

    def crashes(self, model: str, index: int = 0) -> None:
        """The process dies: the connections of its requests break first, as the relay would see it."""
        replica = self.replica(model, index)
        for rid in list(self.state.replicas[replica].in_flight):
            self.loses(rid)
        self.happens(e.ReplicaCrashed(replica=replica, cause_of_exit="signal", signal=11))

    def loses(self, rid: int, *, begun: bool = False) -> None:
        self.happens(e.UpstreamLost(rid=rid, replica=self.state.requests[rid].replica, begun=begun))

    def finishes(self, rid: int, status: int = 200) -> None:
        self.happens(e.RequestFinished(rid=rid, replica=self.state.requests[rid].replica, status=status))

    def leaves(self, rid: int) -> None:
        """The client is gone; SlotReleased is another fact."""
        request = self.state.requests[rid]
        self.happens(e.RequestCancelled(rid=rid, replica=request.replica))

    def releases(self, rid: int, model: str, index: int = 0) -> None:
        self.happens(e.SlotReleased(rid=rid, replica=self.replica(model, index)))

    def loaded(self, model: str) -> None:
        """Shortcut: a wish loads the model, and every replica comes up at once."""
        op, rid = self.state.last_op + 1, self.state.last_rid + 1
        self.wished(op, rid, model)
        for index in range(self.settings.models[model].replicas):
            self.ready(model, index)
        self.said.clear()

    def replica(self, model: str, index: int = 0) -> str:
        for replica in self.state.models[model].replicas:
            if self.state.replicas[replica].index == index:
                return replica
        raise AssertionError(f"{model}/{index} has no process; there are {list(self.state.replicas)}")

    # --- what follows ---

    def decides(self, *expected: str, timers: bool = False) -> None:
        """Exactly these decisions since the last call, in this order."""
        words = [tell(decision) for decision in self.said if timers or not isinstance(decision, _TIMERS)]
        self.said.clear()
        assert words == list(expected), "\n".join(["decided:", *words, "expected:", *expected])

    def order(self) -> list[int]:
        """rids in the order of their dispatch."""
        return [decision.rid for decision in self.log if isinstance(decision, e.RequestDispatched)]

    def loads(self) -> list[str]:
        """Targets of all swaps, in order."""
        return [decision.target for decision in self.log if isinstance(decision, e.SwapBegun) and decision.target]

    def digest(self) -> str:
        return digest(self.state)


_TIMERS = (e.TimerSet, e.TimerCancelled)


def tell(decision: e.Decision) -> str:
    """A decision in a few words."""
    match decision:
        case e.RequestDispatched():
            overtook = f", overtaking {decision.overtook}" if decision.overtook else ""
            again = f", attempt {decision.attempt}" if decision.attempt > 1 else ""
            return f"dispatch {decision.rid} to {short(decision.replica)} ({decision.rule}{again}{overtook})"
        case e.RequestHeld():
            for_whom = f" for {', '.join(decision.blocked_by)}" if decision.blocked_by else ""
            return f"hold {decision.rid} ({decision.why}{', hard' if decision.hard else ''}){for_whom}"
        case e.RequestRequeued():
            return f"requeue {decision.rid} ({decision.why}), attempt {decision.attempt}"
        case e.RequestFailed():
            suspect = ", suspect" if decision.suspect else ""
            return f"fail {decision.rid} ({decision.status} {decision.code}{suspect})"
        case e.RequestRejected():
            return f"reject {decision.rid} ({decision.status} {decision.code})"
        case e.SwapBegun(target=""):
            return f"unload {', '.join(victim.model for victim in decision.victims)} ({decision.why})"
        case e.SwapBegun():
            victims = ", ".join(victim.model for victim in decision.victims)
            return f"swap to {decision.target} ({decision.why})" + (f" evicting {victims}" if victims else "")
        case e.SwapAborted():
            return f"abort swap to {decision.target} ({decision.why})"
        case e.SwapFinished():
            how = "finished" if decision.ok else "failed"
            return f"{how} swap to {decision.target}" if decision.target else "finished unload"
        case e.ReplicaStopOrdered():
            return f"stop {short(decision.replica)} ({decision.why}{', force' if decision.force else ''})"
        case e.ReplicaSpawnOrdered():
            again = f" again after {decision.after}" if decision.after else ""
            return f"spawn {decision.model}/{decision.index}{again}"
        case e.ModelCooledDown():
            return f"cool down {decision.model} ({decision.why})"
        case e.AdminDone():
            return f"done {decision.op} ({decision.outcome}{' ' + decision.code if decision.code else ''})"
        case e.TimerSet():
            return f"set {decision.kind}:{decision.key} to {decision.due_us / SECOND:g} s"
        case e.TimerCancelled():
            return f"cancel {decision.kind}:{decision.key}"
    raise AssertionError(f"no words for {decision!r}")


def short(replica: str) -> str:
    """`A#0.7` as A/0."""
    model, _, rest = replica.rpartition("#")
    return f"{model}/{rest.split('.')[0]}"
