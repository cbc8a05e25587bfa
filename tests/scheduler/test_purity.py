"""The same facts lead to the same decisions: on any machine, in any process, from any checkpoint, on any other GPU."""

import hashlib
import os
import subprocess
import sys

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from router.scheduler import POLICY_VERSION, State, digest, dump, fold, next_decision, restore, rules, step
from tests.scheduler.chaos import ramble
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners, World

SEEDS = range(8)


def decisions_of(seeds: range) -> str:
    """One value for everything decided in these stories, order included."""
    hashed = hashlib.blake2b(digest_size=16)
    stories = [(seed, "") for seed in seeds]
    stories += [(seed, engine) for seed in seeds[:3] for engine in ("group", "matrix", "capacity")]
    for seed, engine in stories:
        chaos = ramble(seed, 60, engine)
        for event in chaos.record:
            if isinstance(event, e.Decision):
                hashed.update(msgspec.json.encode(event))
        hashed.update(digest(chaos.state).encode())
    return hashed.hexdigest()


def unstamped(event: e.Event) -> e.Event:
    return msgspec.structs.replace(event, seq=0, at_us=0, run=0, cause=0)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_decisions_do_not_depend_on_the_seed_of_hashes(hash_seed: str) -> None:
    code = f"from tests.scheduler.test_purity import *; print(decisions_of({SEEDS}))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == decisions_of(SEEDS)


def test_the_recorded_facts_lead_to_the_recorded_decisions_again() -> None:
    for seed in range(20):
        record = ramble(seed, 60).record
        state = State()
        again: list[e.Event] = []
        for fact in record:
            if isinstance(fact, e.Fact):
                again.append(fact)
                again += step(state, fact)
        assert [unstamped(event) for event in again] == [unstamped(event) for event in record]


def test_a_whole_step_decides_what_the_rules_asked_anew_each_time_would() -> None:
    """The queue's pass may go on after a dispatch; nobody notices, limited keys or not, whatever the engine."""
    stories = [(seed, "") for seed in range(40)]
    stories += [(seed, engine) for seed in range(8) for engine in ("group", "matrix", "capacity")]
    for seed, engine in stories:
        whole, one_by_one = State(), State()
        for fact in ramble(seed, 80, engine).record:
            if isinstance(fact, e.Fact):
                decided = list[e.Decision]()
                fold(one_by_one, fact)
                while (decision := next_decision(one_by_one)) is not None:
                    fold(one_by_one, decision)
                    decided.append(decision)
                assert step(whole, fact) == decided, f"seed {seed}, {engine or 'residency'}"


def test_where_nothing_is_wrong_the_rules_that_are_not_asked_have_nothing_to_say() -> None:
    after = (rules.arm_the_force_timer, rules.unload_idle_models, rules.unload_what_is_too_much)
    asked = (*rules.RULES_BEFORE_IN_QUIET, *after)
    assert sorted(rules.RULES_BEFORE_IN_QUIET, key=rules.RULES_BEFORE.index) == [*rules.RULES_BEFORE_IN_QUIET]
    silent = [rule for rule in (*rules.RULES_BEFORE, *rules.RULES_AFTER) if rule not in asked]
    times = cooling = 0
    for seed in range(30):
        state = State()
        for event in ramble(seed, 80).record:
            fold(state, event)
            if rules.nothing_is_wrong(state):
                times += 1
                cooling += bool(state.cooling)
                assert [decision for rule in silent if (decision := rule(state)) is not None] == []
    assert times > 1000
    assert cooling > 100


def test_facts_and_decisions_fold_to_the_state_that_was_live() -> None:
    for seed in range(20):
        chaos = ramble(seed, 60)
        assert digest(chaos.refold()) == digest(chaos.state)


def test_a_state_from_a_checkpoint_decides_as_the_one_that_was_saved() -> None:
    """At every step of a story, one state goes on as it is and one through a checkpoint."""
    for seed, engine in [*((seed, "") for seed in range(6)), (6, "group"), (7, "matrix"), (8, "capacity")]:
        record = ramble(seed, 60, engine).record
        live, saved = State(), State()
        for fact in record:
            if isinstance(fact, e.Fact):
                saved = restore(dump(saved))
                assert step(live, fact) == step(saved, fact)
        assert digest(live) == digest(saved)


def test_looking_only_where_something_changed_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same facts, with the whole queue looked at after every event: the same moves. (Words to those who wait may
    come at another time: that a grace is over is said when it matters.)"""
    records = [ramble(seed, 80).record for seed in range(30)]
    records += [ramble(seed, 80, engine).record for seed in range(5) for engine in ("group", "matrix", "capacity")]
    fold_module = sys.modules["router.scheduler.fold"]
    monkeypatch.setattr(fold_module, "_TOUCHES", {})
    for record in records:
        state, moves = State(), list[e.Event]()
        for fact in record:
            if isinstance(fact, e.Fact):
                moves += step(state, fact)
        assert [move for move in moves if is_move(move)] == [unstamped(event) for event in record if is_move(event)]


def is_move(event: e.Event) -> bool:
    return isinstance(event, e.Decision) and not isinstance(event, e.RequestHeld | e.TimerSet | e.TimerCancelled)


def test_settled_means_settled() -> None:
    """After a step, no rule wants anything; asking again changes nothing."""
    chaos = ramble(3, 60)
    before = digest(chaos.state)
    assert next_decision(chaos.state) is None
    assert digest(chaos.state) == before


def test_the_order_of_a_dict_is_part_of_the_digest() -> None:
    """Rules walk over dicts in the order they were filled: two states that differ in that may decide differently."""
    state, other = State(), State()
    state.running, other.running = {"a": 1, "b": 1}, {"b": 1, "a": 1}
    assert digest(state) != digest(other)


def test_the_version_of_the_policy_is_a_number_that_grows() -> None:
    assert POLICY_VERSION >= 1


def test_time_stands_in_the_facts_alone() -> None:
    """The same story an hour later, decided the same."""
    stories = []
    for start_us in (SECOND, 3_600 * SECOND):
        state = State()
        config = SchedulerSettings(models={"A": ModelSettings(), "B": ModelSettings()}, head_grace_us=5 * SECOND)
        told = [*step(state, e.RouterStarted(config=config, at_us=start_us))]
        for after_us, rid, model in [(1, 1, "A"), (2, 2, "B")]:
            at_us = start_us + after_us
            told += step(state, e.RequestArrived(rid=rid, arrived_us=at_us, model=model, at_us=at_us))
        stories.append([msgspec.structs.asdict(decision) for decision in told])
    for early, late in zip(*stories, strict=True):
        for name, value in early.items():
            assert late[name] - value == 3_599 * SECOND if name in ("due_us", "head_since_us") else late[name] == value


def two_islands(arrivals: str, **settings: object) -> World:
    """A and B share GPU 0; c and d share GPU 1. One letter is one arrival, 0.2 s apart; a dot is none."""
    world = World(
        SchedulerSettings(
            models={model: ModelSettings(gpus=(0,) if model in "AB" else (1,)) for model in "ABcd"},
            gpus=2,
            **settings,  # type: ignore[arg-type]
        ),
        manners=Manners(load_s=(3.0, 3.0), stop_s=(0.5, 0.5), slots=(2, 2)),
    )
    for nth, model in enumerate(arrivals):
        if model == ".":
            world.next_rid()
        else:
            world.arrives(nth * 0.2, model, service_s=0.3 + (nth * 7 % 11) / 10)
    return world


@pytest.mark.parametrize("grace_s", [0, 2, 100])
def test_requests_on_other_gpus_never_make_a_difference(grace_s: int) -> None:
    """What happens on GPU 1 happens at the same microseconds with and without traffic on GPU 0."""
    both = "AcBdAcBAdcABcdAdBcABdcABAcdBAcBdAcdB" * 3
    alone = "".join(letter if letter in "cd" else "." for letter in both)
    stories = []
    for arrivals in (both, alone):
        world = two_islands(arrivals, head_grace_us=grace_s * SECOND, force_load_us=20 * SECOND)
        world.run()
        stories.append(
            [
                (event.at_us, event.rid, event.replica[0])
                for event in world.record
                if isinstance(event, e.RequestDispatched) and event.replica[0] in "cd"
            ]
        )
    assert len(stories[1]) == sum(letter in "cd" for letter in both)
    assert stories[0] == stories[1]
