"""Errors as clients get them."""

import json

import pytest

from router import errors
from router.errors import CODES, ClientError, ReplicaError, RouterError, ServiceError


def test_an_error_has_the_shape_of_openai() -> None:
    err = errors.error("invalid_body", "the body is no JSON", param="messages")
    assert json.loads(errors.openai_body(err)) == {
        "error": {
            "message": "the body is no JSON",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "invalid_body",
        }
    }


def test_an_error_has_the_shape_of_anthropic_with_the_code_kept() -> None:
    err = errors.error("no_capacity", "it needs 4 GPUs, there are 2")
    assert json.loads(errors.anthropic_body(err)) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "it needs 4 GPUs, there are 2", "code": "no_capacity"},
    }


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/messages", "anthropic"),
        ("/v1/chat/completions", "openai"),
        ("/v1/responses", "openai"),
        ("/status", "openai"),
    ],
)
def test_the_path_tells_the_dialect(path: str, dialect: str) -> None:
    assert errors.dialect_of(path) == dialect


def test_a_stream_that_has_begun_ends_with_a_frame_of_its_dialect() -> None:
    err = errors.error("upstream_crashed", "the replica died")
    frame = errors.sse_frame(err)
    assert frame.startswith(b'data: {"error":')
    assert frame.endswith(b"}\n\n")
    assert b"[DONE]" not in frame
    assert errors.sse_frame(err, "anthropic").startswith(b'event: error\ndata: {"type":"error"')
    assert frame.count(b"\n") == 2, "a line break inside would cut the frame in two"


def test_a_message_with_line_breaks_stays_one_frame() -> None:
    err = errors.error("upstream_error", "line one\nline two\r\n\ndata: [DONE]")
    assert errors.sse_frame(err).count(b"\n") == 2


@pytest.mark.parametrize("code", CODES)
def test_every_code_belongs_to_the_branch_of_its_status(code: str) -> None:
    err = errors.error(code, "why")
    expected = {4: (ClientError,), 5: (ReplicaError, ServiceError)}[err.status // 100]
    assert isinstance(err, expected)
    assert err.status == CODES[code]
    assert (err.status == 429) == (code == "rate_limit_exceeded")


def test_overload_can_never_be_answered_with_a_429() -> None:
    with pytest.raises(AssertionError, match="waits in the queue"):
        RouterError("too much", status=429, code="queue_full")


def test_whose_fault_it_was_is_seen_in_the_class() -> None:
    assert isinstance(errors.error("model_load_failed", "out of memory"), ReplicaError)
    assert isinstance(errors.error("log_unavailable", "disk full"), ServiceError)
    assert isinstance(errors.error("body_too_large", "2 GiB"), ClientError)


# --- names ----------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_told_its_near_misses() -> None:
    err = errors.model_not_found("qwen3-4b", ["Qwen3-4B", "gemma-4-12b", "Qwen3-8B"])
    assert (err.status, err.code, err.param) == (404, "model_not_found", "model")
    assert "did you mean 'Qwen3-4B'" in err.message


def test_without_a_near_miss_the_configured_models_are_listed() -> None:
    err = errors.model_not_found("whisper", ["b", "a"])
    assert err.message == "model 'whisper' is not configured; configured: 'a', 'b'"
    assert "no model is configured" in errors.model_not_found("x", []).message
    assert "and 20 more" in errors.model_not_found("x", [f"name-{n:02}" for n in range(30)]).message


def test_an_endless_name_is_not_sent_back_whole() -> None:
    assert len(errors.model_not_found("x" * 1_000_000, ["a"]).message) < 1_000


def test_a_request_without_a_model_is_told_which_there_are() -> None:
    err = errors.model_required(["a", "b"])
    assert (err.status, err.code) == (400, "model_required")
    assert "configured: 'a', 'b'" in err.message


# --- from decisions -------------------------------------------------------------------------------------------------


def test_a_decision_is_told_with_its_reason_and_when_to_come_back() -> None:
    err = errors.of_decision(502, "model_load_failed", "out of memory on GPU 0", model="m", retry_after_us=9_000_001)
    assert err.message == "model 'm': out of memory on GPU 0"
    assert err.retry_after_s == 10
    assert (b"retry-after", b"10") in errors.headers(err)


def test_a_decision_without_a_reason_still_says_something() -> None:
    assert "died" in errors.of_decision(502, "upstream_crashed", "").message
    assert errors.of_decision(503, "a_code_of_later_days", "", model="m").message.startswith("model 'm': ")


def test_a_missing_key_is_told_how_to_authenticate() -> None:
    assert (b"www-authenticate", b"Bearer") in errors.headers(errors.error("unauthorized", "no API key"))


def test_bytes_that_are_no_text_survive_the_way_out() -> None:
    """A child's last line, or a file name, may be anything."""
    text = b"caf\xe9 \xf0\x9f\x98\x80".decode("utf-8", "surrogateescape")
    body = errors.openai_body(errors.error("upstream_error", text))
    assert json.loads(body)["error"]["message"] == text
