"""A world without manners: every order is answered at some time, but when, in which order and how is for others to say.

Each method lets one thing happen, if it can happen now; `settle` then lets the world answer everything that is open.
A chooser (Hypothesis, or a seeded generator) calls the methods.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from eventlog import events as e
from eventlog.settings import GroupSettings, KeySettings, MatrixSet, ModelSettings, SchedulerSettings
from tests.scheduler import reference_engines
from tests.scheduler.judge import Judge
from tests.scheduler.shell import SECOND, Process

T = TypeVar("T")

FAILURES: tuple[e.LoadFailure, ...] = ("gpu_oom", "exit", "signal", "stall", "missing_file", "bad_flag")

TOPOLOGIES: dict[str, dict[str, tuple[int, ...]]] = {
    "one GPU": {"A": (0,), "B": (0,), "C": (0,)},
    "two apart": {"A": (0,), "B": (0,), "C": (1,), "D": (1,)},
    "spanning": {"A": (0,), "B": (1,), "W": (0, 1), "C": (0,)},
    "a chain": {"A": (0, 1), "B": (1, 2), "C": (2,), "D": (0,), "E": ()},
    "everywhere": {"A": (0,), "B": (1,), "C": (2,), "W": (0, 1, 2), "X": (0, 2)},
}


class Chaos(Judge):
    def __init__(self, settings: SchedulerSettings, *, strict: bool = True) -> None:
        self.last_rid = 0
        self.last_op = 0
        self.turns: dict[str, int] = {}
        """Conversation to the length of its prompt, in messages."""
        self.unreleased: list[tuple[int, str]] = []
        """Cancelled requests whose SlotReleased is still to come."""
        self.suspects: set[str] = set()
        self.stopping = False
        super().__init__(settings, strict=strict)

    # --- asked from outside ---

    def arrive(self, model: int, **fields: object) -> None:
        self.last_rid += 1
        name = self._model(model)
        self.happens(e.RequestArrived(rid=self.last_rid, arrived_us=self.now_us, model=name, **fields))  # type: ignore[arg-type]

    def arrive_again(self, model: int, conversation: str, messages: int) -> None:
        """The next turn of a conversation, so many messages longer; or, with 0, the same prompt once more."""
        length = self.turns[conversation] = self.turns.get(conversation, 0) + messages
        prefix = [e.PrefixBlock(f"{conversation}{nth}", 100 * nth) for nth in range(max(1, length))]
        self.arrive(model, conversation=conversation, prefix=prefix)

    def wish(self, model: int) -> None:
        self.last_rid += 1
        self.happens(e.LoadWished(op=self._op(), rid=self.last_rid, model=self._model(model)))

    def unload(self, model: int, force: bool) -> None:
        self.happens(e.AdminUnload(op=self._op(), model=self._model(model), force=force))

    def drain(self, force: bool) -> None:
        self.happens(e.AdminDrain(op=self._op(), force=force))

    def gpu(self, gpu: int, action: Literal["out", "in"]) -> None:
        self.happens(e.AdminGpu(op=self._op(), gpu=gpu, action=action))

    def cancel(self, index: int) -> None:
        """An administrator ends a request, or a wish; for a request the relay reports it as cancelled."""
        rid = self._pick(sorted({*self.waiting, *self.running, *self.state.wishes.values()}), index)
        if rid is not None:
            self.happens(e.AdminCancel(op=self._op(), rid=rid))
            self._leave(rid, "admin")

    def client_leaves(self, index: int) -> None:
        rid = self._pick(sorted({*self.waiting, *self.running}), index)
        if rid is not None:
            self._leave(rid, "client")

    def reload(self, model: int, change: str) -> None:
        """Another configuration: of one model, or of all."""
        settings = self.state.settings
        name = self._model(model)
        models = dict(settings.models)
        if change == "remove" and len(models) > 1:
            del models[name]
        elif change == "back":
            models = dict(self.settings.models)
        elif change == "cap":
            settings = msgspec.structs.replace(settings, max_models_per_gpu=3 - settings.max_models_per_gpu)
        elif change == "engine":
            settings = with_engine(settings, settings.engine, random.Random(len(self.record)).choice)
            models = dict(settings.models)
        elif change == "grace":
            settings = msgspec.structs.replace(settings, head_grace_us=settings.head_grace_us // 2)
        elif change == "gpus":
            gpus = tuple(sorted({(gpu + 1) % settings.gpus for gpu in models[name].gpus}))
            models[name] = msgspec.structs.replace(models[name], gpus=gpus)
        elif change == "shape":
            shape = f"{models[name].cache_shape}+"
            models[name] = msgspec.structs.replace(models[name], cache_shape=shape, fingerprint=shape)
        elif change == "keep":
            settings = msgspec.structs.replace(settings, keep_caches=not settings.keep_caches)
        elif change == "replicas":
            models[name] = msgspec.structs.replace(models[name], replicas=3 - models[name].replicas)
        else:
            models[name] = msgspec.structs.replace(models[name], fingerprint=f"{models[name].fingerprint}+")
        self.happens(e.ConfigLoaded(config=msgspec.structs.replace(settings, models=models)))

    def stop(self, within_s: float) -> None:
        self.stopping = True
        self.happens(e.RouterStopping(reason="SIGTERM", deadline_us=self.now_us + round(within_s * SECOND)))

    # --- what the world answers ---

    def ready(self, index: int, slots: int) -> None:
        """A report of readiness may cross with an order to stop."""
        process = self._pick([process for process in self.processes.values() if not process.ready], index)
        if process is not None:
            self.happens(e.ReplicaSpawned(replica=process.replica, pid=4711))
            self.happens(e.ReplicaReady(replica=process.replica, slots=slots))

    def load_fails(self, index: int, kind: e.LoadFailure) -> None:
        process = self._pick([process for process in self.processes.values() if not process.ready], index)
        if process is not None:
            self.happens(e.ReplicaLoadFailed(replica=process.replica, kind=kind, reason="as chosen"))

    def finish(self, index: int, status: int = 200) -> None:
        rid = self._pick([rid for rid in sorted(self.running) if self._serves(rid)], index)
        if rid is not None:
            self.happens(e.RequestFinished(rid=rid, replica=self.running[rid], status=status))

    def finish_measured(self, index: int, tokens: int, cached: int) -> None:
        rid = self._pick([rid for rid in sorted(self.running) if self._serves(rid)], index)
        if rid is not None:
            timing = e.SlotTiming(cache_n=cached, prompt_n=tokens, prompt_us=500 * tokens, predicted_n=9)
            self.happens(e.RequestFinished(rid=rid, replica=self.running[rid], timing=timing))

    def hold(self, index: int, slot: int, conversation: str) -> None:
        """It is told what a slot holds: of a request that runs, or of one that is long gone."""
        replica = self._pick([process.replica for process in self.processes.values() if process.ready], index)
        if replica is not None:
            rids = [rid for rid, where in sorted(self.running.items()) if where == replica]
            rid = self._pick([*rids, *sorted(self.outcomes)[-3:]], index) or 0
            self.happens(e.SlotHolds(replica=replica, slot=slot, conversation=conversation, tokens=2000, rid=rid))

    def answer_save(self, index: int, tokens: int) -> None:
        """With 0 tokens it has failed."""
        order = self._pick(sorted(self.open_saves), index)
        if order is None:
            return
        what = {"replica": order[0], "slot": order[1], "conversation": self.open_saves[order]}
        if tokens:
            self.happens(e.CacheSaved(**what, tokens=tokens, bytes=50 * tokens, took_us=tokens))  # type: ignore[arg-type]
        else:
            self.happens(e.CacheSaveFailed(**what, reason="as chosen"))  # type: ignore[arg-type]

    def answer_restore(self, index: int, tokens: int) -> None:
        order = self._pick(sorted(self.open_restores), index)
        if order is None:
            return
        what = {"replica": order[0], "slot": order[1], "conversation": self.open_restores[order][0]}
        if tokens:
            self.happens(e.CacheRestored(**what, tokens=tokens, bytes=50 * tokens, took_us=tokens))  # type: ignore[arg-type]
        else:
            self.happens(e.CacheRestoreFailed(**what, reason="as chosen"))  # type: ignore[arg-type]

    def drop(self, index: int) -> None:
        """A file goes, or one is dropped that nobody knows."""
        file = self._pick([*sorted(self.files), ("A", "unknown")], index)
        if file is not None and file[1] not in (conversation for conversation, _ in self.open_restores.values()):
            self.happens(e.CacheDropped(model=file[0], conversation=file[1]))

    def lose(self, index: int, begun: bool) -> None:
        """A connection breaks; whether the process lives is found out later."""
        rid = self._pick(sorted(self.running), index)
        if rid is not None:
            self._lose(rid, begun)

    def answer(self, index: int) -> None:
        replica = self._pick(sorted(self.suspects & self.processes.keys()), index)
        if replica is not None:
            self.suspects.discard(replica)
            self.happens(e.ReplicaAnswered(replica=replica))

    def crash(self, index: int, first: bool, begun: bool) -> None:
        """A process dies; its broken connections are reported `first`, or some time later."""
        self._process_ends([process for process in self.processes.values() if process.ready], index, first, begun, True)

    def stopped(self, index: int, first: bool, begun: bool) -> None:
        told = [process for process in self.processes.values() if process.told_to_stop]
        self._process_ends(told, index, first, begun, False)

    def stall(self, index: int) -> None:
        process = self._pick([process for process in self.processes.values() if process.works_on], index)
        if process is not None:
            self.happens(e.ReplicaStalled(replica=process.replica, silent_us=60 * SECOND, norm_us=SECOND))

    def release(self, index: int) -> None:
        gone = self._pick(self.unreleased, index)
        if gone is not None:
            self.unreleased.remove(gone)
            self.happens(e.SlotReleased(rid=gone[0], replica=gone[1]))

    def late_report(self, index: int, what: int) -> None:
        """Something about a process, a request or a timer that is long gone."""
        replica = self._pick(sorted(self.processes_ever - self.processes.keys()), index)
        rid = self._pick(sorted(self.outcomes), index)
        if replica is not None and rid is not None:
            reports: tuple[e.Fact, ...] = (
                e.ReplicaReady(replica=replica, slots=1),
                e.ReplicaAnswered(replica=replica),
                e.ReplicaStalled(replica=replica, silent_us=1, norm_us=1),
                e.ReplicaSpawned(replica=replica, pid=4711),
                e.ReplicaStopped(replica=replica),
                e.ReplicaCrashed(replica=replica),
                e.RequestFinished(rid=rid, replica=replica),
                e.UpstreamLost(rid=rid, replica=replica),
                e.RequestCancelled(rid=rid, replica=replica),
                e.SlotReleased(rid=rid, replica=replica),
                e.TimerFired(kind="grace", key=str(rid), due_us=self.now_us),
                e.TimerFired(kind="force", key="queue", due_us=self.now_us),
            )
            self.happens(reports[what % len(reports)])

    def time_passes(self, seconds: float) -> None:
        """Timers that are due fire, in order."""
        until_us = self.now_us + round(seconds * SECOND)
        while due := [(due_us, timer) for timer, due_us in sorted(self.timers.items()) if due_us <= until_us]:
            due_us, (kind, key) = min(due)
            self.now_us = max(self.now_us, due_us)
            self.happens(e.TimerFired(kind=kind, key=key, due_us=due_us))
        self.now_us = until_us

    # --- and everything, at last ---

    def settle(self) -> None:
        """The world answers all that is open, and all must end within a number of answers that follows from theirs."""
        for gpu in range(self.state.settings.gpus):
            if self.state.gpus_out >> gpu & 1:
                self.gpu(gpu, "in")
        answers = 0
        bound = 200 + 30 * (len(self.waiting) + len(self.running) + len(self.open_ops) + len(self.processes))
        while self._settle_one():
            answers += 1
            assert answers < bound, f"after {answers} answers {self.waiting} still wait: {self.state.swaps}"
        self.assert_nothing_is_left()
        there = set(reference_engines.present(self.state))
        kept = any(reference_engines.is_kept(self.state, name) for name in there)
        assert kept or self.state.settings.engine == "residency" or reference_engines.legal(self.state, there), (
            f"{sorted(there)} may not be loaded together, and all of them stay"
        )
        if self.stopping:
            assert not self.processes
            assert not self.state.replicas

    def _settle_one(self) -> bool:
        lost = [rid for rid in sorted(self.running) if not self._serves(rid)]
        if lost:
            self._lose(lost[0], begun=False)
        elif self.unreleased:
            self.release(0)
        elif self.suspects & self.processes.keys():
            self.answer(0)
        elif self.open_saves:
            self.answer_save(0, tokens=1000)
        elif self.open_restores:
            self.answer_restore(0, tokens=1000)
        elif any(process.told_to_stop for process in self.processes.values()):
            self.stopped(0, first=True, begun=False)
        elif any(not process.ready for process in self.processes.values()):
            self.ready(0, slots=2)
        elif self.running:
            self.finish(0)
        elif [due_us for (kind, _), due_us in self.timers.items() if kind != "ttl" or self.waiting]:
            due_us, (kind, key) = min((due_us, timer) for timer, due_us in self.timers.items())
            self.now_us = max(self.now_us, due_us)
            self.happens(e.TimerFired(kind=kind, key=key, due_us=due_us))
        else:
            return False
        return True

    # --- parts ---

    def _op(self) -> int:
        self.last_op += 1
        return self.last_op

    def _model(self, index: int) -> str:
        names = sorted(self.state.settings.models)
        return names[index % len(names)]

    def _pick(self, candidates: list[T], index: int) -> T | None:
        return candidates[index % len(candidates)] if candidates else None

    def _serves(self, rid: int) -> bool:
        return self.running[rid] in self.processes

    def _lose(self, rid: int, begun: bool) -> None:
        replica = self.running[rid]
        self.suspects.add(replica)
        self.happens(e.UpstreamLost(rid=rid, replica=replica, begun=begun, detail="as chosen"))

    def _leave(self, rid: int, by: Literal["client", "admin"]) -> None:
        if rid in self.outcomes or (rid not in self.waiting and rid not in self.running):
            return
        replica = self.running.get(rid, "")
        self.happens(e.RequestCancelled(rid=rid, replica=replica, by=by))
        if replica:
            self.unreleased.append((rid, replica))

    def _process_ends(self, among: list[Process], index: int, first: bool, begun: bool, crash: bool) -> None:
        process = self._pick(among, index)
        if process is None:
            return
        for rid in sorted(process.works_on):
            if first:
                self._lose(rid, begun)
        replica = process.replica
        self.happens(e.ReplicaCrashed(replica=replica) if crash else e.ReplicaStopped(replica=replica))


def with_engine(settings: SchedulerSettings, engine: str, draw: Callable[[list[object]], object]) -> SchedulerSettings:
    """These settings under another engine, with rules for the models that there are. The cap may stand beside it."""
    names = sorted(settings.models)
    groups = {
        title: GroupSettings(
            members=members,
            swap=draw([True, False]),  # type: ignore[arg-type]
            exclusive=draw([True, False]),  # type: ignore[arg-type]
            persistent=draw([False, False, True]),  # type: ignore[arg-type]
        )
        for title, members in zip(("one", "two"), draw(_groupings(names)), strict=False)  # type: ignore[call-overload]
    }
    combinations = [sorted({str(draw(list(names))) for _ in range(3)}) for _ in range(4)]
    models = {
        name: msgspec.structs.replace(
            model,
            capacities={pool: draw([0, 2, 3, 5]) for pool in draw([["ram"], ["ram", "vram"], []])},  # type: ignore[union-attr]
            evict_cost=draw([None, None, 0, 1, 7]),
        )
        for name, model in settings.models.items()
    }
    return msgspec.structs.replace(
        settings,
        models=models,
        engine=engine,
        max_models_per_gpu=draw([0, 0, 1, 2]),
        scope=draw(["", "instance", "gpu"]),
        groups=groups,
        matrix=(
            MatrixSet(name="one", combinations=tuple(map(tuple, combinations[:2]))),
            MatrixSet(name="two", combinations=tuple(map(tuple, combinations[2:]))),
        ),
        matrix_evict_costs=draw([{}, {names[0]: 9}]),
        pools={"ram": 10, "vram": 10},
    )


def _groupings(names: list[str]) -> list[object]:
    """A few ways to put models into up to two groups; the rest are in none."""
    return [
        (),
        (tuple(names),),
        (tuple(names[:2]), tuple(names[2:])),
        (tuple(names[::2]), tuple(names[1::2])),
        (tuple(names[:1]), tuple(names[2:])),
    ]


def settings_of(draw: Callable[[list[object]], object]) -> SchedulerSettings:
    """Settings with every knob somewhere; `draw` picks one of a list."""
    topology = TOPOLOGIES[str(draw(list(TOPOLOGIES)))]
    models = {
        name: ModelSettings(
            gpus=gpus,
            replicas=draw([1, 1, 2]),  # type: ignore[arg-type]
            priority=draw([0, 0, 0, 3]),  # type: ignore[arg-type]
            ttl_us=draw([0, 0, 40 * SECOND]),  # type: ignore[arg-type]
            persistent=draw([False] * 9 + [True]),  # type: ignore[arg-type]
        )
        for name, gpus in topology.items()
    }
    return SchedulerSettings(
        models=models,
        gpus=1 + max(gpu for gpus in topology.values() for gpu in gpus),
        max_models_per_gpu=draw([1, 1, 2]),  # type: ignore[arg-type]
        eviction=draw(["lru", "fifo"]),  # type: ignore[arg-type]
        prefer_idle=draw([True, False]),  # type: ignore[arg-type]
        head_grace_us=draw([0, 0, 5 * SECOND, 10_000 * SECOND]),  # type: ignore[arg-type]
        head_grace_from=draw(["head", "arrival"]),  # type: ignore[arg-type]
        force_load_us=draw([0, 20 * SECOND, 300 * SECOND]),  # type: ignore[arg-type]
        overcommit=draw([0, 0, 1, -1]),  # type: ignore[arg-type]
        keys={"limited": KeySettings(max_parallel=1)},
    )


def kept(settings: SchedulerSettings, dice: random.Random) -> SchedulerSettings:
    """The same, with prompt caches that are kept."""
    models = {
        name: msgspec.structs.replace(model, cache_shape="s" if dice.random() < 0.9 else "")
        for name, model in settings.models.items()
    }
    return msgspec.structs.replace(
        settings,
        models=models,
        keep_caches=True,
        keep_min_tokens=dice.choice([100, 1000]),
        keep_hold_us=dice.choice([0, 1, 3, 30]) * SECOND,
        keep_budget_mib=dice.choice([1, 1000]),
        keep_persist=dice.random() < 0.5,
    )


def ramble(seed: int, steps: int, engine: str = "", *, keep: bool = False) -> Chaos:
    """A story told by a seed: the same on every machine. With `keep`, prompt caches are kept."""
    dice = random.Random(seed)
    settings = settings_of(dice.choice)
    if engine:
        settings = with_engine(settings, engine, random.Random(f"{engine}/{seed}").choice)
    chaos = Chaos(kept(settings, dice) if keep else settings, strict=False)
    stops_at = dice.randrange(steps) if dice.random() < 0.3 else steps
    for step in range(steps):
        if step == stops_at:
            chaos.stop(dice.choice([0.0, 10.0, 300.0]))
        if keep and dice.random() < 0.7:
            one_thing_about_caches(chaos, dice)
        else:
            one_thing(chaos, dice)
    chaos.settle()
    return chaos


def one_thing_about_caches(chaos: Chaos, dice: random.Random) -> None:
    index, tokens = dice.randrange(100), dice.choice([0, 50, 1500, 1_000_000])
    usual = (
        lambda: chaos.arrive_again(index % 2, dice.choice("xyz"), dice.choice([0, 2])),
        lambda: chaos.finish_measured(index, dice.choice([10, 2000]), dice.choice([0, 0, 1900])),
        lambda: chaos.hold(index, dice.randrange(4), dice.choice(["x", "y", "z", ""])),
        lambda: chaos.hold(index, dice.randrange(2), "x"),
        lambda: chaos.answer_save(index, tokens),
        lambda: chaos.answer_restore(index, tokens),
        lambda: chaos.ready(index, dice.choice([1, 2, 4])),
        lambda: chaos.stopped(index, True, False),
    )
    rare = (
        lambda: chaos.drop(index),
        lambda: chaos.crash(index, dice.random() < 0.5, dice.random() < 0.5),
        lambda: chaos.time_passes(dice.choice([0.1, 3.0, 12.0])),
        lambda: chaos.reload(index, "shape"),
        lambda: chaos.reload(index, "keep"),
        chaos.through_a_checkpoint,
    )
    chance = dice.random()
    if chance < 0.1:
        come_and_go(chaos, index % 2, dice)
    else:
        dice.choice(usual if chance < 0.85 else rare)()


def come_and_go(chaos: Chaos, model: int, dice: random.Random) -> None:
    """What usually ends in a restore: a model serves a conversation, makes room for another one, is wanted again."""
    chaos.arrive_again(model, "x", 2)
    chaos.ready(dice.randrange(3), 2)
    for slot in range(2):
        chaos.hold(dice.randrange(3), slot, "x")
    while chaos.running:
        lost = [rid for rid in sorted(chaos.running) if not chaos._serves(rid)]
        if lost:
            chaos._lose(lost[0], begun=False)
        else:
            chaos.finish_measured(0, 2000, 0)
    chaos.arrive_again(model + 1, "y", 2)
    chaos.answer_save(0, 1500)
    chaos.arrive_again(model, "x", 2)
    for _ in range(3):
        chaos.stopped(0, True, False)
        chaos.ready(0, 2)
        if dice.random() < 0.7:
            chaos.finish_measured(0, 2000, dice.choice([0, 1900]))


def one_thing(chaos: Chaos, dice: random.Random) -> None:
    """Something happens, usual things more often."""
    index, chance = dice.randrange(100), dice.random()
    if chance < 0.35:
        chaos.arrive(
            index,
            priority=dice.choice([0, 0, 0, 5]),
            key=dice.choice(["", "", "limited"]),
            work=dice.choice(["generation", "generation", "generation", "metadata"]),
            slots_wanted=dice.choice([1, 1, 1, 2, 5]),
            conversation=dice.choice(["", "x", "y"]),
        )
    elif chance < 0.50:
        chaos.finish(index)
    elif chance < 0.60:
        chaos.ready(index, dice.choice([1, 2, 4]))
    elif chance < 0.68:
        chaos.stopped(index, dice.random() < 0.5, dice.random() < 0.5)
    elif chance < 0.74:
        chaos.time_passes(dice.choice([0.1, 3.0, 12.0, 60.0]))
    elif chance < 0.79:
        chaos.client_leaves(index)
    elif chance < 0.83:
        chaos.release(index)
    else:
        reloads = ["remove", "back", "cap", "grace", "gpus", "replicas", "print"]
        if chaos.state.settings.engine != "residency":
            reloads.append("engine")
        rare = (
            lambda: chaos.load_fails(index, dice.choice(FAILURES)),
            lambda: chaos.lose(index, dice.random() < 0.5),
            lambda: chaos.answer(index),
            lambda: chaos.crash(index, dice.random() < 0.5, dice.random() < 0.5),
            lambda: chaos.stall(index),
            lambda: chaos.wish(index),
            lambda: chaos.unload(index, dice.random() < 0.3),
            lambda: chaos.cancel(index),
            lambda: chaos.gpu(index % chaos.state.settings.gpus, dice.choice(["out", "in", "in"])),
            lambda: chaos.reload(index, dice.choice(reloads)),
            lambda: chaos.late_report(index, dice.randrange(20)),
            chaos.through_a_checkpoint,
            lambda: chaos.drain(dice.random() < 0.3),
        )
        dice.choice(rare)()
