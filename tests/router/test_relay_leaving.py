"""Clients that leave, by FIN or RST, in every phase: the replica is told at once, and the account is closed once."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from eventlog.events import (
    ClientDetached,
    ClientReattached,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestDispatched,
    RequestFailed,
    RequestFinished,
    RequestRejected,
    RequestSent,
    SlotReleased,
    SwapAborted,
    UpstreamLost,
)
from router import relay
from router.quotas import Quotas
from tests.router.relay_rig import DEADLINE_S, Got, Rig, Wire, at_rest, flood, run, until

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
ROUTES = [
    "/v1/chat/completions",
    "/v1/completions",
    "/completion",
    "/v1/responses",
    "/v1/messages",
    "/infill",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/audio/transcriptions",
]
SOON_S = 0.1

leaves = pytest.mark.parametrize("how", ["half-closes", "closes", "resets"])


def leave(wire: Wire, how: str) -> None:
    if how == "half-closes":
        wire.fin()
    elif how == "resets":
        wire.rst()
    else:
        wire.abort()


def outcomes(rig: Rig) -> dict[int, int]:
    ends = (RequestFinished, RequestCancelled, RequestFailed, RequestRejected)
    return Counter(event.rid for event in rig.log.events if isinstance(event, ends))


async def silent(got: Got) -> None:
    """A long prefill: nothing is said until the router hangs up."""
    await got.gone.wait()


async def talking(got: Got) -> None:
    await got.begin_stream()
    while not got.gone.is_set():
        await got.chunk(b'data: {"choices":[]}\n\n')
        await asyncio.sleep(0.001)


async def half_an_answer(got: Got) -> None:
    await got.reply(body=b"half", length=1000)
    await got.gone.wait()


@leaves
def test_a_client_that_leaves_the_queue_takes_its_place_along(how: str) -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send(STREAM)
            await rig.logged(RequestArrived)
            leave(wire, how)
            cancelled = await rig.logged(RequestCancelled)
            assert (cancelled.by, cancelled.replica) == ("client", "")
            rig.replicas.ready(rig.held[0])
            assert (await rig.ask(CHAT)).status == 200, "the load was finished and serves the next"
            assert [got.body for got in rig.upstream.got] == [json.dumps(CHAT).encode()]
            assert rig.events(SlotReleased) == []
            assert outcomes(rig) == {1: 1, 2: 1}

    run(story)


@leaves
@pytest.mark.parametrize(
    ("handler", "body", "reads_head"),
    [(silent, STREAM, False), (silent, CHAT, False), (talking, STREAM, True), (half_an_answer, CHAT, True)],
    ids=["prefill of a stream", "prefill", "mid-stream", "mid-body"],
)
def test_the_replica_is_told_within_100_ms(handler: Any, body: dict[str, Any], reads_head: bool, how: str) -> None:
    """The best of several, since other processes can only add to it: three, or more until one is quick enough."""

    async def story() -> None:
        async with Rig() as rig:
            rig.upstream.handler = handler
            took: list[float] = []
            for number in range(1, 31):
                wire = await rig.wire()
                await wire.send(body)
                got = await rig.dispatched(number)
                if reads_head:
                    await wire.head()
                left = time.monotonic()
                leave(wire, how)
                await got.gone.wait()
                took.append(time.monotonic() - left)
                cancelled = await rig.logged(RequestCancelled, number)
                assert cancelled.replica == rig.events(RequestDispatched)[0].replica
                released = await rig.logged(SlotReleased, number)
                assert (released.rid, released.replica) == (number, cancelled.replica)
                wire.abort()
                if number >= 3 and min(took) < SOON_S:
                    break
            assert min(took) < SOON_S
            assert outcomes(rig) == dict.fromkeys(range(1, number + 1), 1)
            assert rig.events(UpstreamLost) == []

    run(story)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_every_route_lets_go_of_its_replica(path: str, stream: bool) -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            await wire.send({**CHAT, "stream": stream, "prompt": "x", "input": "x"}, path)
            got = await rig.dispatched()
            leave(wire, "closes")
            async with asyncio.timeout(DEADLINE_S):
                await got.gone.wait()
            await rig.logged(SlotReleased)
            assert outcomes(rig) == {1: 1}

    run(story)


@pytest.mark.parametrize("size", [70_000, 200_000, 3_000_000])
def test_a_client_that_leaves_after_a_large_body_is_noticed_as_any_other(size: int) -> None:
    """Reading is paused while a large body comes in, and goes on afterwards: a FIN is only seen by reading."""

    async def story() -> None:
        async with Rig() as rig:
            rig.loads = False
            async with rig.connect() as wire:
                await wire.send({**CHAT, "filler": "x" * size})
                await rig.logged(RequestArrived)
                wire.writer.write_eof()
                assert (await rig.logged(RequestCancelled)).by == "client"

    run(story)


@pytest.mark.parametrize("end", [RequestCancelled, UpstreamLost])
def test_that_the_replica_had_the_request_is_said_before_its_bad_end(
    end: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a good one, which follows within milliseconds, the end says as much: so it is not said at once."""
    monkeypatch.setattr(relay, "SAY_SENT_AFTER_S", 60.0)

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            await wire.send(CHAT)
            got = await rig.dispatched()
            await until(lambda: rig.relay._unsaid)
            if end is RequestCancelled:
                leave(wire, "closes")
            else:
                got.die()
            await rig.logged(end)
            told = [type(event) for event in rig.log.events if isinstance(event, (RequestSent, end))]
            assert told[:2] == [RequestSent, end]

    run(story)


def test_a_key_pays_for_prompt_and_answer_of_what_ended_and_of_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As llama-server counted them; where it never did, the prompt by its size, and a token a frame."""
    spent: list[int] = []
    monkeypatch.setattr(Quotas, "spend", lambda quotas, caller, tokens: spent.append(tokens))

    async def counted(got: Got) -> None:
        await got.reply(body=b'{"usage":{"prompt_tokens":30,"completion_tokens":4,"total_tokens":34}}')

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = counted
            await rig.ask(CHAT)
            await rig.logged(RequestFinished)
            assert spent == [34]
            rig.upstream.handler = talking
            await wire.send({**STREAM, "messages": [{"role": "user", "content": "hi " * 1000}]})
            await wire.head()
            await wire.chunk()
            leave(wire, "closes")
            cancelled = await rig.logged(RequestCancelled)
            estimate = rig.events(RequestArrived)[1].prompt_tokens
            assert estimate > 500
            assert cancelled.frames > 0
            assert spent == [34, estimate + cancelled.frames]

    run(story)


def test_a_client_that_leaves_while_sending_never_arrived() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            wire.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
            await until(lambda: rig._server.server_state.tasks)
            leave(wire, "closes")
            await until(lambda: not rig._server.server_state.tasks)
            assert rig.events(RequestArrived) == []

    run(story)


def test_a_client_that_reads_nothing_and_half_closes_is_gone_too() -> None:
    """Its FIN counts although megabytes for it are still on the way."""

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = flood
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(STREAM)
            got = await rig.dispatched()
            await until(lambda: rig.relay._flights[1].connection._paused)  # type: ignore[union-attr]
            wire.fin()
            async with asyncio.timeout(DEADLINE_S):
                await got.gone.wait()
            await rig.logged(RequestCancelled)

    run(story)


def test_a_pipelined_client_that_leaves_is_noticed_on_its_first_request() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            await wire.send(CHAT)
            await wire.send(CHAT)
            got = await rig.dispatched()
            leave(wire, "closes")
            async with asyncio.timeout(DEADLINE_S):
                await got.gone.wait()
            assert len(rig.upstream.got) == 1
            await rig.logged(RequestCancelled)
            assert outcomes(rig) == {1: 1}

    run(story)


def test_a_slot_is_free_only_when_the_replica_has_let_go() -> None:
    """A real llama-server ends its batch first: the next request waits for that, not for the closed socket."""

    async def story() -> None:
        async with Rig(slots=1) as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            rig.upstream.busy = 1
            await wire.send(CHAT)
            await rig.dispatched()
            asking = asyncio.create_task(rig.ask(CHAT))
            await rig.logged(RequestArrived, 2)
            leave(wire, "closes")
            await rig.logged(RequestCancelled)
            await until(lambda: rig.upstream.slots_asked >= 3)
            assert len(rig.upstream.got) == 1
            assert rig.events(SlotReleased) == []

            async def ok(got: Got) -> None:
                await got.reply()

            rig.upstream.handler = ok
            rig.upstream.busy = 0
            assert (await asking).status == 200
            assert rig.events(SlotReleased)[0].took_us > 0

    run(story)


def test_a_slot_counts_as_free_while_others_of_ours_are_busy() -> None:
    """Two run, one leaves: one busy slot is the other's."""

    async def story() -> None:
        async with Rig(slots=2) as rig, rig.connect() as stays, rig.connect() as goes:
            rig.upstream.handler = silent
            await stays.send(CHAT)
            await rig.dispatched()
            await goes.send(CHAT)
            await rig.dispatched(2)
            rig.upstream.busy = 2
            leave(goes, "closes")
            await until(lambda: rig.upstream.slots_asked >= 2)
            assert rig.events(SlotReleased) == []
            rig.upstream.busy = 1
            assert (await rig.logged(SlotReleased)).rid == 2

    run(story)


def test_a_replica_that_dies_lets_go_as_well() -> None:
    async def story() -> None:
        async with Rig(slots=1) as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            rig.upstream.busy = 1
            await wire.send(CHAT)
            await rig.dispatched()
            leave(wire, "closes")
            await until(lambda: rig.upstream.slots_asked)
            rig.replicas.crash(rig.events(RequestDispatched)[0].replica)
            await rig.logged(SlotReleased)

    run(story)


def test_a_router_that_ends_watches_no_slot_any_more() -> None:
    """A replica that closes its side after the end finds nobody who would ask what its slots do."""
    done = asyncio.Event()

    async def slow(got: Got) -> None:
        await got.gone.wait()
        await done.wait()

    async def story() -> None:
        async with Rig(slots=1) as rig, rig.connect() as wire:
            rig.upstream.handler = slow
            await wire.send(CHAT)
            await rig.dispatched()
            leave(wire, "closes")
            await rig.logged(RequestCancelled)
            rig.relay.close()
            done.set()
            await at_rest(lambda: rig.upstream.slots_asked)
            assert rig.upstream.slots_asked == 0
            assert rig.events(SlotReleased) == []

    run(story)


def test_a_swap_that_only_a_lost_client_wanted_is_called_off() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as stays, rig.connect() as goes:
            rig.upstream.handler = silent
            await stays.send(CHAT)
            await rig.dispatched()
            await goes.send({**CHAT, "model": "other"})
            await rig.logged(RequestArrived, 2)
            leave(goes, "closes")
            await rig.logged(SwapAborted)

    run(story)


# --- cancelled by others --------------------------------------------------------------------------------------------


def test_a_waiting_request_that_is_cancelled_gets_its_error() -> None:
    async def story() -> None:
        async with Rig() as rig:
            rig.loads = False
            asking = asyncio.create_task(rig.ask(CHAT))
            await rig.logged(RequestArrived)
            rig.relay.cancel(1, "admin")
            answer = await asking
            assert (answer.status, answer.json()["error"]["code"]) == (503, "request_cancelled")
            assert (await rig.logged(RequestCancelled)).by == "admin"

    run(story)


def test_a_stream_that_is_cancelled_ends_with_an_error_and_no_end() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = talking
            await wire.send(STREAM)
            got = await rig.dispatched()
            await until(lambda: rig.relay._flights[1].reply.begun)
            rig.relay.cancel(1, "admin")
            rig.relay.cancel(1, "admin")
            answer = await wire.answer()
            assert not answer.complete
            assert b"request_cancelled" in answer.body.split(b"\n\n")[-2]
            assert b"[DONE]" not in answer.body
            await got.gone.wait()
            await rig.logged(SlotReleased)
            assert outcomes(rig) == {1: 1}

    run(story)


def test_a_request_cancelled_in_the_moment_of_its_dispatch_releases_its_slot() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send(CHAT)
            await rig.logged(RequestArrived)
            rig.replicas.ready(rig.held[0])
            rig.relay.cancel(1, "admin")
            released = await rig.logged(SlotReleased)
            assert released.rid == 1
            assert rig.upstream.got == []
            replica = next(iter(rig.loop.state.replicas.values()))
            assert (replica.load, replica.releasing) == (0, {})

    run(story)


# --- resumable streams ----------------------------------------------------------------------------------------------

DETACHED = {"X-Conversation-Id": "conv-1"}


def test_a_detached_stream_is_read_to_its_end_without_its_client() -> None:
    more = asyncio.Event()

    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(b'data: {"n":1}\n\n')
        await more.wait()
        for _ in range(500):
            await got.chunk(b"data: " + b"x" * 10_000 + b"\n\n")
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            await wire.send(STREAM, headers=DETACHED)
            await wire.head()
            leave(wire, "closes")
            assert (await rig.logged(ClientDetached)).rid == 1
            assert rig.events(RequestArrived)[0].detached
            more.set()
            finished = await rig.logged(RequestFinished)
            assert finished.frames == 501
            assert outcomes(rig) == {1: 1}

    run(story)


def test_a_detached_request_keeps_its_place_in_the_queue() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send(STREAM, headers=DETACHED)
            await rig.logged(RequestArrived)
            leave(wire, "resets")
            await rig.logged(ClientDetached)
            answer = await rig.ask(b"", "/v1/stream?conv_id=conv-1", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (503, "model_loading")
            assert answer.header("retry-after") == "1"
            rig.replicas.ready(rig.held[0])
            await rig.logged(RequestFinished)

    run(story)


def test_a_slow_detached_client_that_leaves_does_not_hold_the_stream() -> None:
    async def flood(got: Got) -> None:
        await got.begin_stream()
        for _ in range(300):
            await got.chunk(b"data: " + b"x" * 60_000 + b"\n\n")
        await got.end_stream()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = flood
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(STREAM, headers=DETACHED)
            await rig.dispatched()
            await until(lambda: rig.relay._flights[1].connection._paused)  # type: ignore[union-attr]
            leave(wire, "closes")
            assert (await rig.logged(RequestFinished)).frames == 300

    run(story)


def test_coming_back_and_deleting_find_the_replica_of_the_conversation() -> None:
    async def replica(got: Got) -> None:
        if got.method == "POST" and "lookup" in got.target:
            ids = json.loads(got.body)["conversation_ids"]
            await got.reply(body=json.dumps([{"conversation_id": one, "is_done": False} for one in ids]).encode())
        elif got.method == "POST":
            await talking(got)
        elif got.method == "GET":
            await got.stream(b"data: again\n\n")
        else:
            await got.reply(204, b"")

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = replica
            await wire.send(STREAM, headers=DETACHED)
            await wire.head()
            leave(wire, "closes")
            await rig.logged(ClientDetached)

            answer = await rig.ask(b"", "/v1/stream?conv_id=conv-1&from=42", "GET")
            assert (answer.status, answer.body) == (200, b"data: again\n\n")
            assert rig.upstream.got[-1].target == "/v1/stream?conv_id=conv-1&from=42"
            back = await rig.logged(ClientReattached)
            assert (back.rid, back.from_bytes) == (1, 42)

            for position, said in (("9" * 5000, 0), ("-1", 0)):
                answer = await rig.ask(b"", f"/v1/stream?conv_id=conv-1&from={position}", "GET")
                assert answer.status == 200, "what it makes of it is the replica's business"
                assert rig.events(ClientReattached)[-1].from_bytes == said

            answer = await rig.ask({"conversation_ids": ["conv-1", "unknown"]}, "/v1/streams/lookup")
            assert answer.json() == [{"conversation_id": "conv-1", "is_done": False}]

            answer = await rig.ask(b"", "/v1/stream?conv_id=conv-1", "DELETE")
            assert answer.status == 204
            assert (await rig.logged(RequestCancelled)).by == "delete"
            await rig.logged(SlotReleased)
            assert outcomes(rig) == {1: 1}

            answer = await rig.ask(b"", "/v1/stream?conv_id=nobody", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "conversation_not_found")
            answer = await rig.ask(b"", "/v1/stream", "DELETE")
            assert (answer.status, answer.json()["error"]["param"]) == (400, "conv_id")

    run(story)


def test_deleting_a_conversation_that_waits_takes_it_from_the_queue() -> None:
    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.loads = False
            await wire.send(STREAM, headers=DETACHED)
            await rig.logged(RequestArrived)
            assert (await rig.ask(b"", "/v1/stream/conv-1", "DELETE")).status == 204
            assert (await rig.logged(RequestCancelled)).by == "delete"
            assert (await wire.answer()).status == 503
            assert (await rig.ask(b"", "/v1/stream/conv-1", "DELETE")).status == 404

    run(story)


def test_an_id_that_is_too_long_to_be_remembered_is_refused() -> None:
    async def story() -> None:
        async with Rig() as rig:
            for size, status in ((1024, 200), (1025, 400)):
                answer = await rig.ask(CHAT, headers={"X-Conversation-Id": "c" * size})
                assert answer.status == status
            assert answer.json()["error"]["param"] == "X-Conversation-Id"

    run(story)


def test_without_a_stream_the_header_detaches_nothing() -> None:
    """Nobody could come back for the answer."""

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            rig.upstream.handler = silent
            await wire.send(CHAT, headers=DETACHED)
            got = await rig.dispatched()
            leave(wire, "closes")
            await rig.logged(RequestCancelled)
            await got.gone.wait()

    run(story)
