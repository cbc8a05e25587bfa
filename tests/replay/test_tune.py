"""A sweep tries what can be tried, says what is best and at what price, and draws it in a file for offline."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from eventlog.settings import SchedulerSettings
from replay.costs import Costs, ModelCosts
from replay.measures import Measures, Tally, measure
from replay.simulate import Source
from replay.tune import Trial, default_sweeps, grid, pareto, recommend, trade_off, tune
from router.cli import main
from tests.replay.pretended import calls_of, workload_of

COSTS = Costs(default=ModelCosts(slots=2, loads_us=(4_000_000,)))
ALTERNATING = Source(workload=workload_of(calls_of(*((n * 0.9, "ab"[n % 2]) for n in range(80)))), costs=COSTS)
NOTHING = measure([], Tally())


def trial(*sets: str, **figures: float) -> Trial:
    return Trial(sets=sets, measures=msgspec.structs.replace(NOTHING, **figures))


def test_every_combination_is_tried_once_and_what_makes_no_difference_is_not() -> None:
    """Without a grace it does not matter when it begins; the settings as they are come first."""
    sweeps = {"QUEUE_HEAD_GRACE": ["0", "5"], "QUEUE_HEAD_GRACE_FROM": ["head", "arrival"]}
    assert grid(SchedulerSettings(), sweeps) == [
        (),
        ("QUEUE_HEAD_GRACE=5",),
        ("QUEUE_HEAD_GRACE=5", "QUEUE_HEAD_GRACE_FROM=arrival"),
    ]


def test_when_the_waiting_begins_to_accrue_makes_a_difference_without_a_grace() -> None:
    sweeps = {"QUEUE_HEAD_RELEASE": ["accrued"], "QUEUE_HEAD_GRACE_FROM": ["head", "arrival"]}
    assert grid(SchedulerSettings(), sweeps) == [
        (),
        ("QUEUE_HEAD_RELEASE=accrued",),
        ("QUEUE_HEAD_GRACE_FROM=arrival", "QUEUE_HEAD_RELEASE=accrued"),
    ]


def test_who_leaves_first_is_only_tried_where_there_is_a_choice() -> None:
    assert "EVICTION_POLICY" not in default_sweeps(SchedulerSettings())
    assert "EVICTION_POLICY" in default_sweeps(SchedulerSettings(max_models_per_gpu=2))


def test_the_front_holds_those_that_no_other_beats() -> None:
    def of(mean: float, p99: float, load: float) -> Measures:
        return msgspec.structs.replace(NOTHING, wait_mean_s=mean, wait_p99_s=p99, load_s=load)

    assert pareto([of(1, 9, 9), of(2, 2, 2), of(3, 2, 2), of(2, 2, 2), of(9, 9, 1)]) == [True, True, False, True, True]


def test_a_shorter_mean_is_not_worth_longer_long_waits() -> None:
    current = trial(wait_mean_s=10, wait_p99_s=20)
    unfair, fair = trial("A=1", wait_mean_s=1, wait_p99_s=60), trial("A=2", wait_mean_s=5, wait_p99_s=20)
    assert recommend([current, unfair, fair], current) is fair


def test_of_those_nearly_as_good_the_one_that_overtakes_least() -> None:
    current = trial(wait_mean_s=10, wait_p99_s=20)
    best, nearly = trial("A=1", wait_mean_s=5, overtakes=90), trial("A=2", wait_mean_s=5.05, overtakes=10)
    assert recommend([current, best, nearly], current) is nearly


def test_where_little_can_be_won_nothing_is_to_be_changed() -> None:
    current, other = trial(wait_mean_s=10, wait_p99_s=20), trial("A=1", wait_mean_s=9.7, wait_p99_s=19)
    assert recommend([current, other], current) is current
    assert "nothing that was tried" in trade_off(current, current)


def test_the_price_is_named() -> None:
    current = trial(wait_mean_s=10, wait_p99_s=20, swaps=40)
    choice = trial("A=1", wait_mean_s=5, wait_p99_s=20, swaps=9, overtakes=12)
    slower = msgspec.structs.replace(choice.measures, wait_mean_by_model_s={"b": 12.0})
    choice = msgspec.structs.replace(choice, measures=slower)
    assert trade_off(current, choice) == (
        "the mean wait becomes 5 s instead of 10 s, the 99th percentile 20 s instead of 20 s, with 9 swaps instead of "
        "40; the price: requests are overtaken 12 times instead of 0 and b waits 12 s on average instead of 0 s"
    )


def test_processes_find_what_one_alone_finds() -> None:
    """The workload crosses into spawned processes and gives the same figures there."""
    trials = grid(ALTERNATING.workload.settings, {"QUEUE_HEAD_GRACE": ["0", "10", "30"]})
    seen: list[tuple[int, int]] = []
    alone = tune(ALTERNATING, trials, jobs=1, optimum=True, progress=lambda done, total: seen.append((done, total)))
    assert tune(ALTERNATING, trials, jobs=2, optimum=True) == alone
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert alone.choice.measures.swaps < alone.current.measures.swaps


def test_a_policy_is_compared_with_the_least_that_loading_could_take() -> None:
    """Strict order of alternating models is what one slot cannot do better; a grace reorders and loads less."""
    trials = grid(ALTERNATING.workload.settings, {"QUEUE_HEAD_GRACE": ["30"]})
    tuned = tune(ALTERNATING, trials, jobs=1, optimum=True)
    assert tuned.optimum_arrival is not None
    assert tuned.optimum_arrival.loads == 80
    assert tuned.current.ratio_arrival == tuned.current.ratio_served == pytest.approx(1.0)
    assert tuned.choice.ratio_arrival < 0.5
    assert tuned.choice.ratio_served >= 1.0


def test_chance_does_not_beat_the_optimum() -> None:
    """Loads that happen to be drawn short are no better an order of evictions."""
    drawn = Costs(default=ModelCosts(slots=2, loads_us=(1_000_000, 1_000_000, 9_000_000)))
    few = Source(workload=workload_of(calls_of((0, "a"), (1.0, "b"))), costs=drawn)
    tuned = tune(few, [()], jobs=1, optimum=True)
    assert tuned.current.ratio_served == tuned.current.ratio_arrival == pytest.approx(1.0)


def test_models_that_are_not_reckoned_in_the_optimum_are_not_held_against_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """c is on two GPUs of its own: what its load takes is no part of the ratio; with all on two there is none."""
    lines = [f"{n * 2},{'abc'[n % 3]},120,30" for n in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["time,model,prompt_tokens,output_tokens", *lines]) + "\n")
    wide = ["--base", "NUM_GPUS=3", "--base", "gpus.c=1+2", "--cost", "c.load_s=500"]
    options = ["--sweep", "QUEUE_HEAD_GRACE=0", "--sweep", "QUEUE_HEAD_GRACE=30", "--optimum", "--jobs", "1"]

    assert main(["replay", "tune", str(tmp_path / "t.csv"), *wide, *options, "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert len(trials) == 2
    assert all(1 <= trial["ratio_served"] < 1.5 for trial in trials)

    assert main(["replay", "tune", str(tmp_path / "t.csv"), *options, "--base", "gpus.*=0+1"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-2:] for line in out.splitlines() if "as it is  " in line] == [["-", "-"]]
    assert (
        "not reckoned in the optimum (on several GPUs or none, with replicas, or beside such a model): a, b, c" in out
    )


def test_the_command_recommends_and_says_what_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{n * 0.9:.1f},{'ab'[n % 2]},120,30" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["time,model,prompt_tokens,output_tokens", *lines]) + "\n")
    sweep = ["--sweep", "QUEUE_HEAD_GRACE=0,10,30", "--jobs", "1"]
    report = tmp_path / "report.html"
    assert main(["replay", "tune", str(tmp_path / "t.csv"), *sweep, "--optimum", "--html", str(report)]) == 0
    out = capsys.readouterr().out
    assert "recommended: QUEUE_HEAD_GRACE=" in out
    assert '"QUEUE_HEAD_GRACE": ' in out
    html = report.read_text()
    assert html.count('<div class="figure"') == 3
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="?http', html)
    assert main(["replay", "tune", str(tmp_path / "t.csv"), *sweep, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["ROUTER"]["QUEUE_HEAD_GRACE"] == 10
    assert len(found["trials"]) == 3
