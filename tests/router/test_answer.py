"""What is read out of an answer while it passes: from its two ends, whichever API it speaks."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from eventlog.events import Observation, TokensStreamed
from router.answer import HEAD_BYTES, TAIL_BYTES, Answer

SSE = [(b"content-type", b"text/event-stream")]


def told(*frames: bytes) -> Answer:
    """A stream with these events, one read each."""
    clock = iter(range(0, 10_000_000, 10))
    answer = Answer(1, 0, lambda: next(clock), lambda note: None, lambda: None)
    answer.began(200, SSE)
    for frame in frames:
        answer.feed(frame)
    answer.ended()
    return answer


def event(name: str, **fields: Any) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


def message(words: int) -> list[bytes]:
    """A stream of Anthropic's: the prompt's part of the usage at the start, the answer's at the end."""
    usage = {"cache_read_input_tokens": 30, "input_tokens": 12, "output_tokens": 0}
    start = event("message_start", message={"id": "chatcmpl-1", "type": "message", "usage": usage})
    texts = [event("content_block_delta", index=0, delta={"type": "text_delta", "text": "word "})] * words
    delta = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": words})
    return [start, *texts, delta, event("message_stop")]


@pytest.mark.parametrize("words", [1, 8, 60, 2000])
def test_a_message_s_usage_is_put_together_from_both_ends(words: int) -> None:
    """However short the answer is: where its beginning holds its end too, the first usage is still the prompt's."""
    frames = message(words)
    size = sum(map(len, frames))
    assert (size < HEAD_BYTES) == (words <= 8)
    assert (size > HEAD_BYTES + TAIL_BYTES) == (words == 2000)
    finished = told(*frames).finished("a#0.1")
    assert (finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens) == (42, 30, words)
    assert finished.finish_reason == "end_turn"


def test_frames_that_are_read_together_came_together_and_the_last_word_is_no_token() -> None:
    """The first gap is the time since the dispatch; `[DONE]` ends the stream and is a frame all the same."""
    clock = SimpleNamespace(us=0)
    notes: list[Observation] = []
    answer = Answer(1, 0, lambda: clock.us, notes.append, lambda: None)
    answer.began(200, SSE)
    for at_us, data in (
        (100, b"data: 1\n\ndata: 2\n\ndata: 3\n\n"),
        (140, b"data: 4\n\n"),
        (150, b"data: [DONE]\n\n"),
    ):
        clock.us = at_us
        answer.feed(data)
    answer.ended()
    assert answer.finished("a#0.1").frames == 5
    (streamed,) = [note for note in notes if isinstance(note, TokensStreamed)]
    assert streamed.gaps_us == [100, 0, 0, 40]


def test_a_stream_goes_by_its_own_id_not_by_that_of_a_tool_call() -> None:
    """The call comes within the first bytes, with an id of its own."""
    call = {"index": 0, "id": "call_7", "type": "function", "function": {"name": "f", "arguments": ""}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}, {"tool_calls": [call]}]
    chunks = [
        {"choices": [{"index": 0, "delta": delta}], "created": 1, "id": "chatcmpl-1", "model": "a"} for delta in deltas
    ]
    frames = [b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks]
    early = [frame.replace(b'"created":1,"id":"chatcmpl-1",', b"") for frame in frames[1:]]
    assert told(frames[0], *early).completion_id == "chatcmpl-1"
    assert told(*frames).completion_id == "chatcmpl-1"
