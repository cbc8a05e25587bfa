"""`llama-router check`: what it prints and how it ends."""

import argparse
import json
from pathlib import Path

import pytest

from router.check import add_config_arguments, check_command
from router.config import ConfigErrors, Problem
from tests.router.config_desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """With a llama-server that prints the captured help, as the environment of this process."""
    return Desk(tmp_path).move_in(monkeypatch)


def _check(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    parser.add_argument("--show-argv", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--json", action="store_true")
    return check_command(parser.parse_args(argv))


def test_a_good_configuration_is_summed_up(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.models(small={"aliases": ["s"], "num_instance": 2}, big={"gpus": [[0], [1]]}, cpu={"gpus": "cpu"})
    assert _check("--set", "NUM_GPUS=2", "--set", "QUEUE_HEAD_GRACE=2.5", "--show-argv") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["small"] == ["small", "s", "0", "2", "auto", "auto", str(desk.weights)]
    assert rows["big"][2:5] == ["0", "|", "1"]
    assert rows["cpu"][2] == "cpu"
    assert "2 (by NUM_GPUS), 1 model each at most" in out
    assert "lru, grace 2.5 s, forced after 300 s" in out
    assert f"--model {desk.weights}" in out
    assert out.endswith("3 models: ready to serve\n")


def test_mistakes_go_to_stderr_and_end_with_1(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.presets("[a]\nmodel = $W\nctx-sze = 1\n[b]\nmodel = $W\nport = 1\n[c]\nnonsense\n")
    assert _check() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "warning: " in err
    assert "3 mistakes in the configuration" in err
    assert "did you mean 'ctx-size'?" in err
    assert len(err.strip().split("\n\n")) >= 5, "one paragraph each"


def test_scripts_get_an_object_without_secrets(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.presets("[m]\nmodel = $W\nhf-token = hf_secret\nc = 8\n")
    assert _check("--json", "--set", "NUM_GPUS=1") == 0
    out = capsys.readouterr().out
    assert "hf_secret" not in out
    told = json.loads(out)
    assert told["ok"] is True
    assert told["models"]["m"]["argv"] == ["--model", str(desk.weights), "--ctx-size", "8"]
    assert told["models"]["m"]["env"] == ["HF_TOKEN"]


def test_scripts_get_mistakes_with_their_place(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.presets("[m]\nmodel = $W\nctx-sze = 1\n")
    assert _check("--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    (problem,) = told["problems"]
    assert (problem["section"], problem["key"], problem["value"], problem["nearest"]) == (
        "m",
        "ctx-sze",
        "1",
        "ctx-size",
    )
    assert (problem["line"], Path(problem["file"]).name) == (3, "presets.ini")


def test_other_files_can_be_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    other = desk.home / "other.ini"
    other.write_text(f"[elsewhere]\nmodel = {desk.weights}\n")
    assert _check("--presets", str(other)) == 0
    assert "elsewhere" in capsys.readouterr().out


def test_a_setting_without_a_value_is_a_wrong_command_line(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check("--set", "NUM_GPUS") == 2
    assert "NAME=VALUE" in capsys.readouterr().err


def test_checking_makes_no_directory_but_the_cache_of_the_help_text(desk: Desk) -> None:
    desk.models(m={})
    assert _check("--set", "NUM_GPUS=1") == 0
    made = sorted(path.name for path in (desk.home / ".local/state/llama-router").iterdir())
    assert made == ["llama-help"]


def test_a_mistake_is_one_paragraph() -> None:
    problem = Problem("no", "f.ini", 3, "m", "k", "v\nw", "this, that", "kk")
    assert str(problem) == "f.ini:3, section [m], k = v\\nw\n  no\n  allowed: this, that\n  did you mean 'kk'?"
    assert str(ConfigErrors([problem])).startswith("1 mistake in the configuration\n\nf.ini:3")
    assert str(Problem("alone")) == "alone"
