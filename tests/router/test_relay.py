"""The relay from socket to socket: what passes, what is changed on the way, and what is said about it."""

import asyncio
import gzip
import hashlib
import json
import os
from typing import Any

import pytest

from eventlog.events import (
    FirstByte,
    PromptProgress,
    RequestArrived,
    RequestDispatched,
    RequestFinished,
    RequestSent,
    TokensStreamed,
)
from router import relay
from router.config import Limits
from tests.router.relay_rig import Got, Rig, at_rest, flood, run, until

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_body_reaches_the_replica_byte_for_byte() -> None:
    """Odd spacing, unknown keys and escapes are not ours to tidy."""
    body = b'{ "zzz" : [1,\t2],  "model":"m",\n"messages":[{"content":"\\u00e9 \xc3\xa9","role":"user"}] , "n":1}  '

    async def story() -> None:
        async with Rig() as rig:
            headers = {"Authorization": "Bearer client-key", "X-Api-Key": "client-key", "Accept-Encoding": "gzip, br"}
            answer = await rig.ask(body, headers={**headers, "X-Custom": "kept", "Content-Type": "application/json"})
            assert answer.status == 200
            got = rig.upstream.got[0]
            assert hashlib.sha256(got.body).digest() == hashlib.sha256(body).digest()
            assert (got.method, got.target) == ("POST", "/v1/chat/completions")
            assert got.header("content-length") == str(len(body))
            assert [value for name, value in got.headers if name.lower() == "authorization"] == ["Bearer child-key"]
            assert got.header("x-api-key") is None
            assert got.header("accept-encoding") == "identity"
            assert (got.header("x-custom"), got.header("content-type")) == ("kept", "application/json")

    run(story)


def test_headers_of_one_hop_stay_there() -> None:
    async def replica(got: Got) -> None:
        await got.reply(headers={"Connection": "close, X-Up", "X-Up": "1", "Keep-Alive": "timeout=5", "X-Kept": "1"})

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(CHAT, headers={"Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers"})
            got = rig.upstream.got[0]
            assert (got.header("x-hop"), got.header("te")) == (None, None)
            assert (answer.header("x-up"), answer.header("keep-alive"), answer.header("x-kept")) == (None, None, "1")
            assert answer.header("x-router-request") == "1"

    run(story)


def test_the_clients_own_request_id_comes_back() -> None:
    async def story() -> None:
        async with Rig() as rig:
            assert (await rig.ask(CHAT)).header("x-request-id") == "1"
            assert (await rig.ask(CHAT, headers={"X-Request-Id": "mine"})).header("x-request-id") == "mine"

    run(story)


def test_a_chunked_upload_is_framed_by_its_real_length() -> None:
    body = json.dumps(CHAT).encode()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            wire.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 7):
                wire.writer.write(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]))
            wire.writer.write(b"0\r\n\r\n")
            assert (await wire.answer()).status == 200
            got = rig.upstream.got[0]
            assert got.body == body
            assert got.header("transfer-encoding") is None

    run(story)


def test_what_follows_a_chunked_body_is_no_header() -> None:
    """Merged with the headers it would count as one that was there when the request was looked at."""
    body = json.dumps(STREAM).encode()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            wire.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            wire.writer.write(b"%x\r\n%b\r\n0\r\n" % (len(body), body))
            wire.writer.write(b"X-Conversation-Id: sneaked\r\nX-Late: yes\r\nHost: elsewhere\r\n\r\n")
            assert (await wire.answer()).status == 200
            got = rig.upstream.got[0]
            assert (got.body, got.header("x-late"), got.header("x-conversation-id")) == (body, None, None)
            assert [value for name, value in got.headers if name.lower() == "host"] == ["x"]
            assert not (await rig.logged(RequestArrived)).detached

    run(story)


def test_a_body_that_begins_with_a_byte_order_mark_arrives_with_it() -> None:
    """As a file of PowerShell does; llama-server passes over the mark."""
    body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()

    async def story() -> None:
        async with Rig() as rig:
            assert (await rig.ask(body)).status == 200
            assert rig.upstream.got[0].body == body
            assert rig.events(RequestArrived)[0].model == "m"

    run(story)


def test_a_gzip_body_arrives_decoded() -> None:
    body = json.dumps({**CHAT, "filler": "x" * 100_000}).encode()

    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask(gzip.compress(body), headers={"Content-Encoding": "gzip"})
            got = rig.upstream.got[0]
            assert (answer.status, got.body, got.header("content-encoding")) == (200, body, None)
            arrived = rig.events(RequestArrived)[0]
            assert arrived.body_bytes == len(body)

    run(story)


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    """Expect: 100-continue gets its 413 instead of an invitation."""

    async def story() -> None:
        async with Rig(limits=Limits(max_body_bytes=1000)) as rig, rig.connect() as wire:
            wire.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n"
            )
            answer = await wire.answer()
            assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
            assert rig.log.events[1:] == [], "it never arrived"

    run(story)


def test_expect_100_continue_is_answered() -> None:
    body = json.dumps(CHAT).encode()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            wire.writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert (await wire.head()).status == 100
            wire.writer.write(body)
            assert (await wire.answer()).status == 200
            assert rig.upstream.got[0].header("expect") is None

    run(story)


def test_large_bodies_wait_on_disk_and_arrive_whole() -> None:
    """Five at once while the model loads; what they take of memory is limited."""
    bodies = [json.dumps({**CHAT, "filler": os.urandom(2 << 20).hex()}).encode() for _ in range(5)]

    async def story() -> None:
        async with Rig(slots=2, limits=Limits(body_memory_bytes=6 << 20)) as rig:
            rig.loads = False
            asking = [asyncio.create_task(rig.ask(body)) for body in bodies]
            await rig.logged(RequestArrived, 5)
            assert rig.relay._bodies.in_memory <= 7 << 20
            rig.replicas.ready(rig.held[0])
            answers = await asyncio.gather(*asking)
            assert [answer.status for answer in answers] == [200] * 5
            assert sorted(got.body for got in rig.upstream.got) == sorted(bodies)
            assert rig.relay._bodies.in_memory == 0

    run(story)


def test_keep_alive_carries_one_request_after_another() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            for number in range(1, 6):
                await wire.send(STREAM if number % 2 else CHAT)
                assert (await wire.answer()).status == 200
                assert (await rig.logged(RequestFinished, number)).rid == number
            await wire.send({**CHAT, "model": "nope"})
            assert (await wire.answer()).status == 404
            await wire.send(CHAT)
            assert (await wire.answer()).status == 200

    run(story)


def test_an_http_1_0_client_gets_a_body_without_chunks() -> None:
    frames = [b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]

    async def replica(got: Got) -> None:
        await (got.stream(*frames) if b'"stream"' in got.body else got.reply(body=b'{"ok":1}'))

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            async with rig.connect() as wire:
                await wire.send(STREAM, version="1.0")
                answer = await wire.answer()
                assert answer.header("transfer-encoding") is None
                assert answer.header("connection") == "close"
                assert answer.body == b"".join(frames)
            async with rig.connect() as wire:
                await wire.send(CHAT, version="1.0")
                assert (await wire.answer()).body == b'{"ok":1}'

    run(story)


# --- which model ----------------------------------------------------------------------------------------------------


def test_the_model_is_found_wherever_it_stands() -> None:
    file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF'
    model = b'Content-Disposition: form-data; name="model"\r\n\r\nm'
    form = {"Content-Type": "multipart/form-data; boundary=B"}

    def parts(*given: bytes) -> bytes:
        return b"".join(b"--B\r\n" + part + b"\r\n" for part in given) + b"--B--\r\n"

    async def story() -> None:
        async with Rig() as rig:
            await rig.ask(CHAT)
            await rig.ask({"messages": []}, "/v1/chat/completions?model=m")
            await rig.ask(parts(file, model), "/v1/audio/transcriptions", headers=form)
            await rig.ask(parts(model, file), "/v1/audio/transcriptions", headers=form)
            await rig.ask({**CHAT, "model": "alias-of-m"})
            arrived = rig.events(RequestArrived)
            assert [event.model for event in arrived] == ["m"] * 5
            assert [event.asked for event in arrived] == ["", "", "", "", "alias-of-m"]
            assert rig.upstream.got[1].target == "/v1/chat/completions?model=m"
            assert rig.upstream.got[2].body == parts(file, model)

    run(story)


def test_without_a_model_it_is_the_only_one_or_the_default_or_an_error() -> None:
    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask({"messages": []})
            assert (answer.status, answer.json()["error"]["code"]) == (400, "model_required")
            assert "'m'" in answer.json()["error"]["message"]
        async with Rig(models=("only",)) as rig:
            assert (await rig.ask({"messages": []})).status == 200
        async with Rig(default_model="other") as rig:
            assert (await rig.ask({"messages": []})).status == 200
            assert rig.events(RequestArrived)[0].model == "other"

    run(story)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_unknown_model_is_told_in_the_dialect_of_the_api(path: str) -> None:
    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask({**CHAT, "model": "othr"}, path)
            assert answer.status == 404
            error = answer.json()["error"]
            assert error["code"] == "model_not_found"
            assert "'other'" in error["message"]
            assert ("type" in answer.json()) == (path == "/v1/messages")
            assert answer.json().get("type", error.get("param")) in ("error", "model")

    run(story)


def test_a_body_that_is_no_json_is_refused_here() -> None:
    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask(b'{"model": "m"')
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_body")
            assert rig.upstream.got == []

    run(story)


# --- answers --------------------------------------------------------------------------------------------------------


def test_a_stream_passes_byte_for_byte() -> None:
    frames = [b'data: {"id":"a"}\n\n', b": ping\n\n", b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"]

    async def replica(got: Got) -> None:
        await got.stream(*frames)

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert answer.body == b"".join(frames)
            assert answer.complete
            assert [value for name, value in answer.headers if name == "x-accel-buffering"] == ["no"]
            finished = await rig.logged(RequestFinished)
            assert finished.frames == 3, "a ping is no frame"
            assert finished.bytes_out == len(answer.body)

    run(story)


def test_buffering_is_switched_off_once_when_the_child_does_it_too() -> None:
    async def replica(got: Got) -> None:
        await got.begin_stream({"X-Accel-Buffering": "no"})
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert [value for name, value in answer.headers if name == "x-accel-buffering"] == ["no"]

    run(story)


def test_every_frame_is_passed_on_as_it_comes() -> None:
    """The replica makes the next frame only when the client has the last one."""
    seen = asyncio.Queue[None]()

    async def replica(got: Got) -> None:
        await got.begin_stream()
        for number in range(20):
            await got.chunk(b'data: {"n":%d}\n\n' % number)
            await seen.get()
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            await wire.send(STREAM)
            await wire.head()
            for number in range(20):
                assert await wire.chunk() == b'data: {"n":%d}\n\n' % number
                seen.put_nowait(None)
            assert await wire.chunk() == b""

    run(story)


def test_bytes_are_the_same_however_the_replica_cuts_its_frames() -> None:
    whole = b'event: a\ndata: {"x":"\xc3\xa9"}\n\n: ping\n\ndata: {"y":2}\r\n\r\ndata: last'

    async def replica(got: Got) -> None:
        await got.stream(*(whole[at : at + 5] for at in range(0, len(whole), 5)))

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert (answer.body, answer.complete) == (whole, True)

    run(story)


def test_an_error_of_the_replica_is_the_clients_answer() -> None:
    kind = "exceed_context_size_error"
    told = {"code": 400, "message": "secret text", "type": kind, "n_prompt_tokens": 9, "n_ctx": 4}
    error = json.dumps({"error": told}).encode()

    async def replica(got: Got) -> None:
        await got.reply(400, error)

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(STREAM)
            assert (answer.status, answer.body) == (400, error)
            finished = await rig.logged(RequestFinished)
            assert finished.status == 400
            assert finished.error == "exceed_context_size_error n_prompt_tokens=9 n_ctx=4"

    run(story)


@pytest.mark.parametrize(
    ("status", "code"), [(413, "body_too_large"), (400, "upstream_error"), (500, "upstream_error")]
)
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_an_error_without_a_word_gets_some(status: int, code: str, body: dict[str, Any]) -> None:
    """A body beyond 100 MiB, or the ninth KiB of a header, is refused by its HTTP library with nothing but a status."""

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = lambda got: got.reply(status, b"", {"Connection": "close"})
            answer = await rig.ask(body)
            error = answer.json()["error"]
            assert (answer.status, error["code"]) == (status, code)
            assert f"'m': llama-server answers {status}, " in error["message"]
            assert answer.header("x-router-request") == "1"
            assert (await rig.logged(RequestFinished)).status == status

    run(story)


def test_a_client_that_does_not_read_holds_back_its_replica_and_nobody_else() -> None:
    """Neither memory nor the others notice; once it reads, it gets every byte."""
    chunk = b"data: " + b"x" * 65_000 + b"\n\n"
    count = 600
    written = 0

    async def replica(got: Got) -> None:
        nonlocal written
        if b"slow" not in got.body:
            await got.reply()
            return
        await got.begin_stream()
        for _ in range(count):
            await got.chunk(chunk)
            written += len(chunk)
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send({**STREAM, "slow": True})
            await rig.dispatched()
            assert 0 < await at_rest(lambda: written) < count * len(chunk) // 2
            assert list(rig.relay.flights()) == [], "its silence would be taken for the replica's"
            assert (await rig.ask(CHAT)).status == 200
            wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
            answer = await wire.answer()
            assert answer.complete
            assert answer.body == chunk * count

    run(story)


def test_the_slot_is_free_when_the_replica_is_done_though_the_client_is_not() -> None:
    async def replica(got: Got) -> None:
        await got.reply(body=b"x" * 3_000_000, headers={"Content-Type": "text/plain"})

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(CHAT)
            await rig.logged(RequestFinished)
            wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await wire.answer()).body == b"x" * 3_000_000

    run(story)


# --- the account ----------------------------------------------------------------------------------------------------


def test_an_arrival_says_what_a_simulation_needs_and_nothing_of_the_text() -> None:
    async def story() -> None:
        async with Rig() as rig:
            first = {**CHAT, "messages": [{"role": "user", "content": "the secret"}], "max_tokens": 5, "n": 2}
            await rig.ask(first, headers={"X-Session-Id": "private"})
            await rig.logged(RequestFinished)
            await rig.ask(first, headers={"X-Session-Id": "private"})
            one, two = rig.events(RequestArrived)
            assert (one.rid, one.route, one.work, one.slots_wanted, one.max_tokens) == (
                1,
                "/chat/completions",
                "generation",
                2,
                5,
            )
            assert (one.messages, one.after_rid, two.after_rid) == (1, 0, 1)
            assert one.conversation == two.conversation != ""
            assert one.session == two.session != ""
            assert one.prefix == two.prefix
            assert len(one.prefix) == 1
            assert 0 < one.arrived_us <= one.at_us
            text = repr(rig.log.events) + repr(rig.log.observations)
            assert "secret" not in text
            assert "private" not in text

    run(story)


def test_a_conversation_goes_by_its_own_header_before_that_of_the_session() -> None:
    """A session may hold several conversations."""

    async def story() -> None:
        async with Rig() as rig:
            for headers in ({"c": "talk", "s": "one"}, {"c": "talk", "s": "two"}, {"s": "one"}):
                names = {"c": "X-Conversation-Id", "s": "X-Session-Id"}
                await rig.ask(CHAT, headers={names[name]: value for name, value in headers.items()})
            one, two, three = rig.events(RequestArrived)
            assert one.conversation == two.conversation != three.conversation
            assert one.session == three.session != two.session

    run(story)


def test_fingerprints_of_clients_are_kept_for_so_many_and_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may come from any number of addresses."""
    monkeypatch.setattr(relay, "CLIENTS_MAX", 3)

    async def story() -> None:
        async with Rig() as rig:
            addresses = [f"10.0.0.{number}" for number in range(8)]
            seen = {address: rig.relay._client_print("", address) for address in addresses}
            assert len(rig.relay._clients) <= 3
            assert len(set(seen.values())) == 8
            assert {address: rig.relay._client_print("", address) for address in addresses} == seen

    run(story)


def test_a_dispatch_is_sent_and_finished_in_this_order() -> None:
    async def story() -> None:
        async with Rig() as rig:

            async def replica(got: Got) -> None:
                await rig.logged(RequestSent)
                await got.stream(b"data: 1\n\n")

            rig.upstream.handler = replica
            await rig.ask(STREAM)
            finished = await rig.logged(RequestFinished)
            kinds = [type(event) for event in rig.log.events if getattr(event, "rid", 0) == 1]
            assert kinds == [RequestArrived, RequestDispatched, RequestSent, RequestFinished]
            assert finished.replica == rig.events(RequestDispatched)[0].replica
            assert 0 <= finished.first_byte_us <= finished.took_us
            assert rig.observed(FirstByte)[0].rid == 1

    run(story)


def test_of_a_request_that_is_done_at_once_only_its_end_is_said() -> None:
    async def story() -> None:
        async with Rig() as rig:
            for number in range(1, 51):
                await rig.ask(CHAT)
                await rig.logged(RequestFinished, number)
            assert len(rig.events(RequestSent)) < 25

    run(story)


def test_metadata_takes_no_slot() -> None:
    async def story() -> None:
        async with Rig() as rig:
            await rig.ask({"model": "m", "content": "x"}, "/v1/tokenize")
            arrived = rig.events(RequestArrived)[0]
            assert (arrived.work, arrived.slots_wanted, arrived.route) == ("metadata", 0, "/tokenize")
            assert rig.upstream.got[0].target == "/tokenize", "llama-server does not know it with /v1"

    run(story)


ACCOUNTS = {
    "chat": (
        "/v1/chat/completions",
        [
            b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
            b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"\\"usage\\":{}"}}]}\n\n',
            b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"timings":{"cache_n":4,"prompt_n":27,'
            b'"prompt_ms":117.952,"predicted_n":3,"predicted_ms":27.805,"draft_n":8,"draft_n_accepted":5}}\n\n',
            b"data: [DONE]\n\n",
        ],
        ("length", 31, 4, 3, 117_952, 5),
    ),
    "chat with usage": (
        "/v1/chat/completions",
        [
            b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}]}\n\n',
            b'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":31,"total_tokens":34,'
            b'"prompt_tokens_details":{"cached_tokens":30}},"timings":{"cache_n":30,"prompt_n":1,"prompt_ms":2}}\n\n',
            b"data: [DONE]\n\n",
        ],
        ("stop", 31, 30, 3, 2_000, -1),
    ),
    "messages": (
        "/v1/messages",
        [
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"cache_read_input_tokens":30,'
            b'"input_tokens":1,"output_tokens":0}}}\n\n',
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n' * 200,
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},'
            b'"usage":{"output_tokens":200}}\n\n',
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ],
        ("max_tokens", 31, 30, 200, -1, -1),
    ),
    "responses": (
        "/v1/responses",
        [
            b'event: response.completed\ndata: {"type":"response.completed","response":{"object":"response","status":'
            b'"completed","output":[],"usage":{"input_tokens":31,"output_tokens":3,"total_tokens":34,'
            b'"input_tokens_details":{"cached_tokens":30}}},"timings":{"cache_n":30,"prompt_n":1,"prompt_ms":15.871}}\n\n',
        ],
        ("completed", 31, 30, 3, 15_871, -1),
    ),
    "completion": (
        "/completion",
        [b'data: {"stop":true,"stop_type":"limit","timings":{"cache_n":0,"prompt_n":2,"predicted_n":3}}\n\n'],
        ("limit", 2, 0, 3, -1, -1),
    ),
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_what_llama_server_says_of_its_work_is_in_the_account(name: str) -> None:
    path, frames, expected = ACCOUNTS[name]

    async def replica(got: Got) -> None:
        await got.stream(*frames)

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            await rig.ask({**STREAM, "prompt": "x", "input": "x"}, path)
            end = await rig.logged(RequestFinished)
            timing = end.timing
            account = (end.finish_reason, end.prompt_tokens, end.cached_tokens, end.completion_tokens)
            assert (*account, timing.prompt_us, timing.draft_accepted_n) == expected

    run(story)


def test_the_account_of_an_answer_that_does_not_stream_comes_from_its_end() -> None:
    content = "x" * 50_000
    body = json.dumps(
        {
            "choices": [{"message": {"content": content}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}},
            "timings": {"prompt_n": 5, "prompt_ms": 1.5},
        }
    ).encode()

    async def replica(got: Got) -> None:
        await got.reply(body=body)

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            assert (await rig.ask(CHAT)).body == body
            end = await rig.logged(RequestFinished)
            assert (end.prompt_tokens, end.cached_tokens, end.completion_tokens, end.finish_reason) == (7, 2, 9, "stop")
            assert end.timing.prompt_us == 1500
            assert (end.frames, end.bytes_out) == (0, len(body))

    run(story)


def test_token_times_are_noted_in_batches() -> None:
    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(b'data: {"prompt_progress":{"total":10,"cache":2,"processed":5,"time_ms":1}}\n\n')
        for _ in range(5):
            await got.chunk(b'data: {"choices":[]}\n\n')
        await got.chunk(b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n')
        await got.chunk(b"data: [DONE]\n\n")
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            await rig.ask(STREAM)
            end = await rig.logged(RequestFinished)
            noted = rig.observed(TokensStreamed)
            assert len(noted) == 1
            assert len(noted[0].gaps_us) == 7
            assert noted[0].gaps_us[0] == end.first_token_us
            assert sum(noted[0].gaps_us) <= end.took_us
            progress = rig.observed(PromptProgress)[0]
            assert (progress.total, progress.cached, progress.processed) == (10, 2, 5)

    run(story)


def test_the_flights_show_what_a_replica_has_given_so_far() -> None:
    more = asyncio.Event()

    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(b'data: {"id":"chatcmpl-1"}\n\n')
        await more.wait()
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            await wire.send(STREAM)
            await wire.head()
            await wire.chunk()
            flight = next(rig.relay.flights())
            assert (flight.rid, flight.frames, flight.stream) == (1, 1, True)
            assert flight.replica == rig.events(RequestDispatched)[0].replica
            assert 0 < flight.dispatched_us <= flight.last_frame_us
            assert rig.relay.find_completion("chatcmpl-1") == flight.replica
            assert rig.relay.find_completion("chatcmpl-2") is None
            more.set()
            await wire.chunk()
            await until(lambda: not list(rig.relay.flights()))

    run(story)


# --- refusals -------------------------------------------------------------------------------------------------------


def test_nothing_is_taken_while_the_log_cannot_be_written_or_the_gate_is_shut() -> None:
    async def story() -> None:
        async with Rig() as rig:
            rig.loop.available = False
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "log_unavailable")
            rig.loop.available = True
            rig.gate.is_open = False
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "service_unavailable")
            assert rig.events(RequestArrived) == []

    run(story)


def test_a_full_queue_is_a_503_where_the_owner_limits_it() -> None:
    async def story() -> None:
        async with Rig(limits=Limits(max_queue=1)) as rig:
            rig.loads = False
            asking = asyncio.create_task(rig.ask(CHAT))
            await rig.logged(RequestArrived)
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_full")
            rig.replicas.ready(rig.held[0])
            assert (await asking).status == 200
            assert (await rig.ask(CHAT)).status == 200, "the place is free again"

    run(story)


def test_a_request_that_comes_back_to_its_place_is_counted_there_again() -> None:
    """Its replica broke off once. Afterwards the queue has as much room as before, and no more."""

    async def breaks_off_once(got: Got) -> None:
        if len(rigs[0].upstream.got) == 1:
            got.die()
        else:
            await got.reply()

    rigs: list[Rig] = []

    async def story() -> None:
        async with Rig(limits=Limits(max_queue=1)) as rig:
            rigs.append(rig)
            rig.upstream.handler = breaks_off_once
            assert (await rig.ask(CHAT)).status == 200
            assert len(rig.upstream.got) == 2
            rig.loads = False
            asking = asyncio.create_task(rig.ask({**CHAT, "model": "other"}))
            await until(lambda: rig.held)
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_full")
            rig.replicas.ready(rig.held[0])
            assert (await asking).status == 200

    run(story)


def test_a_client_that_does_not_read_says_nothing_about_its_replica() -> None:
    """Whoever looks for replicas that hang hears of streams whose next frame is the replica's to make."""

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = flood
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send({**CHAT, "stream": True})
            await until(lambda: [progress.rid for progress in rig.relay.flights()] == [1])
            await until(lambda: (reached := rig.relay._flights[1].connection) and reached._paused)
            assert list(rig.relay.flights()) == []

    run(story)


def test_a_mistake_of_the_router_is_a_500_that_closes_the_account(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Rig() as rig:

            def broken(replica: str) -> Any:
                raise ZeroDivisionError("a bug")

            rig.replicas.endpoint = broken  # type: ignore[method-assign]
            answer = await rig.ask(CHAT)
            assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
            assert "request 1" in answer.json()["error"]["message"]
            cancelled = [event for event in rig.log.events if getattr(event, "by", "") == "fault"]
            assert len(cancelled) == 1
            assert "a bug" in caplog.text

    run(story)
