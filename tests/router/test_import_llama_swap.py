"""`llama-router import llama-swap`: what comes along, what does not, and that the result can be served."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.cli import main
from router.llama_options import OptionTable, parse_help
from router.llama_swap.convert import Conversion, convert, presets_text
from router.llama_swap.document import Document, NoDocument, read_document
from router.presets import PRESET_ONLY
from tests.router.config_desk import HELP, Desk

WORDS = (
    "a",
    "b",
    "cmd",
    "env",
    "members",
    "pins",
    "targets",
    "settings",
    "vars",
    "sets",
    "fifo",
    "priority",
    "preload",
)
TOPS = ("apiKeys", "groups", "hooks", "matrix", "peers", "profiles", "routing", "selectors", "globalTTL", "novelty")

TABLE = OptionTable(parse_help(HELP), PRESET_ONLY)


def converted(text: str, **environ: str) -> Conversion:
    return convert(read_document(text, environ), TABLE)


def notes(result: Conversion, kind: str) -> list[tuple[str, str]]:
    return [(item.where, item.message) for item in result.items if item.kind == kind]


def one(command: str, *more: str) -> Conversion:
    """The model `m` with this command, and more lines of its entry."""
    lines = ["models:", "  m:", f"    cmd: {json.dumps(command)}", *(f"    {line}" for line in more)]
    return converted("\n".join(lines))


# --- the file -------------------------------------------------------------------------------------------------------


def test_macros_are_replaced_the_models_own_and_those_within_others_too() -> None:
    """A global macro that uses another one sees what the model makes of that one."""
    result = converted(
        """
        macros:
          ctx: 4096
          args: "--ctx-size ${ctx} --jinja"
          server: >
            /opt/llama-server --port ${PORT} ${args}
        models:
          a: {cmd: "${server} -m ${env.MODELS}/${MODEL_ID}.gguf"}
          b:
            macros: {ctx: 16384, slots: 2}
            cmd: "${server} -m /b.gguf --parallel ${slots}"
            metadata: {ctx: "${ctx}", note: "${MODEL_ID} has ${ctx}"}
        """,
        MODELS="/models",
    )
    assert result.presets["a"] == {"ctx-size": "4096", "jinja": "true", "model": "/models/a.gguf"}
    assert result.presets["b"] == {"ctx-size": "16384", "jinja": "true", "model": "/b.gguf", "parallel": "2"}
    assert result.config["LLM"]["b"]["metadata"] == {"ctx": 16384, "note": "b has 16384"}
    assert result.config["llama-server-executable"] == "/opt/llama-server"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [", "this is not YAML"),
        ("port: 1", "there are no `models`"),
        ("models: {a: nonsense}", "models.a: a model is a mapping"),
        ("models: {a: {cmd: 'llama-server -m ${env.NOWHERE}'}}", "the environment variable NOWHERE"),
        ("models: {a: {cmd: 'llama-server ${gone}'}}", "the macro gone"),
    ],
)
def test_a_file_that_cannot_be_imported_says_why(text: str, said: str) -> None:
    with pytest.raises(NoDocument, match=said):
        converted(text)


# --- commands -------------------------------------------------------------------------------------------------------


def test_a_command_becomes_preset_keys_under_their_long_names() -> None:
    """Comments and backslashes go, quotes group, a flag has no value, ports are the router's own business."""
    result = one(
        "# the big one\nllama-server --host 0.0.0.0 --port ${PORT} \\\n"
        " -m '/models/with blank.gguf' -c 8192 \\\n --cache_type_k q8_0 -fa on --no-mmap\n"
    )
    assert result.presets["m"] == {
        "model": "/models/with blank.gguf",
        "ctx-size": "8192",
        "cache-type-k": "q8_0",
        "flash-attn": "on",
        "no-mmap": "true",
    }
    assert notes(result, "lost") == []


def test_options_that_are_gone_unknown_or_unsayable_are_named_with_what_to_do() -> None:
    result = one("llama-server -m /m.gguf -fa --ctx-sze 1 --json-schema 'a;b' stray -c 1 -c 2")
    assert result.presets["m"] == {"model": "/m.gguf", "flash-attn": "on", "ctx-size": "2"}
    lost = [message.split("`")[1] for _, message in notes(result, "lost")]
    assert lost == ["--ctx-sze 1", "--json-schema a;b", "stray"]
    assert "did you mean --ctx-size?" in [item.advice for item in result.items]
    changed = " ".join(message for _, message in notes(result, "changed"))
    assert "`-fa` stood without a value" in changed
    assert "`-c 2` was given before, as 1" in changed


def test_options_that_have_another_name_now_come_along_under_it() -> None:
    """As llama-server's help says it; flags of which it says nothing any more, from a table."""
    result = one("llama-server -m /m.gguf --draft-max 16 --spec-ngram-size-n 4")
    assert result.presets["m"] == {"model": "/m.gguf", "spec-draft-n-max": "16"}
    assert "`--draft-max 16` is --spec-draft-n-max in this llama-server" in [
        message for _, message in notes(result, "changed")
    ]
    assert [message.split("`")[1] for _, message in notes(result, "lost")] == ["--spec-ngram-size-n 4"]
    newer = HELP.replace("--mmap, --no-mmap ", "-lm, --load-mode MODE ").replace("--mlock ", "--other ")
    document = read_document("models: {m: {cmd: llama-server -m x --no-mmap}, n: {cmd: llama-server -m x --mlock}}", {})
    result = convert(document, OptionTable(parse_help(newer), PRESET_ONLY))
    assert result.presets["m"] == {"model": "x", "load-mode": "none"}
    assert result.presets["n"] == {"model": "x", "load-mode": "mmap+mlock"}


def test_samplers_come_along_by_their_letters_since_a_preset_holds_no_semicolon() -> None:
    """Where this llama-server has the short form, and each sampler a letter."""
    text = "models: {m: {cmd: 'llama-server -m x --samplers \"top_k;min_p;temperature\"'}}"
    longer = HELP + "--sampler-seq, --sampling-seq SEQUENCE\n                                        short form\n"
    result = convert(read_document(text, {}), OptionTable(parse_help(longer), PRESET_ONLY))
    assert result.presets["m"] == {"model": "x", "sampling-seq": "kmt"}
    assert [item.kind for item in result.items if item.where == "models.m.cmd"] == ["changed"]
    unknown = convert(read_document(text.replace("min_p", "novel"), {}), OptionTable(parse_help(longer), PRESET_ONLY))
    assert unknown.presets["m"] == {"model": "x"}
    assert one("llama-server -m x --samplers 'top_k;min_p'").presets["m"] == {"model": "x"}


def test_profiles_of_long_ago_are_groups() -> None:
    """They were lists of models that are loaded together."""
    result = converted(TWO + "profiles: {both: [a, b], now: {pins: {x: a}}}")
    groups = {"both": {"swap": False, "members": ["a", "b"]}}
    assert result.config["routing"] == {"router": {"use": "group", "settings": {"groups": groups}}}
    assert result.config["profiles"] == {"now": {"pins": {"x": "a"}}}
    assert "profiles.both" in [where for where, _ in notes(result, "changed")]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("docker run --rm ghcr.io/ggml-org/llama.cpp:server -m x", "it runs in a container"),
        ("vllm serve model", "it starts vllm"),
        ("bash -c 'llama-server -m x'", "it is started through a shell"),
        ("llama-server -m 'x", "its command line cannot be read"),
        ("", "it is empty"),
    ],
)
def test_what_does_not_start_llama_server_is_left_out_with_the_reason(command: str, why: str) -> None:
    result = one(command)
    assert result.left_out == ["m"]
    assert result.presets == {}
    [(where, message)] = notes(result, "lost")
    assert where == "models.m"
    assert why in message


def test_the_llama_server_that_most_models_use_is_configured_and_the_others_are_told_of() -> None:
    result = converted(
        """
        models:
          a: {cmd: taskset -c 0-7 /opt/new/llama-server -m /a}
          b: {cmd: taskset -c 0-7 /opt/new/llama-server -m /b}
          c: {cmd: /opt/old/llama-server-b1234 -m /c}
        """
    )
    assert result.config["llama-server-executable"] == ["taskset", "-c", "0-7", "/opt/new/llama-server"]
    assert ("models.c.cmd", "it was started with /opt/old/llama-server-b1234") in [
        (where, message.split(",")[0]) for where, message in notes(result, "changed")
    ]


# --- where a model lives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "more", "gpus"),
    [
        ("llama-server -m x", "", "all"),
        ("llama-server -m x", 'env: ["CUDA_VISIBLE_DEVICES=2,0"]', [2, 0]),
        ("llama-server -m x", 'env: ["CUDA_VISIBLE_DEVICES=GPU-12ab"]', ["GPU-12ab"]),
        ("llama-server -m x", 'env: ["HIP_VISIBLE_DEVICES=1"]', [1]),
        ("llama-server -m x", 'env: ["CUDA_VISIBLE_DEVICES="]', "none"),
        ("llama-server -m x --device none", "", "none"),
        ("llama-server -m x --device CUDA1,CUDA2", "", [1, 2]),
        ("llama-server -m x --device CUDA1", 'env: ["CUDA_VISIBLE_DEVICES=3,5"]', [5]),
        ("llama-server -m x -sm none -mg 1", "", [1]),
        ("llama-server -m x -sm none", 'env: ["CUDA_VISIBLE_DEVICES=3,5"]', [3]),
        ("llama-server -m x --device Vulkan1", "", "all"),
    ],
)
def test_masks_and_devices_become_gpus(command: str, more: str, gpus: Any) -> None:
    """A process that saw every GPU goes on seeing every GPU; one that saw some sees these."""
    result = one(command, *([more] if more else []))
    assert result.config["LLM"]["m"]["gpus"] == gpus
    assert "env" not in result.config["LLM"]["m"]
    assert not {"device", "main-gpu"} & result.presets["m"].keys()
    assert (notes(result, "lost") != []) == ("Vulkan" in command)


def test_the_rest_of_the_environment_comes_along_and_options_in_it_become_keys() -> None:
    result = one("llama-server -m x -c 1", 'env: ["A=b=c", "LLAMA_ARG_N_PARALLEL=4", "LLAMA_ARG_CTX_SIZE=9"]')
    assert result.config["LLM"]["m"]["env"] == {"A": "b=c"}
    assert result.presets["m"] == {"model": "x", "ctx-size": "1", "parallel": "4"}


# --- the life of a model --------------------------------------------------------------------------------------------


def test_ttl_names_aliases_and_preloads_come_along() -> None:
    """Preloaded models come first, in the order of their preload, which is the order that counts here."""
    result = converted(
        """
        globalTTL: 600
        unloadTimeout: 20
        includeAliasesInList: true
        healthCheckTimeout: 3600
        hooks: {on_startup: {preload: [c, b, gone]}}
        models:
          a: {cmd: llama-server -m x, ttl: 60, unlisted: true, name: The A, description: first, aliases: [x, {id: y}]}
          b: {cmd: llama-server -m x, ttl: 0, unloadTimeout: 3}
          c: {cmd: llama-server -m x, ttl: -1, concurrencyLimit: 5, cmdStop: kill}
        """
    )
    assert list(result.presets) == list(result.config["LLM"]) == ["c", "b", "a"]
    assert [name for name, keys in result.presets.items() if "load-on-startup" in keys] == ["c", "b"]
    a, b, c = (result.config["LLM"][name] for name in "abc")
    assert a == {
        "gpus": "all",
        "aliases": ["x", "y"],
        "unlisted": True,
        "ttl": 60,
        "name": "The A",
        "description": "first",
    }
    assert b["ttl"] == 0
    assert "ttl" not in c
    assert result.presets["b"]["stop-timeout"] == "3"
    assert result.config["ROUTER"] == {
        "GLOBAL_TTL": 600,
        "GRACEFUL_KILL_TIMEOUT": 20,
        "INCLUDE_ALIASES_IN_LIST": True,
        "LOAD_TIMEOUT_CEILING": 3600,
    }
    assert ("hooks.on_startup.preload", "'gone' was left out: there is no such model any more") in notes(result, "lost")
    assert [where for where, _ in notes(result, "changed")][:2] == ["models.c", "models.c"]


def test_keys_of_clients_come_along_and_variables_stay_variables() -> None:
    result = converted('apiKeys: ["sk-1", "${env.SECRET}"]\nmodels: {m: {cmd: llama-server -m x}}')
    assert result.config["keys"] == {
        "key-1": {"key": "sk-1", "admin": True},
        "key-2": {"key": "${env.SECRET}", "admin": True},
    }


# --- routing --------------------------------------------------------------------------------------------------------

TWO = "models: {a: {cmd: llama-server -m x}, b: {cmd: llama-server -m x}, v: {cmd: vllm serve}}\n"


def test_groups_come_along_without_members_that_are_left_out() -> None:
    result = converted(TWO + "groups: {g: {swap: false, exclusive: false, members: [a, v]}, h: {members: [v]}}")
    groups = {"g": {"swap": False, "exclusive": False, "members": ["a"]}}
    assert result.config["routing"] == {"router": {"use": "group", "settings": {"groups": groups}}}
    assert "groups.h" in [where for where, _ in notes(result, "lost")]


def test_a_matrix_comes_along_without_the_models_that_are_left_out() -> None:
    """What is left of a set is still allowed; a set of which nothing is left goes, and with it what refers to it."""
    result = converted(
        TWO
        + """
matrix:
  vars: {x: a, z: v}
  evict_costs: {x: 5, z: 50}
  sets:
    one: "x | b"
    two: "(x | z) & b"
    three: "z & (x | b)"
    four: "z"
    five: "+four | b"
    six: "+four"
    seven: "x | z & b | +one"
"""
    )
    assert result.config["routing"]["router"] == {
        "use": "matrix",
        "settings": {
            "matrix": {
                "vars": {"x": "a"},
                "evict_costs": {"x": 5},
                "sets": {"one": "x | b", "two": "x & b", "three": "x | b", "five": "b", "seven": "x | b | +one"},
            }
        },
    }
    assert [where for where, _ in notes(result, "lost")][1:] == ["matrix.sets.four", "matrix.sets.six"]
    changed = [where for where, _ in notes(result, "changed")]
    assert changed == [f"matrix.sets.{name}" for name in ("two", "three", "five", "seven")]


def test_capacities_costs_and_priorities_come_along() -> None:
    result = converted(
        """
routing:
  router: {use: capacity, settings: {capacity: {pools: {gpu0: 12000}}}}
  scheduler: {use: fifo, settings: {fifo: {priority: {a: 10, gone: 1}}}}
models:
  a: {cmd: llama-server -m x, capacities: {gpu0: 6000}, evict_cost: 100}
"""
    )
    assert result.config["LLM"]["a"] == {
        "gpus": "all",
        "capacities": {"gpu0": 6000},
        "evict_cost": 100,
        "priority": 10,
    }
    assert result.config["routing"]["router"]["settings"] == {"capacity": {"pools": {"gpu0": 12000}}}
    assert len(notes(result, "lost")) == 1


def test_without_any_routing_the_rule_per_gpu_is_told_of() -> None:
    result = converted(TWO)
    assert "routing" not in result.config
    assert ("routing", "one model at a time was the rule; now it is one model at a time per GPU") in notes(
        result, "changed"
    )


def test_what_only_a_gateway_or_another_engine_has_is_named() -> None:
    result = converted(
        TWO + "peers: {far: {proxy: http://far, models: [m]}}\ncaptureBuffer: 5\nnovelty: 1\nlogLevel: info"
    )
    assert [where for where, _ in notes(result, "lost")] == ["models.v", "peers.far", "novelty"]
    assert "captureBuffer" in [where for where, _ in notes(result, "changed")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(top=st.dictionaries(st.sampled_from(TOPS), VALUES, max_size=5), model=VALUES)
def test_whatever_stands_in_the_file_is_carried_over_or_left_out_but_never_the_end(top: Any, model: Any) -> None:
    """Values of the wrong kind anywhere: the conversion ends, and what it writes is JSON."""
    body = model if isinstance(model, dict) else {"env": model, "aliases": model, "filters": model}
    models = {"a": {"cmd": "llama-server -m x", **body}, "b": {"cmd": "llama-server -m x"}}
    result = convert(Document(top, models), TABLE)
    json.dumps(result.config)
    presets_text(result.presets)


# --- the verb -------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """With a llama-server that prints the captured help, as the environment of this process."""
    return Desk(tmp_path).move_in(monkeypatch)


def test_the_written_files_can_be_served(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """The verb's own check finds nothing, `check` agrees, and what was written means what it meant."""
    yaml = desk.home / "config.yaml"
    yaml.write_text(
        f"""
models:
  big/model:
    cmd: llama-server -m {desk.weights} -c 8192 --parallel 2 --port ${{PORT}}
    env: ["CUDA_VISIBLE_DEVICES=0,1"]
    ttl: 300
  small:
    cmd: llama-server -m {desk.weights} --jinja
    env: ["CUDA_VISIBLE_DEVICES=2"]
"""
    )
    out = desk.home / "out"
    assert main(["import", "llama-swap", str(yaml), "--to", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"] == ["big/model", "small"]
    assert report["mistakes"] == []
    assert (out / "config.json").stat().st_mode & 0o077 == 0
    files = ["--config", str(out / "config.json"), "--presets", str(out / "presets.ini")]
    assert main(["check", *files, "--set", "NUM_GPUS=3", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert models["big/model"]["argv"] == ["--model", str(desk.weights), "--ctx-size", "8192", "--parallel", "2"]
    assert models["big/model"]["gpus"] == [0, 1]
    assert models["big/model"]["ttl_s"] == 300
    assert models["small"]["mask"] == [2]


@pytest.mark.parametrize(
    ("routing", "shown"),
    [
        ("groups: {g: {swap: false, members: [a, b]}, h: {members: [c]}}", "group"),
        ('matrix: {vars: {x: a}, sets: {s: "x & (b | c)"}, evict_costs: {x: 9}}', "matrix"),
        (
            "routing: {router: {use: capacity, settings: {capacity: {pools: {gpu0: 100}}}},"
            " scheduler: {use: fifo, settings: {fifo: {priority: {a: 5}}}}}",
            "capacity",
        ),
    ],
)
def test_each_engine_of_routing_passes_the_check(
    desk: Desk, capsys: pytest.CaptureFixture[str], routing: str, shown: str
) -> None:
    """With names, profiles, selectors and filters beside it."""
    yaml = desk.home / "config.yaml"
    model = f"cmd: llama-server -m {desk.weights}, env: [CUDA_VISIBLE_DEVICES=0]"
    yaml.write_text(
        f"""
models:
  a: {{{model}, aliases: [first], capacities: {{{"gpu0: 60" if shown == "capacity" else ""}}}}}
  b: {{{model}, filters: {{stripParams: "temperature", setParamsByID: {{"b:high": {{n: 1}}}}}}}}
  c: {{{model}}}
selectors: {{s: {{strategy: warm, targets: [first, b]}}}}
profiles: {{p: {{pins: {{best: s, off: ~}}}}}}
{routing}
"""
    )
    out = desk.home / "out"
    assert main(["import", "llama-swap", str(yaml), "--to", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mistakes"], report["items"]) == ([], [])
    config = desk.load({"CONFIG_PATH": str(out / "config.json"), "PRESETS_PATH": str(out / "presets.ini")})
    assert config.scheduler.engine == shown
    assert config.names["b:high"] == "b"
    assert set(config.profiles) == {"p"}


def test_files_that_are_there_are_only_written_over_when_asked(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    yaml = desk.home / "config.yaml"
    yaml.write_text(f"models: {{m: {{cmd: llama-server -m {desk.weights}}}, v: {{cmd: vllm x}}}}")
    desk.config({})
    words = ["import", "llama-swap", str(yaml), "--to", str(desk.here)]
    assert main(words) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 model written to ")
    assert "Not carried over:\n  models.v: the model was left out: it starts vllm" in out
    assert "Next: llama-router check" in out


def test_mistakes_in_what_was_written_are_part_of_the_report(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that are not there, for one."""
    yaml = desk.home / "config.yaml"
    yaml.write_text("models: {m: {cmd: llama-server -m /nowhere.gguf}}")
    assert main(["import", "llama-swap", str(yaml), "--to", str(desk.home / "out")]) == 0
    out = capsys.readouterr().out
    assert "Mistakes that `check` finds in it:" in out
    assert "there is no such file" in out


def test_a_file_that_is_not_there_ends_with_1(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "llama-swap", str(desk.home / "nothing.yaml")]) == 1
    assert "nothing.yaml" in capsys.readouterr().err


def test_presets_are_one_section_per_model() -> None:
    assert presets_text({"a": {"model": "x"}, "b/c": {"jinja": "true"}}) == (
        "version = 1\n\n[a]\nmodel = x\n\n[b/c]\njinja = true\n"
    )


def test_filters_profiles_and_selectors_come_along_as_far_as_their_models_do() -> None:
    result = converted(
        """
models:
  a:
    cmd: llama-server -m x
    filters:
      stripParams: "temperature, model"
      setParams: {top_k: 1}
      setParamsByID: {"${MODEL_ID}:high": {n: 2}}
      novelty: 1
  v: {cmd: vllm serve}
selectors:
  s: {strategy: balance, targets: [a, v], balance: {spillover: 3}, name: S}
  gone: {strategy: warm, targets: [v]}
profiles:
  p: {description: d, pins: {x: a, y: "a:high", z: ~, s2: s, w: v}}
"""
    )
    assert result.config["LLM"]["a"]["filters"] == {
        "stripParams": ["temperature"],
        "setParams": {"top_k": 1},
        "setParamsByID": {"a:high": {"n": 2}},
    }
    assert result.config["selectors"] == {"s": {"strategy": "spillover", "targets": ["a"], "spillover": 3, "name": "S"}}
    assert result.config["profiles"]["p"] == {
        "description": "d",
        "pins": {"x": "a", "y": "a:high", "z": None, "s2": "s"},
    }
    assert [where for where, _ in notes(result, "lost")] == [
        "models.v",
        "models.a.filters",
        "selectors.s",
        "selectors.gone",
        "selectors.gone",
        "profiles.p",
    ]
