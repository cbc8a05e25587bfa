"""Requests made to do harm: paths that climb, headers that split, logs that lie, bodies that grow."""

import gzip
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.diary import Formatter
from tests.faults.checks import routed
from tests.security.rig import Answer, request, tell
from tests.standin.fixtures import Model, RouterProcess, body_for
from tests.standin.ledger import polls

CHAT = "/v1/chat/completions"
BODY = json.dumps(body_for(CHAT, "a") | {"max_tokens": 3}).encode()
MIB = 1 << 20
LIMITS = {"MAX_BODY_MIB": 8, "MAX_HEAD_KIB": 16, "HEAD_TIMEOUT": 0.5, "BODY_TIMEOUT": 0.5}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    with routed(folder, [Model("a", tokens=3)], **LIMITS) as router:
        assert router.chat("a").status == 200
        (folder / "state" / "secret.txt").write_text("this must not be read")
        yield router


@pytest.mark.parametrize("prefix", ["", "/instance", "/upstream", "/upstream/a", "/instance/a", "/logs", "/v1/models"])
@pytest.mark.parametrize("climb", ["/../../../../../../etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd"])
@pytest.mark.parametrize("form", ["{}", "{}%00.html", "/..%2f..%2f..%2fetc%2fpasswd", "//etc/passwd"])
def test_a_path_that_climbs_reads_no_file(router: RouterProcess, prefix: str, climb: str, form: str) -> None:
    """Not as it is, not escaped, not with a zero byte: paths are looked up in tables and become no file's name."""
    answer = tell(router, request("GET", prefix + form.format(climb)))
    assert answer.status in (400, 404, 409), answer.raw
    assert b"root:" not in answer.raw


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/passwd", "a/../../x", "..", "%2e%2e"])
def test_a_model_is_a_name_and_no_path(router: RouterProcess, name: str) -> None:
    answer = tell(router, request("POST", CHAT, body=json.dumps({"model": name, "messages": []}).encode()))
    assert answer.status == 404
    assert b"must not be read" not in answer.raw


def test_headers_cannot_be_smuggled_past_the_router(router: RouterProcess) -> None:
    """Two lengths, a length beside chunks, folded lines and blanks before colons are refused: where one request ends
    and the next begins must not be a matter of opinion between the router and what stands before or behind it."""
    base = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    for lines in (
        f"Content-Length: 5\r\nContent-Length: {len(second)}\r\n\r\n{second}",
        f"Content-Length: {len(second) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",
        f"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{second}",
        f"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{second}",
        f"X: a\r\n b\r\n\r\n{second}",
        f"Content-Length: +5\r\n\r\nhello{second}",
        f"Content-Length: 0x5\r\n\r\nhello{second}",
        f"X\0Y: 1\r\n\r\n{second}",
        f"X: a\0b\r\n\r\n{second}",
        f"X: a\rb\r\n\r\n{second}",
    ):
        answer = tell(router, (base + lines).encode())
        assert len(re.findall(rb"HTTP/1.1 \d{3} ", answer.raw)) == 1, (lines, answer.raw)
        assert answer.status == 400, (lines, answer.raw)
        assert b"smuggled" not in answer.raw


@pytest.mark.parametrize("value", ["plain-id-7", "a\tb", "caf\xe9", "a" * 2000])
def test_an_answer_cannot_be_split_by_what_it_echoes(router: RouterProcess, value: str) -> None:
    """A client's own request id comes back as it was, or not at all; never as a line of its own."""
    answer = tell(router, request("POST", CHAT, f"X-Request-Id: {value}", body=BODY))
    assert answer.status == 200
    (sent,) = answer.all("x-request-id")
    assert sent in (value, answer.all("x-router-request")[0])
    assert (sent == value) == (value.isascii() and value.isprintable())


@pytest.mark.parametrize("path", ["/a%0d%0aX-Evil:%201", "/login?next=/%0d%0aX-Evil:1", "/upstream/a%0d%0aX-Evil:1"])
def test_line_breaks_in_a_path_become_no_header(router: RouterProcess, path: str) -> None:
    for lines in ((), ("Accept: text/html",)):
        answer = tell(router, request("GET", path, *lines))
        assert answer.all("x-evil") == []
        assert 300 <= answer.status < 500


def test_nothing_that_a_client_sends_forges_a_line_of_the_log(router: RouterProcess) -> None:
    """The event log has one line per event, whatever names and headers hold; and the diary has none of theirs."""
    forged = '\n{"type":"RouterStopped","seq":1}\n2030-01-01 00:00:00 ERROR llama_router: forged'
    escaped = forged.replace("\n", "%0a").replace(" ", "%20").replace('"', "%22")
    tell(router, request("POST", CHAT, body=json.dumps({"model": forged, "messages": []}).encode()))
    tell(router, request("GET", f"/nothing{escaped}"))
    tell(router, request("GET", f"/upstream/a/{escaped}"))
    body = {**json.loads(BODY), "messages": [{"role": "user", "content": forged}]}
    lines = ("X-Session-Id: \x1b[31mred", "X-Conversation-Id: \x1b]0;title", "X-Request-Id: \u0085x")
    assert tell(router, request("POST", CHAT, *lines, body=json.dumps(body).encode())).status in (200, 400)
    assert router.call("POST", CHAT, body).status == 200
    for path in router.log_dir.glob("*.ndjson"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            assert json.loads(line)["type"] != "RouterStopped"
            assert b"\x1b" not in line
    assert "forged" not in router.stderr.read_text()
    assert "\x1b" not in router.stderr.read_text()


def test_a_message_cannot_look_like_two() -> None:
    """What comes after a line break is indented, and control characters are shown instead of sent to the terminal."""
    text = "it said\n2030-01-01 00:00:00 ERROR llama_router: forged\r\x1b[2J\x9b1m\u202e"
    record = logging.LogRecord("llama_router", logging.INFO, "f", 1, "%s", (text,), None)
    lines = Formatter().format(record).split("\n")
    assert len(lines) == 2
    assert lines[1] == "    2030-01-01 00:00:00 ERROR llama_router: forged\\x0d\\x1b[2J\\x9b1m\\x202e"


def test_the_router_connects_to_nobody_that_a_request_names(router: RouterProcess) -> None:
    """A whole URL, another Host, CONNECT, a URL as a model or in a header: the listener here is never called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/"
        body = json.dumps({**json.loads(BODY), "model": url}).encode()
        for data in (
            request("GET", url),
            request("POST", url + "v1/chat/completions", body=BODY),
            request("CONNECT", f"127.0.0.1:{port}"),
            request("GET", "/v1/models", host=f"127.0.0.1:{port}"),
            request(
                "POST", CHAT, f"X-Forwarded-Host: 127.0.0.1:{port}", f"Forwarded: host=127.0.0.1:{port}", body=BODY
            ),
            request("POST", CHAT, body=body),
            request("GET", f"/upstream/{url}"),
            request("GET", f"/instance/127.0.0.1:{port}/"),
            request("GET", f"/upstream/a/@127.0.0.1:{port}/"),
            request("POST", "/models/load", body=json.dumps({"model": url}).encode()),
            request("GET", f"/cors-proxy?url={url}"),
        ):
            assert tell(router, data).status < 500
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_zip_bomb_is_counted_while_it_is_unpacked(router: RouterProcess) -> None:
    """2 GiB in 2 MiB: refused at the limit, with little memory, while others are served."""
    bomb = gzip.compress(bytes(32 * MIB)) * 64
    assert len(bomb) < 3 * MIB
    before = resident(router)
    begun = time.monotonic()
    answer = tell(router, request("POST", CHAT, "Content-Encoding: gzip", body=bomb))
    assert answer.status == 413
    assert time.monotonic() - begun < 20
    assert resident(router) - before < 64 * MIB
    nested = gzip.compress(gzip.compress(BODY))
    assert tell(router, request("POST", CHAT, "Content-Encoding: gzip", body=nested)).status in (400, 404)
    assert router.chat("a").status == 200


def resident(router: RouterProcess) -> int:
    assert router.process
    return int(Path(f"/proc/{router.process.pid}/statm").read_text().split()[1]) * 4096


def test_a_body_has_its_limit_on_every_route(router: RouterProcess) -> None:
    """The relayed ones take what is configured, the router's own little; announced or not."""
    large = b"x" * (9 * MIB)
    for path in (CHAT, "/models/load", "/router/drain", "/login"):
        announced = tell(router, request("POST", path, "Sec-Fetch-Site: same-origin", body=large))
        assert announced.status in (413, 200) or not announced.raw, (path, announced.raw[:200])
    chunks = b"".join(b"%x\r\n%b\r\n" % (MIB, large[:MIB]) for _ in range(9)) + b"0\r\n\r\n"
    head = "POST {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    for path in (CHAT, "/models/load"):
        assert tell(router, head.format(path).encode() + chunks).status == 413, path


def until_closed(connection: socket.socket) -> Answer:
    return Answer(b"".join(iter(lambda: connection.recv(65536), b"")))


def test_headers_that_never_end_are_given_up_on(router: RouterProcess) -> None:
    """One byte now and then is no reason to wait for ever; an idle connection is closed without a word."""
    with socket.create_connection(router.address, timeout=10) as idle:
        assert until_closed(idle).raw == b""
    with socket.create_connection(router.address, timeout=10) as slow:
        slow.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n")
        slow.settimeout(0.1)
        received = b""
        for _ in polls(5):
            try:
                slow.sendall(b"X")
                received += slow.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if received:
                break
        assert b"408 Request Timeout" in received
        assert b"request_timeout" in received


def test_the_second_request_of_a_connection_has_the_same_deadline(router: RouterProcess) -> None:
    with socket.create_connection(router.address, timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while b'"ok"' not in received:
            received += connection.recv(65536)
        connection.sendall(b"GET /health HTTP/1.1\r\nHos")
        assert until_closed(connection).status == 408


def test_a_body_that_stops_coming_is_given_up_on(router: RouterProcess) -> None:
    """It takes no place in the queue and leaves nothing in the log."""
    arrived = len(router.events("RequestArrived"))
    with socket.create_connection(router.address, timeout=10) as connection:
        connection.sendall(request("POST", CHAT, body=BODY)[:-10])
        answer = until_closed(connection)
    assert answer.status == 408
    assert json.loads(answer.body)["error"]["code"] == "request_timeout"
    assert len(router.events("RequestArrived")) == arrived


def test_whoever_waits_for_an_answer_is_never_hurried(router: RouterProcess) -> None:
    """An answer that takes longer than every deadline of the client's side, on a connection that then goes on."""
    with socket.create_connection(router.address, timeout=10) as connection:
        slow = {**json.loads(BODY), "standin": {"tokens": 4, "gap_s": 0.5}}
        data = json.dumps(slow).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        begun = time.monotonic()
        received = b""
        while b"\r\n\r\n{" not in received:
            received += connection.recv(65536)
        assert time.monotonic() - begun > 1
        assert b" 200 OK" in received
        connection.sendall(request("GET", "/health"))
        assert b'"ok"' in b"".join(iter(lambda: connection.recv(65536), b""))


def test_headers_have_a_limit(router: RouterProcess) -> None:
    assert tell(router, request("GET", "/health", f"X: {'x' * 15_000}")).status == 200
    for lines in (17, 40, 500):  # which come in one piece, or in many
        answer = tell(router, request("GET", "/health", *(f"X{n}: {'x' * 1000}" for n in range(lines))))
        assert answer.status == 431, lines
        assert json.loads(answer.body)["error"]["code"] == "headers_too_large"
    assert tell(router, request("POST", CHAT, body=BODY + b" " * 40_000)).status == 200


@pytest.mark.parametrize("line", [b"X: y\r\n", b"X"], ids=["in many", "in one"])
def test_what_follows_a_body_has_a_limit(router: RouterProcess, line: bytes) -> None:
    """The end of a chunked body may be told in headers, which nobody wants and which could go on for ever."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    body = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    assert tell(router, head + body + line * 400_000).status == 431


def test_a_queue_may_have_a_limit(tmp_path: Path) -> None:
    """Off unless set. Beyond it a request is refused with 503, and told when to try again."""
    with routed(tmp_path, [Model("a", tokens=10_000, gap_s=0.05)], MAX_QUEUE=2) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        waiting = [router.chat("a") for _ in range(2)]
        for _ in polls(5):
            if len(router.status()["queue"]) == 2:
                break
        refused = router.chat("a")
        assert (refused.status, refused.header("retry-after")) == (503, "5")
        assert refused.json()["error"]["code"] == "queue_full"
        for call in (stream, *waiting):
            call.close()


@pytest.mark.parametrize("path", ["/{}", "/upstream/{}", "/instance/{}", "/props?{}", "/v1/models/{}", "/logs/{}"])
def test_a_path_without_end_holds_nobody_up(router: RouterProcess, path: str) -> None:
    """To look for a name in it took half a minute, or for ever, in which no token moved."""
    for method in ("GET", "POST"):
        begun = time.monotonic()
        for many in ("model=&" * 1700, "/" * 14_000):
            assert tell(router, request(method, path.format(many))).status < 500
        answer = tell(router, request(method, path.format("/" * (16 << 10))))
        assert answer.status in (414, 431), answer.raw[:200]
        assert time.monotonic() - begun < 5.0
