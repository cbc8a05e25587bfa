"""The last step before a long calculation runs: become limited and mortal, then become it.

    python -m dashboard.bounded PARENT_PID MEMORY_MIB CPU_S COMMAND...

Its counterpart is `commands`. It is run, never imported: what it sets holds for the process that it becomes. It gives
way to everything else, may take so much memory and processor time, and dies with the process that wanted it.
"""

import ctypes
import os
import resource
import signal
import sys

NICENESS = 9
"""On top of the dashboard's own."""
PR_SET_PDEATHSIG = 1
PARENT_GONE = 125


def main(argv: list[str]) -> None:
    parent, memory_mib, cpu_s = int(argv[0]), int(argv[1]), int(argv[2])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(PARENT_GONE)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    # SIGXCPU at the first, SIGKILL at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execv(argv[3], argv[3:])


if __name__ == "__main__":
    main(sys.argv[1:])
