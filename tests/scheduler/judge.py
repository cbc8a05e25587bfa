"""A shell that also holds every move of the queue against the naive reference, and the order against its promise."""

from __future__ import annotations

from eventlog import events as e
from router.scheduler import State
from router.scheduler.queue_pass import serve_the_queue
from tests.scheduler import reference
from tests.scheduler.reference import Move
from tests.scheduler.shell import Shell


class Judge(Shell):
    def look_at(self, decision: e.Decision | None) -> None:
        moves = isinstance(decision, e.RequestDispatched) and decision.rule != "pay_out"
        moves |= isinstance(decision, e.SwapBegun) and bool(decision.cause_rid)
        if decision is None or (moves and decision == _first_move(self.state)):
            expected = reference.next_move(self.state)
            assert _as_move(decision) == expected, f"decided {decision}, should be {expected}"
        if isinstance(decision, e.RequestDispatched) and decision.rule != "pay_out":
            self._look_at_the_order(decision)

    def _look_at_the_order(self, sent: e.RequestDispatched) -> None:
        """At grace 0, nobody passes an equal whose swap must evict the model that he is served by."""
        if self.state.settings.head_grace_us:
            return
        request = self.state.requests[sent.rid]
        if request.forced or request.attempt > 1:
            return
        for other in reference.queue(self.state):
            if other.rid >= request.rid or other.priority != request.priority or other.forced or other.attempt > 1:
                continue
            model = self.state.models[other.model]
            if model.phase in ("ready", "loading") or any(self.state.gpus_out >> gpu & 1 for gpu in model.gpus):
                continue
            if reference._key_is_held(self.state, other):
                continue
            must = reference.must_leave(self.state, other)
            assert request.model not in must, f"{request.rid} passes {other.rid}, which waits for {request.model} to go"


def _first_move(state: State) -> e.Decision | None:
    """Of the pass over the queue, past the words to those who wait."""
    moves = (each for each in serve_the_queue(state) if not isinstance(each, e.RequestHeld | e.TimerSet))
    return next(moves, None)


def _as_move(decision: e.Decision | None) -> Move | None:
    match decision:
        case e.RequestDispatched():
            return Move("dispatch", decision.rid, replica=decision.replica)
        case e.SwapBegun():
            return Move("swap", decision.cause_rid, victims=[victim.model for victim in decision.victims])
    return None
