"""Which conversation went where: bounded memories, rebuilt by traffic after a restart.

`Turns` knows the last finished turn of a conversation, so that an arrival can say which turn it follows. `Streams`
knows the request and replica behind an `X-Conversation-Id`, so that a client that was away finds its stream again.
"""

from collections import OrderedDict
from dataclasses import dataclass

TURNS_MAX = 10_000
STREAMS_MAX = 10_000
KEEP_US = 15 * 60 * 1_000_000
"""How long an ended stream is remembered; llama-server itself keeps its bytes for a few minutes."""


class Turns:
    """Conversation fingerprint to the request that was its last finished turn."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()

    def last_of(self, conversation: str) -> int:
        """0 when there is none."""
        return self._last.get(conversation, 0)

    def finished(self, conversation: str, rid: int) -> None:
        self._last[conversation] = rid
        self._last.move_to_end(conversation)
        if len(self._last) > TURNS_MAX:
            self._last.popitem(last=False)


@dataclass(slots=True)
class Stream:
    """`replica` is empty while the request waits; `ended_us` 0 while it is open."""

    rid: int
    key: str = ""
    """Name of the API key that it was asked with."""
    replica: str = ""
    ended_us: int = 0


class Streams:
    """X-Conversation-Id, as the client sent it, to its stream."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Stream] = OrderedDict()

    def opened(self, conversation_id: str, rid: int, key: str = "") -> None:
        """A request with this id came; an older one of the same id is forgotten."""
        self._by_id[conversation_id] = Stream(rid, key)
        self._by_id.move_to_end(conversation_id)
        if len(self._by_id) > STREAMS_MAX:
            self._by_id.popitem(last=False)

    def dispatched(self, conversation_id: str, rid: int, replica: str) -> None:
        stream = self._by_id.get(conversation_id)
        if stream is not None and stream.rid == rid:
            stream.replica = replica

    def ended(self, conversation_id: str, rid: int, now_us: int) -> None:
        """Its request is over; what never reached a replica leaves nothing to come back to."""
        stream = self._by_id.get(conversation_id)
        if stream is None or stream.rid != rid:
            return
        stream.ended_us = now_us
        if not stream.replica:
            del self._by_id[conversation_id]
        while self._by_id:
            oldest_id, oldest = next(iter(self._by_id.items()))
            if not oldest.ended_us or now_us - oldest.ended_us < KEEP_US:
                return
            del self._by_id[oldest_id]

    def find(self, conversation_id: str, now_us: int) -> Stream | None:
        stream = self._by_id.get(conversation_id)
        if stream is not None and stream.ended_us and now_us - stream.ended_us >= KEEP_US:
            del self._by_id[conversation_id]
            return None
        return stream
