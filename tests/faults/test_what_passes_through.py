"""Bodies and answers pass through as they are: usage only for who asked, the same bytes on both sides."""

import hashlib
import json
from collections.abc import Iterator

import pytest

from tests.faults.checks import routed
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess, body_for


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with routed(tmp_path_factory.mktemp("through"), [Model("a")]) as router:
        yield router


def test_usage_that_was_asked_for_comes_in_the_last_data_frame(router: RouterProcess) -> None:
    """With an empty list of choices, as OpenAI does it, and then [DONE]."""
    frames = list(router.chat("a", stream=True, stream_options={"include_usage": True}).frames())
    last = json.loads(frames[-2].removeprefix("data: "))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert frames[-1] == "data: [DONE]"


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
def test_usage_that_was_not_asked_for_does_not_come(router: RouterProcess, options: dict[str, object]) -> None:
    """Not even when the router would like to have it for its own log, which takes the timings instead."""
    frames = list(router.chat("a", stream=True, **options).frames())
    assert not any("usage" in json.loads(frame.removeprefix("data: ")) for frame in frames[:-1])
    finished = router.wait_event("RequestFinished", lambda event: event["rid"] == len(router.events("RequestArrived")))
    assert finished["completion_tokens"] == 8


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_the_server_gets_the_very_bytes_that_the_client_sent(router: RouterProcess, path: str, streaming: bool) -> None:
    """Odd spacing, unknown keys, escapes, numbers in any notation: hashed on both sides."""
    fields = {**body_for(path, "a"), "stream": streaming, "x-unknown": [1.50, "é", None]}
    text = json.dumps(fields, indent=3).replace("1.5", "1.50e0")
    body = text.encode()
    call = router.call("POST", path, body)
    assert call.status == 200
    assert call.header("x-standin-sha256") == hashlib.sha256(body).hexdigest()
    assert call.read()
