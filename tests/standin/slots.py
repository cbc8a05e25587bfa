"""The slots of the stand-in: so many generations at once, the others deferred in the order of their arrival."""

import threading
import time
from collections.abc import Callable
from typing import Any


class Work:
    """What a slot is at, as /slots tells it: the prompt is read evenly over its time, then tokens are made."""

    def __init__(self, task: int, prompt_n: int, cache_n: int, prompt_s: float) -> None:
        self.task = task
        self.prompt_n = prompt_n
        self.cache_n = cache_n
        self.prompt_s = prompt_s
        self.begun = time.monotonic()
        self.decoded = 0

    def told(self) -> dict[str, Any]:
        share = 1.0 if not self.prompt_s else min(1.0, (time.monotonic() - self.begun) / self.prompt_s)
        return {
            "id_task": self.task,
            "n_prompt_tokens": self.prompt_n + self.decoded,
            "n_prompt_tokens_processed": int(share * (self.prompt_n - self.cache_n)),
            "n_prompt_tokens_cache": self.cache_n,
            "next_token": [{"has_next_token": True, "n_decoded": self.decoded}],
        }


class Slots:
    def __init__(self, count: int) -> None:
        self.taken = [False] * count
        self.prompts = [""] * count
        self.work: list[Work | None] = [None] * count
        self.waiting: list[object] = []
        self.changed = threading.Condition()

    def take(self, weight: int, gone: Callable[[], bool]) -> list[int]:
        """Waits for `weight` free slots (at most all) in order of arrival; nothing if the client left meanwhile."""
        weight = min(weight, len(self.taken))
        ticket = object()
        with self.changed:
            self.waiting.append(ticket)
            try:
                while self.waiting[0] is not ticket or self.taken.count(False) < weight:
                    self.changed.wait(0.02)
                    if gone():
                        return []
                found = [slot for slot, taken in enumerate(self.taken) if not taken][:weight]
                for slot in found:
                    self.taken[slot] = True
                return found
            finally:
                self.waiting.remove(ticket)
                self.changed.notify_all()

    def free(self, slots: list[int]) -> None:
        with self.changed:
            for slot in slots:
                self.taken[slot] = False
                self.work[slot] = None
            self.changed.notify_all()

    def cached_chars(self, slot: int, prompt: str) -> int:
        """How much of the prompt the slot held already; it holds the prompt now."""
        held, self.prompts[slot] = self.prompts[slot], prompt
        differing = (at for at, (old, new) in enumerate(zip(held, prompt, strict=False)) if old != new)
        return next(differing, min(len(held), len(prompt)))
