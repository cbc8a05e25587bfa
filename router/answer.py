"""What is noted of one answer while it passes: when its frames came, how it ended, what llama-server says it cost.

An `Answer` taps a `Connection`. Per chunk it counts and reads the clock; nothing is parsed before the answer is
complete, and of its bytes only the first and last few KiB are kept. llama-server's pings are comments, no frames.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from eventlog.events import FirstByte, Observation, PromptProgress, RequestFinished, SlotTiming, TokensStreamed
from router.upstream import is_sse

HEAD_BYTES = 2048
TAIL_BYTES = 8192
"""How much of an answer is kept to be looked at when it is complete."""
NOTE_EVERY_US = 1_000_000
"""Between two notes of token times."""
GAPS_MAX = 4096
"""Token times of one note; a faster stream is noted more often."""

_NEVER_LAST = re.compile(
    rb'"object": ?"(chat\.completion\.chunk|text_completion)"|"stop": ?false'
    rb'|"type": ?"(message_start|content_block_\w+|message_delta|transcript\.text\.delta)"'
    rb'|"type": ?"response\.(?!completed|incomplete|failed)'
)
"""Marks of events that are never the last: OpenAI's, llama-server's own, Anthropic's, those of responses."""


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
        if self.is_sse:  # of any other answer the end says as much, at about the same time
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
        if len(self._head) < HEAD_BYTES and self.is_sse:
            self._head += data[: HEAD_BYTES - len(self._head)]
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
        """The account of a complete answer, whose figures are looked for now: when the client has its last byte."""
        self.flush()
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        timings = _after(tail, b"timings", _timings) or _Timings()
        usage = _after(tail, b"usage", _usage) or _Usage()
        if (
            usage.prompt_tokens < 0
            and usage.input_tokens < 0
            and (begun := _after(self._head, b"usage", _usage, first=True))
        ):
            # Anthropic's streams tell the prompt's part at the start.
            usage.input_tokens, usage.cache_read_input_tokens = begun.input_tokens, begun.cache_read_input_tokens
        prompt, cached, completion = _tokens(usage, timings)
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
            timing=_slot_timing(timings),
            error=_error(tail) if self.status >= 400 else "",
        )

    @property
    def is_cut(self) -> bool:
        """Whether a complete stream lacks its last event: a server that is told to stop may end its streams so."""
        if not self.is_sse or self.status >= 400:
            return False
        tail = b"\n" + b"".join(self._tail)
        last = tail.rfind(b"\ndata:")
        return last >= 0 and _NEVER_LAST.search(tail, last) is not None

    @property
    def completion_id(self) -> str:
        """The `id` that llama-server gave a stream, once it has begun; empty before."""
        # The first: the calls of tools that may follow have ids of their own.
        return _text_after(self._head, b'"id":"', first=True) if self.is_sse else ""

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

    def _note_progress(self, data: bytes) -> None:
        progress = _after(data, b"prompt_progress", _progress)
        if progress is not None:
            self._note(
                PromptProgress(rid=self.rid, total=progress.total, cached=progress.cache, processed=progress.processed)
            )

    def _trim(self) -> None:
        """Keep the last TAIL_BYTES, or a little more."""
        tail = self._tail
        while self._tail_bytes - len(tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(tail.popleft())


# --- looking into the ends of an answer -----------------------------------------------------------------------------
# A quoted key cannot come from generated text: there, its quotes are escaped.


Measure = Annotated[float, msgspec.Meta(ge=-1, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=10**12)]
"""What a child measures or counts. Beyond that it is nonsense, and no number that a log could hold."""


class _Timings(msgspec.Struct):
    cache_n: Measure = -1
    prompt_n: Measure = -1
    prompt_ms: Measure = -0.001
    predicted_n: Measure = -1
    predicted_ms: Measure = -0.001
    draft_n: Measure = -1
    draft_n_accepted: Measure = -1


class _Details(msgspec.Struct):
    cached_tokens: Count = -1


class _Usage(msgspec.Struct):
    """OpenAI's two dialects and Anthropic's together."""

    prompt_tokens: Count = -1
    completion_tokens: Count = -1
    prompt_tokens_details: _Details | None = None
    input_tokens: Count = -1
    output_tokens: Count = -1
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: Count = -1


class _Progress(msgspec.Struct):
    total: Count = -1
    cache: Count = -1
    processed: Count = -1


class _Error(msgspec.Struct):
    type: str = ""
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


_T = TypeVar("_T")
_timings = msgspec.json.Decoder(_Timings)
_usage = msgspec.json.Decoder(_Usage)
_progress = msgspec.json.Decoder(_Progress)
_failure = msgspec.json.Decoder(_Error)


def _after(data: bytes, key: bytes, decoder: msgspec.json.Decoder[_T], *, first: bool = False) -> _T | None:
    """The last (or first) object that is the value of `key`; None when there is none, it is cut off, or of other types.

    The first is asked for where the beginning of a short answer may hold its end too.
    """
    for form in (b'"%b":{', b'"%b": {'):
        pattern = form % key
        at = data.find(pattern) if first else data.rfind(pattern)
        if at < 0:
            continue
        start = at + len(pattern) - 1
        end = data.find(b"}", start) + 1
        while end and data.count(b"{", start, end) > data.count(b"}", start, end):
            end = data.find(b"}", end) + 1
        try:
            return decoder.decode(data[start:end])
        except (msgspec.DecodeError, RecursionError):
            return None
    return None


def _text_after(data: bytes, start: bytes, *, first: bool = False) -> str:
    """What follows the last (or first) `start`, up to the next quote."""
    at = data.find(start) if first else data.rfind(start)
    if at < 0:
        return ""
    at += len(start)
    end = data.find(b'"', at, at + 256)
    return data[at:end].decode("utf-8", "replace") if end >= 0 else ""


def _finish_reason(tail: bytes) -> str:
    for start in _FINISH_REASONS:
        found = _text_after(tail, start)
        if found:
            return found
    status = _text_after(tail, b'"status":"')
    return status if status in ("completed", "incomplete", "failed") else ""


_FINISH_REASONS = tuple(
    form % key for key in (b"finish_reason", b"stop_reason", b"stop_type") for form in (b'"%b":"', b'"%b": "')
)


def _error(tail: bytes) -> str:
    """The kind of an error and its numbers; the message may quote the prompt and is left out."""
    error = _after(tail, b"error", _failure)
    if error is None:
        return ""
    numbers = [("n_prompt_tokens", error.n_prompt_tokens), ("n_ctx", error.n_ctx)]
    told = [f"{name}={number}" for name, number in numbers if number is not None]
    return " ".join([error.type[:100], *told]).strip()


def _tokens(usage: _Usage, timings: _Timings) -> tuple[int, int, int]:
    """Tokens of the prompt, of it cached, and of the completion; -1 where nobody says."""
    cached = int(timings.cache_n)
    if usage.prompt_tokens >= 0:
        if usage.prompt_tokens_details is not None:
            cached = usage.prompt_tokens_details.cached_tokens
        return usage.prompt_tokens, cached, usage.completion_tokens
    if usage.input_tokens >= 0:
        if usage.cache_read_input_tokens >= 0:
            cached = usage.cache_read_input_tokens
            return usage.input_tokens + cached, cached, usage.output_tokens
        if usage.input_tokens_details is not None:
            cached = usage.input_tokens_details.cached_tokens
        return usage.input_tokens, cached, usage.output_tokens
    prompt = int(timings.prompt_n)
    return (prompt + max(0, cached) if prompt >= 0 else -1), cached, int(timings.predicted_n)


def _slot_timing(timings: _Timings) -> SlotTiming:
    return SlotTiming(
        cache_n=int(timings.cache_n),
        prompt_n=int(timings.prompt_n),
        prompt_us=round(timings.prompt_ms * 1000),
        predicted_n=int(timings.predicted_n),
        predicted_us=round(timings.predicted_ms * 1000),
        draft_n=int(timings.draft_n),
        draft_accepted_n=int(timings.draft_n_accepted),
    )
