"""Resumable streams: a generation with X-Conversation-Id goes on without its client and can be read again."""

import threading
import time
from typing import Any


class Stream:
    """The bytes of one detached generation, kept after its end."""

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.started_at = int(time.time())
        self.completed_at = 0
        self.data = bytearray()
        self.done = False
        self.cancelled = False
        self.changed = threading.Condition()

    def append(self, data: bytes) -> None:
        with self.changed:
            self.data += data
            self.changed.notify_all()

    def finish(self) -> None:
        with self.changed:
            self.done = True
            self.completed_at = int(time.time())
            self.changed.notify_all()

    def cancel(self) -> None:
        with self.changed:
            self.cancelled = True
            self.changed.notify_all()

    def read(self, offset: int, wait_s: float) -> tuple[bytes, bool]:
        """What is there from `offset` on, waiting a little for more, and whether that is the end."""
        with self.changed:
            if len(self.data) <= offset and not self.done:
                self.changed.wait(wait_s)
            return bytes(self.data[offset:]), self.done

    def status(self) -> dict[str, Any]:
        return {
            "conversation_id": self.conversation,
            "is_done": self.done,
            "total_bytes": len(self.data),
            "started_at": self.started_at,
            "completed_at": self.completed_at,
        }
