"""presets.ini: llama.cpp's grammar, and what its keys become on a command line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.llama_options import OptionTable, parse_help
from router.presets import PRESET_ONLY, canonical_name, merge, read_ini, read_layer, to_argv
from router.problems import Findings, Problem
from tests.router.config_desk import HELP

TABLE = OptionTable(parse_help(HELP), PRESET_ONLY)


def _read(text: str) -> tuple[dict[str, dict[str, str]], Findings]:
    findings = Findings()
    sections = read_ini(text, "presets.ini", findings)
    return {name: {e.key: e.value for e in section.entries} for name, section in sections.items()}, findings


def _argv(*lines: str) -> tuple[str, ...]:
    argv, findings = _translate(*lines)
    assert findings.problems == []
    return argv


def _translate(*lines: str) -> tuple[tuple[str, ...], Findings]:
    findings = Findings()
    (section,) = read_ini("\n".join(["[m]", *lines]), "presets.ini", findings).values()
    return to_argv(read_layer(section.entries, TABLE, findings)), findings


def _mistake(*lines: str) -> Problem:
    _, findings = _translate(*lines)
    (problem,) = findings.problems
    return problem


# --- the grammar ----------------------------------------------------------------------------------------------------


def test_sections_keys_comments_and_blank_lines_are_read() -> None:
    """All that the grammar knows, in one file."""
    text = """version = 1
; a comment
[*]
ngl = 99

[Qwen3 4B]  ; comment after a header
\t# an indented comment
c=8192
model =   /models/a b.gguf   ; with blanks inside
jinja = true # on
empty =
"""
    sections, findings = _read(text)
    assert findings.problems == []
    assert sections == {
        "default": {"version": "1"},
        "*": {"ngl": "99"},
        "Qwen3 4B": {"c": "8192", "model": "/models/a b.gguf", "jinja": "true", "empty": ""},
    }


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_ends_a_line(newline: str) -> None:
    sections, findings = _read(newline.join(["\ufeff[a]", "c = 1", "[b]", "c = 2"]))
    assert findings.problems == []
    assert sections == {"a": {"c": "1"}, "b": {"c": "2"}}


def test_keys_before_any_header_belong_to_default() -> None:
    sections, _ = _read("c = 1\n[m]\nc = 2\n")
    assert sections["default"] == {"c": "1"}


def test_a_value_cut_in_the_middle_of_a_word_is_told() -> None:
    """llama-server cuts there without a word: /data/C#/x.gguf becomes /data/C."""
    sections, findings = _read("[m]\nmodel = /data/C#/x.gguf\nsamplers = top_k;top_p\ngrammar-file = x ; fine\n")
    assert sections["m"] == {"model": "/data/C", "samplers": "top_k", "grammar-file": "x"}
    assert len(findings.warnings) == 2
    assert "presets.ini:2" in findings.warnings[0]
    assert "'#' begins a comment" in findings.warnings[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[m", "no ]"),
        ("[m] x", "only be a comment, not 'x'"),
        ("just words", "no `key = value`"),
        ("--ctx-size = 1", "without dashes"),
        ("= 1", "a key is a name"),
        ("ключ = 1", "a key is a name"),
        (" c = 1", "may not start with a blank"),
        ("c = \0", "zero byte"),
    ],
)
def test_a_line_outside_the_grammar_is_a_mistake_with_its_number(line: str, said: str) -> None:
    _, findings = _read(f"[first]\n{line}\n")
    (problem,) = findings.problems
    assert said in problem.message
    assert problem.line == 2


def test_reading_goes_on_after_a_mistake() -> None:
    """Every mistake of a file is told in one go."""
    _, findings = _read("[a]\nnonsense\nc = 1\n[b\nagain nonsense\n")
    assert [problem.line for problem in findings.problems] == [2, 4, 5]


def test_a_section_written_twice_is_a_mistake() -> None:
    """llama-server would forget the first one in silence."""
    _, findings = _read("[m]\nc = 1\n[n]\n[m]\nc = 2\n")
    (problem,) = findings.problems
    assert (problem.line, problem.section) == (4, "m")
    assert "line 1" in problem.message


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("unsloth/Qwen3-GGUF:q4_k_m", "unsloth/Qwen3-GGUF:Q4_K_M"),
        ("a:ud-q2_k_xl", "a:UD-Q2_K_XL"),
        ("a:iq2_xxs", "a:IQ2_XXS"),
        ("a:bf16", "a:BF16"),
        ("a:Q4_K_XL-thinking", "a:Q4_K_XL-thinking"),
        ("a:latest", "a:latest"),
        ("llama3:8b", "llama3:8b"),
        ("plain", "plain"),
    ],
)
def test_a_quantisation_is_written_in_capitals_and_nothing_else_is(written: str, name: str) -> None:
    """Two sections that differ by a suffix after the quantisation stay two models."""
    assert canonical_name(written) == name
    sections, _ = _read(f"[{written}]\n")
    assert list(sections) == [name]


def test_names_that_are_one_after_their_quantisation_is_in_capitals_meet() -> None:
    _, findings = _read("[a:q8_0]\n[a:Q8_0]\n")
    assert [problem.section for problem in findings.problems] == ["a:Q8_0"]


@settings(deadline=None)
@given(st.text())
def test_no_text_makes_the_reader_fail_other_than_by_telling_mistakes(text: str) -> None:
    findings = Findings()
    for section in read_ini(text, "presets.ini", findings).values():
        read_layer(section.entries, TABLE, findings)
    assert all(str(problem) for problem in findings.problems)


LINES = st.sampled_from(
    ["[m]", "[*]", "[", "c = 1", "c", "no-mmap = off", " x=1", "; c", "[m:q4_0]", "draft=1", "=", "#"]
)


@settings(deadline=None)
@given(st.lists(LINES), st.sampled_from(["\n", "\r", "\r\n"]))
def test_no_order_of_lines_makes_the_reader_fail(lines: list[str], newline: str) -> None:
    findings = Findings()
    for section in read_ini(newline.join(lines), "presets.ini", findings).values():
        for argument in to_argv(read_layer(section.entries, TABLE, findings)):
            assert argument


# --- what becomes of a key ------------------------------------------------------------------------------------------


def test_values_become_pairs_and_flags_themselves() -> None:
    lines = ("ngl = 99", "c = 8192", "jinja = true", "m = /a b.gguf", "temp = 0.6", "fa = on", "ctk = q8_0")
    assert _argv(*lines) == (
        *("--n-gpu-layers", "99", "--ctx-size", "8192", "--jinja", "--model", "/a b.gguf"),
        *("--temperature", "0.6", "--flash-attn", "on", "--cache-type-k", "q8_0"),
    )


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("mmap = false", ("--no-mmap",)),
        ("no-mmap = true", ("--no-mmap",)),
        ("no-mmap = false", ("--mmap",)),
        ("LLAMA_ARG_MMAP = 0", ("--no-mmap",)),
        ("LLAMA_ARG_NO_MMAP = 1", ("--no-mmap",)),
        ("nkvo = on", ("--no-kv-offload",)),
        ("no-mmproj = 1", ("--no-mmproj-auto",)),
        ("embedding = enabled", ("--embeddings",)),
        ("embedding = disabled", ()),
        ("mlock = off", ()),
        ("no-host = true", ("--no-host",)),
    ],
)
def test_a_flag_is_given_negated_or_left_out(line: str, argv: tuple[str, ...]) -> None:
    assert _argv(line) == argv


def test_a_value_is_never_mistaken_for_a_flag() -> None:
    """It stands in an argument of its own, whatever it looks like."""
    assert _argv("m = --help", "temp = -1") == ("--model", "--help", "--temperature", "-1")


def test_keys_of_whoever_runs_the_server_never_reach_it() -> None:
    assert _argv("version = 1", "load-on-startup = true", "stop-timeout = 20", "dedup-cache-models = 1") == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("host = 0.0.0.0", "UNIX socket"),
        ("port = 8080", "UNIX socket"),
        ("LLAMA_API_KEY = secret", "random key"),
        ("api-key-file = /k", "random key"),
        ("a = other", "aliases"),
        ("models-max = 3", "MAX_MODELS_PER_GPU"),
        ("no-models-autoload = 1", "one process"),
        ("ssl-key-file = /k", "UNIX socket"),
        ("api-prefix = /x", "prefix"),
        ("dev = CUDA2", "numbered from 0"),
        ("no-slots = true", "/slots"),
    ],
)
def test_what_the_router_sets_itself_is_dropped_with_the_reason(line: str, why: str) -> None:
    argv, findings = _translate(line)
    assert (argv, findings.problems) == ((), [])
    (warning,) = findings.warnings
    assert why in warning
    assert "presets.ini:2, section [m]" in warning


def test_what_the_router_sets_in_the_same_way_needs_no_word() -> None:
    argv, findings = _translate("slots = true", "metrics = 1")
    assert (argv, findings.problems, findings.warnings) == ((), [], [])


def test_an_unknown_key_names_the_nearest_one() -> None:
    problem = _mistake("ctx_sise = 1")
    assert problem.nearest == "ctx-size"
    assert (problem.key, problem.value, problem.line, problem.section) == ("ctx_sise", "1", 2, "m")


def test_a_key_of_config_json_says_where_it_belongs() -> None:
    for key in ("num_instance", "gpus", "reasoning_effort", "cost"):
        assert "config.json" in _mistake(f"{key} = 1").message


def test_a_removed_option_names_its_replacement() -> None:
    problem = _mistake("draft-max = 16")
    assert "removed" in problem.message
    assert "--spec-draft-n-max" in problem.allowed


def test_one_option_under_two_names_is_a_mistake_that_names_both() -> None:
    problem = _mistake("c = 1", "LLAMA_ARG_CTX_SIZE = 2")
    assert problem.line == 3
    assert "as c in line 2" in problem.message
    assert _mistake("mmap = 1", "no-mmap = 1").line == 3


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("sm = rows", "none, layer, row, tensor"),
        ("c = big", "a number"),
        ("c = 64k", "a number"),
        ("ngl = most", "a number, auto, all"),
        ("jinja = yes", "true, on, 1, enabled, false, off, 0, disabled"),
        ("jinja =", "true, on, 1, enabled, false, off, 0, disabled"),
        ("m =", "FNAME"),
    ],
)
def test_a_value_of_the_wrong_kind_says_what_is_allowed(line: str, allowed: str) -> None:
    assert _mistake(line).allowed == allowed


@pytest.mark.parametrize("line", ["ngl = auto", "ngl = -1", "rope-freq-base = 1e6", "temp = .5", "fa = auto"])
def test_words_and_numbers_that_llama_server_takes_are_taken(line: str) -> None:
    assert len(_argv(line)) == 2


def test_an_option_that_ends_the_server_is_a_mistake() -> None:
    assert "ends" in _mistake("list-devices = true").message


def test_two_values_cannot_stand_in_a_preset() -> None:
    assert "two values" in _mistake("control-vector-layer-range = 1 2").message


def test_a_deprecated_option_is_passed_on_with_a_warning() -> None:
    argv, findings = _translate("dt = 0.1")
    assert argv == ("--defrag-thold", "0.1")
    assert "deprecated" in findings.warnings[0]


def test_a_later_layer_wins_under_whatever_name() -> None:
    findings = Findings()
    sections = read_ini("[*]\nc = 1\nno-mmap = 1\nngl = 9\n[m]\nctx-size = 2\nmmap = 1\n", "presets.ini", findings)
    layers = [read_layer(sections[name].entries, TABLE, findings) for name in ("*", "m")]
    assert to_argv(merge(layers)) == ("--ctx-size", "2", "--mmap", "--n-gpu-layers", "9")
    assert findings.problems == []
