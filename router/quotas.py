"""How much a key is used per minute, and the one 429 of this router: beyond the `rpm` or `tpm` that its owner set.

A window of 60 s slides: what happened more than that ago counts no more. A request counts when it comes; its tokens,
prompt and answer, when they are known, which is at its end. So a single answer may go beyond `tpm`, and what follows
waits for it. Counts are this process's: a restart forgets them, and nothing of this is in the event log, since a
refused request has never arrived.
"""

from collections import deque
from collections.abc import Callable

from router import errors
from router.callers import Caller

WINDOW_US = 60_000_000


class Quotas:
    """Of all keys. `now_us` is a clock that never steps."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._requests: dict[str, _Window] = {}
        self._tokens: dict[str, _Window] = {}

    def admit(self, caller: Caller) -> None:
        """Count one request. Raises 429 instead when its key has used up its minute."""
        if not caller.rpm and not caller.tpm:
            return
        now_us = self._now_us()
        if caller.tpm:
            _check(self._tokens.get(caller.key), caller, caller.tpm, "tokens", now_us)
        if caller.rpm:
            window = self._requests.setdefault(caller.key, _Window())
            _check(window, caller, caller.rpm, "requests", now_us)
            window.add(1, now_us)

    def spend(self, caller: Caller, tokens: int) -> None:
        """Count tokens that were read or made for this key."""
        if caller.tpm and tokens > 0:
            self._tokens.setdefault(caller.key, _Window()).add(tokens, self._now_us())


class _Window:
    """What happened within the last minute."""

    def __init__(self) -> None:
        self.total = 0
        self._entries: deque[tuple[int, int]] = deque()

    def add(self, amount: int, now_us: int) -> None:
        self.total += amount
        self._entries.append((now_us, amount))

    def until_below_us(self, limit: int, now_us: int) -> int:
        """How long until less than `limit` is left in the window; 0 when it is so now."""
        while self._entries and self._entries[0][0] <= now_us - WINDOW_US:
            self.total -= self._entries.popleft()[1]
        left = self.total
        for at_us, amount in self._entries:
            if left < limit:
                break
            left -= amount
            if left < limit:
                return at_us + WINDOW_US - now_us
        return 0


def _check(window: _Window | None, caller: Caller, limit: int, what: str, now_us: int) -> None:
    wait_us = window.until_below_us(limit, now_us) if window is not None else 0
    if wait_us > 0:
        wait_s = -(-wait_us // 1_000_000)
        message = f"key {caller.key!r} may use {limit} {what} per minute"
        refusal = errors.error("rate_limit_exceeded", message, retry_after_s=wait_s)
        told = {"limit": str(limit), "remaining": "0", "reset": f"{wait_s}s"}
        refusal.fields = [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in told.items()]
        raise refusal
