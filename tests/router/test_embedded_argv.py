"""The embedded server understands llama-server's command line: short names, long names, environment, negatives."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router import embedded_argv

xllamacpp = pytest.importorskip("xllamacpp", reason="the extra 'embedded' is not installed")


def launch(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "router.embedded", *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(env or {})},
    )


def parse(*argv: str) -> Any:
    return embedded_argv.parse(xllamacpp, ["llama-server", "--model", "m.gguf", *argv])


def test_help_is_llama_servers_own() -> None:
    """Whoever reads the help of a real binary, a parser included, can read this one."""
    help_ = launch("--help")
    assert (help_.returncode, help_.stderr) == (0, "")
    lines = help_.stdout.splitlines()
    assert lines[0] == "----- common params -----"
    assert "----- example-specific params -----" in lines
    ctx_size = next(i for i, line in enumerate(lines) if line.startswith("-c,    --ctx-size N "))
    assert lines[ctx_size + 1].strip() == "(env: LLAMA_ARG_CTX_SIZE)"
    assert any(line.startswith("--slots, --no-slots ") for line in lines), "a flag with its negative"
    assert any(line.startswith("--port PORT ") and "8080" in line for line in lines), "llama-server's default port"


def test_version_says_which_llama_cpp() -> None:
    version = launch("--version")
    assert version.returncode == 0
    assert (version.stdout + version.stderr).startswith("version: ")


def test_an_unknown_option_is_an_error_in_llama_servers_words() -> None:
    refused = launch("--model", "m.gguf", "--no-such-option", "1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "error: invalid argument: --no-such-option" in refused.stderr


def test_a_bad_value_names_its_option() -> None:
    refused = launch("--model", "m.gguf", "--ctx-size", "many")
    assert refused.returncode == 1
    assert 'error while handling argument "--ctx-size"' in refused.stderr


def test_without_a_model_file_it_says_what_is_missing() -> None:
    """llama-server would go into router mode, which the wheel cannot."""
    refused = launch()
    assert refused.returncode == 1
    assert "needs --model FILE" in refused.stderr


def test_options_that_the_wheel_would_silently_ignore_are_errors() -> None:
    """It serves local files only; an option that names a download must not seem to have worked."""
    for remote in (["--hf-repo", "someone/some"], ["--model", "m.gguf", "--hf-repo-draft", "someone/some"]):
        refused = launch(*remote)
        assert refused.returncode == 1
        assert "does not download models" in refused.stderr


def test_without_the_wheel_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['xllamacpp'] = None; from router.embedded import main; main()"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "pip install 'llama-router[embedded]'" in refused.stderr


def test_short_and_long_names_are_the_same_option() -> None:
    assert parse("-c", "512", "-np", "3").n_ctx == parse("--ctx-size", "512", "--parallel", "3").n_ctx == 512
    assert parse("-np", "3").n_parallel == 3


def test_flags_have_negatives() -> None:
    assert parse().endpoint_slots
    assert not parse("--no-slots").endpoint_slots
    assert parse().cont_batching
    assert not parse("-nocb").cont_batching


def test_options_of_every_kind_arrive() -> None:
    params = parse("--metrics", "--embeddings", "--alias", "a,b", "--temp", "0.5", "-fa", "on", "-ctk", "q8_0")
    assert params.endpoint_metrics
    assert params.embedding
    assert params.model_alias == {"a", "b"}
    assert params.sampling.temp == 0.5
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0


def test_the_environment_counts_and_argv_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1024")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "2")
    params = parse("--parallel", "5")
    assert (params.n_ctx, params.n_parallel) == (1024, 5)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router never puts a key into argv, where every user of the machine could read it."""
    monkeypatch.setenv("LLAMA_API_KEY", "one,two")
    assert parse().api_keys == ["one", "two"]


def test_llama_servers_defaults_hold() -> None:
    params = parse()
    assert (params.hostnames, params.port) == (["127.0.0.1"], 8080)
    assert params.n_parallel == -1, "automatic slots"
    assert params.api_keys == []


def test_a_wheel_without_the_parser_is_not_touched() -> None:
    """It says so, instead of crashing somewhere in foreign memory."""
    stranger = SimpleNamespace(
        CommonParams=xllamacpp.CommonParams, xllamacpp=SimpleNamespace(__file__=sys.modules["_ctypes"].__file__)
    )
    with pytest.raises(embedded_argv.UnknownWheel, match="does not export"):
        embedded_argv.parse(cast(Any, stranger), ["llama-server"])


def test_parameters_laid_out_otherwise_are_not_touched() -> None:
    class Otherwise:
        n_predict = -1

    stranger = SimpleNamespace(CommonParams=Otherwise, xllamacpp=xllamacpp.xllamacpp)
    with pytest.raises(embedded_argv.UnknownWheel, match="does not begin with n_predict"):
        embedded_argv.parse(cast(Any, stranger), ["llama-server"])


def test_probing_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "9999")
    before = dict(os.environ)
    assert parse().port == 9999
    assert dict(os.environ) == before
