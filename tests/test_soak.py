"""scripts/soak for a few seconds: the script itself works, and so does the router under it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_bad_day_in_twenty_seconds() -> None:
    """Clients that leave, children that die, reloads and bursts: every account is even, memory and files are back."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "soak"), "--seconds", "20"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["failed"] == []
    assert told["requests"] > 50
    assert sum(told["troubles"].values()) > 5
