"""The scheduler: facts in, decisions out. Pure.

    fact --fold--> State --next_decision--> decision --fold--> State --next_decision--> ... None

`step` is all that the live loop, the replayer and the tests call. Start with `rules.py` for what is decided and in what
order, `state.py` for what may be looked at, `fold.py` for how facts change it.

Invariant: nothing here reads a clock, the environment, a file or a socket, or draws a random number.
"""

from eventlog.events import Decision, Fact
from router.scheduler.fold import fold
from router.scheduler.invariants import check_decision
from router.scheduler.rules import decide, next_decision
from router.scheduler.state import State, carried_from, digest, dump, restore, settled

POLICY_VERSION = 1
"""Raised when the same facts may lead to other decisions than before."""

DECISIONS_MAX = 1_000_000
"""More decisions than this after one fact mean that two rules undo each other: a bug, better stopped than endless."""


def step(state: State, fact: Fact) -> list[Decision]:
    """Fold a fact and decide until nothing is left to decide.

    `fact` carries its envelope (`at_us` above all). The decisions come unstamped, in the order in which they were made
    and have been folded already. Raises AssertionError when one of them breaks an invariant: a bug in here.
    """
    fold(state, fact)
    decisions: list[Decision] = []
    for decision in decide(state):
        check_decision(state, decision)
        fold(state, decision)
        decisions.append(decision)
        assert len(decisions) < DECISIONS_MAX, f"no end of decisions after {fact!r}: {decisions[-4:]!r}"
    return decisions


__all__ = [
    "POLICY_VERSION",
    "State",
    "carried_from",
    "digest",
    "dump",
    "fold",
    "next_decision",
    "restore",
    "settled",
    "step",
]
