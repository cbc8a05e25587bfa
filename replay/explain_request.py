"""Why a request waited: span by span, for what; who passed it; which swap was for it; how it ended.

Counterpart: `explain_text` words it. Reads the log from the request's arrival to its end.
"""

from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from eventlog import events as e
from eventlog.errors import LogError
from replay.state_tables import summary
from replay.waits import What, waiting_for
from replay.walk import Step, find, said_of_the_cut, steps
from router.scheduler import State

Passing = Literal["priority", "forced", "pay_out", "grace", "waiting"]
"""Why a later request could go first: it was preferred; it had been promoted; its swap had been made for it or for an
earlier one; this one was within its grace; or this one could not have used the GPU just then."""


class Wait(msgspec.Struct):
    """A stretch of time in the queue with one reason."""

    from_us: int
    to_us: int
    """-1 while it goes on."""
    what: What
    by: list[str] = []
    """Models, or requests as `rid:N`."""
    swap: int = 0
    ahead: int = 0
    """Earlier requests for the same model when it began."""


class Overtaker(msgspec.Struct, frozen=True):
    """A later request that was served first on a GPU that this one needs."""

    rid: int
    model: str
    at_us: int
    why: Passing


class Attempt(msgspec.Struct):
    """One dispatch and what came of it."""

    replica: str
    from_us: int
    rule: str
    waited_us: int
    to_us: int = -1
    """-1 while it runs."""
    end: str = "running"
    first_token_us: int = -1
    completion_tokens: int = -1


class RequestStory(msgspec.Struct, kw_only=True):
    """All that the log says about a request's way."""

    rid: int
    model: str
    wish: bool
    """Somebody wanted the model loaded; there is no request."""
    asked: str = ""
    route: str = ""
    key: str = ""
    priority: int = 0
    arrived_us: int
    seq: int
    """Of the event that it arrived with."""
    queued_us: int = 0
    """All time in the queue."""
    waits: list[Wait] = []
    attempts: list[Attempt] = []
    overtaken_by: list[Overtaker] = []
    swaps: list[int] = []
    """Those that loaded its model while it waited."""
    caused: list[int] = []
    """Those of them that were begun for it."""
    outcome: str = "open"
    status: int = 0
    code: str = ""
    reason: str = ""
    ended_us: int = -1
    state: dict[str, Any] = {}
    """When it arrived, it included."""


def explain_request(path: Path, rid: int) -> RequestStory:
    """The story of a request or wish. Raises LogError if the log has none of that number."""
    seq = find(path, ("RequestArrived", "LoadWished"), "rid", rid)
    if not seq:
        hint = "its numbers are those of the header X-Router-Request"
        raise LogError(f"the log at {path} has no request {rid}; {hint}{said_of_the_cut(path)}")
    walk = steps(path, seq)
    first = next(walk)
    teller = _Teller(first)
    last_us = first.fact.at_us
    for step in chain([first], walk):
        teller.take(step)
        last_us = step.fact.at_us
        if teller.story.outcome != "open":
            break
    return teller.finish(last_us)


class _Teller:
    """Takes the steps from the request's arrival on."""

    def __init__(self, first: Step) -> None:
        fact, state = first.fact, first.state
        assert isinstance(fact, e.RequestArrived | e.LoadWished)
        self.rid = fact.rid
        self.op = fact.op if isinstance(fact, e.LoadWished) else 0
        model = state.models.get(fact.model)
        self.mask = 0 if model is None else model.mask
        self.story = RequestStory(
            rid=self.rid,
            model=fact.model,
            wish=self.op != 0,
            arrived_us=fact.at_us if isinstance(fact, e.LoadWished) else fact.arrived_us,
            seq=fact.seq,
            state=summary(state),
        )
        if isinstance(fact, e.RequestArrived):
            self.story.asked, self.story.route, self.story.key = fact.asked, fact.route, fact.key
            if fact.arrived_us < fact.at_us:
                self.story.waits.append(Wait(fact.arrived_us, fact.at_us, "body"))
        request = state.requests.get(self.rid)
        if request is not None:
            self.story.priority = request.priority

    def take(self, step: Step) -> None:
        for event in (step.fact, *step.decisions):
            self._look_at(event, step.state)
        if self._is_queued(step.state):
            self._wait(step.fact.at_us, step.state)
        else:
            self._stop_waiting(step.fact.at_us)
        if self.story.outcome != "open":
            self.story.ended_us = step.fact.at_us

    def finish(self, last_us: int) -> RequestStory:
        story = self.story
        self._stop_waiting(last_us)
        story.waits = [wait for wait in story.waits if wait.to_us > wait.from_us]
        story.queued_us = sum(wait.to_us - wait.from_us for wait in story.waits)
        return story

    def _look_at(self, event: e.Event, state: State) -> None:
        story = self.story
        match event:
            case e.RequestDispatched(rid=self.rid):
                story.attempts.append(Attempt(event.replica, event.at_us, event.rule, event.waited_us))
            case e.RequestDispatched() if event.rid > self.rid and self._is_queued(state):
                self._overtaken(event, state)
            case e.SwapBegun() if event.target == story.model and self._is_queued(state):
                story.swaps.append(event.swap)
                if event.cause_rid == self.rid:
                    story.caused.append(event.swap)
            case e.UpstreamLost(rid=self.rid):
                self._attempt_ends(event.at_us, event.detail or "the connection broke")
            case e.RequestFinished(rid=self.rid):
                self._attempt_ends(event.at_us, "finished")
                story.attempts[-1].first_token_us = event.first_token_us
                story.attempts[-1].completion_tokens = event.completion_tokens
                story.outcome, story.status, story.reason = "finished", event.status, event.error
            case e.RequestCancelled(rid=self.rid):
                self._attempt_ends(event.at_us, "cancelled")
                story.outcome, story.code = "cancelled", event.by
            case e.RequestFailed(rid=self.rid):
                story.outcome, story.status, story.code = "failed", event.status, event.code
                story.reason = event.reason
            case e.RequestRejected(rid=self.rid):
                story.outcome, story.status, story.code = "rejected", event.status, event.code
                story.reason = event.reason
            case e.AdminDone() if self.op and event.op == self.op:
                story.outcome, story.code, story.reason = event.outcome, event.code, event.reason
            case e.RouterStarted():
                self._attempt_ends(event.at_us, "the router died")
                story.outcome, story.reason = "lost", "the router died"

    def _is_queued(self, state: State) -> bool:
        request = state.requests.get(self.rid)
        return request is not None and not request.replica

    def _attempt_ends(self, at_us: int, how: str) -> None:
        attempts = self.story.attempts
        if attempts and attempts[-1].to_us < 0:
            attempts[-1].to_us = at_us
            attempts[-1].end = how

    def _overtaken(self, event: e.RequestDispatched, state: State) -> None:
        replica, other = state.replicas.get(event.replica), state.requests.get(event.rid)
        if replica is None or other is None or not replica.mask & self.mask:
            return
        ours = state.requests[self.rid]
        why: Passing = "waiting"
        if other.forced and not ours.forced:
            why = "forced"
        elif other.priority > ours.priority:
            why = "priority"
        elif event.rule == "pay_out":
            why = "pay_out"
        elif ours.held is not None and ours.held[0] == "grace":
            why = "grace"
        self.story.overtaken_by.append(Overtaker(event.rid, other.model, event.at_us, why))

    def _wait(self, at_us: int, state: State) -> None:
        """It is in the queue after this step: the last stretch goes on, or another begins."""
        now = waiting_for(state, state.requests[self.rid])
        waits = self.story.waits
        if waits and waits[-1].to_us < 0 and (waits[-1].what, waits[-1].swap) == (now.what, now.swap):
            waits[-1].by = list(dict.fromkeys([*waits[-1].by, *now.by]))
            return
        self._stop_waiting(at_us)
        waits.append(Wait(at_us, -1, now.what, list(now.by), now.swap, now.ahead))

    def _stop_waiting(self, at_us: int) -> None:
        waits = self.story.waits
        if waits and waits[-1].to_us < 0:
            waits[-1].to_us = at_us
