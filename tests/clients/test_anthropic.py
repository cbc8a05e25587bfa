"""The anthropic package as the client of /v1/messages. Its retries are off, so that nothing is smoothed over."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.clients.conftest import ALIAS, EMBEDDER, SMOL
from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess
from tests.weights.rig import DEADLINE_S

ASK: list[MessageParam] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
COLD: dict[str, Any] = {"temperature": 0}
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client_of(router: RouterProcess, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=router.base_url, api_key=key, max_retries=0, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def client(weights_router: RouterProcess) -> Iterator[anthropic.Anthropic]:
    with client_of(weights_router) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


# --- on real weights ------------------------------------------------------------------------------------------------


@pytest.mark.weights
@pytest.mark.parametrize("name", [SMOL, ALIAS])
def test_a_message_is_answered(client: anthropic.Anthropic, name: str) -> None:
    message = client.messages.create(
        model=name, max_tokens=24, messages=ASK, system="You are a helpful assistant.", extra_body=COLD
    )
    assert "Paris" in text_of(message)
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0


@pytest.mark.weights
def test_a_stream_brings_the_same_words_and_its_usage(
    client: anthropic.Anthropic, weights_router: RouterProcess
) -> None:
    """What the client counts, and what the log counts from the stream's first and last events, is the same."""
    whole = client.messages.create(model=SMOL, max_tokens=24, messages=ASK, extra_body=COLD)
    with client.messages.stream(model=SMOL, max_tokens=24, messages=ASK, extra_body=COLD) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
        rid = int(stream.response.headers["x-router-request"])
    assert said == text_of(whole) == text_of(final)
    usage = final.usage
    assert usage.output_tokens == whole.usage.output_tokens
    finished = weights_router.wait_event("RequestFinished", rid=rid)
    assert finished["completion_tokens"] == usage.output_tokens
    assert finished["cached_tokens"] == usage.cache_read_input_tokens
    assert finished["prompt_tokens"] == (usage.cache_read_input_tokens or 0) + usage.input_tokens


@pytest.mark.weights
def test_an_async_client_streams_several_answers_at_once(weights_router: RouterProcess) -> None:
    async def one(client: anthropic.AsyncAnthropic) -> str:
        async with client.messages.stream(model=SMOL, max_tokens=24, messages=ASK, extra_body=COLD) as stream:
            return await stream.get_final_text()

    async def all_of_them() -> list[str]:
        url = weights_router.base_url
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
            return await asyncio.gather(*(one(client) for _ in range(3)))

    assert all("Paris" in said for said in asyncio.run(all_of_them()))


@pytest.mark.weights
def test_tokens_are_counted_without_generating_any(client: anthropic.Anthropic) -> None:
    """The count is what the message then costs."""
    count = client.messages.count_tokens(model=SMOL, messages=ASK)
    usage = client.messages.create(model=SMOL, max_tokens=1, messages=ASK).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.weights
def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert sorted(model.id for model in client.models.list()) == [EMBEDDER, SMOL]
    assert client.models.retrieve(SMOL).id == SMOL


@pytest.mark.weights
def test_an_unknown_model_is_a_not_found_error_in_anthropics_words(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="did you mean 'smol'") as unknown:
        client.messages.create(model="smoll", max_tokens=1, messages=ASK)
    body: Any = unknown.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["error"]["code"] == "model_not_found"
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        client.messages.create(model=SMOL, max_tokens=1, messages=[{"role": "user", "content": "word " * 5000}])


@pytest.mark.weights
def test_a_stream_that_is_closed_gives_its_slot_back(
    client: anthropic.Anthropic, weights_router: RouterProcess
) -> None:
    with client.messages.stream(model=SMOL, max_tokens=2000, messages=ASK, extra_body={"ignore_eos": True}) as stream:
        rid = int(stream.response.headers["x-router-request"])
        next(iter(stream.text_stream))
    weights_router.wait_event("RequestCancelled", rid=rid, deadline_s=DEADLINE_S)
    weights_router.wait_event("SlotReleased", rid=rid, deadline_s=DEADLINE_S)


# --- on stand-ins ---------------------------------------------------------------------------------------------------


def test_tool_calls_pass_through(calling: RouterProcess) -> None:
    """Whole, and in pieces of JSON while it streams; the result goes to the model as the next turn."""
    with client_of(calling) as client:
        ask: dict[str, Any] = {"model": "a", "max_tokens": 100, "tools": [WEATHER]}
        message = client.messages.create(messages=ASK, **ask)
        (call,) = message.content
        assert message.stop_reason == "tool_use"
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("get_weather", {"city": "Rome"})
        with client.messages.stream(messages=ASK, **ask) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            (streamed,) = stream.get_final_message().content
        assert len(pieces) > 1
        assert streamed.type == "tool_use"
        assert streamed.input == call.input
        turn: list[Any] = [
            *ASK,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
        ]
        assert client.messages.create(messages=turn, **ask).content


def test_a_stream_that_waits_is_kept_alive_without_the_client_noticing(tmp_path: Path) -> None:
    """The only slot is taken; comments come in place of tokens, and the client skips them."""
    with routed(tmp_path, [Model("a", tokens=3)], QUEUE_COMMENT_INTERVAL=0.05) as router, client_of(router) as client:
        endless = router.chat("a", stream=True, standin={"tokens": 100_000, "gap_s": 0.02})
        next(endless.chunks())
        with client.messages.stream(model="a", max_tokens=100, messages=ASK) as stream:
            assert stream.response.headers["content-type"].startswith("text/event-stream")
            endless.close()
            assert "".join(stream.text_stream).split() == ["w1", "w2", "w3"]


def test_a_replica_that_dies_in_the_middle_of_a_stream_is_an_error(tmp_path: Path) -> None:
    """Never the end of a short message."""
    with routed(tmp_path, [Model("a", tokens=10, gap_s=0.02, die_at_chunk=4)]) as router, client_of(router) as client:
        with client.messages.stream(model="a", max_tokens=100, messages=ASK) as stream:
            texts = stream.text_stream
            assert [next(texts) for _ in range(3)] == ["w1 ", "w2 ", "w3 "]
            with pytest.raises(anthropic.APIStatusError) as failed:
                next(texts)
        body: Any = failed.value.body
        assert body["error"]["code"] == "upstream_crashed"


def test_a_model_that_cannot_be_loaded_is_a_server_error_with_the_reason(tmp_path: Path) -> None:
    with routed(tmp_path, [Model("a", fail="missing")]) as router, client_of(router) as client:
        with pytest.raises(anthropic.InternalServerError) as failed:
            client.messages.create(model="a", max_tokens=100, messages=ASK)
        body: Any = failed.value.body
        assert (body["error"]["type"], body["error"]["code"]) == ("api_error", "model_load_failed")


def test_the_clients_key_is_taken_from_its_own_header(tmp_path: Path) -> None:
    """X-Api-Key, where OpenAI's clients send a bearer token."""
    with routed(tmp_path, [Model("a")], top={"keys": {"alice": "open sesame"}}) as router:
        with client_of(router, "open sesame") as client:
            assert client.messages.create(model="a", max_tokens=100, messages=ASK).content
        with client_of(router, "wrong") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model="a", max_tokens=100, messages=ASK)
