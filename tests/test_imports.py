"""Imports go one way: eventlog <- router.scheduler <- {router, replay}, and eventlog <- projections <- dashboard."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parent.parent
OURS = ("eventlog", "router", "projections", "dashboard", "replay", "tests")

MAY_IMPORT = {
    "eventlog": {"eventlog"},
    "router/scheduler": {"eventlog", "router.scheduler"},
    "router": {"eventlog", "router"},
    "router/cli.py": {"eventlog", "router", "replay", "projections", "dashboard"},
    "projections": {"eventlog", "projections"},
    "dashboard": {"eventlog", "projections", "dashboard"},
    "replay": {"eventlog", "router.scheduler", "projections", "replay"},
}
"""Folder or file to the packages of ours that it may import; the longest that fits counts. The command line is one for
all parts, each of which brings its own verbs."""

IMPURE = ("asyncio", "httpx", "fastapi", "duckdb", "socket", "time", "random")
"""What the scheduler must not get at. Some of these come with the standard library's own imports of each other, so
`time` and `random` are looked for in our files, the rest in a process that has imported the scheduler."""


def folder_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    fitting = [folder for folder in MAY_IMPORT if parts[: folder.count("/") + 1] == tuple(folder.split("/"))]
    return max(fitting, key=len)


def imports_of(file: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it."""
    package = ".".join(file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{name.name}" for name in node.names)


def files() -> list[Path]:
    folders = [ROOT / folder for folder in ("eventlog", "router", "projections", "dashboard", "replay")]
    return sorted(file for folder in folders if folder.is_dir() for file in folder.rglob("*.py"))


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_what_stands_below_it(file: Path) -> None:
    allowed = MAY_IMPORT[folder_of(file)]
    for name in imports_of(file):
        if name.split(".")[0] in OURS:
            assert is_within(name, allowed), f"{file.relative_to(ROOT)} imports {name}; it may import {sorted(allowed)}"


def test_every_folder_that_may_be_imported_exists_or_is_yet_to_come() -> None:
    """A typing mistake in the table would let everything pass."""
    assert {folder_of(file) for file in files()} >= {"eventlog", "router", "router/scheduler"}


def test_the_scheduler_s_files_import_nothing_impure() -> None:
    for file in sorted((ROOT / "router" / "scheduler").glob("*.py")):
        for name in imports_of(file):
            assert not is_within(name, set(IMPURE)), f"{file.name} imports {name}"


def test_importing_the_scheduler_brings_in_nothing_that_could_do_io() -> None:
    code = "import sys; start = set(sys.modules); import router.scheduler; print(*set(sys.modules) - start)"
    told = subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: what an environment's own start-up loads is not ours
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{Path(msgspec.__file__).parent.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(told.stdout.split())
    assert "router.scheduler" in loaded
    assert loaded.isdisjoint({"asyncio", "httpx", "fastapi", "duckdb", "socket", "ssl", "select", "random"})
    ours = {name for name in loaded if name.split(".")[0] in OURS}
    assert all(is_within(name, {"eventlog", "router.scheduler"}) or name == "router" for name in ours), sorted(ours)


def test_the_package_of_the_router_imports_nothing_by_itself() -> None:
    assert list(imports_of(ROOT / "router" / "__init__.py")) == []
