"""Reading `llama-server --help`: the only authority on what may stand in presets.ini."""

import os
import stat
import sys
from pathlib import Path

import pytest

from router.llama_options import HelpFailed, Option, OptionTable, files_of, parse_help, read_help
from tests.router.config_desk import HELP

TABLE = OptionTable(parse_help(HELP))


@pytest.mark.parametrize("key", ["c", "ctx-size", "LLAMA_ARG_CTX_SIZE"])
def test_short_long_and_environment_names_lead_to_one_option(key: str) -> None:
    assert TABLE.by_key[key].flag == "--ctx-size"
    assert TABLE.canonical(key) == "ctx-size"


def test_names_that_differ_in_case_only_are_different_options() -> None:
    """-c is the context, -C the CPU mask."""
    assert TABLE.canonical("c") == "ctx-size"
    assert TABLE.canonical("C") == "cpu-mask"


@pytest.mark.parametrize(
    ("key", "name", "negates"),
    [
        ("kvo", "kv-offload", False),
        ("nkvo", "kv-offload", True),
        ("no-kv-offload", "kv-offload", True),
        ("LLAMA_ARG_NO_KV_OFFLOAD", "kv-offload", True),
        ("no-kvu", "kv-unified", True),
        ("nr", "repack", True),
        ("no-mmproj", "mmproj-auto", True),
        ("no-host", "no-host", False),
        ("n-predict", "n-predict", False),
    ],
)
def test_negative_names_are_told_from_positive_ones(key: str, name: str, negates: bool) -> None:
    """The help lists them together; a lone --no-host is a flag in its own right, and -n only looks negative."""
    assert TABLE.canonical(key) == name
    assert TABLE.by_key[key].negates(key) is negates


def test_the_hint_tells_values_from_flags() -> None:
    """Also where names and hint are so long that the help text begins on the next line."""
    assert TABLE.by_key["ot"].hint == "<tensor name pattern>=<buffer type>,..."
    assert not TABLE.by_key["ot"].takes_two_values
    assert TABLE.by_key["control-vector-layer-range"].takes_two_values
    assert TABLE.by_key["spec-type"].takes_value
    assert TABLE.by_key["sm"].choices == ("none", "layer", "row", "tensor")
    assert not TABLE.by_key["jinja"].takes_value
    assert not TABLE.by_key["kvo"].takes_value


def test_removed_options_name_their_replacement() -> None:
    assert TABLE.by_key["draft"].replacement == "--spec-draft-n-max or --spec-ngram-mod-n-max"
    assert TABLE.by_key["LLAMA_ARG_DRAFT_MAX"].replacement
    assert not TABLE.by_key["spec-draft-n-max"].replacement


def test_every_option_of_the_text_is_found() -> None:
    """Each line that begins with a dash and is no headline is one option."""
    lines = [line for line in HELP.splitlines() if line.startswith("-") and not line.startswith("-----")]
    assert len(TABLE.options) == len(lines)
    assert all(option.names for option in TABLE.options)


def test_noise_around_the_options_is_no_option() -> None:
    """A CUDA build prints what it found before anything else."""
    noise = "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 3090\n\n"
    assert parse_help(noise + HELP + "\nexample:\n  llama-server -m x\n")[0] == TABLE.options[0]
    assert parse_help("usage: ls [OPTION]...\n") == ()


# --- asking the binary ----------------------------------------------------------------------------------------------


def _binary(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_binary_is_asked_once_and_again_when_it_changes(tmp_path: Path) -> None:
    """Its path, size and time of change tell whether the kept text still holds."""
    runs = tmp_path / "runs"
    body = f"echo run >> {runs}; echo '-c,    --ctx-size N     size'"
    server = _binary(tmp_path / "llama-server", body)
    cache = tmp_path / "cache"

    first = read_help([server], cache)
    assert read_help([server], cache) == first
    assert runs.read_text().count("run") == 1

    _binary(tmp_path / "llama-server", body + "; echo '-x,    --new N     new'")
    os.utime(server, (1, 1))
    assert "--new" in read_help([server], cache)
    assert runs.read_text().count("run") == 2


def test_a_new_binary_behind_a_wrapper_is_asked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper stays the same, and names the binary as a shell would."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = ["env", "llama-server"]
    for option in ("--first", "--second-one"):
        server = _binary(tmp_path / "llama-server", f"echo '{option} N   a number'")
        assert option in read_help(command, tmp_path / "cache")
        assert any(server in line for line in files_of(command))


def test_a_cache_that_cannot_be_written_or_is_rubbish_does_no_harm(tmp_path: Path) -> None:
    server = _binary(tmp_path / "llama-server", "echo '-c,    --ctx-size N     size'")
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert "--ctx-size" in read_help([server], in_the_way / "cache")

    cache = tmp_path / "cache"
    read_help([server], cache)
    (kept,) = cache.iterdir()
    kept.write_bytes(b"\xff\xff torn")
    assert "--ctx-size" in read_help([server], cache)


def test_the_environment_of_another_llama_server_does_not_leak_into_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "12345")
    server = _binary(tmp_path / "llama-server", 'echo "-c,    --ctx-size N     size [$LLAMA_ARG_CTX_SIZE]"')
    assert "size []" in read_help([server], tmp_path / "cache")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'libcuda.so.1: cannot open shared object file' >&2; exit 127", "status 127: libcuda.so.1: cannot open"),
        ("echo hello", "names no options"),
    ],
)
def test_a_binary_that_cannot_answer_says_why(tmp_path: Path, body: str, said: str) -> None:
    server = _binary(tmp_path / "llama-server", body)
    with pytest.raises(HelpFailed, match=said):
        read_help([server], tmp_path / "cache")


def test_a_binary_that_cannot_be_run_at_all_says_why(tmp_path: Path) -> None:
    (tmp_path / "no-program").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "no-program").chmod(0o755)
    with pytest.raises(HelpFailed, match="cannot be run"):
        read_help([str(tmp_path / "no-program")], tmp_path / "cache")


def test_options_go_by_the_name_that_llama_server_itself_would_pick() -> None:
    option = Option(("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), hint="N")
    assert (option.flag, option.name) == ("--swa-checkpoints", "swa-checkpoints")


def test_a_real_llama_server_is_understood_whole(tmp_path: Path) -> None:
    """The one in the wheel prints llama.cpp's own table, some 250 options."""
    pytest.importorskip("xllamacpp")
    text = read_help([sys.executable, "-m", "router.embedded"], tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("-") and not line.startswith("-----")]
    table = OptionTable(parse_help(text))
    assert len(table.options) == len(lines) > 200
    for key in ("c", "ngl", "LLAMA_ARG_N_PARALLEL", "no-kv-offload", "cram", "hf-repo", "jinja", "slots"):
        assert key in table.by_key
    assert table.canonical("no-kv-offload") == "kv-offload"
