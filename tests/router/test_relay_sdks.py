"""The relay as the clients of OpenAI and Anthropic see it: comments are no events, errors are errors, cuts are cuts."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from eventlog.events import ReplicaLoadFailed, RequestArrived, RequestCancelled
from tests.router.relay_rig import Got, Rig, run, until

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHUNK = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"%b"}}],"created":1,"id":"chatcmpl-1",'
    b'"model":"m","object":"chat.completion.chunk"}\n\n'
)
CHAT = [CHUNK % b"one", b":\n\n", CHUNK % b" two", b"data: [DONE]\n\n"]
ANTHROPIC = [
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","type":"message","role":"assistant",'
    b'"content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":0}}}\n\n',
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"one two"}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    b'"usage":{"output_tokens":2}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]


def openai_at(rig: Rig) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{rig.port}/v1", api_key="x", max_retries=0)


def anthropic_at(rig: Rig) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{rig.port}", api_key="x", max_retries=0)


def streams(*frames: bytes, dies: bool = False) -> Any:
    async def replica(got: Got) -> None:
        await got.begin_stream()
        for frame in frames:
            await got.chunk(frame)
        if dies:
            got.die()
        else:
            await got.end_stream()

    return replica


async def openai_text(rig: Rig) -> str:
    async with openai_at(rig) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def anthropic_text(rig: Rig) -> str:
    async with anthropic_at(rig) as client:
        stream = client.messages.stream(model="m", messages=MESSAGES, max_tokens=9)
        async with stream as events:
            return "".join([text async for text in events.text_stream])


CLIENTS = [(openai_text, CHAT, openai.APIError), (anthropic_text, ANTHROPIC, anthropic.APIError)]
clients = pytest.mark.parametrize(("text_of", "frames", "error"), CLIENTS, ids=["openai", "anthropic"])


@clients
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_a_stream_is_read_with_or_without_comments_before_it(
    text_of: Any, frames: list[bytes], error: Any, waits: bool
) -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig:
            rig.upstream.handler = streams(*frames)
            rig.loads = not waits
            asking = asyncio.create_task(text_of(rig))
            await rig.logged(RequestArrived)
            if waits:
                await until(lambda: rig.relay._flights[1].reply.kept_alive)
                rig.replicas.ready(rig.held[0])
            assert await asking == "one two"

    run(story)


@clients
def test_a_replica_that_dies_mid_stream_is_an_error(text_of: Any, frames: list[bytes], error: Any) -> None:
    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = streams(*frames[:3], dies=True)
            with pytest.raises(error, match=r"broke|ended"):
                await text_of(rig)

    run(story)


@clients
def test_a_load_that_fails_after_comments_is_an_error(text_of: Any, frames: list[bytes], error: Any) -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig:
            rig.loads = False
            asking = asyncio.create_task(text_of(rig))
            await rig.logged(RequestArrived)
            await until(lambda: rig.relay._flights[1].reply.kept_alive)
            rig.loop.post(ReplicaLoadFailed(replica=rig.held[0], kind="bad_model", reason="no such tensor"))
            with pytest.raises(error, match="no such tensor"):
                await asking

    run(story)


@clients
def test_an_unknown_model_is_a_not_found_error(text_of: Any, frames: list[bytes], error: Any) -> None:
    async def story() -> None:
        async with Rig(models=("only",)) as rig:
            with pytest.raises(error, match="'m' is not configured") as caught:
                await text_of(rig)
            assert caught.value.status_code == 404

    run(story)


def test_closing_a_stream_frees_its_replica() -> None:
    async def endless(got: Got) -> None:
        await got.begin_stream()
        while not got.gone.is_set():
            await got.chunk(CHUNK % b"x")

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = endless
            async with openai_at(rig) as client:
                stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                async for _ in stream:
                    break
                await stream.close()
                await rig.logged(RequestCancelled)
            await rig.upstream.got[0].gone.wait()

    run(story)
