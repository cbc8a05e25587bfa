"""The openai package as the client: what it asks for, it gets in the shape that it expects; errors are its own.

Its retries are off, so that nothing is smoothed over.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.clients.conftest import ALIAS, EMBEDDER, SMOL
from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess
from tests.weights.rig import DEADLINE_S

QUESTION = "What is the capital of France? Answer in one sentence."
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def client_of(router: RouterProcess, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{router.base_url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def client(weights_router: RouterProcess) -> Iterator[openai.OpenAI]:
    with client_of(weights_router) as client:
        yield client


# --- on real weights ------------------------------------------------------------------------------------------------


@pytest.mark.weights
def test_models_are_listed_and_found_by_name_and_by_alias(client: openai.OpenAI) -> None:
    assert sorted(model.id for model in client.models.list()) == [EMBEDDER, SMOL]
    assert client.models.retrieve(SMOL).object == "model"
    assert client.models.retrieve(ALIAS).id == SMOL


@pytest.mark.weights
@pytest.mark.parametrize("name", [SMOL, ALIAS])
def test_a_chat_is_answered(client: openai.OpenAI, name: str) -> None:
    answer = client.chat.completions.create(model=name, messages=ASK, temperature=0, max_tokens=24)
    choice = answer.choices[0]
    assert "Paris" in str(choice.message.content)
    assert choice.finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.weights
def test_a_stream_brings_the_same_words_and_at_last_the_usage(client: openai.OpenAI) -> None:
    """`include_usage`: the last chunk has no choice but the usage; every other one has none."""
    whole = client.chat.completions.create(model=SMOL, messages=ASK, temperature=0, max_tokens=24)
    stream = client.chat.completions.create(
        model=SMOL, messages=ASK, temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert not last.choices
    assert last.usage
    assert whole.usage
    assert last.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.weights
def test_an_async_client_streams_several_answers_at_once(weights_router: RouterProcess) -> None:
    """More of them than there are slots."""

    async def one(client: openai.AsyncOpenAI, number: int) -> int:
        stream = await client.chat.completions.create(
            model=SMOL,
            messages=[{"role": "user", "content": f"Count from {number}."}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        *_, last = [chunk async for chunk in stream]
        assert last.usage
        return last.usage.completion_tokens

    async def all_of_them() -> list[int]:
        url = f"{weights_router.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
            return await asyncio.gather(*(one(client, number) for number in range(4)))

    assert asyncio.run(all_of_them()) == [8] * 4


@pytest.mark.weights
def test_the_older_and_the_newer_api_are_answered_too(client: openai.OpenAI) -> None:
    """Completions continue a text; responses answer a question, whole and as a stream of typed events."""
    completion = client.completions.create(model=SMOL, prompt="The capital of France is", temperature=0, max_tokens=4)
    assert "Paris" in completion.choices[0].text
    response = client.responses.create(model=SMOL, input=QUESTION, temperature=0, max_output_tokens=24)
    assert "Paris" in response.output_text
    events = list(client.responses.create(model=SMOL, input=QUESTION, temperature=0, max_output_tokens=24, stream=True))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == response.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage


@pytest.mark.weights
def test_embeddings_come_from_a_model_that_makes_them(client: openai.OpenAI) -> None:
    """The client asks for base64 by itself; two inputs give two vectors, the same input the same one."""
    answer = client.embeddings.create(model=EMBEDDER, input=["hello", "world", "hello"])
    first, second, third = (row.embedding for row in answer.data)
    assert len(first) == 256
    assert first == pytest.approx(third, abs=1e-6)
    assert first != pytest.approx(second, abs=1e-2)


@pytest.mark.weights
def test_a_stream_that_is_closed_gives_its_slot_back(client: openai.OpenAI, weights_router: RouterProcess) -> None:
    """The generation would have gone on for 2,000 tokens; the log says that it was cancelled and the slot let go."""
    raw = client.chat.completions.with_raw_response.create(
        model=SMOL, messages=ASK, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    rid = int(raw.headers["x-router-request"])
    with raw.parse() as stream:
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
    weights_router.wait_event("RequestCancelled", rid=rid, deadline_s=DEADLINE_S)
    weights_router.wait_event("SlotReleased", rid=rid, deadline_s=DEADLINE_S)
    assert client.chat.completions.create(model=SMOL, messages=ASK, max_tokens=1).choices


@pytest.mark.weights
def test_errors_of_the_router_and_of_llama_server_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean 'smol'") as unknown:
        client.chat.completions.create(model="smoll", messages=ASK)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as unlisted:
        client.models.retrieve("smoll")
    assert unlisted.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.chat.completions.create(model=SMOL, messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(openai.BadRequestError, match="'messages' is required"):
        client.post("/chat/completions", body={"model": SMOL}, cast_to=object)
    with pytest.raises(openai.InternalServerError, match="does not support embeddings"):
        client.embeddings.create(model=SMOL, input="hello")


# --- on stand-ins ---------------------------------------------------------------------------------------------------


def test_tool_calls_pass_through_both_ways(calling: RouterProcess) -> None:
    """The tool goes to the model, the call comes back whole; streamed, its arguments come in pieces; and the result
    goes to the model as the next turn.
    """
    ask: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is the weather in Rome?"}]
    with client_of(calling) as client:
        answer = client.chat.completions.create(model="a", messages=ask, tools=[WEATHER], tool_choice="required")
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls
        call = message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
        with client.chat.completions.stream(model="a", messages=ask, tools=[WEATHER]) as stream:
            pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0].message.tool_calls
        assert len(pieces) > 1
        assert final
        assert final[0].function.arguments == "".join(pieces) == call.function.arguments
        turn: list[Any] = [*ask, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        assert client.chat.completions.create(model="a", messages=turn, tools=[WEATHER]).choices
    assert [event["tools"] for event in calling.events("RequestArrived")] == [1, 1, 1]
    assert [event["messages"] for event in calling.events("RequestArrived")] == [1, 1, 3]


def test_a_stream_that_waits_is_kept_alive_without_the_client_noticing(tmp_path: Path) -> None:
    """The only slot is taken. While the second stream waits, comments come (in the test 20 a second, by default one
    in 15 s); the client skips them, and has every token when its turn comes.
    """
    with routed(tmp_path, [Model("a", tokens=5)], QUEUE_COMMENT_INTERVAL=0.05) as router, client_of(router) as client:
        endless = router.chat("a", stream=True, standin={"tokens": 100_000, "gap_s": 0.02})
        next(endless.chunks())
        witness = router.chat("a", stream=True)
        stream = client.chat.completions.create(model="a", messages=ASK, stream=True)
        frames = witness.frames()
        assert [next(frames) for _ in range(3)] == [": queued position=1"] * 3
        endless.close()
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert said.split() == ["w1", "w2", "w3", "w4", "w5"]
        assert list(witness.chunks())[-1]


def test_an_error_after_the_first_comment_is_raised_by_the_stream(tmp_path: Path) -> None:
    """The status was 200 by then: the load fails, and the stream says so as an event."""
    model = Model("a", load_s=0.6, fail="missing")
    with routed(tmp_path, [model], QUEUE_COMMENT_INTERVAL=0.1) as router, client_of(router) as client:
        stream = client.chat.completions.create(model="a", messages=ASK, stream=True)
        with pytest.raises(openai.APIError) as failed:
            list(stream)
        assert failed.value.code == "model_load_failed"


def test_a_replica_that_dies_in_the_middle_of_a_stream_is_an_error(tmp_path: Path) -> None:
    """Never the end of a short answer."""
    with routed(tmp_path, [Model("a", tokens=10, gap_s=0.02, die_at_chunk=4)]) as router, client_of(router) as client:
        stream = client.chat.completions.create(model="a", messages=ASK, stream=True)
        texts = (chunk.choices[0].delta.content for chunk in stream)
        assert [next(texts) for _ in range(4)] == [None, "w1 ", "w2 ", "w3 "]
        with pytest.raises(openai.APIError) as failed:
            next(texts)
        assert failed.value.code == "upstream_crashed"


def test_a_model_that_cannot_be_loaded_is_a_server_error_with_the_reason(tmp_path: Path) -> None:
    with routed(tmp_path, [Model("a", fail="missing")]) as router, client_of(router) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="a", messages=ASK)
        assert failed.value.code == "model_load_failed"


def test_a_wrong_key_is_an_authentication_error_and_a_models_limits_are_a_permission_error(tmp_path: Path) -> None:
    """The right key is served what it may use; the router keeps the keys, llama-server never sees them."""
    keys = {"alice": "open sesame", "bob": {"key": "let me in", "models": ["b"]}}
    with routed(tmp_path, [Model("a"), Model("b", gpus=[1])], top={"keys": keys}) as router:
        with client_of(router, "wrong") as client, pytest.raises(openai.AuthenticationError) as wrong:
            client.chat.completions.create(model="a", messages=ASK)
        assert wrong.value.code == "unauthorized"
        with client_of(router, "let me in") as client:
            assert client.chat.completions.create(model="b", messages=ASK).choices
            with pytest.raises(openai.PermissionDeniedError, match="'bob' may not use model 'a'"):
                client.chat.completions.create(model="a", messages=ASK)
        with client_of(router, "open sesame") as client:
            assert client.chat.completions.create(model="a", messages=ASK).choices
