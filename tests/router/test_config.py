"""config.json and presets.ini together: what comes out of them, and every mistake in them."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from router.config import ConfigErrors
from tests.router.config_desk import HELP, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- the two files --------------------------------------------------------------------------------------------------


def test_a_preset_file_alone_can_be_served(desk: Desk) -> None:
    """One replica on GPU 0 for each section, and the owner is told so."""
    config = desk.presets("[*]\nngl = 99\n[a]\nmodel = $W\nc = 8192\nparallel = 2\n[b]\nhf-repo = x/y:Q4_0\n").load()
    assert list(config.models) == ["a", "b"]
    a = config.models["a"]
    assert (a.gpus, a.replicas, a.slots_hint, a.context_hint) == ((0,), 1, 2, 4096)
    assert a.argv[:2] == ("--n-gpu-layers", "99")
    assert config.models["b"].hf_repo == "x/y:Q4_0"
    assert "one replica on GPU 0" in config.warnings[0]
    assert (config.host, config.port) == ("127.0.0.1", 11434)


def test_without_any_model_there_is_nothing_to_serve(desk: Desk) -> None:
    problem = desk.mistake()
    assert "no model is configured" in problem.message
    assert "config.json" in problem.file
    assert "presets.ini" in problem.file


def test_a_section_without_an_entry_gets_the_defaults_and_a_warning(desk: Desk) -> None:
    desk.presets("[a]\nmodel = $W\n[b]\nmodel = $W\n").config({"LLM": {"a": {"gpus": [1]}}})
    config = desk.load()
    assert config.models["b"].gpus == (0,)
    (warning,) = config.warnings
    assert "section [b]" in warning


def test_an_entry_without_a_section_needs_a_model_of_its_own(desk: Desk) -> None:
    desk.presets("[Qwen3-4B]\nmodel = $W\n").config({"LLM": {"Qwen3-4B": {}, "qwen3-4b": {}}})
    problem = desk.mistake()
    assert (problem.section, problem.key, problem.nearest) == ("LLM", "qwen3-4b", "Qwen3-4B")

    desk.config({"LLM": {"Qwen3-4B": {}, "bare": {"model": str(desk.weights)}}})
    assert desk.load().models["bare"].argv == ("--model", str(desk.weights))


def test_fields_of_the_router_never_reach_the_child(desk: Desk) -> None:
    desk.models(
        m={
            "num_instance": 2,
            "gpus": [0, 2],
            "reasoning_effort": {"options": ["low", "high"], "default": "low", "disable": "none"},
            "cost": {"input": 0.4, "cached_input": 0.15, "output": 2.5},
            "aliases": ["short"],
            "priority": 5,
            "unlisted": True,
            "description": "a model",
            "metadata": {"family": "x"},
            "name": "The Model",
        }
    )
    model = desk.load().models["m"]
    assert model.argv == ("--model", str(desk.weights))
    assert (model.replicas, model.gpus, model.priority, model.unlisted) == (2, (0, 2), 5, True)
    assert model.reasoning_effort is not None
    assert dataclasses.asdict(model.reasoning_effort) == {
        "options": ("low", "high"),
        "default": "low",
        "disable": "none",
    }
    assert model.cost is not None
    assert (model.cost.input, model.cost.cached_input, model.cost.output) == (0.4, 0.15, 2.5)
    assert (model.title, model.description, model.metadata) == ("The Model", "a model", {"family": "x"})


def test_a_model_key_wins_over_the_globals_whatever_it_is_called(desk: Desk) -> None:
    desk.presets("[*]\nctx-size = 1\nno-mmap = true\n[m]\nmodel = $W\nc = 2\nmmap = on\n")
    options = desk.load().models["m"].options
    assert (options["ctx-size"], options["mmap"]) == ("2", "true")


def test_one_run_finds_all_mistakes_of_all_places(desk: Desk) -> None:
    """Files, sections, settings and the environment, with file, section, key, value, and what would be right."""
    desk.environ["LLAMA_ROUTER_MAX_QUEUE"] = "-1"
    desk.presets("[a]\nmodel = /nope.gguf\nctx-sze = 1\n[b]\nmodel = $W\nsm = diagonal\n")
    desk.config(
        """{
  "API-port": 70000,
  "ROUTER": {"QUEUE_HEAD_GRACE": "soon", "MAX_MODELS": 2},
  "LLM": {"a": {"gpus": [7]}, "c": {}},
}"""
    )
    with pytest.raises(ConfigErrors) as caught:
        desk.load({"PORT": "http"})
    text = str(caught.value)
    assert "11 mistakes" in text.splitlines()[0]
    for found in (
        "command line, PORT = http",
        "environment, LLAMA_ROUTER_MAX_QUEUE = -1",
        "config.json:4",
        "config.json, API-port = 70000",
        "config.json, section [ROUTER], QUEUE_HEAD_GRACE = soon",
        "config.json, section [ROUTER], MAX_MODELS\n",
        "did you mean 'MAX_MODELS_PER_GPU'?",
        "presets.ini:3, section [a], ctx-sze = 1",
        "presets.ini:2, section [a], model = /nope.gguf",
        "presets.ini:6, section [b], sm = diagonal",
        "allowed: none, layer, row, tensor",
        "config.json, section [LLM], c",
    ):
        assert found in text, found


# --- names ----------------------------------------------------------------------------------------------------------

STRANGE = [
    "a/b",
    "a:b c",
    "../../etc/passwd",
    "..",
    "-h",
    "--help",
    "100%",
    "名前",
    "a\\b",
    "[x",
    "$(id)",
    "%s%n",
    "*a",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_may_hold_anything_and_never_becomes_an_argument(desk: Desk, name: str) -> None:
    desk.presets(f"[{name}]\nmodel = $W\n").config({"LLM": {name: {"gpus": [1]}}})
    config = desk.load()
    assert config.models[name].gpus == (1,)
    assert config.models[name].argv == ("--model", str(desk.weights))
    assert config.resolve(name) is config.models[name]
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a,b", "comma"),
        ("", "empty"),
        (" a", "blank"),
        ("a\tb", "control"),
        ("a\x00b", "control"),
        ("\ud800", "text"),
        ("*", "presetGlobals"),
    ],
)
def test_a_name_that_would_go_wrong_is_a_mistake(desk: Desk, name: str, said: str) -> None:
    desk.config({"LLM": {name: {"model": str(desk.weights)}}, "ROUTER": {}})
    assert any(said in problem.message for problem in desk.mistakes())


def test_names_are_case_sensitive_but_for_the_quantisation(desk: Desk) -> None:
    config = desk.presets("[x/Y:q4_k_m]\nmodel = $W\n").config({"LLM": {"x/Y:Q4_K_M": {"gpus": [2]}}}).load()
    assert config.models["x/Y:Q4_K_M"].gpus == (2,)
    for asked in ("x/Y:q4_k_m", "x/Y:Q4_K_M", "x/Y:q4_K_m"):
        assert config.resolve(asked) is config.models["x/Y:Q4_K_M"]
    assert config.resolve("x/y:Q4_K_M") is None


def test_an_alias_leads_to_its_model(desk: Desk) -> None:
    config = desk.models(a={"aliases": ["small", "tiny"]}, b={"unlisted": True, "aliases": "hidden"}).load()
    assert config.names == {"a": "a", "b": "b", "small": "a", "tiny": "a", "hidden": "b"}
    assert config.resolve("tiny") is config.models["a"]
    assert config.listed_names() == ["a", "small", "tiny"]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (["b"], [], "the alias 'b' of 'a' is the name of the model 'b'"),
        (["x"], ["x"], "the alias 'x' of 'b' is also an alias of the model 'a'"),
        (["a"], [], "own name"),
        (["x", "x"], [], "written twice"),
        (["x,y"], [], "comma"),
    ],
)
def test_an_alias_belongs_to_one_model_only(desk: Desk, a: list[str], b: list[str], said: str) -> None:
    assert said in desk.models(a={"aliases": a}, b={"aliases": b}).mistake().message


def test_the_default_model_must_exist(desk: Desk) -> None:
    desk.models(a={"aliases": ["small"]})
    assert desk.load({"DEFAULT_MODEL": "small"}).default_model == "a"
    assert desk.mistake({"DEFAULT_MODEL": "smal"}).nearest == "small"


# --- GPUs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "mask"),
    [
        (None, (0,)),
        (1, (1,)),
        ([2, 0], (2, 0)),
        ("all", (0, 1, 2)),
        ("*", (0, 1, 2)),
        (-1, (0, 1, 2)),
        ("none", ()),
        ("cpu", ()),
        ("GPU-bbbb", (1,)),
        (["GPU-cc", 0], (2, 0)),
    ],
)
def test_gpus_can_be_written_in_many_ways(desk: Desk, gpus: Any, mask: tuple[int, ...]) -> None:
    model = desk.models(m={"gpus": gpus}).load(gpu_uuids=["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]).models["m"]
    assert model.mask == mask
    assert model.gpus == tuple(sorted(mask))


def test_a_list_of_lists_places_each_replica(desk: Desk) -> None:
    """Accounting is the union."""
    config = desk.models(m={"gpus": [[0], [2, 1]]}).load()
    model = config.models["m"]
    assert (model.replicas, model.replica_gpus, model.gpus) == (2, ((0,), (2, 1)), (0, 1, 2))
    assert config.scheduler.models["m"].replica_gpus == ((0,), (2, 1))
    assert "one list each" in desk.models(m={"gpus": [[0], [1]], "num_instance": 3}).mistake().message


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([], "empty list"),
        ([0, 0], "named twice"),
        ([-1], "-1 alone"),
        ([[0], 1], "every item is a list"),
        ([True], "not the number"),
        ("most", "not the number"),
        ([0.5], "not the number"),
        (["GPU-"], "more than one GPU"),
        ("GPU-zz", "no GPU has the UUID"),
    ],
)
def test_gpus_that_make_no_sense_are_mistakes(desk: Desk, gpus: Any, said: str) -> None:
    problem = desk.models(m={"gpus": gpus}).mistake(gpu_uuids=["GPU-a", "GPU-b"])
    assert said in problem.message
    assert problem.key == "gpus"


@pytest.mark.parametrize(
    ("configured", "nvml", "count", "count_from"), [(2, 3, 2, "config"), (None, 3, 3, "nvml"), (None, None, 2, "pins")]
)
def test_the_number_of_gpus_comes_from_the_owner_then_nvml_then_the_pins(
    desk: Desk, configured: int | None, nvml: int | None, count: int, count_from: str
) -> None:
    desk.presets("[m]\nmodel = $W\n").config({"LLM": {"m": {"gpus": [1]}}, "ROUTER": {"NUM_GPUS": configured}})
    config = desk.load(nvml_gpus=nvml)
    assert (config.scheduler.gpus, config.gpu_count_from) == (count, count_from)
    assert any("guessed" in warning for warning in config.warnings) is (count_from == "pins")


def test_a_gpu_that_does_not_exist_is_a_mistake(desk: Desk) -> None:
    """Dropping it, as older routers do, would land the model on another GPU in silence."""
    problem = desk.models(m={"gpus": [0, 9]}).mistake()
    assert problem.message.startswith("GPU 9 does not exist")
    assert problem.allowed == "NVML sees 3 GPUs, numbered from 0"
    assert desk.mistake({"NUM_GPUS": "9"}).allowed == "NUM_GPUS says 9 GPUs, numbered from 0"
    assert desk.load({"NUM_GPUS": "10"}).models["m"].gpus == (0, 9)


def test_more_gpus_than_nvml_sees_is_told(desk: Desk) -> None:
    assert any("NVML sees 3 only" in warning for warning in desk.models(m={}).load({"NUM_GPUS": "4"}).warnings)


def test_persistent_models_must_leave_room_for_the_others(desk: Desk) -> None:
    desk.models(a={"persistent": True, "gpus": [0, 1]}, b={"gpus": [1]}, c={"gpus": [2]})
    problem = desk.mistake()
    assert problem.section == "LLM.b"
    assert "kept by 'a'" in problem.message
    assert desk.load({"MAX_MODELS_PER_GPU": "2"}).scheduler.models["a"].persistent


# --- prompt caches that survive swaps ---------------------------------------------------------------------------------


WITH_SLOTS = f"{HELP}\n--slot-save-path PATH                   where slots are saved (default: disabled)\n"


def test_prompt_caches_are_not_kept_unless_asked_for(desk: Desk) -> None:
    config = desk.models(m={}).load()
    assert not config.keep.on
    assert not config.scheduler.keep_caches
    assert config.with_fingerprints(b"k").scheduler.models["m"].cache_shape == ""


def test_kept_prompt_caches_are_told_to_the_scheduler(desk: Desk, tmp_path: Path) -> None:
    keep = {"keepAcrossSwaps": True, "keepBudgetMiB": 7, "keepMinTokens": 9, "keepMaxHoldSeconds": 0.5, "persist": True}
    desk.models(m={}).config({"LLM": {"m": {}}, "promptCache": {**keep, "keepDirectory": str(tmp_path / "new")}})
    config = desk.load(help_text=WITH_SLOTS)
    assert config.keep.directory == tmp_path / "new"
    told = config.scheduler
    assert (told.keep_caches, told.keep_budget_mib, told.keep_min_tokens, told.keep_persist) == (True, 7, 9, True)
    assert told.keep_hold_us == 500_000
    assert "slot-save-path" not in config.models["m"].options


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("keepAcrossSwaps", 1, "true or false"),
        ("keepDirectory", "caches", "an absolute path"),
        ("keepDirectory", "/etc/passwd/caches", "a directory that this user can make"),
        ("keepBudgetMiB", 0, "a whole number from 1"),
        ("keepMinTokens", "many", "a whole number from 1"),
        ("keepMaxHoldSeconds", -1, "a number from 0 to 3600"),
        ("persist", "no", "true or false"),
    ],
)
def test_a_mistake_about_kept_prompt_caches_says_what_would_be_right(
    desk: Desk, key: str, value: object, allowed: str
) -> None:
    desk.models(m={}).config({"LLM": {"m": {}}, "promptCache": {"keepAcrossSwaps": True, key: value}})
    problem = desk.mistake(help_text=WITH_SLOTS)
    assert (problem.section, problem.key) == ("promptCache", key)
    assert problem.allowed.startswith(allowed)


def test_a_model_with_a_place_for_its_slots_cannot_have_them_kept(desk: Desk) -> None:
    desk.presets("[m]\nmodel = $W\nslot-save-path = /tmp\n")
    desk.config({"LLM": {"m": {}}, "promptCache": {"keepAcrossSwaps": True}})
    assert "slot-save-path" in desk.mistake(help_text=WITH_SLOTS).message


def test_a_llama_server_that_cannot_save_slots_is_a_mistake(desk: Desk) -> None:
    """It would refuse the option, and no model would ever load."""
    desk.models(m={}).config({"LLM": {"m": {}}, "promptCache": {"keepAcrossSwaps": True}})
    assert "has no option slot-save-path" in desk.mistake().message


def test_the_shape_of_a_cache_changes_with_what_shapes_it_and_nothing_else(desk: Desk) -> None:
    """Weights, their options, an adapter; but neither threads nor how many slots there are."""

    def shape(extra: str) -> str:
        desk.presets(f"[m]\nmodel = $W\n{extra}\n")
        desk.config({"LLM": {"m": {}}, "promptCache": {"keepAcrossSwaps": True}})
        return desk.load(help_text=WITH_SLOTS).with_fingerprints(b"k").scheduler.models["m"].cache_shape

    plain = shape("")
    assert plain
    assert shape("threads = 3\nparallel = 2\nctx-size = 4096\ntemp = 0.5") == plain
    assert shape("cache-type-k = q8_0") != plain
    assert shape("rope-freq-base = 10000") != plain
    desk.weights.write_bytes(desk.weights.read_bytes() + b" ")
    assert shape("") != plain


# --- prompt cache and globals ---------------------------------------------------------------------------------------


def _cram(desk: Desk, *, cache: Any = None, shared: Any = None, star: str = "", section: str = "") -> str:
    desk.presets(f"[*]\n{star}\n[m]\nmodel = $W\n{section}\n")
    desk.config({"LLM": {"m": {}}, "promptCache": cache, "presetGlobals": shared})
    return desk.load().models["m"].options.get("cache-ram", "")


def test_the_size_of_the_prompt_cache_is_taken_from_the_nearest_place(desk: Desk) -> None:
    """promptCache < presetGlobals < [*] < ramMiBPerModel < the model's own key."""
    assert _cram(desk) == ""
    assert _cram(desk, cache={}) == "8192"
    assert _cram(desk, cache={"ramMiB": 1}) == "1"
    assert _cram(desk, cache={"ramMiB": 1}, shared={"cram": 2}) == "2"
    assert _cram(desk, cache={"ramMiB": 1}, shared={"cram": 2}, star="cram = 3") == "3"
    per_model = {"ramMiB": 1, "ramMiBPerModel": {"m": 4}}
    assert _cram(desk, cache=per_model, shared={"cram": 2}, star="cram = 3") == "4"
    assert _cram(desk, cache=per_model, shared={"cram": 2}, star="cram = 3", section="cache-ram = 5") == "5"


def test_prompt_cache_settings_become_options(desk: Desk) -> None:
    desk.models(m={})
    cache = {"ramMiB": -1, "reuseChunk": 256, "enable": False, "checkpoints": 8, "checkpointMinStep": 64}
    desk.config({"LLM": {"m": {}}, "promptCache": cache})
    assert desk.load().models["m"].argv == (
        *("--cache-ram", "-1", "--no-cache-prompt", "--cache-reuse", "256"),
        *("--swa-checkpoints", "8", "--checkpoint-min-step", "64", "--model", str(desk.weights)),
    )


def test_prompt_cache_defaults_are_left_out_where_llama_server_knows_none(desk: Desk) -> None:
    """Nobody wrote them, so an older llama-server is no mistake; written ones are."""
    older = "-m,    --model FNAME                    path of the model\n"
    desk.models(m={}).config({"LLM": {"m": {}}, "promptCache": {}})
    assert desk.load(help_text=older).models["m"].argv == ("--model", str(desk.weights))
    desk.config({"LLM": {"m": {}}, "promptCache": {"ramMiB": 8192}})
    assert desk.mistake(help_text=older).section == "promptCache.ramMiB"


def test_a_prompt_cache_for_an_unknown_model_is_a_mistake(desk: Desk) -> None:
    desk.models(Qwen={})
    desk.config({"LLM": {"Qwen": {}}, "promptCache": {"ramMiBPerModel": {"Qven": 1}}})
    problem = desk.mistake()
    assert (problem.key, problem.nearest, problem.allowed) == ("Qven", "Qwen", "Qwen")


def test_preset_globals_hold_for_every_model(desk: Desk) -> None:
    desk.models(a={}, b={})
    globals_ = {"ngl": 99, "jinja": True, "fa": True, "ctk": "q4_0", "temp": 0.5, "mmap": False, "top-k": None}
    desk.config({"LLM": {"a": {}, "b": {}}, "presetGlobals": globals_})
    shared = ("--n-gpu-layers", "99", "--jinja", "--flash-attn", "true", "--cache-type-k", "q4_0")
    for model in desk.load().models.values():
        assert model.argv == (*shared, "--temperature", "0.5", "--no-mmap", "--model", str(desk.weights))
    desk.config({"LLM": {"a": {}, "b": {}}, "presetGlobals": {"ngll": 99, "ts": [1, 2]}})
    assert {problem.section for problem in desk.mistakes()} == {"presetGlobals"}


# --- weights and other files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ('"/models/x.gguf"', "quotes"),
        ("~/x.gguf", "~ is not replaced"),
        ("models/x.gguf", "relative path"),
        ("/x.gguf", ""),
    ],
)
def test_missing_weights_are_found_before_anything_starts(desk: Desk, value: str, hint: str) -> None:
    problem = desk.presets(f"[m]\nmodel = {value}\n").mistake()
    assert (problem.message, problem.key, problem.value) == ("there is no such file", "model", value)
    assert hint in problem.allowed


def test_weights_that_are_downloaded_need_not_be_there(desk: Desk) -> None:
    config = desk.presets(
        "[a]\nhf = u/r:Q8_0\nhff = f.gguf\nmmproj = p.gguf\n[b]\nmu = http://x/y.gguf\nm = /tmp/not-yet.gguf\n"
        "[c]\ngpt-oss-20b-default = true\n[d]\nm = $W\nhfd = u/draft\nmd = d.gguf\n"
    ).load()
    assert (config.models["a"].hf_repo, config.models["a"].hf_file) == ("u/r:Q8_0", "f.gguf")
    assert config.models["a"].model_path == ""
    assert config.models["d"].model_path == str(desk.weights)


def test_a_model_without_weights_is_a_mistake(desk: Desk) -> None:
    problem = desk.presets("[ggml-org/some-GGUF]\nc = 1\n").mistake()
    assert "write hf-repo = ggml-org/some-GGUF" in problem.message
    assert "named 'default'" in desk.presets("c = 1\n[m]\nmodel = $W\n").mistake().message


def test_other_files_that_a_model_needs_are_looked_for(desk: Desk) -> None:
    desk.presets("[m]\nmodel = $W\nmmproj = /p\nmd = /d\nchat-template-file = /t\n")
    assert [problem.value for problem in desk.mistakes()] == ["/p", "/d", "/t"]


def test_every_part_of_a_split_model_must_be_there(desk: Desk) -> None:
    for part in (1, 3):
        (desk.home / f"big-{part:05}-of-00003.gguf").write_bytes(b"GGUF")
    problem = desk.presets(f"[m]\nmodel = {desk.home}/big-00001-of-00003.gguf\n").mistake()
    assert problem.message == "1 of 3 parts are missing: big-00002-of-00003.gguf"
    (desk.home / "big-00002-of-00003.gguf").write_bytes(b"GGUF")
    assert desk.load().models
    problem = desk.presets(f"[m]\nmodel = {desk.home}/big-00002-of-00003.gguf\n").mistake()
    assert problem.nearest == "big-00001-of-00003.gguf"


def test_a_file_that_only_pretends_to_be_weights_is_told(desk: Desk) -> None:
    desk.weights.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert any("no GGUF file" in warning for warning in desk.models(m={}).load().warnings)


@pytest.mark.parametrize("line", ["c = -1", "parallel = -2", "parallel = 0", "cram = -2", "stop-timeout = -1"])
def test_numbers_that_make_no_sense_are_mistakes(desk: Desk, line: str) -> None:
    assert desk.presets(f"[m]\nmodel = $W\n{line}\n").mistake().line == 3


@pytest.mark.parametrize(
    ("lines", "slots", "context"),
    [
        ("", 0, 0),
        ("c = 0", 0, 0),
        ("c = 65536\nparallel = 4", 4, 16384),
        ("c = 65536", 0, 65536),
        ("c = 65536\nparallel = -1", 0, 65536),
        ("c = 65536\nnp = 4\nkvu = on", 4, 65536),
        ("np = 4\nkv-unified-per-slot = 1000", 4, 1000),
    ],
)
def test_context_per_request_before_the_first_load(desk: Desk, lines: str, slots: int, context: int) -> None:
    model = desk.presets(f"[m]\nmodel = $W\n{lines}\n").load().models["m"]
    assert (model.slots_hint, model.context_hint) == (slots, context)


def test_keys_for_whoever_runs_the_server_are_kept_here(desk: Desk) -> None:
    config = desk.presets(
        "[*]\nstop-timeout = 7\n[a]\nm = $W\nload-on-startup = true\n[b]\nm = $W\nstop-timeout = 2.5\n"
    )
    models = config.load().models
    assert (models["a"].load_on_startup, models["a"].stop_timeout_s) == (True, 7.0)
    assert (models["b"].load_on_startup, models["b"].stop_timeout_s) == (False, 2.5)
    desk.models(m={})
    assert desk.load({"GRACEFUL_KILL_TIMEOUT": "9"}).models["m"].stop_timeout_s == 9.0


# --- environment of a child, secrets --------------------------------------------------------------------------------


def test_a_token_goes_into_the_environment_and_nowhere_else(desk: Desk) -> None:
    config = desk.presets("[m]\nmodel = $W\nhf-token = hf_secret\n").load(fingerprint_key=b"salt")
    model = config.models["m"]
    assert model.env == {"HF_TOKEN": "hf_secret"}
    assert "hf_secret" not in json.dumps([model.argv, dict(model.options)])
    assert "hf_secret" not in json.dumps(config.effective(b"salt"))


@pytest.mark.parametrize("env", [{"A": "1", "B": "x=y"}, ["A=1", "B=x=y"]])
def test_a_model_may_have_an_environment_of_its_own(desk: Desk, env: Any) -> None:
    assert desk.models(m={"env": env}).load().models["m"].env == {"A": "1", "B": "x=y"}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, "`gpus`"),
        (["HIP_VISIBLE_DEVICES=1"], "`gpus`"),
        ({"LLAMA_API_KEY": "x"}, "random key"),
        ({"LLAMA_ARG_CTX_SIZE": "1"}, "presets.ini"),
        ({"A B": "1"}, "cannot stand"),
        ({"A": 1}, "not an environment"),
        (["A"], "not an environment"),
    ],
)
def test_an_environment_that_would_break_the_masks_is_a_mistake(desk: Desk, env: Any, said: str) -> None:
    assert said in desk.models(m={"env": env}).mistake().message


def test_api_keys_are_kept_as_hashes_only(desk: Desk) -> None:
    desk.environ["BOB"] = "from-env"
    digest = hashlib.sha256(b"hashed").hexdigest()
    keys = {
        "alice": "plain",
        "bob": {"key": "${env.BOB}", "max_parallel": 2, "priority": 3, "models": ["small"]},
        "carol": {"key": f"sha256:{digest}"},
    }
    desk.presets("[a]\nmodel = $W\n").config({"LLM": {"a": {"aliases": ["small"]}}, "keys": keys})
    config = desk.load()
    for secret, name in (("plain", "alice"), ("from-env", "bob"), ("hashed", "carol")):
        key = config.key_for(secret)
        assert key is not None
        assert key.name == name
    assert config.key_for("wrong") is None
    assert (config.keys["bob"].max_parallel, config.keys["bob"].models) == (2, ("a",))
    assert config.scheduler.keys["bob"].max_parallel == 2
    assert "plain" not in repr(config)
    assert digest not in json.dumps(config.effective(b"k"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"a": ""}, "missing"),
        ({"a": "${env.NOT_SET}"}, "NOT_SET is not set"),
        ({"a": "same\ud800"}, "half of a character"),
        ({"a": "${file.a\0b}"}, "no file can have such a name"),
        ({"a": "sha256:12"}, "64 hexadecimal"),
        ({"a": "same", "b": "same"}, "also the key of 'a'"),
        ({"a": {"key": "x", "models": ["nobody"]}}, "no such model"),
        ({"a": {"key": "x", "max_paralel": 1}}, "no such key"),
        (["x"], "by name"),
    ],
)
def test_mistakes_in_api_keys_never_show_a_key(desk: Desk, keys: Any, said: str) -> None:
    desk.models(m={})
    desk.config({"LLM": {"m": {}}, "keys": keys})
    problem = desk.mistake()
    assert said in problem.message
    assert "same" not in str(problem)


def test_a_fingerprint_changes_with_all_that_a_child_is_started_with(desk: Desk) -> None:
    """And with nothing else: a new description must not reload a model."""

    def print_of(entry: dict[str, Any], lines: str = "", key: bytes = b"k") -> str:
        desk.presets(f"[m]\nmodel = $W\n{lines}\n").config({"LLM": {"m": entry}})
        return desk.load(fingerprint_key=key).scheduler.models["m"].fingerprint

    first = print_of({})
    assert first == print_of({"description": "new", "priority": 3, "aliases": ["x"], "cost": {"input": 1, "output": 1}})
    others = [
        print_of({}, "c = 1"),
        print_of({"gpus": [1]}),
        print_of({"gpus": [1, 0]}),
        print_of({"env": {"A": "1"}}),
        print_of({}, key=b"other"),
    ]
    (desk.home / "bin" / "llama-server").write_text("#!/bin/sh\nexit 2 # a newer build\n")
    others.append(print_of({}))
    assert len({first, *others}) == 7
    assert print_of({}, key=b"") == ""
