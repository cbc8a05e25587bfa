"""The other supported Pythons: what is written compiles under each, all modules can be imported, and the golden logs
give the same decisions.

Compiling needs a bare interpreter (scripts/pythons finds them); the rest an environment that `make pythons` has made,
or whose Python is named in OTHER_PYTHONS (paths, colons between them). What is not here is skipped. Where no 3.14 is
installed, the one that Pyodide brings for Node.js takes its place when it is asked for (`-m clients`).
"""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.replay.make_golden import ALTERED, DIGESTS, GOLDEN

ROOT = Path(__file__).parents[1]
SCRIPTS = ("router/exec_child.py",)
"""Programs that run when they are imported."""

COMPILE = """
import sys, pathlib, warnings
warnings.simplefilter("error")
root = pathlib.Path(sys.argv[1])
files = [f for f in root.rglob("*.py") if not any(part.startswith(".") for part in f.relative_to(root).parts)]
for file in files:
    compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
print(len(files))
"""

IMPORT = """
import importlib, sys, pathlib
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
for top in ("eventlog", "router", "projections", "replay", "dashboard"):
    for file in sorted((root / top).rglob("*.py")):
        if str(file.relative_to(root)) not in sys.argv[2:]:
            name = ".".join(file.relative_to(root).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
print(len(sys.modules))
"""

VERIFY = """
import gzip, json, pathlib, sys, tempfile
sys.path.insert(0, sys.argv[1])
from eventlog.segments import segment_name
from replay.verify import verify
told = {}
for packed in sys.argv[2:]:
    packed = pathlib.Path(packed)
    with tempfile.TemporaryDirectory() as folder:
        content = packed.read_bytes()
        first = json.loads(gzip.decompress(content).partition(b"\\n")[0])["seq"]
        (pathlib.Path(folder) / f"{segment_name('events', first)}.gz").write_bytes(content)
        result = verify(pathlib.Path(folder))
        told[packed.name] = [result.ok, result.differences, result.decisions_digest]
print(json.dumps(told))
"""

LOGS = sorted(path for path in GOLDEN.glob("*.ndjson.gz") if ALTERED not in path.name)
NOTED = json.loads(DIGESTS.read_text())
EXPECTED = {path.name: [True, 0, NOTED[path.name]["decisions"]] for path in LOGS}


@cache
def bare() -> list[str]:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "pythons"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@cache
def equipped() -> list[str]:
    made = [path for path in ROOT.glob(".venv-3.*/bin/python") if _has_what_we_need(str(path))]
    return [*map(str, made), *filter(None, os.environ.get("OTHER_PYTHONS", "").split(":"))]


def _has_what_we_need(python: str) -> bool:
    return (
        subprocess.run([python, "-c", "import msgspec, fastapi, duckdb"], capture_output=True, check=False).returncode
        == 0
    )


def said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_that_is_written_compiles_without_a_warning_under_every_python_found() -> None:
    for python in bare() or pytest.skip("no other Python is here"):
        assert int(said(python, "-c", COMPILE, ROOT)) > 300


@pytest.mark.slow
def test_every_module_can_be_imported_under_every_python_that_has_an_environment() -> None:
    """Without a warning of ours; those of others at import are theirs."""
    for python in equipped() or pytest.skip("`make pythons` has not been run, or no other Python is here"):
        ours = [f"-Werror:::{top}" for top in ("eventlog", "router", "projections", "replay", "dashboard")]
        said(python, *ours, "-c", IMPORT, ROOT, *SCRIPTS)


@pytest.mark.slow
def test_the_golden_logs_verify_with_the_same_digests_under_every_python_that_has_an_environment() -> None:
    for python in equipped() or pytest.skip("`make pythons` has not been run, or no other Python is here"):
        assert json.loads(said(python, "-c", VERIFY, ROOT, *LOGS)) == EXPECTED


NODE = """
import { loadPyodide } from "pyodide";
const [root, site, ...args] = process.argv.slice(2);
const python = await loadPyodide();
python.mountNodeFS("/project", root);
python.mountNodeFS("/site", site);
python.globals.set("args", python.toPy(args.slice(1)));
python.runPython("import sys; sys.path.insert(0, '/site'); sys.argv = ['-c', *args]; print(*sys.version_info[:2])");
python.runPython(args[0]);
"""


@pytest.mark.clients
def test_pyodide_s_python_3_14_compiles_everything_and_decides_as_the_golden_logs_say(tmp_path: Path) -> None:
    """CPython built for WebAssembly: the same language and msgspec; no processes and no sockets."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, "pyodide@^314"], check=True, timeout=100)
    platform = ["--python-version", "3.14", "--abi", "cp314", "--platform", "pyemscripten_2026_0_wasm32"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *platform, "--target", tmp_path / "site", "msgspec"], check=True, timeout=100)
    (tmp_path / "run.mjs").write_text(NODE)

    def run(code: str, *arguments: str) -> list[str]:
        return said("node", tmp_path / "run.mjs", ROOT, tmp_path / "site", code, *arguments).splitlines()

    version, count = run(COMPILE, "/project")
    assert version == "3 14"
    assert int(count) > 300
    _, told = run(VERIFY, "/project", *(f"/project/{path.relative_to(ROOT)}" for path in LOGS))
    assert json.loads(told) == EXPECTED
