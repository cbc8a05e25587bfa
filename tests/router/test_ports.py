"""Listening sockets: a taken port names its holder."""

import os
import socket

import pytest

from router.ports import PortTaken, holder, listen


def test_a_port_that_is_taken_names_who_has_it() -> None:
    """11434 is Ollama's too: the message says whose process it is, and what to do."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"127.0.0.1:{port} is taken by \S.* \(pid {os.getpid()}\)") as taken:
            listen("127.0.0.1", port)
    assert "--port" in str(taken.value)


def test_port_zero_takes_a_free_one() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert sock.getsockname()[1] > 0


def test_a_port_that_nobody_has_is_held_by_a_stranger() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert holder(sock.getsockname()[1]) == "another process (of another user)"


def test_an_address_that_cannot_be_had_is_named() -> None:
    with pytest.raises(OSError, match=r"^cannot listen at nowhere\.invalid, port 1234: "):
        listen("nowhere.invalid", 1234)


def test_an_ipv6_address_may_stand_in_brackets() -> None:
    with listen("[::1]", 0) as sock:
        assert sock.getsockname()[0] == "::1"


@pytest.mark.parametrize("host", ["fö..o", "ö" * 70])
def test_what_cannot_be_the_name_of_a_host_is_said_so(host: str) -> None:
    with pytest.raises(OSError, match="no name of a host"):
        listen(host, 0)
