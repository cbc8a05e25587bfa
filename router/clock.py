"""The clock of a run: wall time at its start, and from then on only what CLOCK_BOOTTIME says has passed.

So a wall clock that is set back or forth moves no timer and reorders nothing, and a suspended machine's time counts.
"""

import time

STEP_MIN_US = 1_000_000
"""A smaller difference is drift, not a step."""


class RunClock:
    """Microseconds since the epoch, never running backwards within a run."""

    def __init__(self) -> None:
        self._wall_us = time.time_ns() // 1000
        self._boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._stepped_us = 0

    def now_us(self) -> int:
        return self._wall_us + (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._boot_ns) // 1000

    def step_us(self) -> int:
        """How far the wall clock has jumped since this was last asked; 0 for none worth telling."""
        off_us = time.time_ns() // 1000 - self.now_us()
        jumped_us = off_us - self._stepped_us
        if abs(jumped_us) < STEP_MIN_US:
            return 0
        self._stepped_us = off_us
        return jumped_us
