"""Children that answer what no llama-server should: it may puzzle their clients, and never the router."""

from typing import Any

import pytest

from eventlog.events import RequestFinished
from tests.router.relay_rig import Got, Rig, run

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def told(raw: bytes, caplog: pytest.LogCaptureFixture) -> tuple[int, bytes, RequestFinished]:
    """What the client gets when a child answers with these bytes, and the account of it."""

    async def replica(got: Got) -> None:
        await got.write(raw)

    async def story() -> tuple[int, bytes, RequestFinished]:
        async with Rig() as rig:
            rig.upstream.handler = replica
            answer = await rig.ask(CHAT)
            return answer.status, answer.body, await rig.logged(RequestFinished)

    found = run(story)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    return found


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_may_announce_its_length(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A 304 does: the length of what it stands for."""
    answer = told(b"HTTP/1.1 %d X\r\nContent-Length: 50\r\nETag: x\r\n\r\n" % status, caplog)
    assert answer[:2] == (status, b"")


@pytest.mark.parametrize("status", ["000", "600", "999"])
def test_a_status_that_means_nothing_is_a_bad_gateway(status: str, caplog: pytest.LogCaptureFixture) -> None:
    code, body, account = told(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode(), caplog)
    assert (code, body, account.status) == (502, b"{}", int(status))


@pytest.mark.parametrize(
    "figures",
    [
        b'"usage":{"prompt_tokens":99999999999999999999999999}',
        b'"timings":{"prompt_ms":1e308}',
        b'"timings":{"predicted_n":1e300}',
        b'"timings":{"cache_n":-1e300}',
        b'"usage":{"x":' + b'{"a":' * 1300 + b"1" + b"}" * 1301,
    ],
    ids=["large", "infinite when in us", "large float", "negative", "deep"],
)
def test_figures_beyond_measure_are_no_figures(figures: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """One of them left its request without an outcome for ever, and its slot taken."""
    body = b"{" + figures + b"}"
    status, passed, account = told(whole(body), caplog)
    assert (status, passed) == (200, body)
    assert (account.prompt_tokens, account.timing.prompt_us, account.timing.predicted_n) == (-1, -1, -1)


def test_what_follows_an_answer_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    """In the same packet: the first one's body once came with the status and headers of the second."""
    second = b"HTTP/1.1 500 X\r\nContent-Length: 2\r\nX-Other: yes\r\n\r\n[]"
    status, body, account = told(whole(b"{}") + second, caplog)
    assert (status, body, account.status) == (200, b"{}", 200)
