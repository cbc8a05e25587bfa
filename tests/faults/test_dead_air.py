"""A client that waits for a queue or a load hears something, and what it hears does not break it."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai

from tests.faults.checks import routed
from tests.standin.client import is_chunk, is_comment
from tests.standin.fixtures import ROUTES, Model


def test_streams_that_wait_for_a_load_have_signs_of_life(tmp_path: Path) -> None:
    """On every route comments at the interval until the first token; they are comments and nothing else."""
    with routed(tmp_path, [Model("a", load_s=1.8, slots=7)], QUEUE_COMMENT_INTERVAL=0.3) as router:

        def listen(path: str) -> tuple[list[str], float]:
            seen, last, longest = [], time.monotonic(), 0.0
            for frame in router.post(path, "a", stream=True).frames():
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                seen.append(frame)
            return seen, longest

        with ThreadPoolExecutor(len(ROUTES)) as pool:
            heard = dict(zip(ROUTES, pool.map(listen, ROUTES), strict=True))
    for path, (seen, longest) in heard.items():
        comments = sum(map(is_comment, seen))
        assert comments >= 3, path
        assert longest < 1.5, path
        assert sum(map(is_chunk, seen)) == 8, path
        assert all(map(is_comment, seen[:comments])), path
        assert not any(line.startswith("id:") for frame in seen for line in frame.split("\n")), path


def test_a_request_that_does_not_stream_gets_its_answer_and_nothing_before_it(tmp_path: Path) -> None:
    """Comments would not be JSON."""
    with routed(tmp_path, [Model("a", load_s=1.0)], QUEUE_COMMENT_INTERVAL=0.2) as router:
        assert router.chat("a").json()["choices"][0]["message"]["content"].startswith("w1")


def test_official_clients_read_a_stream_that_had_to_wait(tmp_path: Path) -> None:
    """openai-python and anthropic-python, through comments in the queue and pings of the server."""
    with routed(
        tmp_path, [Model("a", load_s=1.0, ping_s=0.05, gap_s=0.12, tokens=4)], QUEUE_COMMENT_INTERVAL=0.2
    ) as router:
        with openai.OpenAI(base_url=f"{router.base_url}/v1", api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="a", messages=[{"role": "user", "content": "hello"}], stream=True
            )
            text = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
        assert text == "w1 w2 w3 w4 "
        asked: Any = {"model": "a", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
        with (
            anthropic.Anthropic(base_url=router.base_url, api_key="any", max_retries=0) as claude,
            claude.messages.stream(**asked) as messages,
        ):
            assert "".join(messages.text_stream) == "w1 w2 w3 w4 "


def test_a_load_that_fails_after_comments_ends_in_an_error_event(tmp_path: Path) -> None:
    """The status was sent with the first comment; the error comes as the last event, in the dialect of the API."""
    with routed(tmp_path, [Model("a", load_s=0.8, fail="magic")], QUEUE_COMMENT_INTERVAL=0.2) as router:
        for path, call in [(path, router.post(path, "a", stream=True)) for path in ROUTES]:
            assert call.status == 200, path
            seen, _ = call.frames_to_the_end()
            assert is_comment(seen[0]), path
            assert "model_load_failed" in seen[-1], path
            assert seen[-1].startswith("event: error") == ("messages" in path or "responses" in path), path
            assert "[DONE]" not in "".join(seen), path
