"""Every recipe in examples/clients is run as it stands, against real weights. It is right when it says Paris.

Those whose client is not among the development dependencies install it first, into a folder of the test's. For one that
is a matter of seconds; the others take some minutes and some hundred megabytes, and are left out unless asked for:
`python -m pytest -m clients`.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.conftest import SMOL
from tests.faults.checks import routed
from tests.mortal import mortal
from tests.standin.fixtures import Model, RouterProcess, free_port
from tests.standin.ledger import polls

RECIPES = Path(__file__).parents[2] / "examples" / "clients"
INSTALL_S = 600
NODE_S = 150
"""For the one package of the recipe for Node."""
RUN_S = 110
PYTHON = {"langchain_chat.py": "langchain-openai", "litellm_library.py": "litellm", "llm.sh": "llm"}


def said(command: Sequence[str], router: RouterProcess, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """What a recipe prints; nothing of this user's own settings is in its way."""
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LD_LIBRARY_PATH")}
    ours = {"HOME": str(folder), "LLAMA_ROUTER_URL": router.base_url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ran = subprocess.run(
        command,
        env={**inherited, **ours, **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=RUN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.weights
@pytest.mark.parametrize("recipe", ["openai_python.py", "anthropic_python.py"])
def test_a_recipe_for_python_gets_its_answer(weights_router: RouterProcess, tmp_path: Path, recipe: str) -> None:
    assert "Paris" in said([sys.executable, str(RECIPES / recipe), SMOL], weights_router, tmp_path)


@pytest.mark.clients
@pytest.mark.timeout(INSTALL_S + RUN_S)
@pytest.mark.parametrize("recipe", PYTHON)
def test_a_recipe_for_a_client_from_pypi_gets_its_answer(
    weights_router: RouterProcess, tmp_path: Path, recipe: str
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check", PYTHON[recipe]]
    subprocess.run(install, check=True, timeout=INSTALL_S)
    runner = "sh" if recipe.endswith(".sh") else str(binaries / "python")
    env = {"PATH": f"{binaries}:{os.environ['PATH']}"}
    assert "Paris" in said([runner, str(RECIPES / recipe), SMOL], weights_router, tmp_path, env)


@pytest.mark.clients
@pytest.mark.timeout(INSTALL_S + 2 * RUN_S)
def test_litellm_s_proxy_passes_every_name_on(weights_router: RouterProcess, tmp_path: Path) -> None:
    """Its configuration as it stands, but for the router's port: a question to the proxy is answered by the router."""
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check", "litellm[proxy]"]
    subprocess.run(install, check=True, timeout=INSTALL_S)
    config = (RECIPES / "litellm_proxy.yaml").read_text()
    (tmp_path / "proxy.yaml").write_text(config.replace("http://127.0.0.1:11434", weights_router.base_url))
    key, port = f"sk-{secrets.token_hex(32)}", free_port()
    ours = {"HOME": str(tmp_path), "LITELLM_MASTER_KEY": key, "LLAMA_ROUTER_API_KEY": "none"}
    env = {"PATH": f"{binaries}:{os.environ['PATH']}", "LITELLM_LOCAL_MODEL_COST_MAP": "True", **ours}
    command = [str(binaries / "litellm"), "--config", "proxy.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(mortal(command), env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as proxy:
        try:
            for _ in polls(RUN_S, every_s=0.2):
                assert proxy.poll() is None, "the proxy has ended"
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
            env = {"LLAMA_ROUTER_URL": f"http://127.0.0.1:{port}", "LLAMA_ROUTER_API_KEY": key}
            command = [sys.executable, str(RECIPES / "openai_python.py"), SMOL]
            assert "Paris" in said(command, weights_router, tmp_path, env)
        finally:
            proxy.terminate()


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.timeout(NODE_S + RUN_S + 30)
def test_the_recipe_for_node_gets_its_answer(weights_router: RouterProcess, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    install = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(tmp_path), "openai"]
    if subprocess.run(install, check=False, timeout=NODE_S).returncode:
        pytest.skip("npm cannot install the package openai")
    shutil.copy(RECIPES / "openai_node.mjs", tmp_path)
    assert "Paris" in said([node, str(tmp_path / "openai_node.mjs"), SMOL], weights_router, tmp_path)


@pytest.mark.clients
@pytest.mark.timeout(INSTALL_S + RUN_S)
def test_a_coding_agent_gets_through_its_turn(tmp_path: Path) -> None:
    """opencode sends 30 KB of instructions and ten tools: more than the demo's weights hold, so a stand-in answers."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    install = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(tmp_path), "opencode-ai"]
    subprocess.run(install, check=True, timeout=INSTALL_S)
    (tmp_path / "project").mkdir()
    shutil.copy(RECIPES / "opencode.json", tmp_path / "project")
    router_home = tmp_path / "router"
    router_home.mkdir()
    with routed(router_home, [Model("qwen3-4b", tokens=5)]) as router:
        binary = str(tmp_path / "node_modules" / ".bin" / "opencode")
        env = {"LLAMA_ROUTER_API_KEY": "none", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        command = [binary, "run", "--model", "llama-router/qwen3-4b", "Say hello"]
        assert "w1 w2 w3 w4 w5" in said(command, router, tmp_path / "project", env)
        assert max(event.get("tools", 0) for event in router.events("RequestArrived")) >= 5
