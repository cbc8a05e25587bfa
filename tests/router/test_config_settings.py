"""The router's own settings: defaults, ranges, where they may be written, and where files are by default."""

import os
from pathlib import Path
from typing import Any

import pytest

from router.config import Config
from router.places import log_dir, router_url
from router.settings import SETTINGS
from tests.router.config_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path).models(m={})


def _with(desk: Desk, **router: Any) -> Config:
    return desk.config({"LLM": {"m": {}}, "ROUTER": router}).load()


# --- defaults -------------------------------------------------------------------------------------------------------


def test_the_scheduler_starts_with_these_defaults(desk: Desk) -> None:
    settings = desk.load().scheduler
    assert (settings.max_models_per_gpu, settings.eviction) == (1, "lru")
    assert (settings.head_grace_us, settings.head_grace_from) == (0, "head")
    assert settings.force_load_us == 300_000_000
    assert (settings.overcommit, settings.crash_retries, settings.load_retries) == (0, 1, 1)
    assert (settings.cooldown_first_us, settings.cooldown_max_us) == (10_000_000, 300_000_000)


def test_times_have_these_defaults(desk: Desk) -> None:
    timings = desk.load().timings
    assert (timings.health_check_interval_s, timings.health_check_timeout_s) == (1.0, 30.0)
    assert (timings.unload_poll_interval_s, timings.unload_poll_timeout_s) == (0.5, 60.0)
    assert (timings.load_poll_interval_s, timings.load_stall_s, timings.load_ceiling_s) == (1.0, 120.0, 1800.0)
    assert (timings.start_retries, timings.graceful_kill_s) == (3, 5.0)


def test_a_config_made_by_hand_has_the_defaults_of_the_files(desk: Desk) -> None:
    """So that the two tables of defaults cannot drift apart."""
    config = desk.load()
    assert config.timings == type(config.timings)()
    assert config.limits == type(config.limits)()
    assert config.log == type(config.log)()
    empty = type(config.scheduler)(models=config.scheduler.models, gpus=3)
    assert config.scheduler == empty


def test_what_is_written_under_router_arrives(desk: Desk) -> None:
    config = _with(
        desk,
        MAX_MODELS_PER_GPU=2,
        EVICTION_POLICY="fifo",
        QUEUE_HEAD_GRACE=0.25,
        QUEUE_HEAD_GRACE_FROM="arrival",
        QUEUE_FORCE_LOAD_TIMEOUT=0,
        NUM_GPUS=2,
        DISPATCH_OVERCOMMIT=-1,
        CRASH_RETRIES=0,
        LOAD_POLL_TIMEOUT=5,
        MAX_QUEUE=100,
        MAX_BODY_MIB=10,
        GLOBAL_TTL=60,
        EVENT_LOG_SYNC="always",
        INCLUDE_ALIASES_IN_LIST=True,
    )
    settings = config.scheduler
    assert (settings.max_models_per_gpu, settings.eviction, settings.gpus) == (2, "fifo", 2)
    assert (settings.head_grace_us, settings.head_grace_from, settings.force_load_us) == (250_000, "arrival", 0)
    assert (settings.overcommit, settings.crash_retries) == (-1, 0)
    assert settings.models["m"].ttl_us == 60_000_000
    assert (config.timings.load_stall_s, config.limits.max_queue, config.limits.max_body_bytes) == (5.0, 100, 10 << 20)
    assert (config.log.sync, config.include_aliases_in_list) == ("always", True)


def test_a_models_own_ttl_wins_over_the_global_one(desk: Desk) -> None:
    desk.models(never={"ttl": 0}, soon={"ttl": 5}, as_all={"ttl": -1})
    models = desk.load({"GLOBAL_TTL": "60"}).models
    assert [models[name].ttl_s for name in ("never", "soon", "as_all")] == [0.0, 5.0, 60.0]


def test_an_unknown_eviction_policy_becomes_lru_with_a_warning(desk: Desk) -> None:
    config = _with(desk, EVICTION_POLICY="fif")
    assert config.scheduler.eviction == "lru"
    (warning,) = config.warnings
    assert "allowed: lru, fifo, worth" in warning
    assert "did you mean 'fifo'" in warning
    assert _with(desk, EVICTION_POLICY="FIFO").scheduler.eviction == "fifo"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_MODELS_PER_GPU", 0),
        ("MAX_MODELS_PER_GPU", "two"),
        ("MAX_MODELS_PER_GPU", True),
        ("MAX_MODELS_PER_GPU", 1.5),
        ("QUEUE_HEAD_GRACE", -1),
        ("QUEUE_HEAD_GRACE", None),
        ("QUEUE_HEAD_GRACE", "30"),
        ("QUEUE_HEAD_GRACE", 1e300),
        ("QUEUE_HEAD_GRACE_FROM", "tail"),
        ("NUM_GPUS", 0),
        ("DISPATCH_OVERCOMMIT", -2),
        ("LOAD_POLL_INTERVAL", 0),
        ("EVICT_PREFER_IDLE", "yes"),
        ("HOST", 1),
        ("HOST", "a b"),
        ("EVENT_LOG_SYNC", "often"),
        ("RUN_DIR", "a\nb"),
    ],
)
def test_a_value_of_the_wrong_kind_or_out_of_range_is_a_mistake(desk: Desk, name: str, value: Any) -> None:
    problem = desk.config({"LLM": {"m": {}}, "ROUTER": {name: value}}).mistake()
    assert (problem.section, problem.key) == ("ROUTER", name)
    assert problem.allowed


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("QUEUE_HEAD_GRAC", ""),
        ("max_models_per_gpu", ""),
        ("PORT", "'API-port'"),
        ("CONFIG_PATH", "ROUTER_CONFIG_PATH"),
        ("API_KEY", "LLAMA_ROUTER_API_KEY"),
    ],
)
def test_a_setting_in_the_wrong_place_is_told_the_right_one(desk: Desk, key: str, said: str) -> None:
    problem = desk.config({"LLM": {"m": {}}, "ROUTER": {key: "1"}}).mistake()
    assert said in problem.message
    assert said or problem.nearest in ("QUEUE_HEAD_GRACE", "MAX_MODELS_PER_GPU")


# --- the top of config.json -----------------------------------------------------------------------------------------


def test_top_keys_are_read_and_the_unused_one_is_told(desk: Desk) -> None:
    other = desk.home / "other-server"
    other.write_text("")
    other.chmod(0o755)
    top = {"API-port": 8000, "LLM-base-port": 30000, "llama-server-executable": str(other)}
    config = desk.config({"LLM": {"m": {}}, **top}).load()
    assert (config.port, config.llama_server, config.llama_server_from) == (8000, (str(other),), "config")
    (warning,) = config.warnings
    assert "LLM-base-port" in warning
    wrapped = ["env", "NICE=1", str(other)]
    (desk.home / "bin" / "env").symlink_to("/usr/bin/env")
    config = desk.config({"LLM": {"m": {}}, "llama-server-executable": wrapped}).load()
    assert config.llama_server == (str(desk.home / "bin" / "env"), "NICE=1", str(other))


@pytest.mark.parametrize("given", ["/nowhere/llama-server", "no-such-program", 5, [], ["a", 1]])
def test_a_llama_server_that_is_not_there_is_a_mistake(desk: Desk, given: Any) -> None:
    problem = desk.config({"LLM": {"m": {}}, "llama-server-executable": given}).mistake()
    assert problem.key == "llama-server-executable"


def test_without_a_binary_the_embedded_server_is_used(desk: Desk) -> None:
    """And since it downloads nothing, a model to be downloaded is a mistake then."""
    pytest.importorskip("xllamacpp")
    (desk.home / "bin" / "llama-server").unlink()
    assert desk.load().llama_server_from == "embedded"
    assert "cannot download" in desk.presets("[m]\nhf = a/b\n").mistake().message


def test_the_installed_llama_server_is_asked_what_it_knows(desk: Desk) -> None:
    server = desk.home / "bin" / "llama-server"
    server.write_text("#!/bin/sh\necho '-m,    --model FNAME     path'\n")
    config = desk.load(help_text=None)
    assert config.models["m"].argv == ("--model", str(desk.weights))
    server.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    assert "status 3: broken" in desk.mistake(help_text=None).message


def test_unknown_top_keys_are_mistakes(desk: Desk) -> None:
    problem = desk.config({"LLM": {"m": {}}, "router": {}}).mistake()
    assert (problem.key, problem.nearest) == ("router", "ROUTER")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"LLM": {"m": {}},}', 1, "comma"),
        ('{"LLM": {"m": {"gpus": [0,]}}}', 1, "comma"),
        ('{"LLM": {"m": {}}\n// why\n}', 2, "no comments"),
        ('{"LLM": {"m": {}}, "ROUTER": {"QUEUE_HEAD_GRACE": 1, "QUEUE_HEAD_GRACE": 2}}', 0, "written twice"),
        ('{"LLM": {"m": {}}, "ROUTER": {"QUEUE_HEAD_GRACE": NaN}}', 0, "JSON has no NaN"),
        ('{"LLM": {"m": {}}\n"ROUTER": {}}', 2, "this is no JSON"),
        ('{"LLM": {"m": {}}', 1, "this is no JSON"),
        ("[]", 0, "holds an object"),
        ("", 1, "this is no JSON"),
        ("[" * 200_000, 0, "cannot be read"),
    ],
)
def test_slips_of_json_are_found_with_their_place(desk: Desk, text: str, line: int, said: str) -> None:
    problem = desk.config(text).mistakes()[0]
    assert said in problem.message
    assert problem.line == line
    assert problem.file.endswith("config.json")


def test_a_text_that_looks_like_a_comment_or_a_comma_is_a_text(desk: Desk) -> None:
    desk.presets("[m]\nmodel = $W\n").config({"LLM": {"m": {"description": 'see // here, } # "and" /* there */ ,]'}}})
    assert desk.load().models["m"].description.startswith("see // here, }")


def test_files_that_are_no_text_or_not_there_are_mistakes(desk: Desk) -> None:
    (desk.here / "presets.ini").write_bytes(b"[m]\nmodel = caf\xe9\n")
    problem = desk.mistakes()[0]
    assert (problem.message, problem.line) == ("this is not UTF-8", 2)
    missing = desk.mistakes({"CONFIG_PATH": "/no/config.json", "PRESETS_PATH": "/no/presets.ini"})
    assert [problem.file for problem in missing] == ["/no/config.json", "/no/presets.ini"]


# --- environment and command line -----------------------------------------------------------------------------------


def test_the_command_line_wins_over_the_environment_over_older_names_over_the_file(desk: Desk) -> None:
    desk.config({"LLM": {"m": {}}, "ROUTER": {"HOST": "127.0.0.9"}})
    assert desk.load().host == "127.0.0.9"
    desk.environ["ROUTER_HOST"] = "127.0.0.8"
    assert desk.load().host == "127.0.0.8"
    desk.environ["LLAMA_ROUTER_HOST"] = "127.0.0.7"
    assert desk.load().host == "127.0.0.7"
    assert desk.load({"HOST": "127.0.0.6"}).host == "127.0.0.6"
    assert desk.load({"HOST": None}).host == "127.0.0.7"


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("LLAMA_ROUTER_QUEUE_HEAD_GRACE", "2.5", lambda config: config.scheduler.head_grace_us == 2_500_000),
        ("LLAMA_ROUTER_MAX_MODELS_PER_GPU", "3", lambda config: config.scheduler.max_models_per_gpu == 3),
        ("LLAMA_ROUTER_EVICT_PREFER_IDLE", "off", lambda config: not config.scheduler.prefer_idle),
        ("LLAMA_ROUTER_EVICT_PREFER_IDLE", "1", lambda config: config.scheduler.prefer_idle),
        ("LLAMA_ROUTER_NUM_GPUS", "2", lambda config: config.scheduler.gpus == 2),
        ("LLAMA_ROUTER_PORT", "0", lambda config: config.port == 0),
        ("LLAMA_ROUTER_PORT", "", lambda config: config.port == 11434),
        ("LLAMA_ROUTER_LLAMA_SERVER", '["/bin/sh", "x"]', lambda config: config.llama_server[1:] == ("x",)),
        ("LLAMA_ROUTER_API_KEY", "s3cret", lambda config: config.key_for("s3cret").name == "default"),
        ("ROUTER_HOST", "::1", lambda config: config.host == "::1"),
    ],
)
def test_any_setting_can_come_from_the_environment(desk: Desk, variable: str, value: str, read: Any) -> None:
    desk.environ[variable] = value
    config = desk.load()
    assert read(config)
    assert config.warnings == ()


def test_a_wrong_value_in_the_environment_names_the_variable(desk: Desk) -> None:
    desk.environ["LLAMA_ROUTER_QUEUE_HEAD_GRACE"] = "soon"
    problem = desk.mistake()
    assert (problem.file, problem.key, problem.value) == ("environment", "LLAMA_ROUTER_QUEUE_HEAD_GRACE", "soon")


def test_a_slip_in_the_name_of_a_setting_is_found(desk: Desk) -> None:
    assert desk.mistake({"QUEUE_GRACE": "1"}).file == "command line"
    desk.environ["LLAMA_ROUTER_QUEUE_HEAD_GRACES"] = "1"
    (warning,) = desk.load().warnings
    assert "did you mean 'LLAMA_ROUTER_QUEUE_HEAD_GRACE'" in warning


def test_a_wrong_api_key_setting_does_not_show_it(desk: Desk) -> None:
    desk.environ["LLAMA_ROUTER_API_KEY"] = "secret\n"
    assert "secret\\n" not in str(desk.mistake())
    desk.environ["LLAMA_ROUTER_API_KEY"] = "open sesame\ud800"
    problem = str(desk.mistake())
    assert "a text in UTF-8" in problem
    assert "sesame" not in problem


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("0.0.0.0", {}, True),
        ("::", {}, True),
        ("box.lan", {}, True),
        ("0.0.0.0", {"a": "x"}, False),
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("::1", {}, False),
    ],
)
def test_listening_to_the_world_without_keys_is_told(desk: Desk, host: str, keys: dict[str, str], warned: bool) -> None:
    warnings = desk.config({"LLM": {"m": {}}, "keys": keys}).load({"HOST": host}).warnings
    assert any("without a key" in warning for warning in warnings) is warned


def test_every_setting_has_a_default_that_it_allows_itself() -> None:
    for setting in SETTINGS:
        if setting.default not in ((), None):
            assert setting.check(setting.default) == setting.default
        assert setting.about


# --- places ---------------------------------------------------------------------------------------------------------


def test_an_unprivileged_user_gets_the_directories_of_xdg(desk: Desk) -> None:
    home = desk.home
    config = desk.load()
    assert config.config_path == home / ".config/llama-router/config.json"
    assert config.state_dir == home / ".local/state/llama-router"
    assert config.log_dir == home / ".local/state/llama-router/events"
    assert config.history_db == home / ".local/state/llama-router/history.duckdb"

    for name in ("c", "s", "r"):
        (home / name).mkdir()
    (home / "c" / "llama-router").symlink_to(desk.here)
    desk.environ |= {name: str(home / name[4].lower()) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    desk.environ["XDG_RUNTIME_DIR"] = str(home / "r")
    config = desk.load()
    assert config.config_path == home / "c/llama-router/config.json"
    assert (config.log_dir, config.run_dir) == (home / "s/llama-router/events", home / "r/llama-router")

    desk.environ["XDG_STATE_HOME"] = "relative/is/ignored"
    assert desk.load().state_dir == home / ".local/state/llama-router"


def test_containers_name_every_place_themselves(desk: Desk) -> None:
    """The paths of the images, under one directory here."""
    box = desk.home / "box"
    (box / "configs").mkdir(parents=True)
    (box / "configs/config.json").write_text('{"LLM": {"m": {}}}')
    (box / "configs/presets.ini").write_text(f"[m]\nmodel = {desk.weights}\n")
    desk.environ |= {
        "ROUTER_CONFIG_PATH": str(box / "configs/config.json"),
        "LLAMA_PRESETS_PATH": str(box / "configs/presets.ini"),
        "HISTORY_DB_PATH": str(box / "webui/monitor/history.db"),
        "EVENT_LOG_DIR": str(box / "log"),
        "RUN_DIR": str(box / "run"),
    }
    config = desk.load()
    assert config.presets_path == box / "configs/presets.ini"
    assert (config.log_dir, config.run_dir) == (box / "log", box / "run")
    assert config.history_db == box / "webui/monitor/history.duckdb"
    assert log_dir(desk.environ) == box / "log"


def test_an_older_history_path_puts_the_log_beside_it(desk: Desk) -> None:
    """The old SQLite file is left alone."""
    desk.environ["HISTORY_DB_PATH"] = str(desk.home / "monitor/history.db")
    config = desk.load()
    assert config.log_dir == desk.home / "monitor/events"
    assert config.history_db == desk.home / "monitor/history.duckdb"
    assert log_dir(desk.environ) == config.log_dir


def test_a_preset_beside_a_named_config_goes_with_it(desk: Desk) -> None:
    other = desk.home / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert desk.load({"CONFIG_PATH": str(other / "config.json")}).presets_path == desk.here / "presets.ini"
    (other / "presets.ini").write_text(f"[x]\nmodel = {desk.weights}\n")
    assert list(desk.load({"CONFIG_PATH": str(other / "config.json")}).models) == ["x"]
    assert desk.load({"CONFIG_PATH": "~/other/config.json"}).config_path == other / "config.json"


def test_a_run_directory_too_long_for_sockets_is_a_mistake(desk: Desk) -> None:
    problem = desk.mistake({"RUN_DIR": "/tmp/" + "x" * 75})
    assert (problem.key, problem.allowed) == ("RUN_DIR", "a path of at most 79 bytes")
    assert desk.load({"RUN_DIR": "/tmp/" + "x" * 74}).run_dir


def test_a_home_too_long_for_sockets_is_stepped_around(tmp_path: Path) -> None:
    long = Desk(tmp_path / ("x" * 90)).models(m={})
    assert str(long.load().run_dir) == f"/tmp/llama-router-{os.getuid()}"


def test_a_run_directory_that_others_can_write_is_a_mistake(desk: Desk) -> None:
    shared = desk.home / "shared"
    shared.mkdir(mode=0o700)
    assert desk.load({"RUN_DIR": str(shared)}).run_dir == shared
    shared.chmod(0o777)
    assert "could take the place of a child" in desk.mistake({"RUN_DIR": str(shared)}).message


@pytest.mark.parametrize("name", ["EVENT_LOG_DIR", "RUN_DIR", "STATE_DIR"])
def test_a_directory_that_cannot_be_made_is_a_mistake(desk: Desk, name: str) -> None:
    assert "is not a directory" in desk.mistakes({name: str(desk.weights / "x")})[0].message


def test_a_directory_that_cannot_be_written_is_a_mistake(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = desk.home / "closed"
    closed.mkdir(mode=0o500)
    if os.getuid() == 0:  # who may write everywhere
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))
    assert "not writable" in desk.mistake({"EVENT_LOG_DIR": str(closed / "events")}).message


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"description": "caf\ud800"}, "section [LLM.m], description"),
        ({"metadata": {"by": ["\udfff"]}}, "section [LLM.m.metadata.by], [0]"),
        ({"metadata": {"\udc00": 1}}, "section [LLM.m.metadata]"),
    ],
)
def test_half_of_a_character_is_a_mistake_wherever_it_stands(desk: Desk, entry: dict[str, Any], place: str) -> None:
    """The event log, which is UTF-8, could not take the configuration: nothing after it would be written."""
    desk.models(m=entry)
    problem = desk.mistake()
    assert "half of a character" in problem.message
    assert place in str(problem)


@pytest.mark.parametrize("variable", ["LLAMA_ROUTER_DEFAULT_MODEL", "LLAMA_ROUTER_STATE_DIR", "XDG_STATE_HOME"])
def test_bytes_that_are_no_utf_8_are_a_mistake(desk: Desk, variable: str) -> None:
    desk.models(m={}).environ[variable] = os.fsdecode(os.fsencode(desk.home) + b"/m\xfcller")
    assert any("UTF-8" in str(problem) for problem in desk.mistakes())


def test_a_configuration_in_a_directory_that_the_log_cannot_name_is_a_mistake(desk: Desk) -> None:
    """It is found last, because any path may be the one; the text is shown as Python would write it."""
    odd = os.fsdecode(os.fsencode(desk.home) + b"/m\xfcller")
    os.mkdir(odd)
    desk.models(m={})
    desk.here.rename(f"{odd}/llama-router")
    desk.environ["XDG_CONFIG_HOME"] = odd
    problem = desk.mistake()
    assert "cannot be written into the event log" in problem.message
    assert problem.value.endswith("m\\udcfcller/llama-router/config.json")


def test_a_file_that_is_nothing_but_brackets_is_told_as_any_other_mistake(desk: Desk) -> None:
    for depth in (100, 900, 5000):
        desk.models(m={}).config('{"LLM": ' + "[" * depth + "]" * depth + "}")
        assert any("deep" in problem.message or "cannot be read" in problem.message for problem in desk.mistakes())


def test_commands_find_the_log_and_the_router_by_config_json_mistakes_or_not(desk: Desk) -> None:
    """What can be read of it counts; the environment wins."""
    desk.config({"LLM": {"m": 7}, "API-port": 8080, "ROUTER": {"EVENT_LOG_DIR": "/var/log/events", "NUM_GPUS": "x"}})
    assert log_dir(desk.environ) == Path("/var/log/events")
    assert router_url(desk.environ) == "http://127.0.0.1:8080"
    desk.config('{"API-port": 8080')
    assert log_dir(desk.environ) == desk.home / ".local/state/llama-router/events"
    assert router_url(desk.environ) == "http://127.0.0.1:11434"
    desk.environ |= {"EVENT_LOG_DIR": "/events", "ROUTER_HOST": "::", "LLAMA_ROUTER_PORT": "7"}
    assert log_dir(desk.environ) == Path("/events")
    assert router_url(desk.environ) == "http://[::1]:7"


@pytest.mark.parametrize("name", ["CONFIG_PATH", "PRESETS_PATH", "RUN_DIR"])
def test_a_path_that_nothing_can_have_is_a_mistake_like_another(desk: Desk, name: str) -> None:
    """The system does not even look there; it is as with a directory that nobody may look into."""
    problem = desk.models(m={}).mistakes({name: f"/{'x' * 300}/y"})[0]
    assert problem.key == name or "File name too long" in problem.message
