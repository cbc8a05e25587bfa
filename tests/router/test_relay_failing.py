"""Replicas that break off, loads that fail, and waits that are long: what a client is told, and what it never is."""

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest

from eventlog.events import (
    ReplicaLoadFailed,
    RequestArrived,
    RequestDispatched,
    RequestFailed,
    RequestFinished,
    RequestRequeued,
    UpstreamLost,
)
from router.upstream import Endpoint
from tests.router.relay_rig import Got, Rig, run, until

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
DIALECTS = {
    "/v1/chat/completions": "openai",
    "/v1/completions": "openai",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
}
dialects = pytest.mark.parametrize("path", DIALECTS)


def frame_of(body: bytes) -> tuple[str, dict[str, Any]]:
    """Name and data of the last event of a stream."""
    fields = dict(line.split(b": ", 1) for line in body.strip(b"\n").split(b"\n\n")[-1].split(b"\n"))
    return fields.get(b"event", b"").decode(), json.loads(fields[b"data"])


def assert_error_frame(body: bytes, path: str, code: str) -> None:
    name, data = frame_of(body)
    dialect = DIALECTS[path]
    if dialect == "openai":
        assert (name, data["error"]["code"]) == ("", code)
    elif dialect == "anthropic":
        assert (name, data["type"], data["error"]["code"]) == ("error", "error", code)
    else:
        assert (name, data["type"], data["code"]) == ("error", "error", code)
    assert b"[DONE]" not in body


# --- a replica that breaks off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_before_the_first_byte_the_request_is_sent_again_unnoticed(body: dict[str, Any]) -> None:
    async def replica(got: Got) -> None:
        if len(rig_of[0].upstream.got) == 1:
            got.die()
        else:
            await got.reply(body=b'{"second":"try"}')

    rig_of: list[Rig] = []

    async def story() -> None:
        async with Rig() as rig:
            rig_of.append(rig)
            rig.upstream.handler = replica
            answer = await rig.ask(body)
            assert (answer.status, answer.body) == (200, b'{"second":"try"}')
            lost = rig.events(UpstreamLost)[0]
            assert (lost.begun, lost.bytes_out) == (False, 0)
            assert rig.replicas.suspected == [lost.replica]
            assert rig.events(RequestRequeued)[0].attempt == 2
            first, second = rig.upstream.got
            assert first.body == second.body
            await rig.logged(RequestFinished)

    run(story)


def test_headers_alone_are_no_answer_yet() -> None:
    """A replica that dies between its headers and its first token has told the client nothing."""

    async def replica(got: Got) -> None:
        await got.begin_stream()
        if len(rig_of[0].upstream.got) == 1:
            got.die()
        else:
            await got.chunk(b"data: 1\n\n")
            await got.end_stream()

    rig_of: list[Rig] = []

    async def story() -> None:
        async with Rig() as rig:
            rig_of.append(rig)
            rig.upstream.handler = replica
            assert (await rig.ask(STREAM)).body == b"data: 1\n\n"

    run(story)


@dialects
def test_a_stream_that_had_begun_ends_with_an_error_frame_and_no_end(path: str) -> None:
    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(b'data: {"n":1}\n\n')
        got.die()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask({**STREAM, "prompt": "x", "input": "x"}, path)
            assert answer.status == 200
            assert not answer.complete
            assert answer.body.startswith(b'data: {"n":1}\n\n')
            assert_error_frame(answer.body, path, "upstream_crashed")
            lost = rig.events(UpstreamLost)[0]
            assert (lost.begun, lost.bytes_out) == (True, 15)
            assert rig.events(RequestFailed)[0].begun
            assert len(rig.upstream.got) == 1

    run(story)


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (b'data: {"n":1}\n\ndata: {"half', b'data: {"n":1}\n\n'),
        (b'data: {"n":1}\n\nevent: x\nda', b'data: {"n":1}\n\nevent: x\n\n'),
        (b'data: {"n":1}\n', b'data: {"n":1}\n\n'),
    ],
)
def test_half_a_line_is_not_passed_on_when_the_rest_never_comes(sent: bytes, arrives: bytes) -> None:
    """A client that parses it would fail on it, and miss the error behind it."""

    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(sent)
        got.die()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert answer.body.startswith(arrives + b'data: {"error":')

    run(story)


def test_a_whole_answer_that_had_begun_just_stops() -> None:
    async def replica(got: Got) -> None:
        await got.reply(body=b'{"half":', length=1000)
        got.die()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.complete) == (200, False)

    run(story)


@dialects
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_the_second_loss_is_a_502_in_the_dialect_of_the_api(path: str, body: dict[str, Any]) -> None:
    async def replica(got: Got) -> None:
        got.die()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask({**body, "prompt": "x", "input": "x"}, path)
            assert (answer.status, answer.complete) == (502, True)
            assert answer.json()["error"]["code"] == "upstream_crashed"
            assert (answer.json().get("type") == "error") == (path == "/v1/messages")
            assert len(rig.upstream.got) == 2

    run(story)


def test_a_connection_that_was_too_old_is_no_loss() -> None:
    """llama-server ends idle connections; a request that meets that end goes over a new one, and nobody is told."""
    requests = 0

    async def child(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        for number in range(2):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            requests += 1
            if number == 1:  # the second request on a connection is met by its end
                break
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def story() -> None:
        async with Rig() as rig:
            await rig.ask(CHAT)
            replica = rig.events(RequestDispatched)[0].replica
            server = await asyncio.start_unix_server(child, rig.directory / "own.sock")
            rig.replicas.endpoints[replica] = Endpoint(path=str(rig.directory / "own.sock"))
            for number in range(3):
                answer = await rig.ask(CHAT)
                assert (answer.status, answer.body) == (200, b"ok")
                await rig.logged(RequestFinished, number + 2)
            assert requests == 5, "two of the three were sent twice"
            assert rig.events(UpstreamLost) == []
            server.close()

    run(story)


def test_an_answer_that_breaks_off_on_a_connection_in_use_again_is_not_asked_for_twice() -> None:
    """It had begun, so the connection was not too old: what the client has would be followed by another answer."""
    requests = 0

    async def child(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        for answer in (b"Content-Length: 2\r\n\r\nok", b"Content-Length: 100\r\n\r\nhalf"):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            requests += 1
            writer.write(b"HTTP/1.1 200 OK\r\n" + answer)
        writer.close()

    async def story() -> None:
        async with Rig() as rig:
            await rig.ask(CHAT)
            replica = rig.events(RequestDispatched)[0].replica
            with closing(await asyncio.start_unix_server(child, rig.directory / "own.sock")):
                rig.replicas.endpoints[replica] = Endpoint(path=str(rig.directory / "own.sock"))
                assert (await rig.ask(CHAT)).body == b"ok"
                await rig.logged(RequestFinished, 2)
                answer = await rig.ask(CHAT)
                assert (answer.status, answer.complete) == (200, False)
                assert rig.events(UpstreamLost)[0].begun
                assert requests == 2

    run(story)


def test_a_replica_that_is_gone_when_the_dispatch_comes_is_a_loss_like_another() -> None:
    async def story() -> None:
        async with Rig() as rig:
            await rig.ask(CHAT)
            replica = rig.events(RequestDispatched)[0].replica
            endpoint = rig.replicas.endpoints.pop(replica)
            asking = asyncio.create_task(rig.ask(CHAT))
            lost = await rig.logged(UpstreamLost)
            assert lost.detail == "the replica is gone"
            rig.replicas.endpoints[replica] = endpoint
            rig.replicas.suspect(replica)
            assert (await asking).status == 200

    run(story)


def test_a_failed_load_fails_what_waits_for_it_with_the_reason() -> None:
    async def story() -> None:
        async with Rig() as rig:
            rig.loads = False
            asking = asyncio.create_task(rig.ask(CHAT))
            await rig.logged(RequestArrived)
            await until(lambda: rig.held)
            failure = ReplicaLoadFailed(replica=rig.held[0], kind="missing_file", reason="no such file: x.gguf")
            rig.loop.post(failure)
            answer = await asking
            assert (answer.status, answer.json()["error"]["code"]) == (502, "model_load_failed")
            assert "x.gguf" in answer.json()["error"]["message"]

    run(story)


# --- long waits -----------------------------------------------------------------------------------------------------


def test_a_stream_that_waits_is_kept_alive_and_then_served() -> None:
    frames = [b'data: {"n":1}\n\n', b"data: [DONE]\n\n"]

    async def replica(got: Got) -> None:
        await got.stream(*frames)

    async def story() -> None:
        async with Rig(slots=1, comment_s=0.02) as rig, rig.connect() as first, rig.connect() as second:
            rig.upstream.handler = replica
            rig.loads = False
            await first.send(STREAM)
            await rig.logged(RequestArrived)
            await second.send(STREAM)
            head = await second.head()
            assert (head.status, head.header("content-type")) == (200, "text/event-stream")
            assert head.header("x-accel-buffering") == "no"
            assert head.header("x-router-request") == "2"
            assert await second.chunk() == b": queued position=2\n"
            assert await second.chunk() == b": queued position=2\n"
            rig.replicas.ready(rig.held[0])
            body, complete = await second.chunks()
            assert complete
            comments, _, events = body.partition(b"\n" + frames[0])
            assert events == frames[1]
            assert set(comments.splitlines()) <= {b": queued position=2", b": queued position=1", b": working"}
            assert (await first.answer()).complete

    run(story)


def test_nothing_is_said_before_the_first_comment_is_due_so_that_errors_keep_their_status() -> None:
    async def story() -> None:
        async with Rig() as rig:
            rig.loads = False
            asking = asyncio.create_task(rig.ask(STREAM))
            await rig.logged(RequestArrived)
            rig.relay.cancel(1, "admin")
            assert (await asking).status == 503

    run(story)


def test_what_does_not_stream_waits_in_silence() -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send(CHAT)
            await wire.send(STREAM)
            async with rig.connect() as other:
                await other.send(STREAM)
                await other.head()
                await other.chunk()
                await other.chunk()
            rig.replicas.ready(rig.held[0])
            answer = await wire.answer()
            assert (answer.status, answer.body) == (200, b'{"ok":true}')

    run(story)


@dialects
def test_a_failure_after_comments_is_an_error_event_and_no_end(path: str) -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send({**STREAM, "prompt": "x", "input": "x"}, path)
            await wire.head()
            await wire.chunk()
            rig.loop.post(ReplicaLoadFailed(replica=rig.held[0], kind="bad_model", reason="broken"))
            body, complete = await wire.chunks()
            assert not complete
            assert_error_frame(body, path, "model_load_failed")

    run(story)


@dialects
def test_an_error_of_the_replica_after_comments_is_an_error_event(path: str) -> None:
    async def replica(got: Got) -> None:
        await got.reply(400, b'{\n"error":{"message":"too long",\n"code":400}}')

    async def story() -> None:
        async with Rig(comment_s=0.01) as rig:
            rig.upstream.handler = replica
            rig.loads = False
            asking = asyncio.create_task(rig.ask({**STREAM, "prompt": "x", "input": "x"}, path))
            await until(lambda: rig.relay._flights and rig.relay._flights[1].reply.kept_alive)
            rig.replicas.ready(rig.held[0])
            answer = await asking
            assert (answer.status, answer.complete) == (200, False)
            event = answer.body.rstrip(b"\n").split(b"\n\n")[-1]
            assert event.startswith(b"event: error\n") == (path not in ("/v1/chat/completions", "/v1/completions"))
            data = b"\n".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
            assert json.loads(data)["error"]["message"] == "too long"
            assert (await rig.logged(RequestFinished)).status == 400

    run(story)


def test_an_answer_that_turns_out_to_be_no_stream_is_one_event() -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig:
            rig.loads = False
            asking = asyncio.create_task(rig.ask(STREAM))
            await until(lambda: rig.relay._flights and rig.relay._flights[1].reply.kept_alive)
            rig.replicas.ready(rig.held[0])
            answer = await asking
            assert answer.complete
            assert answer.body.endswith(b'\ndata: {"ok":true}\n\n')

    run(story)


def test_a_long_prefill_is_kept_alive_too() -> None:
    more = asyncio.Event()

    async def replica(got: Got) -> None:
        await more.wait()
        await got.stream(b"data: 1\n\n")

    async def story() -> None:
        async with Rig(comment_s=0.01) as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            await wire.send(STREAM)
            await wire.head()
            assert await wire.chunk() == b": working\n"
            more.set()
            body, complete = await wire.chunks()
            assert complete
            assert body.endswith(b"\ndata: 1\n\n")

    run(story)


def test_a_retry_happens_behind_comments() -> None:
    """Comments are no answer: a request of which the client saw nothing else is sent again."""

    async def replica(got: Got) -> None:
        if len(rig_of[0].upstream.got) == 1:
            await until(lambda: rig_of[0].relay._flights[1].reply.kept_alive)
            got.die()
        else:
            await got.stream(b"data: 2\n\n")

    rig_of: list[Rig] = []

    async def story() -> None:
        async with Rig(comment_s=0.01) as rig:
            rig_of.append(rig)
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert answer.complete
            assert answer.body.endswith(b"\ndata: 2\n\n")

    run(story)
