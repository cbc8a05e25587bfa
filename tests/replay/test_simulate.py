"""Costs are measured in a log, the simulator says how far off it is, and only then other settings are tried."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from replay.alternatives import changed, config_lines, differences
from replay.costs import Costs, ModelCosts, Phase, told, with_costs
from replay.fit import fit, solve_nonnegative
from replay.recorded import Durations, Service, Span, read_recording
from replay.simulate import Simulated, load_source, run_once, simulate
from replay.verify import verify
from replay.workload import Call, WorkloadError, spread
from replay.world import World
from router.cli import main
from tests.replay.pretended import RecordingWorld, calls_of, workload_of
from tests.replay.recording import Recording
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners

TRUTH = Costs(
    models={
        "a": ModelCosts(
            slots=2,
            loads_us=(3_000_000, 2_000_000, 2_000_000),
            stops_us=(400_000,),
            prefill=Phase(fixed_us=20_000.0, token_us=800.0, same=1.0, other=0.3),
            decode=Phase(token_us=9_000.0, same=0.25, other=0.5),
        ),
        "b": ModelCosts(
            slots=2,
            loads_us=(5_000_000,),
            stops_us=(700_000,),
            prefill=Phase(fixed_us=5_000.0, token_us=300.0, same=1.0, other=0.1),
            decode=Phase(token_us=21_000.0, same=0.1, other=0.4),
        ),
    }
)


def traffic(seed: int, count: int = 240, gap_s: float = 1.1) -> tuple[Call, ...]:
    """Conversations and single requests for two models, some of whose clients leave."""
    draw = random.Random(seed)
    calls: list[Call] = []
    at_us = 0
    for number in range(1, count + 1):
        at_us += round(draw.expovariate(1 / gap_s) * 1e6)
        earlier = calls[-1] if calls and draw.random() < 0.3 else None
        model = earlier.model if earlier else draw.choice("aab")
        prompt = draw.randrange(20, 600) + (earlier.prompt_tokens if earlier else 0)
        prefix = (*earlier.prefix, (f"h{number}", prompt)) if earlier else ((f"h{number}", prompt),)
        calls.append(
            Call(
                number=number,
                at_us=at_us,
                model=model,
                prompt_tokens=prompt,
                output_tokens=draw.randrange(2, 120),
                prefix=prefix,
                client=f"client{number % 5}",
                after=earlier.number if earlier else 0,
                think_us=2_000_000 if earlier else 0,
                leaves_after_tokens=4 if number % 29 == 0 else -1,
            )
        )
    return tuple(calls)


def record(folder: Path, seed: int, **settings: object) -> Path:
    world = RecordingWorld(workload_of(traffic(seed), **settings), TRUTH)  # type: ignore[arg-type]
    world.run()
    return world.write(folder)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("logs") / "one", 1)


def test_costs_are_measured_in_a_log(log: Path) -> None:
    """Loads, stops and slots exactly; what each token and each neighbour costs, to a few percent."""
    costs = fit(read_recording(log).durations, "measured")
    for model, true in TRUTH.models.items():
        found = costs.models[model]
        assert (found.slots, found.loads_us[0], found.stops_us[0]) == (true.slots, true.loads_us[0], true.stops_us[0])
        assert found.prefill.token_us == pytest.approx(true.prefill.token_us, rel=0.1)
        assert found.decode.token_us == pytest.approx(true.decode.token_us, rel=0.05)
        assert found.decode.same == pytest.approx(true.decode.same, abs=0.06)


def test_the_simulator_states_its_own_error_and_it_is_small(log: Path) -> None:
    """The recorded settings are simulated first; the truth here is a world of the same kind."""
    result = simulate(load_source([str(log)]))
    errors = {error.measure: error.share for error in result.errors}
    assert result.alternative is None
    assert abs(errors["wait_mean_s"]) < 0.05
    assert abs(errors["wait_p95_s"]) < 0.1
    assert abs(errors["swaps"]) <= 0.05
    assert abs(errors["makespan_s"]) < 0.02


def test_fitted_on_one_run_it_predicts_another(log: Path, tmp_path: Path) -> None:
    """Other traffic under another grace, without any duration of that run."""
    other = read_recording(record(tmp_path / "two", 2, head_grace_us=5_000_000))
    costs = fit(read_recording(log).durations, "measured")
    real, predicted = other.measures(), run_once(other.workload, costs)
    assert predicted.wait_mean_s == pytest.approx(real.wait_mean_s, rel=0.1)
    assert predicted.swaps == pytest.approx(real.swaps, rel=0.05)


def test_a_patient_head_means_fewer_swaps(log: Path) -> None:
    result = simulate(load_source([str(log)]), sets=["QUEUE_HEAD_GRACE=20"])
    assert result.alternative is not None
    assert result.alternative.swaps < result.baseline.swaps
    assert result.sets == ("QUEUE_HEAD_GRACE=20",)


def test_two_gpus_or_room_for_both_models_mean_one_load_each(log: Path) -> None:
    for sets in (["MAX_MODELS_PER_GPU=2"], ["gpus.b=1"]):
        measures = simulate(load_source([str(log)]), sets=sets).alternative
        assert measures is not None
        assert measures.swaps == 2


def test_a_turn_of_a_conversation_is_known_to_follow_its_answer(log: Path) -> None:
    calls = read_recording(log).workload.calls
    following = [call for call in calls if call.after]
    assert len(following) > 40
    assert all(abs(call.think_us - 2_000_000) <= 1 for call in following)


def test_a_client_that_left_is_known_by_the_tokens_it_had_seen(log: Path) -> None:
    assert {call.leaves_after_tokens for call in read_recording(log).workload.calls} == {-1, 4}


def test_least_squares_has_no_negative_part() -> None:
    """y = 3 x0 exactly; x1 would be taken off, were it allowed."""
    rows = [[1.0, 1.0], [2.0, 1.0], [3.0, 2.0], [5.0, 1.0]]
    assert solve_nonnegative(rows, [3.0 * a for a, _ in rows]) == pytest.approx([3.0, 0.0], abs=1e-6)
    lower = solve_nonnegative(rows, [3.0 * a - b for a, b in rows])
    assert lower[1] == 0.0
    assert lower[0] > 0.0


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_go_by_their_names_in_config_json() -> None:
    before = workload_of(calls_of((0, "a"), (0, "b"))).settings
    sets = ["QUEUE_HEAD_GRACE=2.5", "EVICTION_POLICY=fifo", "replicas.a=2", "gpus.b=0+1", "persistent.a=true"]
    after = changed(before, sets)
    assert (after.head_grace_us, after.eviction, after.gpus) == (2_500_000, "fifo", 2)
    assert (after.models["a"].replicas, after.models["b"].gpus) == (2, (0, 1))
    told = differences(before, after)
    assert changed(before, told) == after
    assert json.loads(config_lines(before, sets)) == {
        "LLM": {"a": {"num_instance": 2, "persistent": True}, "b": {"gpus": [0, 1]}},
        "ROUTER": {"QUEUE_HEAD_GRACE": 2.5, "EVICTION_POLICY": "fifo"},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("QUEUE_HEAD_GRACE", "expected KEY=VALUE"),
        ("QUEUE_HEAD_GRACE=-1", "seconds, 0 or more"),
        ("QUEUE_HED_GRACE=1", "did you mean QUEUE_HEAD_GRACE"),
        ("EVICTION_POLICY=mru", "lru, fifo or worth"),
        ("replicas.c=2", "there is no model 'c'; there are a"),
        ("MAX_MODELS_PER_GPU=0", "1 or more"),
        ("QUEUE_HEAD_GRACE=inf", "seconds, 0 or more"),
        ("QUEUE_HEAD_GRACE=nan", "seconds, 0 or more"),
        ("NUM_GPUS=100000", "from 1 to 1024"),
        ("gpus.a=4000", "below 1024"),
        ("priority.a=1000000000000000000000", "-1000000 to 1000000"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(text: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        changed(workload_of(calls_of((0, "a"))).settings, [text])


def test_costs_can_be_said_for_all_models_and_for_one() -> None:
    costs = with_costs(Costs(), {"load_s": 8.0}, ["b.load_s=2", "b.slots=1"])
    assert (costs.of("a").loads_us, costs.of("b").loads_us, costs.of("b").slots) == ((8_000_000,), (2_000_000,), 1)
    with pytest.raises(WorkloadError, match=r"MODEL\.KEY=VALUE"):
        with_costs(Costs(), {}, ["load_s=2"])
    for number in ("inf", "nan", "-1"):
        with pytest.raises(WorkloadError, match="is not a number of 0 or more"):
            with_costs(Costs(), {}, [f"b.load_s={number}"])


def test_a_setting_is_told_with_all_its_digits() -> None:
    """What `tune` tries and recommends goes through these words."""
    before = workload_of(calls_of((0, "a"))).settings
    for text in ("QUEUE_HEAD_GRACE=0.000001", "ttl.a=1234567.891", "QUEUE_FORCE_LOAD_TIMEOUT=0"):
        after = changed(before, [text])
        assert differences(before, after) == [text]
        assert changed(before, differences(before, after)) == after


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_tells_its_error_before_the_alternative(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "simulate", str(log), "--set", "QUEUE_HEAD_GRACE=20"]) == 0
    out = capsys.readouterr().out
    assert 0 < out.index("costs measured in the log") < out.index("own error") < out.index("changed:")
    assert "changed:   QUEUE_HEAD_GRACE=20" in out


def test_the_same_seed_gives_the_same_output(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert main(["replay", "simulate", str(log), "--set", "EVICTION_POLICY=fifo", "--seed", "3", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["seed"] == 3


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_output_does_not_depend_on_the_seed_of_hashes(log: Path, hash_seed: str) -> None:
    command = "import sys; from router.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["replay", "simulate", str(log), "--set", "QUEUE_HEAD_GRACE=20", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
    )
    assert msgspec.json.decode(ran.stdout, type=Simulated) == simulate(
        load_source([str(log)]), sets=["QUEUE_HEAD_GRACE=20"]
    )


def test_the_scheduler_of_a_simulation_is_the_live_one(log: Path) -> None:
    """What the pretended world wrote down verifies like any log: the same facts give the same decisions."""
    assert verify(log).ok


def test_of_several_runs_the_busiest_is_simulated_and_the_others_are_counted(tmp_path: Path) -> None:
    """A log over two runs: the later one with three requests; the first can still be asked for."""
    for number, count in ((1, 8), (2, 3)):
        world = RecordingWorld(workload_of(calls_of(*((n * 1.0, "a") for n in range(count)))), TRUTH)
        world.run()
        world.write(tmp_path / "log", run=number)
    busiest = read_recording(tmp_path / "log")
    assert (busiest.run, len(busiest.workload.calls)) == (1, 8)
    assert busiest.workload.notes == ("run 1 of the log", "1 other runs left out")
    assert len(read_recording(tmp_path / "log", run=2).workload.calls) == 3


def test_wishes_unloads_and_reloads_of_a_log_happen_again(tmp_path: Path) -> None:
    workload = workload_of(calls_of((10.0, "a"), (40.0, "b"), output=30))
    one_gpu = workload.settings
    happenings = (
        (1_000_000, e.LoadWished(op=1, rid=1, model="a")),
        (20_000_000, e.AdminUnload(op=2, model="a")),
        (30_000_000, e.ConfigLoaded(config=msgspec.structs.replace(one_gpu, max_models_per_gpu=2))),
    )
    workload = msgspec.structs.replace(workload, happenings=happenings)
    world = RecordingWorld(workload, TRUTH)
    world.run()
    found = read_recording(world.write(tmp_path / "log")).workload
    assert [(at_us, type(what).__name__) for at_us, what in found.happenings] == [
        (at_us, type(what).__name__) for at_us, what in happenings
    ]
    again = World(found, TRUTH)
    again.run()
    assert [outcome.dispatched_us for outcome in again.outcomes] == [
        outcome.dispatched_us for outcome in world.outcomes
    ]
    assert again.state.settings.max_models_per_gpu == 2


def test_a_setting_that_is_tried_holds_through_a_reload_of_the_recording(tmp_path: Path) -> None:
    """The recorded reload changed something else; what is tried stays tried."""
    workload = workload_of(calls_of((0, "a"), (9.0, "b")))
    reload = e.ConfigLoaded(config=msgspec.structs.replace(workload.settings, overcommit=1))
    workload = msgspec.structs.replace(workload, happenings=((5_000_000, reload),))
    world = World(workload, TRUTH, change=lambda settings: changed(settings, ["QUEUE_HEAD_GRACE=7"]))
    world.run()
    assert (world.state.settings.head_grace_us, world.state.settings.overcommit) == (7_000_000, 1)


def test_a_model_that_a_reload_of_the_recording_takes_away_can_be_changed_until_then() -> None:
    """And what is tried of all else still holds afterwards."""
    workload = workload_of(calls_of((0, "a"), (9.0, "b"), (20.0, "b")))
    only_b = {"b": workload.settings.models["b"]}
    reload = e.ConfigLoaded(config=msgspec.structs.replace(workload.settings, models=only_b))
    workload = msgspec.structs.replace(workload, happenings=((15_000_000, reload),))
    measures = run_once(workload, TRUTH, ["gpus.a=1", "QUEUE_HEAD_GRACE=7"])
    assert (measures.finished, measures.swaps) == (3, 2)


def test_a_log_without_an_end_of_any_request_has_no_makespan(tmp_path: Path) -> None:
    """A router that has just begun: nothing to measure yet, rather than a time before the epoch."""
    with Recording(tmp_path) as world:
        world.arrives(0.0, "A", service_s=60.0)
        world.run_until(8.0)
    assert read_recording(tmp_path).measures().makespan_s == 0.0
    assert simulate(load_source([str(tmp_path)])).baseline.finished == 1


def test_while_a_request_waits_to_be_sent_again_it_is_in_nobody_s_way(tmp_path: Path) -> None:
    """Two connections, two services: the time between them is not the replica's."""
    with Recording(tmp_path, manners=Manners(begun=0.0)) as world:
        world.arrives(0.0, "A", service_s=4.0)
        world.run_until(8.0)
        world.now_us += 2 * SECOND
        world._do(e.UpstreamLost(rid=1, replica="A#0.1"))
        world.now_us += 20 * SECOND
        world._do(e.ReplicaAnswered(replica="A#0.1"))
        world.run()
    first, second = read_recording(tmp_path).durations.services
    assert (first.ended_us - first.begun_us, first.whole) == (2 * SECOND, False)
    assert (second.begun_us - first.ended_us, second.whole) == (20 * SECOND, True)


def test_an_imported_log_keeps_what_was_measured_in_it(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file to keep, or to thin, is simulated with the same costs as the log that it was made of."""
    file = str(tmp_path / "mine.workload")
    assert main(["replay", "import", str(log), "--keep-every", "2", "-o", file]) == 0
    assert "costs measured in the log:" in capsys.readouterr().out
    assert load_source([file]).costs == load_source([str(log)]).costs
    assert main(["replay", "simulate", file]) == 0
    out = capsys.readouterr().out
    assert "costs measured in the log:" in out
    assert "this is not what was recorded (see the notes)" in out


def test_a_log_can_be_dealt_over_other_models() -> None:
    """Whatever model its first request asked for, and whatever was done to the models of before."""
    workload = workload_of(calls_of((0, "a"), (1.0, "b")))
    calls = (msgspec.structs.replace(workload.calls[0], model="nobody"), *workload.calls[1:])
    happenings = ((500_000, e.ConfigLoaded(config=workload.settings)),)
    dealt = spread(msgspec.structs.replace(workload, calls=calls, happenings=happenings), {"x": 1, "y": 1})
    assert run_once(dealt, TRUTH).finished == 2
    assert dealt.notes == ("spread: sessions dealt over x, y; what was done to the models of before is left out",)


def test_a_trace_is_imported_thinned_and_simulated_and_all_of_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{n * 0.3:.1f},{'abc'[n % 3]},120,30" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["time,model,prompt_tokens,output_tokens", *lines]) + "\n")
    file = str(tmp_path / "t.workload")
    trace = str(tmp_path / "t.csv")
    assert main(["replay", "import", trace, "--keep-every", "2", "--stretch", "5", "-o", file]) == 0
    assert "one session of 2, 30 of 60 requests" in capsys.readouterr().out
    assert main(["replay", "simulate", file, "--load-s", "1", "--cost", "a.slots=1"]) == 0
    out = capsys.readouterr().out
    assert "note: stretched: time between arrivals times 5" in out
    assert "nothing was recorded, so the simulator's error is not known" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.csv"], "No such file"),
        (["{log}", "--run", "7"], "holds no run 7; its runs: 1"),
        (["{log}", "--set", "NOPE=1"], "there is no setting NOPE"),
        (["{log}", "--cost", "c.load_s=2"], "there is no model 'c'; there are a, b"),
        (["{trace}", "--run", "1"], "only a log of ours has runs"),
    ],
)
def test_a_source_that_cannot_be_used_is_told_in_one_line(
    log: Path, tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("time,prompt_tokens,output_tokens\n1,2,3\n")
    assert main(["replay", "simulate", *(argument.format(log=log, trace=trace) for argument in arguments)]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_log_that_was_thinned_is_not_compared_with_what_was_recorded(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "simulate", str(log), "--keep-every", "2", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["errors"] == []


def test_a_part_of_a_log_is_simulated_and_compared_with_that_part(log: Path) -> None:
    """What arrived in the span, and no more, on both sides of the comparison; costs come from before it as well."""
    whole = read_recording(log)
    arrived = [outcome.arrived_us for outcome in whole.outcomes]
    span = Span(since_us=arrived[60], until_us=arrived[180])

    source = load_source([str(log)], span=span)

    assert len(source.workload.calls) == 120
    assert source.workload.calls[0].at_us == 0
    assert source.recorded is not None
    assert source.recorded.requests == 120
    assert 0 < source.recorded.swaps < whole.measures().swaps
    assert any("a part of it: 120 requests" in note for note in source.workload.notes)
    assert source.costs.models.keys() == {"a", "b"}
    result = simulate(source)
    assert result.baseline.requests == 120
    assert result.recorded == source.recorded


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "yesterdayish"], "--since: 'yesterdayish' is no time"),
        (["--since", "2h", "--until", "3h"], "--until 3h is not after --since 2h"),
        (["--since", "2000-01-01", "--until", "2000-01-02"], "served no request in that time"),
    ],
)
def test_a_part_that_cannot_be_is_told_in_one_line(
    log: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "simulate", str(log), *options]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["simulate", "--set", "QUEUE_HEAD_GRACE=9"], ["tune", "--sweep", "NUM_GPUS=1,2"]])
def test_progress_is_told_to_a_program_line_by_line(
    log: Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", verb[0], str(log), *verb[1:], "--json", "--progress"]) == 0

    out, err = capsys.readouterr()
    told = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert told[0]["stage"] == "reading the log"
    assert all(0 <= each["done"] <= each["total"] for each in told)
    assert len({each["stage"] for each in told}) >= 2
    assert json.loads(out)["recorded"]["requests"] == 240


def served(requests: int, token_us: int, tokens: int = 50) -> Durations:
    """So many generations of model a, one after another, and nothing else."""
    services = [
        Service(
            model="a",
            replica="a#1",
            begun_us=begun_us,
            first_us=begun_us + 100_000,
            ended_us=begun_us + 100_000 + token_us * tokens,
            read_tokens=10,
            made_tokens=tokens + 1,
        )
        for begun_us in range(0, requests * 10_000_000, 10_000_000)
    ]
    return Durations(loads_us={"a": [3_000_000]}, services=services)


def test_what_a_short_log_could_not_tell_is_said_to_be_assumed() -> None:
    """Four requests are too few for a fit. Their answers still tell the time per token, their short prompts do not."""
    costs = fit(served(4, token_us=30_000), "measured in the log")
    assert told(costs, ["a"]) == [
        "a: 4 slots, loads in 3.00 s, stops in 0.50 s (assumed: none in the log), "
        "prompt 0.5 ms/token (assumed: too few requests (4 of 8)), "
        "answer 30 ms/token (+10 % per neighbour) (time per token of 4 requests)"
    ]


def test_a_model_without_requests_of_its_own_goes_by_the_others_and_says_so() -> None:
    costs = fit(msgspec.structs.replace(served(9, token_us=30_000), loads_us={"b": [2_000_000]}), "measured in the log")
    (line,) = told(costs, ["b"])
    assert "loads in 2.00 s," in line
    assert "answer 30 ms/token (+0 % per neighbour) (as all models: too few requests (0 of 8))" in line
    assert "assumed" not in told(costs, ["a"])[0].split("prompt")[1]


def test_a_model_that_was_never_loaded_is_said_to_go_by_the_others() -> None:
    """It has requests in the log, and none of them came so far."""
    costs = fit(served(9, token_us=30_000), "measured in the log", ["a", "b"])
    (line,) = told(costs, ["b"])
    assert "loads in 3.00 s (as the other models)" in line
    assert line.count("as all models: too few requests (0 of 8)") == 2
    assert costs.of("b") == msgspec.structs.replace(costs.of("c"), basis=costs.of("b").basis)


def test_a_prompt_s_fixed_time_counts_where_its_length_makes_no_difference() -> None:
    """Short prompts, whose times do not rise with their tokens: all of it is fixed."""
    services = [
        msgspec.structs.replace(service, read_tokens=30 - place, first_us=service.begun_us + 100_000 + 1000 * place)
        for place, service in enumerate(served(9, token_us=30_000).services)
    ]
    costs = fit(Durations(loads_us={"a": [3_000_000]}, services=services), "measured")
    assert costs.of("a").prefill.token_us == 0
    measures = run_once(workload_of(calls_of((0, "a"), prompt=20, output=1)), costs)
    assert measures.ttft_mean_s == pytest.approx(3.1, abs=0.02)


def test_a_cost_that_was_said_is_no_longer_called_assumed() -> None:
    costs = with_costs(fit(served(4, token_us=30_000), "measured in the log"), {"prefill_ms_per_token": 2.0}, [])
    assert "prompt 2 ms/token, answer" in told(costs, ["a"])[0]
