"""Prompt caches that survive swaps, offline: what the setting would bring on recorded traffic, and that logs verify."""

from pathlib import Path

import msgspec

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from replay.alternatives import changed, differences
from replay.costs import Costs, ModelCosts, Phase, with_costs
from replay.explain import explain_request
from replay.fit import fit
from replay.recorded import read_recording
from replay.simulate import load_source, run_once, simulate
from replay.verify import verify
from replay.workload import Call, Workload
from tests.replay.pretended import RecordingWorld

KEEP = "promptCache.keepAcrossSwaps=true"
TRUTH = Costs(
    default=ModelCosts(
        slots=2,
        loads_us=(1_000_000,),
        stops_us=(200_000,),
        prefill=Phase(fixed_us=10_000.0, token_us=1_000.0),
        decode=Phase(token_us=5_000.0),
        token_bytes=20_000,
        save_token_us=30.0,
        restore_token_us=10.0,
    )
)


def conversations(turns: int = 8) -> Workload:
    """One conversation with each of two models that share a GPU, turn and turn about; every turn adds 500 tokens."""
    calls: list[Call] = []
    for number in range(1, 2 * turns + 1):
        model, nth = "ab"[number % 2], (number + 1) // 2
        prefix = tuple((f"{model}{step}", 500 * (step + 1)) for step in range(nth))
        calls.append(
            Call(
                number=number,
                at_us=number * 12_000_000,
                model=model,
                prompt_tokens=500 * nth,
                output_tokens=20,
                prefix=prefix,
                conversation=f"with {model}",
            )
        )
    settings = SchedulerSettings(models={"a": ModelSettings(), "b": ModelSettings()})
    return Workload(calls=tuple(calls), settings=settings, source="two conversations")


def test_a_simulation_says_what_keeping_caches_would_bring() -> None:
    """Every turn is a swap: without it each prompt is read from the start, with it only what is new."""
    as_it_is, kept = run_once(conversations(), TRUTH), run_once(conversations(), TRUTH, [KEEP])
    assert (as_it_is.cache_hits, as_it_is.cached_share) == (0, 0.0)
    assert kept.cache_hits >= 12
    assert kept.cached_share > 0.7
    assert kept.prefill_saved_s > 15
    assert kept.ttft_mean_s < as_it_is.ttft_mean_s - 1
    assert kept.swaps == as_it_is.swaps
    assert kept.finished == 16


def test_a_budget_for_one_conversation_of_two_brings_half() -> None:
    all_of_it, little = (
        run_once(conversations(), TRUTH, [KEEP, f"promptCache.keepBudgetMiB={mib}"]) for mib in (1000, 60)
    )
    assert little.cache_hits < all_of_it.cache_hits


def test_saving_that_costs_more_than_it_brings_is_not_done() -> None:
    slow = with_costs(TRUTH, {"save_us_per_token": 50_000, "restore_us_per_token": 50_000}, [])
    kept = run_once(conversations(), slow, [KEEP])
    assert kept.cache_hits <= 2


def test_a_setting_that_was_tried_is_said_as_config_json_says_it() -> None:
    settings = conversations().settings
    other = changed(settings, [KEEP, "promptCache.keepMaxHoldSeconds=0.5"])
    assert differences(settings, other) == [KEEP, "promptCache.keepMaxHoldSeconds=0.5"]
    assert all(model.cache_shape for model in other.models.values())


def recorded(directory: Path) -> RecordingWorld:
    """A run that kept caches, and its log in this directory."""
    workload = conversations()
    workload = msgspec.structs.replace(workload, settings=changed(workload.settings, [KEEP]))
    world = RecordingWorld(workload, TRUTH)
    world.run()
    world.write(directory)
    return world


def test_saves_and_restores_are_told_as_what_a_request_waits_for(tmp_path: Path) -> None:
    """Not as work of the models that leave, and not as slots that are taken: nobody works then."""
    recorded(tmp_path)
    reasons = {wait.what for rid in range(1, 17) for wait in explain_request(tmp_path, rid).waits}
    assert reasons == {"load", "save", "stop", "restore"}


def test_a_log_of_a_run_that_kept_caches_verifies_and_tells_what_they_cost(tmp_path: Path) -> None:
    """Byte for byte; and fitted from it are the times and sizes that it was made with."""
    world = recorded(tmp_path)
    assert [event for event in world.record if isinstance(event, e.CacheRestored)]
    assert verify(tmp_path).ok
    costs = fit(read_recording(tmp_path).durations, "measured").of("a")
    assert costs.token_bytes == 20_000
    assert abs(costs.save_token_us - 30) < 0.1
    assert abs(costs.restore_token_us - 10) < 0.1
    result = simulate(load_source([str(tmp_path)]))
    errors = {error.measure: abs(error.share) for error in result.errors}
    assert errors["ttft_mean_s"] < 0.05
    assert errors["cached_share"] < 0.02
