"""The NixOS module, evaluated by Debian's nix against a stand-in for nixpkgs: options, rendered files, unit.

What this does not show: that the package builds in a nixpkgs, and that a machine boots with it.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.model_entry import ENTRY_KEYS
from tests.router.config_desk import Desk

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
NIX = shutil.which("nix-instantiate")

pytestmark = pytest.mark.skipif(NIX is None, reason="no nix-instantiate (Debian: nix-bin)")


@pytest.fixture
def nix(tmp_path: Path) -> Callable[[str], Any]:
    """Evaluates an expression; state of nix goes into the test's own directory."""

    def evaluate(expression: str) -> Any:
        result = run_nix(tmp_path, "--eval", "--strict", "--json", "-E", expression)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return evaluate


def run_nix(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert NIX is not None
    environment = {"HOME": str(scratch), "PATH": "/usr/bin:/bin", "NIX_STORE_DIR": str(scratch / "store")}
    environment |= {"NIX_STATE_DIR": str(scratch / "state"), "NIX_LOG_DIR": str(scratch / "log")}
    return subprocess.run([NIX, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


def module(written: str) -> str:
    stand_in, module = HERE / "stand_in.nix", ROOT / "nix" / "module.nix"
    return f"(import {stand_in}).evaluated (import {module}) {{ {written} }}"


def unit(written: str) -> str:
    return f"({module(written)}).config.systemd.services.llama-router"


def etc(name: str, written: str) -> str:
    return f'({module(written)}).config.environment.etc."llama-router/{name}".source.text'


A_HOUSEHOLD = """
    enable = true;
    promptCache = { ramMiB = 16384; reuseChunk = 256; ramMiBPerModel = { heavy = 32768; literal = 1; }; };
    presetGlobals = { ngl = 99; fa = true; cache-reuse = 64; };
    queueHeadGrace = 30;
    routerSettings = { GRACEFUL_KILL_TIMEOUT = 10; };
    models = {
      heavy = { model = "WEIGHTS"; gpus = [ 0 1 ]; c = 65536; tensor-split = [ 3 1 ]; };
      literal = { model = "WEIGHTS"; cache-ram = 512; num_instance = 2; aliases = [ "small" ]; };
    };
"""


@pytest.mark.parametrize("name", ["flake.nix", "nix/module.nix", "nix/package.nix"])
def test_each_nix_file_parses(tmp_path: Path, name: str) -> None:
    result = run_nix(tmp_path, "--parse", str(ROOT / name))
    assert result.returncode == 0, result.stderr


def test_the_flake_offers_a_package_an_app_a_shell_checks_and_a_module(nix: Callable[[str], Any]) -> None:
    """The attributes of its outputs; their values need a nixpkgs."""
    expression = f"""
      let
        nixpkgs = {{
          lib.genAttrs = names: make: builtins.listToAttrs (map (name: {{ inherit name; value = make name; }}) names);
          legacyPackages = {{ x86_64-linux = {{ }}; aarch64-linux = {{ }}; }};
        }};
        outputs = (import {ROOT}/flake.nix).outputs {{ self = {{ }}; inherit nixpkgs; }};
      in {{
        names = builtins.attrNames outputs;
        packages = builtins.attrNames outputs.packages;
        modules = builtins.attrNames outputs.nixosModules;
      }}"""
    assert nix(expression) == {
        "names": ["apps", "checks", "devShells", "formatter", "nixosModules", "packages"],
        "packages": ["aarch64-linux", "x86_64-linux"],
        "modules": ["default", "llama-router"],
    }


def test_every_option_has_a_description_and_the_documented_default(nix: Callable[[str], Any]) -> None:
    options = nix(f"({module('')}).options")
    nested = options.pop("promptCache")
    flat = {**options, **{f"promptCache.{name}": option for name, option in nested.items()}}
    assert all(option["description"] for option in flat.values())
    defaults = {name: option["default"] for name, option in flat.items()}
    assert defaults == {
        "enable": False,
        "package": "llama-router of this flake",
        "llamaCpp": "pkgs.llama-cpp",
        "host": "127.0.0.1",
        "port": 11434,
        "openFirewall": False,
        "llmBasePort": None,
        "user": "llama-router",
        "group": "llama-router",
        "extraGroups": ["video", "render"],
        "modelDirs": [],
        "maxModelsPerGpu": 1,
        "evictionPolicy": "lru",
        "queueForceLoadTimeout": 300,
        "queueHeadGrace": 0,
        "gpuCount": None,
        "promptCache.enable": True,
        "promptCache.ramMiB": 8192,
        "promptCache.ramMiBPerModel": {},
        "promptCache.reuseChunk": 0,
        "promptCache.checkpoints": None,
        "promptCache.checkpointMinStep": None,
        "presetGlobals": {},
        "models": {},
        "keys": {},
        "routing": {},
        "routerSettings": {},
        "settings": {},
        "environmentFile": None,
    }


def test_disabled_it_changes_nothing(nix: Callable[[str], Any]) -> None:
    assert nix(f"({module('')}).config") == {}


def test_the_router_reads_what_the_module_renders(
    nix: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files go through the router's own reading; who wins is seen in what llama-server would be started with."""
    desk = Desk(tmp_path / "home").move_in(monkeypatch)
    written = A_HOUSEHOLD.replace("WEIGHTS", str(desk.weights))
    desk.config(nix(etc("config.json", written)))
    desk.presets(nix(etc("presets.ini", written)))
    config = desk.load()
    assert (config.host, config.port, config.scheduler.head_grace_us) == ("127.0.0.1", 11434, 30_000_000)
    heavy, literal = config.models["heavy"], config.models["literal"]
    assert (heavy.gpus, literal.replicas, literal.aliases) == ((0, 1), 2, ("small",))
    # promptCache < presetGlobals < ramMiBPerModel < the model itself
    assert heavy.options["cache-reuse"] == literal.options["cache-reuse"] == "64"
    assert heavy.options["cache-ram"] == "32768"
    assert literal.options["cache-ram"] == "512"
    assert heavy.options["tensor-split"] == "3,1"


def test_every_key_that_the_router_knows_of_a_model_goes_to_the_router() -> None:
    """`model` alone is llama-server's, where the preset says it."""
    text = (ROOT / "nix" / "module.nix").read_text()
    listed = text.partition("routerKeys = [")[2].partition("]")[0].split()
    assert {key.strip('"') for key in listed} == ENTRY_KEYS.keys() - {"model"}


def test_the_default_of_the_cap_does_not_hold_beside_another_engine(nix: Callable[[str], Any]) -> None:
    """There it would be a second rule that nobody wrote: no two models of a matrix could share a GPU."""
    matrix = 'enable = true; routing.router.use = "matrix";'
    asked = {written: json.loads(nix(etc("config.json", written)))["ROUTER"] for written in ("enable = true;", matrix)}
    assert [router.get("MAX_MODELS_PER_GPU") for router in asked.values()] == [1, None]
    capped = json.loads(nix(etc("config.json", f"{matrix} maxModelsPerGpu = 2;")))
    assert capped["ROUTER"]["MAX_MODELS_PER_GPU"] == 2


def test_what_has_no_option_can_be_set_all_the_same(nix: Callable[[str], Any]) -> None:
    written = "enable = true; settings = { promptCache.keepAcrossSwaps = true; ROUTER.GLOBAL_TTL = 600; };"
    config = json.loads(nix(etc("config.json", written)))
    assert config["promptCache"] == {"keepAcrossSwaps": True}
    assert (config["ROUTER"]["GLOBAL_TTL"], config["ROUTER"]["HOST"]) == (600, "127.0.0.1")


def test_a_cap_for_an_unknown_model_is_refused(nix: Callable[[str], Any]) -> None:
    assertion = nix(
        f"builtins.head ({module('enable = true; promptCache.ramMiBPerModel.ghost = 1;')}).config.assertions"
    )
    assert not assertion["assertion"]
    assert "ghost" in assertion["message"]


def test_an_option_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """As with the real module system; it also shows that the other tests' options exist."""
    result = run_nix(tmp_path, "--eval", "--strict", "-E", unit("enable = true; maxModelPerGpu = 2;"))
    assert result.returncode != 0
    assert "no such option: services.llama-router.maxModelPerGpu" in result.stderr


def test_the_unit_is_hardened_and_comes_back_after_a_failure(nix: Callable[[str], Any]) -> None:
    made = nix(unit(A_HOUSEHOLD))
    service = made["serviceConfig"]
    assert made["environment"]["LLAMA_ROUTER_LLAMA_SERVER"] == "/pkgs/llama-cpp/bin/llama-server"
    assert service["ExecStart"] == "/pkgs/llama-router/bin/llama-router serve"
    assert (service["Restart"], service["RestartSec"]) == ("on-failure", 5)
    assert (service["User"], service["SupplementaryGroups"]) == ("llama-router", ["video", "render"])
    assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", True)
    assert (service["StateDirectory"], service["RuntimeDirectoryMode"]) == ("llama-router", "0700")
    assert "char-nvidia rw" in service["DeviceAllow"]


def test_weights_in_a_home_are_shown_to_the_unit_and_nothing_else_of_it(nix: Callable[[str], Any]) -> None:
    service = nix(unit('enable = true; modelDirs = [ "/home/me/models" ];'))["serviceConfig"]
    assert (service["ProtectHome"], service["BindReadOnlyPaths"]) == ("tmpfs", ["/home/me/models"])


def test_the_port_is_closed_unless_asked(nix: Callable[[str], Any]) -> None:
    closed = nix(f"({module('enable = true;')}).config.networking.firewall.allowedTCPPorts")
    opened = nix(
        f"({module('enable = true; openFirewall = true; port = 8080;')}).config.networking.firewall.allowedTCPPorts"
    )
    assert (closed, opened) == ([], [8080])
