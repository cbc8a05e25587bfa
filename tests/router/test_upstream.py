"""The client connection to a child: what it reads, how it fails, and that it neither delays bytes nor hoards them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from router import upstream
from router.upstream import Broken, ConnectFailed, Connection, Endpoint, Pool, fetch, request_head
from tests.router.relay_rig import DEADLINE_S, at_rest, run, until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GET = request_head(b"GET", b"/", [(b"host", b"x")])


@contextlib.asynccontextmanager
async def child(directory: Path, serve: Serve) -> AsyncIterator[Endpoint]:
    """A server on a UNIX socket that reads a request's head and lets `serve` do the rest."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_unix_server(connected, directory / "s")
    try:
        yield Endpoint(path=str(directory / "s"), key="secret")
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def asked(endpoint: Endpoint) -> Connection:
    """A connection over which a GET was sent."""
    connection = await Connection.open(endpoint)
    await connection.send(GET)
    return connection


def says(*pieces: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    return serve


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: \r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunked", "until close", "after 100", "empty header"],
)
@pytest.mark.parametrize("cut", [0, 1, 7, 30])
def test_an_answer_is_the_same_however_it_is_framed_and_cut(tmp_path: Path, answer: bytes, cut: int) -> None:
    async def story() -> None:
        async with child(tmp_path, says(answer[:cut], answer[cut:])) as endpoint:
            response = await fetch(endpoint, "GET", "/", timeout_s=5)
            assert (response.status, response.body) == (200, b"hello")

    run(story)


def test_the_key_goes_along_and_a_body_has_its_length(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readexactly(4))
        await says(b"HTTP/1.1 204 No Content\r\n\r\n")(reader, writer)

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            response = await fetch(endpoint, "POST", "/x?y=1", body=b"body", timeout_s=5)
            assert (response.status, response.body, heads) == (204, b"", [b"body"])
        assert "secret" not in repr(endpoint)

    run(story)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nzzz",
    ],
    ids=["nothing", "half a head", "too short", "no last chunk", "no HTTP", "another protocol"],
)
def test_what_breaks_off_is_never_taken_for_complete(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        async with child(tmp_path, says(answer)) as endpoint:
            with pytest.raises(Broken):
                await fetch(endpoint, "GET", "/", timeout_s=5)

    run(story)


def test_an_answer_that_is_larger_than_any_question_deserves_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child is not trusted with the router's memory."""
    monkeypatch.setattr(upstream, "FETCH_LIMIT", 1000)

    async def story() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"
        async with child(tmp_path, says(head, b"x" * 2000)) as endpoint:
            with pytest.raises(Broken, match="larger than 1000 bytes"):
                await fetch(endpoint, "GET", "/slots", timeout_s=5)

    run(story)


def test_bytes_that_came_before_the_break_are_read_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with child(tmp_path, says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello")) as endpoint:
            connection = await asked(endpoint)
            assert await connection.read() == b"hello"
            with pytest.raises(Broken, match="before its answer was complete"):
                await connection.read()

    run(story)


def test_nobody_listening_says_where(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(ConnectFailed, match=str(tmp_path / "none")):
            await Connection.open(Endpoint(path=str(tmp_path / "none")))
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}"):
            await Connection.open(Endpoint(port=port))

    run(story)


def test_a_full_socket_queue_is_waited_for(tmp_path: Path) -> None:
    """llama-server takes connections one at a time, and its queue is short."""

    async def story() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen(0)
            endpoint = Endpoint(path=str(tmp_path / "s"))
            first = await Connection.open(endpoint)
            with pytest.raises(ConnectFailed, match="queue is full"):
                await Connection.open(endpoint, timeout_s=0.05)
            second = asyncio.create_task(Connection.open(endpoint, timeout_s=5))
            await asyncio.sleep(0)
            listener.accept()[0].close()
            (await second).close()
            first.close()

    run(story)


def test_close_ends_a_wait_and_reaches_the_child_at_once(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await asked(endpoint)
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0)
            connection.close()
            with pytest.raises(Broken, match="closed by us"):
                await reading
            async with asyncio.timeout(DEADLINE_S):
                await gone.wait()

    run(story)


def test_who_leaves_is_called_back_when_the_child_is_done(tmp_path: Path) -> None:
    """The child reads the end at once, and takes its time: until it closes, it may still be about to begin."""
    told, done, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        told.set()
        await done.wait()
        await says(b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n", b"x" * 70_000)(reader, writer)

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await asked(endpoint)
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0)
            connection.leave(left.set)
            with pytest.raises(Broken, match="closed by us"):
                await reading
            connection.close()
            await told.wait()
            assert not left.is_set()
            done.set()
            await left.wait()

    run(story)


def test_a_child_that_goes_on_talking_to_nobody_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LEAVE_S", 0.1)
    left, noticed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"7\r\ndata: x\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            noticed.set()

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await asked(endpoint)
            await connection.start()
            connection.leave(left.set)
            await left.wait()
            await noticed.wait()

    run(story)


@pytest.mark.parametrize("what", ["answered", "half sent", "broken"])
def test_who_leaves_a_child_that_cannot_be_at_work_need_not_wait(tmp_path: Path, what: str) -> None:
    """It has answered, it never got the whole request, or it is not there any more."""
    left = asyncio.Event()
    body = b"x" * 10_000_000 if what == "half sent" else b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if what == "answered":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        if what != "broken":
            await asyncio.Event().wait()

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await Connection.open(endpoint)
            sending = asyncio.create_task(connection.send(GET, body))
            await asyncio.sleep(0)
            if what == "answered":
                assert await connection.read() == b"ok"
            elif what == "broken":
                with pytest.raises(Broken):
                    await connection.read()
            connection.leave(left.set)
            assert left.is_set()
            with contextlib.suppress(Broken):
                await sending

    run(story)


def test_a_nudge_lets_a_reader_do_something_else(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(reader, writer)

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await asked(endpoint)
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0)
            connection.nudge()
            assert await reading is None
            await connection.send(b"x")
            assert await connection.read() == b"ok"
            assert await connection.read() == b""

    run(story)


def test_a_consumer_that_lags_stops_the_child_instead_of_filling_memory(tmp_path: Path) -> None:
    written = 0
    total = 64 << 20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while written < total:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536
        await reader.read()

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await asked(endpoint)
            await connection.start()
            await until(lambda: connection._paused)
            assert await at_rest(lambda: written) < 4 << 20
            got = 0
            while data := await connection.read():
                got += len(data)
            assert got == total

    run(story)


def test_poured_bytes_wait_in_the_socket_while_the_sink_is_full(tmp_path: Path) -> None:
    total = 8 << 20

    async def story() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total
        async with child(tmp_path, says(head, b"x" * total)) as endpoint:
            connection = await asked(endpoint)
            await connection.start()
            taken: list[bytes] = []
            full = True

            def sink(data: bytes) -> bool:
                taken.append(data)
                return not full

            pouring = asyncio.create_task(connection.pour(sink))
            await until(lambda: taken)
            assert await at_rest(lambda: len(taken)) < total // 65536
            full = False
            connection.resume()
            await pouring
            assert sum(map(len, taken)) == total

    run(story)


def test_an_answer_before_the_body_is_sent_ends_the_sending(tmp_path: Path) -> None:
    """llama-server refuses a body that is too large after its headers; the rest of it need not be sent."""
    asked = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(1000):
            asked += 1
            yield b"x" * (1 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1 << 20)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read(1 << 20)
        await asyncio.sleep(10)

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint:
            connection = await Connection.open(endpoint)
            sending = asyncio.create_task(connection.send(GET, pieces()))
            assert await connection.read() == b"big"
            assert connection.status == 413
            connection.close()
            await sending
            assert asked < 1000

    run(story)


def test_an_answer_to_half_a_body_is_read_though_the_rest_is_never_taken(tmp_path: Path) -> None:
    """Neither read nor refused: the child waits, and would wait for ever if its answer were not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await asyncio.Event().wait()

    async def story() -> None:
        async with child(tmp_path, serve) as endpoint, asyncio.timeout(DEADLINE_S):
            connection = await Connection.open(endpoint)
            await connection.send(GET, bytes(16 << 20))
            assert await connection.read() == b"big"
            assert not connection.can_carry_another
            connection.close()

    run(story)


def test_what_follows_the_body_of_an_answer_is_no_header(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Late: yes\r\n\r\n"

    async def story() -> None:
        async with child(tmp_path, says(answer)) as endpoint:
            answered = await fetch(endpoint, "GET", "/", timeout_s=DEADLINE_S)
            assert (answered.body, answered.header(b"x-late")) == (b"hi", None)

    run(story)


def test_a_tap_sees_everything_even_when_nobody_reads(tmp_path: Path) -> None:
    class Seen:
        status = 0
        data = b""
        is_over = False

        def began(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
            self.status = status

        def feed(self, data: bytes) -> None:
            self.data += data

        def ended(self) -> None:
            self.is_over = True

    async def story() -> None:
        async with child(tmp_path, says(b"HTTP/1.1 201 X\r\nContent-Length: 5\r\n\r\nhello")) as endpoint:
            seen = Seen()
            connection = await Connection.open(endpoint, tap=seen)
            await connection.send(GET)
            await until(lambda: seen.is_over)
            assert (seen.status, seen.data) == (201, b"hello")

    run(story)


# --- connections that are used again --------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answering(answer: bytes, seen: list[int]) -> Serve:
    """A child that answers every request of a connection; `seen` counts requests per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = len(seen)
        seen.append(0)
        while True:
            seen[mine] += 1
            writer.write(answer)
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")

    return serve


async def exchange(pool: Pool, endpoint: Endpoint) -> bytes:
    connection = await pool.open(endpoint)
    try:
        await connection.send(GET)
        body = b""
        while data := await connection.read():
            body += data
        return body
    finally:
        pool.give_back(endpoint, connection)


def test_a_pool_uses_a_connection_again(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[int] = []
        async with child(tmp_path, answering(OK, seen)) as endpoint:
            pool = Pool()
            for _ in range(5):
                assert await exchange(pool, endpoint) == b"ok"
            assert seen == [5]
            both = await asyncio.gather(exchange(pool, endpoint), exchange(pool, endpoint))
            assert list(both) == [b"ok", b"ok"]
            assert seen == [6, 1]
            pool.close()

    run(story)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more",
    ],
    ids=["closes", "HTTP/1.0", "says too much"],
)
def test_a_connection_that_cannot_carry_another_is_closed(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        seen: list[int] = []
        async with child(tmp_path, answering(answer, seen)) as endpoint:
            pool = Pool()
            for _ in range(3):
                connection = await pool.open(endpoint)
                assert not connection.is_reused
                await connection.send(GET)
                assert await connection.read() == b"ok"
                pool.give_back(endpoint, connection)
            assert seen == [1, 1, 1]

    run(story)


def test_an_exchange_that_was_given_up_is_not_carried_on(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[int] = []
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"
        async with child(tmp_path, answering(head, seen)) as endpoint:
            pool = Pool()
            connection = await pool.open(endpoint)
            await connection.send(GET)
            assert await connection.read() == b"half"
            pool.give_back(endpoint, connection)
            again = await pool.open(endpoint)
            assert again is not connection
            again.close()

    run(story)


def test_connections_rest_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "IDLE_S", 0.01)

    async def story() -> None:
        seen: list[int] = []
        async with child(tmp_path, answering(OK, seen)) as endpoint:
            pool = Pool()
            connection = await pool.open(endpoint)
            await connection.send(GET)
            assert await connection.read() == b"ok"
            pool.give_back(endpoint, connection)
            assert connection.can_carry_another
            await until(lambda: not connection.can_carry_another)
            assert pool._idle == {}

    run(story)
