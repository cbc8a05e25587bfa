"""The prompt cache of a pretended replica: what its slots hold, and what the host keeps when a slot takes another.

As llama-server does it: a request goes to the free slot that holds the longest part of its prompt, else to the one
unused for longest; what a slot held goes to the host's cache, whose oldest entries make room. A reload empties all.
A prompt is known by the hashes of its growing prefix, so one hash stands for everything before it.
"""

from __future__ import annotations

from collections import OrderedDict

from replay.workload import Block


class Held:
    """A prompt and its answer, as cached."""

    __slots__ = ("answer_tokens", "hashes", "prompt_tokens")

    def __init__(self, blocks: tuple[Block, ...], prompt_tokens: int, answer_tokens: int) -> None:
        self.hashes = dict(blocks)
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens

    def shared(self, blocks: tuple[Block, ...]) -> int:
        """Tokens of a prompt with this prefix that are here, the answer included if the prompt goes on after it."""
        for place in range(len(blocks) - 1, -1, -1):
            key, tokens = blocks[place]
            if key in self.hashes:
                is_whole = len(self.hashes) and self.hashes[key] >= self.prompt_tokens
                if is_whole and place + 1 < len(blocks):
                    return min(blocks[place + 1][1], self.prompt_tokens + self.answer_tokens)
                return tokens
        return 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    def copy(self) -> Held:
        """As it is now: what is saved does not grow with its slot."""
        return Held(tuple(self.hashes.items()), self.prompt_tokens, self.answer_tokens)


class PromptCache:
    """Of one replica, from its start to its stop."""

    def __init__(self, slots: int, host_tokens: int) -> None:
        self._slots: list[Held | None] = [None] * slots
        self._used = list(range(slots))
        """Slots by last use, longest ago first."""
        self._busy: dict[int, int] = {}
        """rid to slot."""
        self._host: OrderedDict[int, Held] = OrderedDict()
        self._host_tokens = host_tokens
        self._host_holds = 0
        self._entries = 0

    def take(self, rid: int, blocks: tuple[Block, ...], prompt_tokens: int) -> int:
        """Give the request a slot; returns the tokens of its prompt that need not be read. The last one always is."""
        busy = set(self._busy.values())
        free = [slot for slot in self._used if slot not in busy] or self._used[:1]
        best, slot = 0, free[0]
        for candidate in free:
            held = self._slots[candidate]
            shared = held.shared(blocks) if held is not None else 0
            if shared > best:
                best, slot = shared, candidate
        stored = 0
        for entry, held in self._host.items():
            shared = held.shared(blocks)
            if shared > best:
                best, stored = shared, entry
        held = self._slots[slot]
        if held is not None and held.shared(blocks) < held.tokens // 2:
            self._keep(held)
        if stored in self._host:
            self._host_holds -= self._host.pop(stored).tokens
        self._slots[slot] = Held(blocks, prompt_tokens, 0)
        self._busy[rid] = slot
        return max(0, min(best, prompt_tokens - 1))

    def end(self, rid: int, answer_tokens: int) -> None:
        """The request has left its slot; prompt and answer stay there."""
        slot = self._busy.pop(rid, None)
        if slot is None:
            return
        held = self._slots[slot]
        if held is not None:
            held.answer_tokens = answer_tokens
        self._used.remove(slot)
        self._used.append(slot)

    def slot_of(self, rid: int) -> int | None:
        """Where a request is, while it is there."""
        return self._busy.get(rid)

    def held_in(self, slot: int) -> Held:
        """What a slot holds."""
        return self._slots[slot] or Held((), 0, 0)

    def put(self, slot: int, held: Held) -> bool:
        """A restore; not into a slot that is at work."""
        if slot in self._busy.values():
            return False
        self._slots[slot] = held
        return True

    def _keep(self, held: Held) -> None:
        if held.tokens > self._host_tokens:
            return
        self._entries += 1
        self._host[self._entries] = held
        self._host_holds += held.tokens
        while self._host_holds > self._host_tokens:
            _, oldest = self._host.popitem(last=False)
            self._host_holds -= oldest.tokens
