"""`llama-router fit`: the estimate, what the log says was measured, and what fits beside a model."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from eventlog.writer import LogWriter
from router.cli import main
from router.memory.measured import measure
from tests.router.config_desk import Desk
from tests.router.memory.heads import LLAMA, dotted, write_head

TOTAL_MIB = 24_576


def loads(model: str, *loads: tuple[Mapping[int, int], Mapping[int, int]]) -> list[e.Fact | e.Decision]:
    """One life for each pair: MiB per GPU when it was ready, and when it ended."""
    events: list[e.Fact | e.Decision] = []
    for number, (ready, end) in enumerate(loads):
        replica = f"{model}#{number}"
        events += [
            e.ReplicaSpawnOrdered(replica=replica, model=model, index=0),
            e.ReplicaReady(replica=replica, slots=1, vram=[e.Memory(gpu, mib) for gpu, mib in ready.items()]),
            e.ReplicaStopped(replica=replica, freed=[e.Memory(gpu, mib) for gpu, mib in end.items()]),
        ]
    return events


def test_the_most_that_was_seen_counts_at_ready_and_at_the_end() -> None:
    """A prompt makes a process grow: what it held when it ended can be more than when it was ready."""
    found = measure([*loads("a", ({0: 100, 1: 50}, {0: 140, 1: 50}), ({0: 120}, {})), *loads("b", ({}, {0: 9}))])
    assert found.most == {"a": {0: 140, 1: 50}, "b": {0: 9}}
    assert found.history == {"a": [{0: 140, 1: 50}, {0: 120}], "b": [{0: 9}]}
    assert found.loads == {"a": 2}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Three models on two GPUs, of which the log knows the size."""
    desk = Desk(tmp_path).move_in(monkeypatch)
    for name in ("LLAMA_ROUTER_STATE_DIR", "EVENT_LOG_DIR", "HISTORY_DB_PATH", "RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    tensors = {f"blk.{index}.ffn_up.weight": (2048, 1024) for index in range(4)}
    write_head(desk.weights, "llama", tensors, **dotted(LLAMA))
    desk.models(a={"gpus": [0], "aliases": ["alias"]}, b={"gpus": [0, 1]}, c={"gpus": [1]})
    return desk


def write_log(desk: Desk, *events: e.Fact | e.Decision) -> None:
    started = e.RouterStarted(
        config=SchedulerSettings(), gpus=[e.Gpu(index=gpu, memory_mib=TOTAL_MIB) for gpu in (0, 1)]
    )
    writer = LogWriter.open(desk.home / ".local/state/llama-router/events", checkpoint=lambda: e.NO_STATE)
    stamped = []
    for event in (started, *events):
        stamped.append(msgspec.structs.replace(event, seq=writer.next_seq, at_us=1, run=1))
        writer.next_seq += 1
    writer.append(stamped)
    writer.close()


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["fit", *words, "--set", "NUM_GPUS=2"]) == 0
    return capsys.readouterr().out


def test_a_model_that_was_never_loaded_has_an_estimate(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of the GPUs either, and it says so."""
    out = answer(capsys, "alias")
    assert out.startswith("a\n  estimate   ")
    assert "measured   never" in out
    assert "beside     b (estimate)" in out
    assert "not known whether it fits" in out
    assert "beside     c" not in out, "it shares no GPU"


def test_what_was_measured_counts_more_than_the_estimate(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """a and b fit on GPU 0 together by what NVML said; one MiB more and they would not."""
    write_log(desk, *loads("a", ({0: 16_000}, {0: 16_000})), *loads("b", ({0: 8_576, 1: 100}, {})))
    found = json.loads(answer(capsys, "a", "--json"))
    assert found["need"] == {"by": "measured", "gpus": {"0": 16_000}}
    assert found["measured"] == {"loads": 1, "gpus": {"0": 16_000}, "history": [{"0": 16_000}]}
    assert found["fits"] is True
    [beside] = found["beside"]
    assert (beside["model"], beside["together"], beside["fits"]) == ("b", {"0": TOTAL_MIB}, True)
    assert found["estimate"]["parts"]["weights_mib"] == 32
    assert "16,000 of 24,576 MiB on GPU 0: fits" in answer(capsys, "a")
    write_log(desk, *loads("a", ({0: 16_001}, {})))
    assert json.loads(answer(capsys, "a", "--json"))["beside"][0]["fits"] is False


def test_only_the_last_few_loads_are_kept_one_by_one() -> None:
    found = measure(loads("a", *(({0: 100 + number}, {}) for number in range(20))))
    assert [life[0] for life in found.history["a"]] == list(range(112, 120))
    assert (found.most["a"], found.loads["a"]) == ({0: 119}, 20)


def test_all_models_of_a_gpu_are_added_up_and_what_to_declare_is_said(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """b shares a GPU with a, and another one with c."""
    measured = [*loads("a", ({0: 9_000}, {})), *loads("b", ({0: 9_000, 1: 9_000}, {})), *loads("c", ({1: 9_000}, {}))]
    write_log(desk, *measured)
    found = json.loads(answer(capsys, "b", "--json"))
    assert found["all"] == {"together": {"0": 18_000, "1": 18_000}, "fits": True}
    assert found["declare"] == {"gpu0": 9_000, "gpu1": 9_000}
    out = answer(capsys, "b")
    assert "together   all 3 models there: 18,000 of 24,576 MiB on GPU 0, 18,000 of 24,576 MiB on GPU 1: fits" in out
    assert '"capacities": {"gpu0": 9000, "gpu1": 9000}' in out


def test_the_prompt_cache_is_sized_for_a_conversation(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """1,024 numbers of 2 bytes per token: 2 KiB."""
    cache = json.loads(answer(capsys, "a", "--json", "--tokens", "4096", "--cram", "100"))["prompt_cache"]
    assert cache == {
        "fixed_mib": 0.0,
        "growth_kib": 2.0,
        "tokens": 4096,
        "checkpoints": 4,
        "cram_mib": 100,
        "capacity": 12,
    }
    assert "100 MiB hold 12;" in answer(capsys, "a", "--tokens", "4096", "--cram", "100")


def test_without_a_model_there_is_a_line_for_each(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(desk, *loads("a", ({0: 16_000}, {})))
    rows = answer(capsys).splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["a", "measured"], ["b", "estimate"], ["c", "estimate"]]
    assert rows[1].endswith("16,000 MiB on GPU 0  1")
    assert [row["model"] for row in json.loads(answer(capsys, "--json"))["models"]] == ["a", "b", "c"]


def test_a_context_that_nobody_asked_for_is_told_to_be_a_guess(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ctx-size is not set" in answer(capsys, "a")
    desk.presets("[a]\nmodel = $W\nctx-size = 4096\n")
    desk.config({"LLM": {"a": {}}})
    assert "ctx-size is not set" not in answer(capsys, "a")


def test_a_model_that_is_not_there_ends_with_1(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "nobody", "--set", "NUM_GPUS=2"]) == 1
    assert "there are a, b, c" in capsys.readouterr().err
