"""What loading each model would mean under a configuration: who would leave, or why it can never be loaded.

The real scheduler is asked, in a world without traffic where every order is carried out at once; nothing is started.
Counterparts: `llama-router check`, which shows it, and `router.config`, for which "never" is a mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from router.scheduler import State, dump, engines, restore, step
from router.scheduler.state import Request

STATES_MAX = 32
"""States from which every load is tried. There can be as many as there are combinations of models."""
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """One model, asked for while others are loaded and idle."""

    model: str
    beside: tuple[str, ...]
    """Loaded before, the one that was loaded first first."""
    evicts: tuple[str, ...] = ()
    never: str = ""
    """Why it cannot be loaded; empty: it can."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Every load from states in which nothing else fits beside what is loaded."""

    loads: tuple[Load, ...]
    states: tuple[tuple[str, ...], ...]
    complete: bool
    """Whether these are all such states, as far as it was looked."""


def never_loaded(settings: SchedulerSettings) -> dict[str, str]:
    """Models that cannot be loaded even if nothing is but those that never leave, and why."""
    world = _World(settings)
    reasons: dict[str, str] = {}
    for persistent in (True, False):
        for name, model in settings.models.items():
            if model.persistent == persistent:
                load = (world if persistent else world.copy()).load(name)
                if load.never:
                    reasons[name] = load.never
    return reasons


def kept_apart(settings: SchedulerSettings, names: Sequence[str]) -> str:
    """Why these models cannot be loaded together, one after the other in this order; empty: they can."""
    world = _World(settings)
    for name in names:
        load = world.load(name)
        if load.never:
            return f"{name}: {load.never}"
        if load.evicts:
            return f"loading {name} evicts {', '.join(load.evicts)}"
    return ""


def outlook(settings: SchedulerSettings) -> Outlook:
    """Ask for every load."""
    names = list(settings.models)
    worlds: list[_World] = []
    known: set[frozenset[str]] = set()
    loads: list[Load] = []

    def found(world: _World) -> None:
        world.fill(names)
        if frozenset(world.loaded) not in known:
            known.add(frozenset(world.loaded))
            worlds.append(world)

    empty = _World(settings)
    for first in names:
        if len(worlds) < STATES_MAX:
            world = empty.copy()
            world.load(first)
            found(world)
    for world in worlds:  # grows on the way
        for name in names:
            if name not in world.loaded:
                loads.append(world.asked(name))
                if len(worlds) < STATES_MAX and not loads[-1].never:
                    after = world.copy()
                    after.load(name)
                    found(after)
    loads.sort(key=lambda load: names.index(load.model))
    return Outlook(tuple(loads), tuple(tuple(world.loaded) for world in worlds), len(worlds) < STATES_MAX)


class _World:
    def __init__(self, settings: SchedulerSettings) -> None:
        models = {name: msgspec.structs.replace(model, ttl_us=0) for name, model in settings.models.items()}
        self.settings = msgspec.structs.replace(settings, models=models)
        self.state = State()
        self.now_us = SECOND_US
        self.loaded: list[str] = []
        self._happens(e.RouterStarted(config=self.settings))

    def copy(self) -> "_World":
        other = object.__new__(_World)
        other.settings, other.now_us, other.loaded = self.settings, self.now_us, list(self.loaded)
        other.state = restore(dump(self.state))
        other.state.settings = self.settings  # the same object, so that nothing made of it is made again
        return other

    def asked(self, model: str) -> Load:
        """What loading it would mean now."""
        request = Request(rid=0, model=model, arrived_us=self.now_us)
        needed = engines.plan(self.state, self.state.models[model], request)
        assert needed.outcome != "wait", "nothing moves here, so nobody is to be waited for"
        if needed.outcome != "never":
            return Load(model, tuple(self.loaded), needed.victims)
        kept = f"{', '.join(needed.in_the_way)} may not be evicted for it"
        return Load(model, tuple(self.loaded), never=needed.reason or kept)

    def fill(self, names: Sequence[str]) -> None:
        """Load all that fit beside the others."""
        for name in names:
            if name not in self.loaded:
                asked = self.asked(name)
                if not asked.evicts and not asked.never:
                    self.load(name)

    def load(self, model: str) -> Load:
        """Load it, and say what came of that."""
        beside = tuple(self.loaded)
        self.now_us += SECOND_US
        op, rid = self.state.last_op + 1, self.state.last_rid + 1
        decisions = self._happens(e.LoadWished(op=op, rid=rid, model=model))
        evicts = [v.model for each in decisions if isinstance(each, e.SwapBegun) and each.target for v in each.victims]
        self.loaded = [name for name in self.loaded if name not in evicts]
        for each in decisions:
            if isinstance(each, e.AdminDone) and each.outcome == "failed":
                return Load(model, beside, never=each.reason)
        self.loaded.append(model)
        return Load(model, beside, tuple(evicts))

    def _happens(self, fact: e.Fact) -> list[e.Decision]:
        """A fact and all that follows, every order carried out."""
        decisions = step(self.state, msgspec.structs.replace(fact, at_us=self.now_us))
        for decision in list(decisions):
            match decision:
                case e.ReplicaSpawnOrdered():
                    decisions += self._happens(e.ReplicaReady(replica=decision.replica, slots=1))
                case e.ReplicaStopOrdered():
                    decisions += self._happens(e.ReplicaStopped(replica=decision.replica))
        return decisions
