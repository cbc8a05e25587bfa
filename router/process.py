"""A child at work: notices its end, reads its output, and ends it together with everything that it has started.

Its counterpart is `spawn.py`, which makes the process; what the end means is for `replica.py` to say.

The leader of the group is not reaped before the last member of its session is gone: as long as it is a zombie its
number cannot be given to a stranger, so no signal of ours ever hits one.
"""

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

from router import proc
from router.exits import Exit
from router.spawn import MARKER, Child
from router.waits import first, within

PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 64 * 1024
PAUSE_S = 0.02
"""After each read. So a child that floods is slowed to some 3 MB/s, and not the event loop."""
LOOK_FIRST_S, LOOK_LAST_S = 0.005, 0.1
"""Between looks at what is left of a session that has been told to end."""


def adopt_orphans() -> None:
    """Have the processes whose parents die come to this process instead of pid 1, which in a container may not reap."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Process:
    """One running child. Belongs to the event loop that made it."""

    def __init__(self, child: Child, marker: str, on_output: Callable[[bytes], None]) -> None:
        self.pid = child.pid
        self.started_ticks = child.started_ticks
        self.exited = asyncio.Event()
        """The child itself has ended; others of its session may live on until `end`."""
        self.exit = Exit()
        """How; only after `exited`."""
        self._child = child
        self._marker = marker
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._hurried = asyncio.Event()
        self._loop.add_reader(child.output, self._read)
        # A thread that sleeps in the kernel costs nothing, and no signal handler or shared watcher can steal the exit.
        threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True).start()

    async def pids(self) -> list[int]:
        """The child and whatever it has started that lives."""
        return [one.pid for one in await self._members() if one.alive]

    def hurry(self) -> None:
        """Whoever ends it, now or later, gives it no time any more."""
        self._hurried.set()

    async def end(self, grace_s: float) -> bool:
        """SIGTERM to all, SIGKILL to those that are left after `grace_s`; returns when nothing is left.

        The result says whether SIGKILL was needed. A process that hangs in a driver is waited for: what it holds is
        held. With the child gone already, the others are killed at once.
        """
        deadline = time.monotonic() + (0.0 if self.exited.is_set() else grace_s)
        killed = False
        seen: set[int] = set()
        if not self.exited.is_set():
            self._signal(signal.SIGTERM, await self._members())
            await within(grace_s, first(self.exited.wait(), self._hurried.wait()))
        look_s = LOOK_FIRST_S
        while True:
            members = await self._members()
            left = [one for one in members if one.alive]
            seen.update(one.pid for one in members)
            if not left and self.exited.is_set():
                break
            if time.monotonic() >= deadline or self._hurried.is_set():
                killed = True
                self._signal(signal.SIGKILL, left)
            await within(look_s, self.exited.wait()) if not self.exited.is_set() else await asyncio.sleep(look_s)
            look_s = min(look_s * 1.5, LOOK_LAST_S)
        self._reap(seen)
        self._drain()
        return killed

    def _signal(self, number: signal.Signals, members: list[proc.Stat]) -> None:
        """To the group at once, and to those that have left it one by one."""
        for send, target in [(os.killpg, self.pid), *((os.kill, one.pid) for one in members if one.group != self.pid)]:
            try:
                send(target, number)
            except (ProcessLookupError, PermissionError):
                continue

    async def _members(self) -> list[proc.Stat]:
        return await asyncio.to_thread(proc.members, self.pid, MARKER, self._marker)

    def _reap(self, pids: set[int]) -> None:
        """The child, and orphans of it that have come to us (`adopt_orphans`)."""
        self._child.process.wait()
        if self._child.process.stdin is not None:
            self._child.process.stdin.close()
        for pid in pids - {self.pid}:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue

    def _wait(self) -> None:
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if result is None:
            how = Exit()
        elif result.si_code == os.CLD_EXITED:
            how = Exit(code=result.si_status)
        else:
            how = Exit(signal=result.si_status)
        try:
            self._loop.call_soon_threadsafe(self._ended, how)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            return

    def _ended(self, how: Exit) -> None:
        self.exit = how
        self.exited.set()

    def _read(self) -> None:
        try:
            data = os.read(self._child.output, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._child.output)
            return
        self._loop.remove_reader(self._child.output)
        self._paused = self._loop.call_later(PAUSE_S, self._resume)
        self._on_output(data)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._child.output, self._read)

    def _drain(self) -> None:
        """Take what is left in the pipe, which is at most what a pipe holds, and close it."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._child.output)
        try:
            while data := os.read(self._child.output, READ_BYTES):
                self._on_output(data)
        except BlockingIOError:
            pass  # a stranger holds the other end open
        os.close(self._child.output)
