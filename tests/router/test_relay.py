"""The relay from socket to socket: what passes, what is changed on the way, and what is said about it."""

import hashlib
import json

from eventlog.events import RequestArrived, RequestFinished
from tests.router.relay_rig import Got, Rig, run

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_a_body_reaches_the_replica_byte_for_byte() -> None:
    """Odd spacing, unknown keys and escapes are not ours to tidy."""
    body = b'{ "zzz" : [1,\t2],  "model":"m",\n"messages":[{"content":"\\u00e9 \xc3\xa9","role":"user"}] , "n":1}  '

    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask(body)
            assert answer.status == 200
            got = rig.upstream.got[0]
            assert hashlib.sha256(got.body).digest() == hashlib.sha256(body).digest()
            assert got.target == "/v1/chat/completions"
            assert got.header("authorization") == "Bearer child-key"
            assert got.header("accept-encoding") == "identity"
            finished = await rig.logged(RequestFinished)
            assert finished.rid == rig.events(RequestArrived)[0].rid == 1

    run(story)


def test_a_stream_passes_byte_for_byte() -> None:
    frames = [b'data: {"id":"a"}\n\n', b": ping\n\n", b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"]

    async def replica(got: Got) -> None:
        await got.stream(*frames)

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask({**CHAT, "stream": True})
            assert answer.body == b"".join(frames)
            assert answer.complete
            assert [value for key, value in answer.headers if key == "x-accel-buffering"] == ["no"]
            finished = await rig.logged(RequestFinished)
            assert finished.frames == 3
            assert json.loads(json.dumps(finished.bytes_out)) == len(b"".join(frames))

    run(story)
