"""scripts/fuzz with a few hundred requests; the whole of it takes a minute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_bytes_on_a_socket_break_the_router() -> None:
    """Broken, slow, huge, pipelined and cut-off requests: all are answered or closed, and it is as well as before."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz"), "--requests", "600"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["requests"] == 600
    assert {"200", "400", "405", "408"} <= set(told["answers"])
