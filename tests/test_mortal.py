"""Nothing that tests and benchmarks start is left behind, however they end."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mortal import mortal
from tests.standin.gpu import alive
from tests.standin.ledger import polls

ROOT = Path(__file__).parents[1]
RIG = """
import sys
from pathlib import Path
from tests.standin.fixtures import Model, RouterProcess
with RouterProcess(Path(sys.argv[1]), [Model("a")]) as router:
    assert router.chat("a").status == 200
    print(router.process.pid, *router.children(), flush=True)
    sys.stdin.read()
"""
AT_EASE = {
    "tests/router/test_orphans.py": "about processes that outlive their parent",
    "tests/dashboard/test_commands.py": "about another way to die with the parent",
    "tests/standin/test_standin.py": "about a wrapper that does not pass signals on",
}
"""Files that start processes in a way of their own, and why."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_router_dies_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    """Its llama-servers too. A benchmark that is told to stop, a test run that is killed: neither cleans up."""
    command = [sys.executable, "-c", RIG, str(tmp_path)]
    with subprocess.Popen(
        mortal(command), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        pids = [int(word) for word in running.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        running.send_signal(number)
        assert running.wait(10) == -number
    for _ in polls(10):
        if not any(map(alive, pids)):
            break
    assert [pid for pid in pids if alive(pid)] == []


def files() -> list[Path]:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.name.startswith(("bench-", "soak", "fuzz"))]
    return [*scripts, *(ROOT / "tests").rglob("*.py")]


def starts_in(path: Path) -> list[ast.Call]:
    """Where it starts processes. Of what a test runs to its end, that end is waited for."""
    names = {"subprocess.Popen"} if path.suffix == ".py" else {"subprocess.Popen", "subprocess.run"}
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in names]


def is_mortal(call: ast.Call) -> bool:
    how = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return ast.unparse(call.args[0]).startswith("mortal(") or how.get("preexec_fn") == "die_with_parent"


def test_whatever_is_started_dies_with_its_starter() -> None:
    looked_at = 0
    for path in files():
        name = str(path.relative_to(ROOT))
        for call in starts_in(path):
            looked_at += 1
            assert is_mortal(call) or name in AT_EASE, f"{name}:{call.lineno} starts {ast.unparse(call.args[0])}"
    assert looked_at > 20
