"""The last step before a llama-server runs: become mortal with the router, then become llama-server.

Run as a script (`python -I -S exec_child.py PARENT_PID COMMAND...`), never imported. Its counterpart is `spawn.py`;
`demo.py` starts its router in the same way.
The parent-death signal has to be set by the child itself; doing it in the router between fork and exec would stall the
event loop for tens of milliseconds per spawn. SIGKILL, because nobody is left to say it twice.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
ROUTER_GONE, CANNOT_RUN = 125, 127  # as in exits.py, which -I keeps out of reach


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the router died before the line above
        sys.exit(ROUTER_GONE)
    # Python ignores these, and what is ignored stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"llama-router: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_RUN)


main()
