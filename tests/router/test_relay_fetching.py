"""A model that has to be fetched first: its requests wait for that, and nobody makes room for it before."""

import asyncio
from typing import Any

import pytest

from eventlog.events import (
    ReplicaSpawned,
    ReplicaStopOrdered,
    RequestArrived,
    RequestDispatched,
    RequestFinished,
    RouterStopping,
)
from router.download import DownloadFailed
from tests.router.relay_rig import Rig, run, until
from tests.router.test_relay_failing import assert_error_frame

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


def missing(rig: Rig, model: str = "m") -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rig.replicas.missing[model] = future
    return future


def test_nothing_is_evicted_before_the_weights_are_here() -> None:
    """The loaded model goes on serving during the download; then the one who waited has its turn, and its old place."""

    async def story() -> None:
        async with Rig() as rig:
            assert (await rig.ask({**CHAT, "model": "other"})).status == 200
            download = missing(rig)
            waiting = asyncio.create_task(rig.ask(CHAT))
            await until(lambda: rig.replicas.downloads_awaited)
            assert (await rig.ask({**CHAT, "model": "other"})).status == 200
            assert [arrived.model for arrived in rig.events(RequestArrived)] == ["other", "other"]
            assert rig.events(ReplicaStopOrdered) == []
            download.set_result(None)
            assert (await waiting).status == 200
            arrived = rig.events(RequestArrived)
            assert [request.model for request in arrived] == ["other", "other", "m"]
            assert arrived[2].arrived_us < arrived[1].arrived_us
            assert len(rig.events(ReplicaStopOrdered)) == 1

    run(story)


def test_a_router_that_was_closed_meanwhile_takes_the_request_no_more() -> None:
    """A download takes minutes; the owner stopped the router before its end."""

    async def story() -> None:
        async with Rig() as rig:
            download = missing(rig)
            waiting = asyncio.create_task(rig.ask(CHAT))
            await until(lambda: rig.replicas.downloads_awaited)
            rig.gate.is_open = False
            download.set_result(None)
            answer = await waiting
            assert (answer.status, answer.json()["error"]["code"]) == (503, "service_unavailable")
            assert rig.events(RequestArrived) == []

    run(story)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_download_that_fails_is_a_failed_load_with_its_reason(path: str) -> None:
    """In the dialect of the API, and before anything arrived."""

    async def story() -> None:
        async with Rig() as rig:
            download = missing(rig)
            waiting = asyncio.create_task(rig.ask(STREAM, path))
            await until(lambda: rig.replicas.downloads_awaited)
            download.set_exception(DownloadFailed("the download of model 'm' (org/m) failed: 404"))
            answer = await waiting
            assert answer.status == 502
            assert answer.json()["error"]["code"] == "model_load_failed"
            assert "org/m" in answer.json()["error"]["message"]
            assert rig.events(RequestArrived) == []

    run(story)


def test_a_stream_is_kept_alive_while_its_model_is_fetched() -> None:
    """A comment at least every so often, then the answer, as if nothing had been."""

    async def story() -> None:
        async with Rig(comment_s=0.02) as rig:
            download = missing(rig)
            rig.upstream.handler = lambda got: got.stream(b'data: {"a":1}\n\n', b"data: [DONE]\n\n")
            async with rig.connect() as wire:
                await wire.send(STREAM)
                await wire.head()
                assert [await wire.chunk(), await wire.chunk()] == [b": downloading the model\n"] * 2
                download.set_result(None)
                await wire.reader.readuntil(b"data: [DONE]\n\n")
            await rig.logged(RequestFinished)

    run(story)


def test_a_download_that_fails_after_comments_is_an_error_event() -> None:
    async def story() -> None:
        async with Rig(comment_s=0.01) as rig, rig.connect() as wire:
            download = missing(rig)
            await wire.send(STREAM)
            await wire.head()
            assert b"downloading" in await wire.chunk()
            download.set_exception(DownloadFailed("no room on the disk"))
            body, complete = await wire.chunks()
            assert not complete
            assert_error_frame(body, "/v1/chat/completions", "model_load_failed")

    run(story)


def test_a_client_that_leaves_during_the_download_never_arrived_and_the_download_goes_on() -> None:
    """The next one who asks finds the weights there."""

    async def story() -> None:
        async with Rig() as rig:
            download = missing(rig)
            async with rig.connect() as wire:
                await wire.send(CHAT)
                await until(lambda: rig.replicas.downloads_awaited)
            await until(lambda: not rig.replicas.downloads_awaited)
            assert not download.cancelled()
            download.set_result(None)
            assert (await rig.ask(CHAT)).status == 200
            assert len(rig.events(RequestArrived)) == len(rig.events(RequestDispatched)) == 1
            assert len(rig.events(ReplicaSpawned)) == 1

    run(story)


def test_a_router_that_stops_says_so_to_those_who_wait_for_a_download() -> None:
    async def story() -> None:
        async with Rig() as rig:
            download = missing(rig)
            waiting = asyncio.create_task(rig.ask(CHAT))
            await until(lambda: rig.replicas.downloads_awaited)
            rig.loop.post(RouterStopping(reason="SIGTERM", deadline_us=rig.loop.clock.now_us()))
            await rig.logged(RouterStopping)
            download.set_exception(DownloadFailed("the download of model 'm' was called off"))
            answer = await waiting
            assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")

    run(story)
