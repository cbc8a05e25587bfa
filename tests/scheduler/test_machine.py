"""Hypothesis tells stories; the shell, the ledger, the naive reference and the promise of order judge each decision.

What is checked, and where: invariants of states and decisions in `router/scheduler/invariants.py`; one outcome per
request, one answer per operation, slots, the cap and names of processes against a ledger of the world in `shell.py`;
every move of the queue against a scan request by request, and the order at grace 0, in `judge.py`; that everything ends
and nothing is left, in `Chaos.settle`.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from router.scheduler import digest, dump, next_decision, restore
from tests.scheduler.chaos import FAILURES, Chaos, settings_of

which = st.integers(0, 30)
yes_or_no = st.booleans()


class Stories(RuleBasedStateMachine):
    chaos: Chaos

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        self.chaos = Chaos(settings_of(lambda choices: data.draw(st.sampled_from(choices))))

    @rule(
        model=which,
        priority=st.sampled_from([0, 0, 0, 5]),
        key=st.sampled_from(["", "", "limited"]),
        work=st.sampled_from(["generation", "generation", "generation", "metadata"]),
        slots_wanted=st.sampled_from([1, 1, 2, 5]),
        conversation=st.sampled_from(["", "x", "y"]),
    )
    def arrive(self, model: int, **fields: Any) -> None:
        self.chaos.arrive(model, **fields)

    @rule(model=which, times=st.integers(2, 4))
    def a_burst(self, model: int, times: int) -> None:
        for nth in range(times):
            self.chaos.arrive(model + nth % 2)

    @rule(index=which, status=st.sampled_from([200, 200, 500]))
    def finish(self, index: int, status: int) -> None:
        self.chaos.finish(index, status)

    @rule(index=which, slots=st.sampled_from([1, 2, 4]))
    def ready(self, index: int, slots: int) -> None:
        self.chaos.ready(index, slots)

    @rule(index=which, kind=st.sampled_from(FAILURES))
    def load_fails(self, index: int, kind: Any) -> None:
        self.chaos.load_fails(index, kind)

    @rule(index=which, first=yes_or_no, begun=yes_or_no)
    def stopped(self, index: int, first: bool, begun: bool) -> None:
        self.chaos.stopped(index, first, begun)

    @rule(index=which, first=yes_or_no, begun=yes_or_no)
    def crash(self, index: int, first: bool, begun: bool) -> None:
        self.chaos.crash(index, first, begun)

    @rule(index=which, begun=yes_or_no)
    def lose(self, index: int, begun: bool) -> None:
        self.chaos.lose(index, begun)

    @rule(index=which)
    def answer(self, index: int) -> None:
        self.chaos.answer(index)

    @rule(index=which)
    def stall(self, index: int) -> None:
        self.chaos.stall(index)

    @rule(index=which)
    def client_leaves(self, index: int) -> None:
        self.chaos.client_leaves(index)

    @rule(index=which)
    def release(self, index: int) -> None:
        self.chaos.release(index)

    @rule(seconds=st.sampled_from([0.1, 3.0, 12.0, 60.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.chaos.time_passes(seconds)

    @rule(model=which)
    def wish(self, model: int) -> None:
        self.chaos.wish(model)

    @rule(model=which, force=yes_or_no)
    def unload(self, model: int, force: bool) -> None:
        self.chaos.unload(model, force)

    @rule(index=which)
    def cancel(self, index: int) -> None:
        self.chaos.cancel(index)

    @rule(force=yes_or_no)
    def drain(self, force: bool) -> None:
        self.chaos.drain(force)

    @rule(gpu=st.integers(0, 3), action=st.sampled_from(["out", "in"]))
    def gpu(self, gpu: int, action: Any) -> None:
        self.chaos.gpu(gpu, action)

    @rule(model=which, change=st.sampled_from(["remove", "back", "cap", "grace", "gpus", "replicas", "print"]))
    def reload(self, model: int, change: str) -> None:
        self.chaos.reload(model, change)

    @rule(index=which, what=which)
    def late_report(self, index: int, what: int) -> None:
        self.chaos.late_report(index, what)

    @rule(within_s=st.sampled_from([0.0, 10.0, 300.0]), really=st.integers(0, 7))
    def stop(self, within_s: float, really: int) -> None:
        """Seldom, so that most stories are about serving."""
        if not really:
            self.chaos.stop(within_s)

    @rule()
    def go_on_from_a_checkpoint(self) -> None:
        self.chaos.through_a_checkpoint()

    @invariant()
    def all_is_decided(self) -> None:
        if hasattr(self, "chaos"):
            assert next_decision(self.chaos.state) is None

    def teardown(self) -> None:
        if not hasattr(self, "chaos"):
            return
        self.chaos.settle()
        state = self.chaos.refold()
        assert digest(state) == digest(self.chaos.state), "the record folds to another state"
        assert digest(restore(dump(state))) == digest(state)


QUICK = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
DEEP = settings(QUICK, max_examples=400, stateful_step_count=70, derandomize=False)


def test_no_story_breaks_an_invariant() -> None:
    run_state_machine_as_test(Stories, settings=QUICK)


@pytest.mark.slow
def test_no_longer_story_breaks_an_invariant_either() -> None:
    run_state_machine_as_test(Stories, settings=DEEP)
