"""What passes by the scheduler: metadata of loaded models, a replica's own pages, the control of running streams."""

import asyncio
from typing import Any

import pytest

from eventlog.events import ClientReattached, RequestArrived, RequestCancelled, RequestDispatched
from router import passage, routes
from router.config import KeyConfig, key_digest
from router.upstream import Connection
from tests.router.relay_rig import DEADLINE_S, Got, Rig, run, until

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def loaded(rig: Rig) -> str:
    """Load `m`; the replica."""
    assert (await rig.ask(CHAT)).status == 200
    rig.upstream.got.clear()
    return rig.events(RequestDispatched)[0].replica


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/chat/completions", "generation"),
        ("POST", "/chat/completions", "generation"),
        ("POST", "/completion", "generation"),
        ("POST", "/v1/audio/transcriptions", "generation"),
        ("POST", "/v1/systemone", "generation"),
        ("POST", "/tokenize", "metadata"),
        ("POST", "/v1/messages/count_tokens", "metadata"),
        ("POST", "/v1/chat/completions/input_tokens", "metadata"),
        ("GET", "/props?model=m", "ready"),
        ("GET", "/metrics?model=m", "ready"),
        ("POST", "/slots/0?action=save&model=m", "ready"),
        ("POST", "/props?model=m", "ready"),
        ("GET", "/v1/stream?conv_id=x", "stream"),
        ("DELETE", "/v1/stream/x", "stream"),
        ("POST", "/v1/streams/lookup", "lookup"),
        ("POST", "/v1/chat/completions/control", "control"),
        ("GET", "/instance/m/", "instance"),
        ("POST", "/instance/m/v1/chat/completions", "instance"),
        ("GET", "/upstream/m/", "upstream"),
        ("POST", "/upstream/m/v1/chat/completions", "upstream"),
        ("GET", "/props", None),
        ("GET", "/metrics", None),
        ("GET", "/slots?modell=m", None),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/models", None),
        ("POST", "/v1/embeddings/", None),
    ],
)
def test_each_route_has_its_kind(method: str, path: str, kind: str | None) -> None:
    plain, _, query = path.partition("?")
    route = routes.find(method, plain, query.encode())
    assert (route.kind if route else None) == kind


@pytest.mark.parametrize(
    ("asked", "forwarded"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/completions", "/completions"),
        ("/v1/completion", "/completion"),
        ("/messages", "/v1/messages"),
        ("/v1/tokenize", "/tokenize"),
        ("/systemone", "/v1/systemone"),
        ("/rerank", "/rerank"),
    ],
)
def test_a_path_is_forwarded_in_the_form_that_llama_server_knows(asked: str, forwarded: str) -> None:
    assert routes.POST[asked].target(asked) == forwarded


def test_questions_go_to_a_loaded_model_and_load_none() -> None:
    async def story() -> None:
        async with Rig() as rig:
            answer = await rig.ask(b"", "/props?model=m", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (409, "model_not_loaded")
            await loaded(rig)
            answer = await rig.ask(b"", "/v1/props?model=alias-of-m&x=1", "GET")
            assert answer.status == 200
            got = rig.upstream.got[0]
            assert (got.method, got.target) == ("GET", "/props?model=alias-of-m&x=1")
            assert got.header("content-length") is None
            assert got.header("authorization") == "Bearer child-key"
            assert (await rig.ask(b"", "/slots?model=nope", "GET")).status == 404
            assert len(rig.events(RequestArrived)) == 1

    run(story)


def test_a_replica_is_reached_by_id_by_index_by_number_or_by_model() -> None:
    async def story() -> None:
        async with Rig() as rig:
            replica = await loaded(rig)
            for name in (replica.replace("#", "%23"), "m%230", "0", "m", "alias-of-m"):
                answer = await rig.ask(b"", f"/instance/{name}/a%20b/c?q=%2F", "GET", {"Accept-Encoding": "gzip"})
                assert answer.status == 200
                got = rig.upstream.got[-1]
                assert got.target == "/a%20b/c?q=%2F"
                assert got.header("accept-encoding") == "gzip"
            answer = await rig.ask(b"", "/instance/nope/x", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "replica_not_found")
            assert replica in answer.json()["error"]["message"]

    run(story)


def test_a_model_with_slashes_in_its_name_has_its_pages() -> None:
    async def story() -> None:
        async with Rig(models=("org/m", "org")) as rig:
            await rig.ask({**CHAT, "model": "org/m"})
            rig.upstream.got.clear()
            for name in ("org/m", "org%2Fm"):
                answer = await rig.ask(b"", f"/upstream/{name}/index.html", "GET")
                assert (answer.status, rig.upstream.got[-1].target) == (200, "/index.html")
            answer = await rig.ask(b"", "/upstream/org/x", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (409, "model_not_loaded")
            answer = await rig.ask(b"", "/upstream/none/x", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")

    run(story)


def test_a_page_without_its_slash_is_sent_there() -> None:
    """Its parts are named relative to it."""

    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            answer = await rig.ask(b"", "/instance/m?x=1", "GET")
            assert (answer.status, answer.header("location")) == (307, "./m/?x=1")
            assert (await rig.ask(b"", "/instance/m/", "GET")).status == 200
            assert rig.upstream.got[-1].target == "/"

    run(story)


def test_pages_pass_as_they_are_encoded() -> None:
    async def replica(got: Got) -> None:
        await got.reply(body=b"\x1f\x8bzipped", headers={"Content-Encoding": "gzip", "ETag": "x"})

    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            rig.upstream.handler = replica
            answer = await rig.ask(b"", "/instance/m/bundle.js", "GET")
            assert (answer.header("content-encoding"), answer.header("etag")) == ("gzip", "x")
            assert answer.body == b"\x1f\x8bzipped"

    run(story)


def test_a_head_request_has_headers_and_no_body() -> None:
    async def replica(got: Got) -> None:
        await got.reply(body=b"", length=500)

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            await loaded(rig)
            rig.upstream.handler = replica
            await wire.send(b"", "/instance/m/x", "HEAD")
            assert (await wire.head()).header("content-length") == "500"
            await wire.send(b"", "/slots?model=m", "HEAD")
            assert (await wire.head()).status == 200

    run(story)


def test_the_head_of_a_slow_stream_does_not_wait_for_its_body() -> None:
    async def replica(got: Got) -> None:
        await got.begin_stream()
        await got.gone.wait()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            await loaded(rig)
            rig.upstream.handler = replica
            await wire.send(b"", "/instance/m/models/sse", "GET")
            assert (await wire.head()).status == 200
            wire.abort()
            async with asyncio.timeout(DEADLINE_S):
                await rig.upstream.got[-1].gone.wait()

    run(story)


def test_a_replica_that_breaks_off_is_a_502() -> None:
    async def replica(got: Got) -> None:
        got.die()

    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            rig.upstream.handler = replica
            answer = await rig.ask(b"", "/props?model=m", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_error")

    run(story)


def test_an_error_without_a_word_gets_some_unless_a_page_asks() -> None:
    async def story() -> None:
        async with Rig() as rig:
            replica = await loaded(rig)
            rig.upstream.handler = lambda got: got.reply(414, b"")
            answer = await rig.ask(b"", "/props?model=m", "GET")
            assert (answer.status, answer.json()["error"]["code"]) == (414, "upstream_error")
            assert "llama-server answers 414, since the path" in answer.json()["error"]["message"]
            answer = await rig.ask(b"", f"/instance/{replica.replace('#', '%23')}/props", "GET")
            assert (answer.status, answer.body) == (414, b"")

    run(story)


def test_a_client_that_leaves_while_the_replica_is_reached_holds_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody calls back for who has left already; a replica that is slow to answer would be asked for nobody."""
    connect = passage.Connection.open

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            await loaded(rig)

            async def leaves_meanwhile(*where: Any, **how: Any) -> Connection:
                connection = await connect(*where, **how)
                wire.rst()
                await until(lambda: not clients(rig))
                return connection

            monkeypatch.setattr(passage.Connection, "open", leaves_meanwhile)
            await wire.send(b"", "/props?model=m", "GET")
            await until(lambda: rig._server.server_state.tasks)
            await until(lambda: not rig._server.server_state.tasks)
            assert rig.upstream.got == []

    run(story)


def clients(rig: Rig) -> list[Any]:
    return list(rig._server.server_state.connections)


def test_control_goes_to_the_replica_that_makes_the_stream() -> None:
    ended = asyncio.Event()

    async def replica(got: Got) -> None:
        if got.target.endswith("/control"):
            ended.set()
            await got.reply(body=b'{"success":true}')
            return
        await got.begin_stream()
        await got.chunk(b'data: {"id":"chatcmpl-%d"}\n\n' % len(rig_of[0].upstream.got))
        await ended.wait()
        await got.end_stream()

    rig_of: list[Rig] = []

    async def story() -> None:
        async with Rig(replicas=2, slots=1) as rig, rig.connect() as one, rig.connect() as two:
            rig_of.append(rig)
            rig.upstream.handler = replica
            await one.send({**CHAT, "stream": True})
            await one.head()
            await two.send({**CHAT, "stream": True})
            await two.head()
            assert len({event.replica for event in rig.events(RequestDispatched)}) == 2
            control = {"id": "chatcmpl-2", "action": "reasoning_end", "model": "m"}
            unknown = await rig.ask({**control, "id": "chatcmpl-9"}, "/v1/chat/completions/control")
            assert (unknown.status, unknown.json()["error"]["code"]) == (404, "request_not_found")
            answer = await rig.ask(control, "/v1/chat/completions/control")
            assert (answer.status, answer.json()) == (200, {"success": True})

    run(story)


@pytest.mark.parametrize("prefix", ["/instance/m", "/instance/m%230", "/instance/0", "/upstream/m"])
def test_what_a_page_of_a_replica_generates_is_a_request_like_any_other(prefix: str) -> None:
    """It takes its turn and a slot. The path says whose it is, whatever the page writes into the body."""

    async def story() -> None:
        async with Rig(slots=1) as rig, rig.connect() as wire:
            rig.upstream.handler = endless
            await wire.send({**CHAT, "stream": True})
            await wire.head()
            page = asyncio.create_task(rig.ask({"messages": CHAT["messages"]}, f"{prefix}/v1/chat/completions"))
            arrived = await rig.logged(RequestArrived, 2)
            assert (arrived.model, arrived.route) == ("m", "/chat/completions")
            assert (await rig.ask(b"", f"{prefix}/slots", "GET")).status == 200  # to look does not wait
            assert len(rig.events(RequestDispatched)) == 1
            rig.upstream.handler = plain
            wire.abort()
            answer = await page
            assert (answer.status, rig.upstream.got[-1].target) == (200, "/v1/chat/completions")
            assert rig.upstream.got[-1].body == b'{"messages": [{"role": "user", "content": "hi"}]}'
            assert (await rig.ask({**CHAT, "model": "other"}, f"{prefix}/v1/messages")).status == 200
            assert [event.model for event in rig.events(RequestArrived)] == ["m", "m", "m"]

    run(story)


async def endless(got: Got) -> None:
    if got.target == "/slots":
        await plain(got)
        return
    await got.begin_stream()
    await got.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    await got.gone.wait()


async def plain(got: Got) -> None:
    await got.reply(body=b"[]" if got.target == "/slots" else b"{}")


def test_a_page_that_was_left_open_loads_its_model_again() -> None:
    """Of what is not loaded any more, the path still tells the model; what means nothing is not found."""

    async def story() -> None:
        async with Rig(models=("org/m", "org", "chat")) as rig:
            for prefix, model in (
                ("/instance/org%2Fm%230", "org/m"),
                ("/upstream/org/m", "org/m"),
                ("/instance/org", "org"),
                ("/upstream/chat", "chat"),
            ):
                answer = await rig.ask(CHAT, f"{prefix}/chat/completions")
                assert (answer.status, rig.events(RequestArrived)[-1].model) == (200, model)
            answer = await rig.ask(CHAT, "/instance/nobody/chat/completions")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "replica_not_found")
            answer = await rig.ask(CHAT, "/upstream/nobody/v1/messages")
            assert (answer.status, answer.json()["error"]["type"]) == (404, "not_found_error")

    run(story)


def test_a_page_finds_its_conversation_wherever_it_is() -> None:
    """Two replicas, of which the busier one's page asks: the stream that it comes back to is with the other."""

    async def story() -> None:
        async with Rig(replicas=2) as rig, rig.connect() as wire, rig.connect() as two:
            rig.upstream.handler = endless
            await wire.send({**CHAT, "stream": True})
            await wire.head()
            first = rig.events(RequestDispatched)[0].replica
            page = f"/instance/{first.partition('.')[0].replace('#', '%23')}"
            await two.send({**CHAT, "stream": True}, f"{page}/v1/chat/completions", "POST", TALK)
            await two.head()
            assert rig.events(RequestDispatched)[1].replica != first
            rig.upstream.handler = plain
            answer = await rig.ask(b"", f"{page}/v1/stream/talk?from=0", "GET")
            assert (answer.status, rig.upstream.got[-1].target) == (200, "/v1/stream/talk?from=0")
            assert len(rig.events(ClientReattached)) == 1
            assert (await rig.ask(b"", f"{page}/v1/stream/talk", "DELETE")).status == 200
            assert (await rig.logged(RequestCancelled)).by == "delete"

    run(story)


TALK = {"X-Conversation-Id": "talk"}


def test_keys_are_asked_for_everywhere() -> None:
    async def story() -> None:
        async with Rig() as rig:
            keys = {
                "all": KeyConfig("all", key_digest("secret"), priority=3),
                "some": KeyConfig("some", key_digest("less"), models=("other",)),
            }
            object.__setattr__(rig.config, "keys", keys)
            for path in ("/v1/chat/completions", "/tokenize", "/v1/streams/lookup"):
                answer = await rig.ask(CHAT, path)
                assert (answer.status, answer.json()["error"]["code"]) == (401, "unauthorized")
                assert answer.header("www-authenticate") == "Bearer"
            assert (await rig.ask(CHAT, headers={"Authorization": "Bearer wrong"})).status == 401
            assert (await rig.ask(CHAT, headers={"X-Api-Key": "secret"})).status == 200
            assert (await rig.ask(CHAT, headers={"Authorization": "Bearer secret"})).status == 200
            arrived = rig.events(RequestArrived)[-1]
            assert (arrived.key, arrived.priority) == ("all", 3)
            answer = await rig.ask(CHAT, headers={"Authorization": "Bearer less"})
            assert (answer.status, answer.json()["error"]["code"]) == (403, "forbidden")
            answer = await rig.ask(b"", "/instance/m/x", "GET", {"Authorization": "Bearer less"})
            assert answer.status == 403
            answer = await rig.ask(CHAT, "/instance/m/v1/chat/completions", headers={"Authorization": "Bearer less"})
            assert answer.status == 403
            answer = await rig.ask({**CHAT, "model": "x"}, headers={"Authorization": "Bearer less"})
            assert "'m'" not in answer.json()["error"]["message"]

    run(story)


def test_a_priority_in_a_header_counts_for_whom_it_may() -> None:
    """Else it is passed over, and the priority of the key counts."""

    async def story() -> None:
        async with Rig() as rig:
            keys = {name: KeyConfig(name, key_digest(name), priority=3) for name in ("may", "may_not")}
            object.__setattr__(rig.config, "keys", keys)
            object.__setattr__(rig.config, "priority_header", ("may",))

            async def asked(key: str, **headers: str) -> tuple[int, str]:
                said = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): v for name, v in headers.items()}}
                answer = await rig.ask(CHAT, headers=said)
                assert answer.status == 200
                arrived = rig.events(RequestArrived)[-1]
                return arrived.priority, arrived.priority_from

            assert await asked("may", X_Priority="-7") == (-7, "header")
            assert await asked("may", X_Priority="0") == (0, "header")
            assert await asked("may") == (3, "key")
            assert await asked("may_not", X_Priority="9") == (3, "key")
            for wrong in ("high", "1.5", "1000001"):
                answer = await rig.ask(CHAT, headers={"Authorization": "Bearer may", "X-Priority": wrong})
                assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_parameter")
                assert wrong in answer.json()["error"]["message"]

    run(story)


def test_without_keys_a_priority_in_a_header_counts_only_if_it_does_for_everybody() -> None:
    async def story() -> None:
        async with Rig() as rig:
            for everybody, expected in [(False, (0, "")), (True, (5, "header"))]:
                object.__setattr__(rig.config, "priority_header", everybody)
                assert (await rig.ask(CHAT, headers={"X-Priority": "5"})).status == 200
                arrived = rig.events(RequestArrived)[-1]
                assert (arrived.priority, arrived.priority_from) == expected

    run(story)


# --- one reading of a path ------------------------------------------------------------------------------------------

ODD_SPELLINGS = ("v1/%73tream", "v1%2fstream", "%761/stream")
"""Of v1/stream, as llama-server reads them."""


def with_keys(rig: Rig) -> None:
    """`owner` may administer, `ann` and `ben` may not."""
    keys = {name: KeyConfig(name, key_digest(name), admin=name == "owner") for name in ("owner", "ann", "ben")}
    object.__setattr__(rig.config, "keys", keys)


def as_(name: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}", **{key.replace("_", "-"): value for key, value in headers.items()}}


@pytest.mark.parametrize("path", ["v1/%63hat/completions", "v1%2Fchat%2Fcompletions", "api/chat", "%69nfill"])
def test_a_generation_takes_its_turn_however_its_path_is_written(path: str) -> None:
    """Also under a name that only older builds of llama-server know."""

    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            assert (await rig.ask(CHAT, f"/instance/m/{path}")).status == 200
            assert len(rig.events(RequestArrived)) == 2

    run(story)


def test_a_path_reaches_a_replica_as_it_was_read_here() -> None:
    """llama-server reads %u0063 as a letter, nobody else does: so it gets what was looked at, written anew."""

    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            for path, target in (
                ("/instance/m/v1/%u0063hat/completions", "/v1/%25u0063hat/completions"),
                ("/instance/m/v1/%u0073tream?conv%u005fid=x", "/v1/%25u0073tream?conv%25u005fid=x"),
                ("/props?model=m&%u006dodel=other", "/props?model=m&%25u006dodel=other"),
                ("/props?model=m&word=%C3%BC&bytes=%FF", "/props?model=m&word=%C3%BC&bytes=%FF"),
            ):
                assert (await rig.ask(b"", path, "GET")).status == 200
                assert rig.upstream.got[-1].target == target

    run(story)


def test_a_stream_is_its_key_s_however_it_is_asked_for() -> None:
    """By its path or its query, here or at the page of a replica, in any spelling; two ids at once are one."""

    async def story() -> None:
        async with Rig(replicas=2) as rig, rig.connect() as anns, rig.connect() as bens:
            with_keys(rig)
            rig.upstream.handler = endless
            for wire, name in ((anns, "ann"), (bens, "ben")):
                sent = as_(name, X_Conversation_Id=f"{name}-1")
                await wire.send({**CHAT, "stream": True}, "/v1/chat/completions", "POST", sent)
                await wire.head()
            rig.upstream.handler = plain
            rig.upstream.got.clear()
            for page in ("", "/instance/m", "/upstream/m"):
                for spelled in (*ODD_SPELLINGS, "v1/stream") if page else ("v1/stream",):
                    for rest in ("/ann-1", "?conv_id=ann-1", "/ann-1?conv_id=ben-1"):
                        for method in ("GET", "DELETE"):
                            answer = await rig.ask(b"", f"{page}/{spelled}{rest}", method, as_("ben"))
                            assert (answer.status, answer.json()["error"]["code"]) == (404, "conversation_not_found")
            assert rig.upstream.got == []
            asked = "/v1/stream?from=3&conv%u005fid=ann-1&conv_id=ben-1&conv_id=ann-1"
            assert (await rig.ask(b"", asked, "GET", as_("ben"))).status == 200
            assert rig.upstream.got[-1].target == "/v1/stream?conv_id=ben-1&from=3&conv%25u005fid=ann-1"
            assert (await rig.ask(b"", "/instance/m/v1/stream/ann-1", "GET", as_("ann"))).status == 200
            assert rig.upstream.got[-1].target == "/v1/stream/ann-1"
            for name in ("ann", "ben"):
                assert (await rig.ask(b"", f"/v1/stream?conv_id={name}-1", "DELETE", as_(name))).status == 200

    run(story)


def test_nobody_takes_over_the_conversation_of_another_key() -> None:
    """A request with the id of another's stream is served, but llama-server does not hear of the id."""

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            with_keys(rig)
            rig.upstream.handler = endless
            await wire.send({**CHAT, "stream": True}, "/v1/chat/completions", "POST", as_("ann", X_Conversation_Id="a"))
            await wire.head()
            rig.upstream.handler = plain
            mine = await rig.ask(CHAT, headers=as_("ben", X_Conversation_Id="a"))
            assert (mine.status, rig.upstream.got[-1].header("x-conversation-id")) == (200, None)
            assert (await rig.ask(b"", "/v1/stream?conv_id=a", "GET", as_("ben"))).status == 404
            assert (await rig.ask(b"", "/v1/stream?conv_id=a", "GET", as_("ann"))).status == 200
            again = await rig.ask(CHAT, headers=as_("ann", X_Conversation_Id="a"))
            assert (again.status, rig.upstream.got[-1].header("x-conversation-id")) == (200, "a")
            await rig.ask(b"", "/v1/stream?conv_id=a", "DELETE", as_("ann"))

    run(story)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/slots/0?model=m&action=erase"),
        ("POST", "/lora-adapters?model=m"),
        ("POST", "/props?model=m"),
        ("POST", "/tools?model=m"),
        ("POST", "/instance/m/slots/0?action=erase"),
        ("POST", "/instance/m/%73lots/0?action=erase"),
        ("POST", "/upstream/m/lora-adapters"),
        ("PUT", "/instance/m/props"),
        ("GET", "/instance/m/v1/streams"),
        ("GET", "/instance/m/cors-proxy?url=http://x"),
    ],
)
def test_what_concerns_all_who_use_a_model_needs_the_admin_right(method: str, path: str) -> None:
    async def story() -> None:
        async with Rig() as rig:
            await loaded(rig)
            with_keys(rig)
            refused = await rig.ask(b"{}", path, method, as_("ann"))
            assert (refused.status, refused.json()["error"]["code"]) == (403, "forbidden")
            assert rig.upstream.got == []
            assert (await rig.ask(b"{}", path, method, as_("owner"))).status == 200
            for asked in ("/instance/m/props", "/slots?model=m", "/instance/m/"):
                assert (await rig.ask(b"", asked, "GET", as_("ann"))).status == 200

    run(story)


def test_an_answer_is_controlled_by_whoever_asked_for_it_also_from_a_page() -> None:
    async def named(got: Got) -> None:
        await got.begin_stream()
        await got.chunk(b'data: {"id":"c-1","choices":[{"delta":{"content":"x"}}]}\n\n')
        await got.gone.wait()

    async def story() -> None:
        async with Rig() as rig, rig.connect() as wire:
            with_keys(rig)
            rig.upstream.handler = named
            await wire.send({**CHAT, "stream": True}, "/v1/chat/completions", "POST", as_("ann"))
            await wire.head()
            rig.upstream.handler = plain
            control = {"id": "c-1", "model": "m", "action": "reasoning_end"}
            for path in ("/v1/chat/completions/control", "/instance/m/v1/chat/completions/control"):
                assert (await rig.ask(control, path, headers=as_("ben"))).status == 404
                assert (await rig.ask(control, path, headers=as_("ann"))).status == 200
                assert (await rig.ask({**control, "id": "unknown"}, path, headers=as_("owner"))).status == 200

    run(story)
