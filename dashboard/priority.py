"""Standing back: what a process does so that nobody else waits for the processor or the memory because of it."""

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path

NICENESS = 10
SESSION_NICENESS = 2
FIRST_TO_DIE = 500
"""Where memory runs out, the kernel takes this process before the router and its models."""
TURN_US = 100
"""The least that the kernel takes."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, for which neither Python nor every libc has a name."""
_SCHED_ATTR = "=IIQiIQQQ"
"""size, policy, flags, nice, priority, runtime, deadline, period: see sched_setattr(2)."""


def stand_back() -> None:
    """Take the processor and the memory last, as far as this kernel lets us."""
    os.nice(NICENESS)
    with suppress(OSError):
        # What wakes up here takes the processor from nobody who is at work.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    take_short_turns(TURN_US)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_DIE))
    if os.getsid(0) == os.getpid():
        # Where the kernel shares the processor among sessions first (CONFIG_SCHED_AUTOGROUP), niceness counts within
        # one only. Ours gets two thirds of the share of another: less starves it where many compute on the CPU.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(SESSION_NICENESS))


def take_short_turns(turn_us: int) -> bool:
    """Give the processor away after this time if somebody else wants it; False where the kernel does not do that.

    Since Linux 6.12, whoever wakes up gets a processor from somebody else only once his turn is over, after 3 ms if he
    does not say otherwise, and niceness does not shorten it: a token would wait for that. Threads begun later and
    programs that this one becomes or begins inherit it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or sys.platform != "linux":
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    size = struct.calcsize(_SCHED_ATTR)
    attributes = struct.pack(_SCHED_ATTR, size, os.SCHED_BATCH, 0, niceness, 0, turn_us * 1000, 0, 0)
    failed: int = ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    return not failed
