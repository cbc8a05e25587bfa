"""The language of the scheduler's tests: things happen at a time, and the decisions that follow are told in words.

    story = Scenario(models={"A": (0,), "B": (0,)})
    story.arrives(1, "A")
    story.decides("swap to A (idle)", "spawn A/0")
    story.ready("A")
    story.decides("dispatch 1 to A/0 (pay_out)", "finished swap to A")

There is no world here: what happens is said by the test. Invariants are checked after every fact and before every
decision. `decides` must name all decisions since the last call; timers are left out unless `timers=True`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventlog import events as e
from eventlog.settings import KeySettings, ModelSettings, SchedulerSettings
from router.scheduler import digest
from tests.scheduler.shell import SECOND, START_US, Shell


class Scenario(Shell):
    """A scheduler and a clock. Seconds count from the start of the story."""

    def __init__(
        self,
        models: dict[str, tuple[int, ...] | ModelSettings],
        *,
        gpus: int = 0,
        slots: int = 1,
        cap: int = 1,
        grace_s: float = 0,
        force_s: float = 300,
        parallel: dict[str, int] | None = None,
        carried: e.Carried | None = None,
        **settings: Any,
    ) -> None:
        """`slots` is what every replica reports; `parallel` limits API keys."""
        named = {
            name: model if isinstance(model, ModelSettings) else ModelSettings(gpus=model)
            for name, model in models.items()
        }
        used = [gpu for model in named.values() for gpu in model.gpus]
        self.slots = slots
        self.said: list[e.Decision] = []
        self.log: list[e.Decision] = []
        super().__init__(
            SchedulerSettings(
                models=named,
                gpus=gpus or max(used, default=0) + 1,
                max_models_per_gpu=cap,
                head_grace_us=round(grace_s * SECOND),
                force_load_us=round(force_s * SECOND),
                keys={key: KeySettings(max_parallel=limit) for key, limit in (parallel or {}).items()},
                **settings,
            ),
            carried,
        )

    # --- what happens ---

    def happens(self, fact: e.Fact) -> list[e.Decision]:
        decisions = super().happens(fact)
        self.said += decisions
        self.log += decisions
        return decisions

    def at(self, seconds: float) -> None:
        """Time passes until this moment of the story; timers that are due fire on the way, in order."""
        until_us = START_US + round(seconds * SECOND)
        while self.timers:
            (kind, key), due_us = min(self.timers.items(), key=lambda timer: (timer[1], timer[0]))
            if due_us > until_us:
                break
            self.now_us = max(self.now_us, due_us)
            self.happens(e.TimerFired(kind=kind, key=key, due_us=due_us))
        assert self.now_us <= until_us, "a story goes forward"
        self.now_us = until_us

    def after(self, seconds: float) -> None:
        """Time passes."""
        self.at((self.now_us - START_US) / SECOND + seconds)

    def arrives(self, rid: int, model: str, **fields: Any) -> None:
        fields.setdefault("arrived_us", self.now_us)
        self.happens(e.RequestArrived(rid=rid, model=model, **fields))

    def arrive(self, requests: dict[int, str], **fields: Any) -> None:
        """Several, at the same moment."""
        for rid, model in requests.items():
            self.arrives(rid, model, **fields)

    def wished(self, op: int, rid: int, model: str) -> None:
        self.happens(e.LoadWished(op=op, rid=rid, model=model))

    def ready(self, model: str, index: int = 0, slots: int = 0) -> None:
        self.happens(e.ReplicaReady(replica=self.replica(model, index), slots=slots or self.slots))

    def load_fails(self, model: str, index: int = 0, kind: e.LoadFailure = "exit", reason: str = "it died") -> None:
        self.happens(e.ReplicaLoadFailed(replica=self.replica(model, index), kind=kind, reason=reason))

    def stopped(self, model: str, index: int = 0) -> None:
        self.happens(e.ReplicaStopped(replica=self.replica(model, index)))

    def crashes(self, model: str, index: int = 0, *, begun: tuple[int, ...] = ()) -> None:
        """The process dies: the connections of its requests break first, as the relay would see it."""
        replica = self.replica(model, index)
        for rid in list(self.state.replicas[replica].in_flight):
            self.loses(rid, begun=rid in begun)
        self.happens(e.ReplicaCrashed(replica=replica, cause_of_exit="signal", signal=11))

    def stalls(self, model: str, index: int = 0) -> None:
        replica = self.replica(model, index)
        self.happens(e.ReplicaStalled(replica=replica, silent_us=60 * SECOND, norm_us=SECOND))

    def loses(self, rid: int, *, begun: bool = False) -> None:
        self.happens(e.UpstreamLost(rid=rid, replica=self.state.requests[rid].replica, begun=begun))

    def answers(self, model: str, index: int = 0) -> None:
        """The replica under suspicion lives."""
        self.happens(e.ReplicaAnswered(replica=self.replica(model, index)))

    def finishes(self, rid: int, status: int = 200) -> None:
        self.happens(e.RequestFinished(rid=rid, replica=self.state.requests[rid].replica, status=status))

    def leaves(self, rid: int) -> None:
        """The client is gone; SlotReleased is another fact."""
        self.happens(e.RequestCancelled(rid=rid, replica=self.state.requests[rid].replica))

    def releases(self, rid: int, model: str, index: int = 0) -> None:
        self.happens(e.SlotReleased(rid=rid, replica=self.replica(model, index)))

    def unload(self, op: int, model: str, *, force: bool = False) -> None:
        self.happens(e.AdminUnload(op=op, model=model, force=force))

    def gpu(self, op: int, gpu: int, action: str) -> None:
        self.happens(e.AdminGpu(op=op, gpu=gpu, action=action))  # type: ignore[arg-type]

    def reloads(self, **models: tuple[int, ...] | ModelSettings | None) -> None:
        """Another configuration takes effect; None removes a model, others stay as they were."""
        named = dict(self.state.settings.models)
        for name, model in models.items():
            if model is None:
                del named[name]
            else:
                named[name] = model if isinstance(model, ModelSettings) else ModelSettings(gpus=model)
        self.reconfigures(models=named)

    def reconfigures(self, **settings: Any) -> None:
        self.happens(e.ConfigLoaded(config=msgspec.structs.replace(self.state.settings, **settings)))

    def router_stops(self, within_s: float) -> None:
        self.happens(e.RouterStopping(reason="SIGTERM", deadline_us=self.now_us + round(within_s * SECOND)))

    def loaded(self, *models: str) -> None:
        """Shortcut: wishes load these models, and every replica comes up at once. What is decided goes untold."""
        for model in models:
            op, rid = self.state.last_op + 1, self.state.last_rid + 1
            self.wished(op, rid, model)
            for index in range(self.state.settings.models[model].replicas):
                self.ready(model, index)
        self.said.clear()

    def serving(self, *requests: tuple[int, str]) -> None:
        """Shortcut: these requests are in flight, their models loaded. What is decided goes untold."""
        for rid, model in requests:
            if not self.state.models[model].replicas:
                self.loaded(model)
            self.arrives(rid, model)
            assert self.state.requests[rid].replica
        self.said.clear()

    def swapped(self, *victims: str, to: str) -> None:
        """Shortcut: the victims are gone, and the target comes up. What is decided is still to be told."""
        for victim in victims:
            for index in [self.state.replicas[replica].index for replica in self.state.models[victim].replicas]:
                self.stopped(victim, index)
        for index in range(self.state.settings.models[to].replicas):
            self.ready(to, index)

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

    def untold(self) -> None:
        """What was decided so far is of no interest here."""
        self.said.clear()

    def order(self) -> list[int]:
        """rids in the order of their dispatch."""
        return [decision.rid for decision in self.log if isinstance(decision, e.RequestDispatched)]

    def loads(self) -> list[str]:
        """Targets of all swaps, in order."""
        return [decision.target for decision in self.log if isinstance(decision, e.SwapBegun) and decision.target]

    def phase(self, model: str) -> str:
        return self.state.models[model].phase

    def last(self, kind: type[e.Decision]) -> Any:
        """The last decision of this type."""
        return next(decision for decision in reversed(self.log) if isinstance(decision, kind))

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
        case e.CacheSaveOrdered():
            return f"save {decision.conversation} of {short(decision.replica)}"
        case e.CacheRestoreOrdered():
            whom = f" for {decision.rid}" if decision.rid else ""
            return f"restore {decision.conversation} into {short(decision.replica)}{whom}"
        case e.CacheGivenUp():
            return f"give up caches of {decision.model} ({decision.why})"
        case e.ModelCooledDown():
            return f"cool down {decision.model} ({decision.why})"
        case e.AdminDone():
            return f"done {decision.op} ({decision.outcome}{' ' + decision.code if decision.code else ''})"
        case e.TimerSet():
            return f"set {decision.kind}:{decision.key} to {(decision.due_us - START_US) / SECOND:g} s"
        case e.TimerCancelled():
            return f"cancel {decision.kind}:{decision.key}"
    raise AssertionError(f"no words for {decision!r}")


def short(replica: str) -> str:
    """`A#0.7` as A/0."""
    model, _, rest = replica.rpartition("#")
    return f"{model}/{rest.split('.')[0]}"
