"""Clients that speak broken HTTP, half of it, or more of it than anybody needs."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import routed
from tests.standin.fixtures import Model, RouterProcess, body_for

CHAT = "/v1/chat/completions"
BODY = json.dumps(body_for(CHAT, "a") | {"max_tokens": 3}).encode()
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with routed(tmp_path, [Model("a", tokens=3), Model("b", tokens=3)]) as router:
        assert router.chat("a").status == 200
        yield router


def request(body: bytes = BODY, *, path: str = CHAT, method: str = "POST", headers: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def connect(router: RouterProcess, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(router.address, timeout=10)
    connection.sendall(data)
    return connection


def told(router: RouterProcess, data: bytes) -> bytes:
    """All that a connection is told until the router closes it."""
    with connect(router, data) as connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_wish_for_http_2_costs_no_body(router: RouterProcess) -> None:
    """Java's HTTP client sends it with every first request of a connection; the next one comes on the same."""
    wish = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    for size in (1, 50, 10_000):
        data = request(headers=wish) + request(headers="Connection: close\r\n")
        with connect(router) as connection:
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
            answers = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answers.count(b"HTTP/1.1 200 OK") == 2, answers


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        request(headers="Content-Length: 5\r\n"),
        request(headers="Transfer-Encoding: chunked\r\n"),
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["tls", "two lengths", "length and chunks", "connect"],
)
def test_what_is_no_request_is_told_so_as_any_other_mistake(router: RouterProcess, data: bytes) -> None:
    head, _, body = told(router, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_headers_without_end_are_not_collected(router: RouterProcess) -> None:
    """100 MB of them took the router half a minute."""
    data = b"GET /health HTTP/1.1\r\nX-Big: " + b"a" * 100_000_000
    with connect(router) as connection, pytest.raises(ConnectionError):
        connection.sendall(data)
    assert router.call("GET", "/health").status == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/streams/lookup", "/models/load"])
def test_a_body_nested_without_end_is_the_clients_mistake(router: RouterProcess, path: str) -> None:
    answer = router.call("POST", path, b'{"model":"a","x":' + DEEP + b"}")
    assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_body")


def test_a_replica_whose_number_has_thousands_of_digits_is_unknown(router: RouterProcess) -> None:
    assert router.call("GET", f"/instance/{'9' * 6000}/health").status == 404


@pytest.mark.parametrize("prefix", ["/instance/a", "/upstream/a"])
def test_a_replicas_own_page_can_chat(router: RouterProcess, prefix: str) -> None:
    """llama-server's web UI posts to where it came from."""
    answer = router.call("POST", prefix + CHAT, BODY)
    assert (answer.status, answer.json()["model"]) == (200, "a")


@pytest.mark.parametrize("path", [CHAT, "/instance/a" + CHAT, "/models/load"])
def test_who_leaves_in_the_middle_of_a_body_is_no_fault_of_ours(router: RouterProcess, path: str) -> None:
    """With RST and with FIN. `routed` finds the traces of what went wrong."""
    for reset in (True, False):
        connection = connect(router, request(path=path)[:-5])
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        assert router.chat("a").status == 200


@pytest.mark.parametrize(
    "data",
    [request(b'{"model":"a","wait":true}', path="/models/load")[:-5], request()[:-5], request()[:20], b""],
    ids=["half an order", "half a body", "half a head", "nothing"],
)
def test_a_client_that_does_not_finish_its_request_does_not_hold_up_the_end(router: RouterProcess, data: bytes) -> None:
    assert router.call("GET", "/docs").status == 200  # everything is imported
    with connect(router, data):
        begun = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - begun < 30
    router.start()


def test_a_zipped_body_may_end_where_a_piece_ends(router: RouterProcess) -> None:
    """Decoded in pieces of 1 MiB: what is left in the decoder is not forgotten."""
    for size in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20):
        body = BODY + b" " * (size - len(BODY))
        answer = router.call("POST", CHAT, gzip.compress(body), Content_Encoding="gzip")
        assert answer.status == 200, answer.read()
