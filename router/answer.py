"""What is noted of one answer while it passes: when its frames came, how it ended, what llama-server says it cost.

An `Answer` taps a `Connection`. Per chunk it counts and reads the clock; nothing is parsed before the answer is
complete, and of its bytes only the first and last few KiB are kept. llama-server's pings are comments, no frames.
"""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from eventlog.events import FirstByte, Observation, PromptProgress, RequestFinished, SlotTiming, TokensStreamed
from router.upstream import is_sse

HEAD_BYTES = 2048
TAIL_BYTES = 8192
"""How much of an answer is kept to be looked at when it is complete."""
NOTE_EVERY_US = 1_000_000
"""Between two notes of token times."""
GAPS_MAX = 4096
"""Token times of one note; a faster stream is noted more often."""

_json = json.JSONDecoder()


class Answer:
    """One answer of a replica, from the dispatch on. Times are microseconds of the run's clock."""

    __slots__ = (
        "_at_line_start",
        "_gaps_us",
        "_head",
        "_note",
        "_noted_us",
        "_now_us",
        "_on_end",
        "_tail",
        "_tail_bytes",
        "bytes_in",
        "dispatched_us",
        "ended_us",
        "first_byte_us",
        "first_token_us",
        "frames",
        "is_sse",
        "last_frame_us",
        "rid",
        "status",
    )

    def __init__(
        self,
        rid: int,
        dispatched_us: int,
        now_us: Callable[[], int],
        note: Callable[[Observation], None],
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called when the answer is complete, which may be before its client has it."""
        self.rid = rid
        self.dispatched_us = dispatched_us
        self.status = 0
        self.is_sse = False
        self.bytes_in = 0
        self.frames = 0
        self.first_byte_us = -1
        self.first_token_us = -1
        self.last_frame_us = 0
        """When the last data frame came, or 0."""
        self.ended_us = -1
        self._now_us = now_us
        self._note = note
        self._on_end = on_end
        self._gaps_us: list[int] = []
        self._noted_us = dispatched_us
        self._at_line_start = True
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    # --- called by the connection ---

    def began(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.first_byte_us = self._now_us() - self.dispatched_us
        self.is_sse = is_sse(headers)
        self._note(FirstByte(rid=self.rid, status=status, after_us=self.first_byte_us))

    def feed(self, data: bytes) -> None:
        size = len(data)
        if self.is_sse:
            frames = data.count(b"\ndata:")
            if self._at_line_start and data.startswith(b"data:"):
                frames += 1
            self._at_line_start = data.endswith(b"\n")
            if frames:
                self._frames_came(frames, data)
        elif not self.bytes_in:
            self.first_token_us = self._now_us() - self.dispatched_us
        self.bytes_in += size
        self._tail.append(data)
        self._tail_bytes += size
        if self._tail_bytes > 2 * TAIL_BYTES:
            self._trim()

    def ended(self) -> None:
        self.ended_us = self._now_us()
        self._on_end()

    # --- called by the relay ---

    def flush(self) -> None:
        """Note the token times that are still held."""
        if self._gaps_us:
            self._note(TokensStreamed(rid=self.rid, gaps_us=self._gaps_us))
            self._gaps_us = []

    def finished(self, replica: str) -> RequestFinished:
        """The account of a complete answer; takes some 50 us, so it is asked for when the client has its bytes."""
        self.flush()
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        usage = _object_after(tail, "usage")
        timings = _object_after(tail, "timings")
        timing = SlotTiming(
            cache_n=_count(timings, "cache_n"),
            prompt_n=_count(timings, "prompt_n"),
            prompt_us=_micros(timings, "prompt_ms"),
            predicted_n=_count(timings, "predicted_n"),
            predicted_us=_micros(timings, "predicted_ms"),
            draft_n=_count(timings, "draft_n"),
            draft_accepted_n=_count(timings, "draft_n_accepted"),
        )
        if "input_tokens" not in usage and "prompt_tokens" not in usage:
            # Anthropic's streams tell the prompt's part at the start.
            usage = {**_object_after(self._first_bytes(), "usage"), **usage}
        prompt, cached, completion = _tokens(usage, timing)
        return RequestFinished(
            rid=self.rid,
            replica=replica,
            status=self.status,
            finish_reason=_finish_reason(tail) if self.status < 400 else "",
            bytes_out=self.bytes_in,
            first_byte_us=self.first_byte_us,
            first_token_us=self.first_token_us,
            took_us=self.ended_us - self.dispatched_us,
            frames=self.frames,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            timing=timing,
            error=_error(tail) if self.status >= 400 else "",
        )

    @property
    def completion_id(self) -> str:
        """The `id` that llama-server gave a stream, once it has begun; empty before."""
        return _text_after(self._first_bytes(), b'"id":"') if self.is_sse else ""

    def _frames_came(self, frames: int, data: bytes) -> None:
        now_us = self._now_us()
        self.frames += frames
        if self.first_token_us >= 0:
            gap_us = now_us - self.last_frame_us
        elif b'"prompt_progress":{' in data:
            self.last_frame_us = now_us
            self._note_progress(data)
            return
        else:
            gap_us = self.first_token_us = now_us - self.dispatched_us
        if data.endswith(b"data: [DONE]\n\n"):
            frames -= 1
        self.last_frame_us = now_us
        gaps_us = self._gaps_us
        if frames:
            gaps_us.append(gap_us)
            if frames > 1:
                gaps_us.extend([0] * (frames - 1))
        if now_us - self._noted_us >= NOTE_EVERY_US or len(gaps_us) >= GAPS_MAX:
            self._noted_us = now_us
            self.flush()

    def _trim(self) -> None:
        """Keep the head, once, and the last TAIL_BYTES or a little more."""
        if not self._head:
            self._head = b"".join(self._tail)[:HEAD_BYTES]
        tail = self._tail
        while self._tail_bytes - len(tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(tail.popleft())

    def _first_bytes(self) -> bytes:
        return self._head or b"".join(self._tail)[:HEAD_BYTES]

    def _note_progress(self, data: bytes) -> None:
        progress = _object_after(data, "prompt_progress")
        self._note(
            PromptProgress(
                rid=self.rid,
                total=_count(progress, "total"),
                cached=_count(progress, "cache"),
                processed=_count(progress, "processed"),
            )
        )


# --- looking into the ends of an answer -----------------------------------------------------------------------------
# A quoted key cannot come from generated text: there, its quotes are escaped.


def _object_after(data: bytes, key: str) -> dict[str, Any]:
    """The last object that is the value of `key`; empty when there is none, or it is cut off."""
    for pattern in (f'"{key}":{{', f'"{key}": {{'):
        at = data.rfind(pattern.encode())
        if at >= 0:
            try:
                value, _ = _json.raw_decode(data[at + len(pattern) - 1 :].decode("utf-8", "replace"))
            except ValueError:
                return {}
            return value if isinstance(value, dict) else {}
    return {}


def _text_after(data: bytes, start: bytes) -> str:
    """What follows the last `start`, up to the next quote."""
    at = data.rfind(start)
    if at < 0:
        return ""
    at += len(start)
    end = data.find(b'"', at, at + 256)
    return data[at:end].decode("utf-8", "replace") if end >= 0 else ""


def _finish_reason(tail: bytes) -> str:
    for key in (b"finish_reason", b"stop_reason", b"stop_type"):
        for form in (b'"%b":"', b'"%b": "'):
            found = _text_after(tail, form % key)
            if found:
                return found
    status = _text_after(tail, b'"status":"')
    return status if status in ("completed", "incomplete", "failed") else ""


def _error(tail: bytes) -> str:
    """The kind of an error and its numbers; the message may quote the prompt and is left out."""
    error = _object_after(tail, "error")
    kind = error.get("type")
    numbers = [f"{key}={error[key]}" for key in ("n_prompt_tokens", "n_ctx") if isinstance(error.get(key), int)]
    return " ".join([kind[:100] if isinstance(kind, str) else "", *numbers]).strip()


def _tokens(usage: dict[str, Any], timing: SlotTiming) -> tuple[int, int, int]:
    """Tokens of the prompt, of it cached, and of the completion; -1 where nobody says."""
    if "prompt_tokens" in usage:
        details = usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else timing.cache_n
        return _count(usage, "prompt_tokens"), cached, _count(usage, "completion_tokens")
    if "cache_read_input_tokens" in usage:
        cached = max(0, _count(usage, "cache_read_input_tokens"))
        return _count(usage, "input_tokens") + cached, cached, _count(usage, "output_tokens")
    if "input_tokens" in usage:
        details = usage.get("input_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else timing.cache_n
        return _count(usage, "input_tokens"), cached, _count(usage, "output_tokens")
    if timing.prompt_n < 0:
        return -1, timing.cache_n, timing.predicted_n
    return timing.prompt_n + max(0, timing.cache_n), timing.cache_n, timing.predicted_n


def _count(source: dict[str, Any], key: str) -> int:
    value = source.get(key)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else -1


def _micros(source: dict[str, Any], key: str) -> int:
    value = source.get(key)
    return round(value * 1000) if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
