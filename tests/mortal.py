"""What tests and benchmarks start dies with them, whatever ends them: a router would go on serving nobody.

    subprocess.Popen(mortal([sys.executable, "-m", "router.cli", "serve"]))

It is the way in which the router starts its own children (`router/exec_child.py`), and costs some ten milliseconds.
Such a process also dies with the thread that started it, so that should be the main thread.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

EXEC_CHILD = str(Path(__file__).resolve().parent.parent / "router" / "exec_child.py")
PR_SET_PDEATHSIG = 1


def mortal(command: Sequence[str]) -> list[str]:
    """The command, to be run as a child of this process that is killed when this process ends."""
    return [sys.executable, "-I", "-S", EXEC_CHILD, str(os.getpid()), *command]


def die_with_parent() -> None:
    """The same as a `preexec_fn`, for who measures a start, which this does not prolong. Not beside other threads."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
