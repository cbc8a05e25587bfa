"""What a document shows as a session is what happens: its commands are run, and what it shows of their output is there.

A session stands in a block ```console: lines that begin with `$ ` are run in a folder with `examples` in it, the others
must be lines of the output, in this order, whatever blanks stand between their words.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def sessions() -> list[tuple[str, str, list[str]]]:
    """(page, command, lines shown)."""
    found = []
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *shown = piece.rstrip("\n").split("\n")
                found.append((page.name, command, shown))
    return found


def test_there_are_sessions_to_look_at() -> None:
    assert sessions()


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """An empty folder with the project's examples in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "shown"), sessions(), ids=lambda value: str(value)[:60])
def test_a_session_goes_as_its_page_shows_it(desk: Path, page: str, command: str, shown: list[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "llama-router"
    run = [sys.executable, "-m", "router.cli", *arguments]
    environment = {**os.environ, "TZ": "UTC", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, cwd=desk, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    printed = iter([" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()])
    for line in shown:
        assert " ".join(line.split()) in printed, f"{page} shows, and the command does not print here: {line}"
