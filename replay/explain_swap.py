"""Why a swap happened just then, why these victims and not the others, what each phase cost, and whom it served.

Counterpart: `explain_text` words it.
"""

from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from eventlog import events as e
from eventlog.errors import LogError
from eventlog.reader import read
from replay.walk import Step, find, said_of_the_cut, steps
from router.scheduler import State

Spared = Literal["wanted", "busy", "age", "worth", "name", "not needed", "cost"]
"""What put a model behind the victims in the order of choice: queued requests want it; it is busy; it was used (or, for
fifo, loaded) later, or is worth more; its name; or enough room had been made. Where an engine weighs sets of them:
others cost less."""


class Candidate(msgspec.Struct, frozen=True):
    """A model that might have left, with the data it was judged by; a victim has no `spared_by`."""

    model: str
    wanted: int
    in_flight: int
    age_us: int
    gpus: tuple[int, ...]
    cost: int = 0
    """Of evicting it, where the engine goes by that."""
    worth: int = 0
    """Its decayed uses times its load time, where the policy goes by that."""
    spared_by: Spared | None = None


class Load(msgspec.Struct):
    """One process that was started for the target."""

    replica: str
    attempt: int
    from_us: int
    to_us: int = -1
    end: str = "loading"
    """ready, or why not."""


class SwapStory(msgspec.Struct, kw_only=True):
    """All that the log says about a swap."""

    swap: int
    seq: int
    target: str
    why: str
    begun_us: int
    cause_rid: int
    op: int
    gpus: tuple[int, ...]
    waited_us: int
    """That the request which caused it had waited by then."""
    head_for_us: int
    """That it had been the blocked head."""
    grace_us: int
    head_release: str = "grace"
    """What ended the patience of its head: its grace, or the waiting that requests for its model had accrued."""
    force_load_us: int
    eviction: str
    prefer_idle: bool = True
    engine: str = "residency"
    set_name: str = ""
    """matrix: the set that was kept."""
    cost: int = 0
    """matrix, capacity: of all victims together."""
    nodes: int = 0
    search_limited: bool = False
    """capacity: of the search for them."""
    victims: list[Candidate]
    others: list[Candidate]
    draining: list[int]
    """rids that the victims were serving when it began."""
    by_force: bool = False
    """They were not waited for."""
    queued: int
    """Requests for the target when it began."""
    outcome: Literal["done", "failed", "aborted", "running", "lost"] = "running"
    abort_why: str = ""
    drain_us: int = 0
    save_us: int = 0
    """Of that, how long it was held up for saving prompt caches."""
    stop_us: int = 0
    load_us: int = 0
    ended_us: int = -1
    loads: list[Load] = []
    first_served: int = 0
    """rid that the load paid out to."""
    served: int = 0
    """Requests dispatched to the processes that it started, until the target left again or the log ended."""
    served_rids: list[int] = []
    """The first of them."""
    left_us: int = -1
    """When the target was told to leave again, or the last of these processes ended; -1 if neither came."""
    ended_by_itself: bool = False
    """It was not told to leave: they crashed."""


SERVED_SHOWN = 12


def explain_swap(path: Path, swap: int) -> SwapStory:
    """The story of a swap. Raises LogError if the log has none of that number."""
    seq = find(path, ("SwapBegun",), "swap", swap)
    if not seq:
        hint = "SwapBegun and /status give their numbers"
        raise LogError(f"the log at {path} has no swap {swap}; {hint}{said_of_the_cut(path)}")
    (begun,) = read(path, from_seq=seq, to_seq=seq, types=("SwapBegun",))
    walk = steps(path, begun.cause)
    first = next(walk)
    teller = _Teller(first, swap)
    for step in chain([first], walk):
        for event in (step.fact, *step.decisions):
            teller.take(event)
        if teller.is_over:
            break
    return teller.story


class _Teller:
    """Takes the events from the step on in which the swap began."""

    def __init__(self, first: Step, swap: int) -> None:
        begun = next(event for event in first.decisions if isinstance(event, e.SwapBegun) and event.swap == swap)
        state = first.state
        self.number = swap
        self.is_over = False
        self._replicas: set[str] = set()
        """Processes that were started for the target."""
        self._alive: set[str] = set()
        """Those of them that have not ended."""
        settings = state.settings
        victims = [_candidate(victim, None) for victim in begun.victims]
        lane = state.lanes.get(begun.target)
        self.story = SwapStory(
            swap=swap,
            seq=begun.seq,
            target=begun.target,
            why=begun.why,
            begun_us=begun.at_us,
            cause_rid=begun.cause_rid,
            op=begun.op,
            gpus=begun.footprint,
            waited_us=begun.waited_us,
            head_for_us=begun.at_us - begun.head_since_us if begun.head_since_us else 0,
            grace_us=settings.head_grace_us,
            head_release=settings.head_release,
            force_load_us=settings.force_load_us,
            eviction=settings.eviction,
            prefer_idle=settings.prefer_idle,
            engine=begun.engine,
            set_name=begun.set_name,
            cost=begun.cost,
            nodes=begun.nodes,
            search_limited=begun.search_limited,
            victims=victims,
            others=[_candidate(other, _spared_by(other, begun, state)) for other in begun.others],
            draining=_served_by(state, [victim.model for victim in begun.victims]),
            queued=0 if lane is None else lane.length,
        )

    def take(self, event: e.Event) -> None:
        story = self.story
        match event:
            case e.SwapAborted(swap=self.number):
                story.outcome, story.abort_why, story.ended_us = "aborted", event.why, event.at_us
                story.drain_us = event.at_us - story.begun_us
                self.is_over = True
            case e.SwapFinished(swap=self.number):
                story.outcome = "done" if event.ok else "failed"
                story.ended_us = event.at_us
                story.drain_us, story.stop_us, story.load_us = event.drain_us, event.stop_us, event.load_us
                story.save_us = event.save_us
                self.is_over = not story.target or not event.ok
            case e.ReplicaStopOrdered(swap=self.number) if event.force:
                story.by_force = True
            case e.ReplicaSpawnOrdered(swap=self.number):
                self._replicas.add(event.replica)
                self._alive.add(event.replica)
                story.loads.append(Load(event.replica, event.attempt, event.at_us))
            case e.ReplicaReady() if event.replica in self._replicas:
                self._load_ends(event.replica, event.at_us, "ready")
            case e.ReplicaLoadFailed() if event.replica in self._replicas:
                self._alive.discard(event.replica)
                self._load_ends(event.replica, event.at_us, event.kind)
            case e.ReplicaStopped() | e.ReplicaCrashed() if event.replica in self._replicas:
                self._load_ends(event.replica, event.at_us, "stopped")
                self._alive.discard(event.replica)
                if story.outcome == "done" and not self._alive:
                    story.left_us = event.at_us
                    story.ended_by_itself = isinstance(event, e.ReplicaCrashed)
                    self.is_over = True
            case e.RequestDispatched() if event.replica in self._replicas:
                story.first_served = story.first_served or event.rid
                story.served += 1
                if len(story.served_rids) < SERVED_SHOWN:
                    story.served_rids.append(event.rid)
            case e.SwapBegun() if story.target and any(victim.model == story.target for victim in event.victims):
                story.left_us = event.at_us
                self.is_over = True
            case e.RouterStarted():
                if story.outcome == "running":
                    story.outcome = "lost"
                self.is_over = True

    def _load_ends(self, replica: str, at_us: int, how: str) -> None:
        for load in self.story.loads:
            if load.replica == replica and load.to_us < 0:
                load.to_us, load.end = at_us, how


def _candidate(victim: e.Victim, spared_by: Spared | None) -> Candidate:
    return Candidate(
        model=victim.model,
        wanted=victim.wanted,
        in_flight=victim.in_flight,
        age_us=victim.age_us,
        gpus=victim.gpus,
        cost=victim.cost,
        worth=victim.worth,
        spared_by=spared_by,
    )


def _spared_by(other: e.Victim, begun: e.SwapBegun, state: State) -> Spared:
    """The first part of the order of choice that puts this model behind every victim that it could have replaced."""
    if begun.engine != "residency":
        return "cost"
    rivals = [victim for victim in begun.victims if set(victim.gpus) & set(other.gpus)]
    if not rivals:
        return "not needed"
    last = max(rivals, key=lambda victim: _order(victim, begun, state))
    ours, theirs = _order(other, begun, state), _order(last, begun, state)
    if ours <= theirs:
        return "not needed"
    names: tuple[Spared, ...] = ("wanted", "busy", "worth" if state.settings.eviction == "worth" else "age", "name")
    return next(name for name, our, their in zip(names, ours, theirs, strict=True) if our != their)


def _order(victim: e.Victim, begun: e.SwapBegun, state: State) -> tuple[bool, bool, int, str]:
    """As the scheduler's `victim_key`: smaller leaves first; a greater age is an older use, a greater worth stays."""
    wanted = begun.why != "forced" and victim.wanted > 0
    busy = state.settings.prefer_idle and victim.in_flight > 0
    last = victim.worth if state.settings.eviction == "worth" else -victim.age_us
    return (wanted, busy, last, victim.model)


def _served_by(state: State, models: list[str]) -> list[int]:
    replicas = [replica for name in models for replica in state.models[name].replicas]
    return sorted(rid for replica in replicas if replica in state.replicas for rid in state.replicas[replica].in_flight)
