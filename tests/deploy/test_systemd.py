"""The plain unit in examples/: systemd takes it, and it is as hardened as the one that the Nix module makes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "examples" / "llama-router.service"
NOT_ITS_OWN = {"ExecStart", "ExecStartPre", "ExecReload", "Environment", "EnvironmentFile", "WantedBy"}
"""Where things lie is said by each in its own way."""


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """With this Python in the place of the command, which is not installed here."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "llama-router.service"
    unit.write_text(UNIT.read_text().replace("/opt/llama-router/bin/llama-router", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "llama-router.service" in line]
    assert ours == []


def test_it_checks_first_comes_back_and_reloads_without_a_restart() -> None:
    unit = settings()
    assert unit["ExecStartPre"] == ["/opt/llama-router/bin/llama-router check"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert (unit["Restart"], unit["RestartSec"]) == (["on-failure"], ["5"])


def test_it_says_of_the_service_what_the_module_says() -> None:
    """Every setting of the one is in the other, so that none of the two is forgotten when one is changed."""
    module = (ROOT / "nix" / "module.nix").read_text()
    service = set(settings()) - NOT_ITS_OWN - {"Description", "After", "User", "DynamicUser"}
    assert {name for name in service if not re.search(rf"\b{name} =", module)} == set()
