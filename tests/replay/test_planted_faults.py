"""Faults that somebody might put into the scheduler one day are planted, and each is caught.

Two nets: `verify` (on a golden log of today's decisions, or on one that the faulty scheduler recorded itself) and the
seeded worlds with their invariants, of which 300 must be enough.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from replay.verify import verify
from router.scheduler import State, dispatch, engines, queue, residency, rules, swaps
from tests.replay.make_golden import ALTERED, GOLDEN, unpacked
from tests.replay.recording import Recording, busy_hour
from tests.scheduler.chaos import ramble
from tests.scheduler.test_world import world_of

fold = import_module("router.scheduler.fold")
"""The module; the package has a function of that name."""

SEEDS = 300
STEPS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


# --- the nets -------------------------------------------------------------------------------------------------------


def golden_log_differs(folder: Path) -> bool:
    """Whether a golden log leads to other decisions than were recorded."""
    for path in sorted(GOLDEN.glob("*.ndjson.gz")):
        if ALTERED not in path.name:
            log = folder / path.name
            log.mkdir()
            if verify(unpacked(path, log)).differences:
                return True
    return False


def own_log_differs(folder: Path) -> bool:
    """Whether the faulty scheduler does not come to the same decisions twice."""
    with Recording(folder / "own") as world:
        busy_hour(world)
    return verify(folder / "own").differences > 0


def first_bad_seed() -> int:
    """The first seed whose worlds break an invariant or never end; -1 if none of them does."""
    for seed in range(SEEDS):
        try:
            world = world_of(seed)
            world.run()
            world.assert_nothing_is_left()
            ramble(seed, STEPS)
        except (AssertionError, LookupError, ValueError):
            return seed
    return -1


# --- the faults -----------------------------------------------------------------------------------------------------


def a_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a model, by the wall clock of whoever asks."""

    def age_stamp(state: State, model: object) -> int:
        return time.time_ns()

    monkeypatch.setattr(residency, "age_stamp", age_stamp)
    monkeypatch.setattr(swaps, "age_stamp", age_stamp)


def a_busy_victim_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests are not waited for."""
    monkeypatch.setattr(swaps, "_drain", swaps._stop_next)


def a_cancel_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves keeps its place."""
    monkeypatch.delitem(fold._APPLY, e.RequestCancelled)


def a_slot_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cancelled request held is never free again."""
    monkeypatch.delitem(fold._APPLY, e.SlotReleased)


def a_slot_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica is never full."""
    monkeypatch.setattr(dispatch, "has_room", lambda state, replica, weight, alone: replica.phase == "ready")


def the_cap_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model more per GPU than may be."""
    plan = engines.plan

    def roomy(state: State, target: object, request: object) -> residency.Plan:
        settings = state.settings
        state.settings = msgspec.structs.replace(settings, max_models_per_gpu=settings.max_models_per_gpu + 1)
        try:
            return plan(state, target, request)  # type: ignore[arg-type]
        finally:
            state.settings = settings

    monkeypatch.setattr(engines, "plan", roomy)


def timers_are_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The force timer is set before everything else instead of last."""
    rest = tuple(rule for rule in rules.RULES_AFTER if rule is not rules.arm_the_force_timer)
    monkeypatch.setattr(rules, "RULES_BEFORE", (rules.arm_the_force_timer, *rules.RULES_BEFORE))
    monkeypatch.setattr(rules, "RULES_AFTER", rest)


def a_requeue_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever should go back to its place after a crash gets none."""
    requeued = fold._APPLY[e.RequestRequeued]

    def lose(state: State, event: e.RequestRequeued) -> None:
        monkeypatch.setattr(queue, "enter", lambda state, request: None)
        try:
            requeued(state, event)
        finally:
            monkeypatch.setattr(queue, "enter", enter)

    enter = queue.enter
    monkeypatch.setitem(fold._APPLY, e.RequestRequeued, lose)


# --- each is caught -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", [timers_are_reordered, a_busy_victim_is_evicted])
def test_verify_finds_that_the_rules_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)

    assert golden_log_differs(tmp_path)


def test_verify_finds_that_a_clock_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Already in a log that the faulty scheduler recorded itself: it does not decide the same again."""
    a_clock_is_read(monkeypatch)

    assert own_log_differs(tmp_path)


@pytest.mark.parametrize(
    "plant",
    [
        a_busy_victim_is_evicted,
        a_cancel_is_forgotten,
        a_slot_leaks,
        a_slot_is_given_twice,
        the_cap_is_off_by_one,
        a_requeue_is_lost,
    ],
)
def test_a_seeded_world_breaks(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)

    assert first_bad_seed() >= 0


def test_verify_finds_that_a_set_was_iterated(tmp_path: Path) -> None:
    """Recorded by one process and verified by another, in which strings hash otherwise."""
    codes = []
    for hash_seed, what in (("1", "record"), ("1", "verify"), ("2", "verify")):
        code = f"from tests.replay.test_planted_faults import *; sys.exit({what}_with_a_set(Path({str(tmp_path)!r})))"
        codes.append(subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hash_seed}))

    assert [ran.returncode for ran in codes] == [0, 0, 3]


def test_without_a_fault_nothing_is_caught(tmp_path: Path) -> None:
    assert not golden_log_differs(tmp_path)
    assert not own_log_differs(tmp_path)


def record_with_a_set(folder: Path) -> int:
    """Seven models wait when the router is told to stop at once: their requests fail in the order of a set."""
    plant_a_set()
    models = {f"model-{number}": ModelSettings(gpus=(0,)) for number in range(7)}
    with Recording(folder, SchedulerSettings(models=models)) as world:
        for model in models:
            world.arrives(0.0, model)
        world.fact_at(1.0, e.RouterStopping(reason="SIGTERM", deadline_us=1))
        world.run()
    return 0


def verify_with_a_set(folder: Path) -> int:
    plant_a_set()
    return 3 if verify(folder).differences else 0


def plant_a_set() -> None:
    end_the_queue = rules.end_the_queue

    def in_any_order(state: State) -> e.Decision | None:
        state.lanes = {name: state.lanes[name] for name in set(state.lanes)}
        return end_the_queue(state)

    rules.RULES_BEFORE = tuple(in_any_order if rule is end_the_queue else rule for rule in rules.RULES_BEFORE)
