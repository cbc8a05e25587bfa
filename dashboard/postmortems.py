"""Post-mortems, made by `llama-router postmortem` when a page asks for one, and kept for the next that asks.

Of one crash only one is made at a time, of all of them two. A crash whose consequences still go on is told anew.
"""

import asyncio
import json
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.commands import CommandFailed, Limits, run

KEPT = 24
AT_ONCE = 2
SETTLED_S = 900.0
"""So long after a crash its consequences are followed."""
FRESH_S = 20.0
"""Before that, one that is older is made anew."""
LIMITS = Limits(memory_mib=1536, cpu_s=300, wall_s=600.0)


@dataclass
class Made:
    """One post-mortem: `story` as `postmortem --json` tells it, the text, and a zip to share."""

    story: dict[str, Any]
    text: bytes
    bundle: bytes
    made_at_s: float
    settled: bool


class Postmortems:
    """Belongs to the event loop's thread."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._made: OrderedDict[int, Made] = OrderedDict()
        self._making: dict[int, asyncio.Task[Made]] = {}
        self._began_s: dict[int, float] = {}
        self._failed: dict[int, str] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)

    def known(self, seq: int) -> Made | None:
        """The one that is there, if it is fresh enough."""
        made = self._made.get(seq)
        if made is None or (not made.settled and time.time() > made.made_at_s + FRESH_S):
            return None
        self._made.move_to_end(seq)
        return made

    def begin(self, seq: int) -> None:
        """Begin to make it, unless it is there or being made."""
        if seq in self._making or self.known(seq) is not None:
            return
        self._failed.pop(seq, None)
        self._began_s[seq] = time.monotonic()
        task = self._making[seq] = asyncio.create_task(self._make(seq))
        task.add_done_callback(lambda done: self._is_made(seq, done))

    async def made(self, seq: int) -> Made:
        """It, made now if need be. Raises CommandFailed."""
        found = self.known(seq)
        if found is not None:
            return found
        self.begin(seq)
        return await asyncio.shield(self._making[seq])

    def since_s(self, seq: int) -> float | None:
        """How long it has been in the making; None while it is not."""
        return time.monotonic() - self._began_s[seq] if seq in self._making else None

    def failure(self, seq: int) -> str:
        """Why the last attempt failed; empty if it did not."""
        return self._failed.get(seq, "")

    async def _make(self, seq: int) -> Made:
        async with self._turn:
            command = ["postmortem", str(self._log_dir), "--crash", f"#{seq}"]
            with tempfile.TemporaryDirectory(prefix="llama-router-") as folder:
                bundle = Path(folder) / "crash.zip"
                story = json.loads(await run([*command, "--json", "--bundle", str(bundle)], LIMITS))
                zipped = await asyncio.to_thread(bundle.read_bytes)
            text = await run(command, LIMITS)
        now_s = time.time()
        settled = now_s > story["incident"]["at_us"] / 1e6 + SETTLED_S
        return Made(story, text, zipped, now_s, settled)

    def _is_made(self, seq: int, done: asyncio.Task[Made]) -> None:
        self._making.pop(seq, None)
        self._began_s.pop(seq, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._made[seq] = done.result()
            self._made.move_to_end(seq)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        else:
            self._failed[seq] = str(error) if isinstance(error, CommandFailed) else f"it could not be made: {error}"
            while len(self._failed) > KEPT:
                self._failed.pop(next(iter(self._failed)))
