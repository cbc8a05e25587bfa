"""What is taken from a request's body: the model, a few numbers, hashes of the prompt; never its text."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog.events import PrefixBlock
from router import peek
from router.errors import RouterError
from router.peek import PREFIX_LIMIT, PREFIX_RECENT, Peeked, form_body, json_body, thin
from router.routes import POST

SALT = b"s" * 32
CHAT = "/v1/chat/completions"
texts = st.text(max_size=40)


def look(body: dict[str, Any] | bytes, path: str = CHAT, salt: bytes = SALT) -> Peeked:
    return json_body(body if isinstance(body, bytes) else json.dumps(body).encode(), POST[path], salt)


def chat(*messages: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages], **more}


def test_the_fields_that_matter_are_found_among_the_others() -> None:
    peeked = look(chat(("user", "hi"), stream=True, n=3, max_tokens=7, tools=[{"a": 1}, {"b": 2}], zzz={"deep": [1]}))
    assert (peeked.model, peeked.stream, peeked.slots_wanted, peeked.max_tokens) == ("m", True, 3, 7)
    assert (peeked.messages, peeked.tools) == (1, 2)


def test_numbers_that_no_log_could_hold_are_taken_as_absent() -> None:
    peeked = look(chat(("user", "hi"), n=10**40, max_tokens=2**64))
    assert (peeked.slots_wanted, peeked.max_tokens) == (1, 0)


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"])
def test_every_name_of_the_token_limit_is_known(key: str) -> None:
    assert look(chat(("user", "hi"), **{key: 9})).max_tokens == 9


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "", "messages": "x", "stream": "yes", "n": null, "max_tokens": -1, "tools": {}}',
        b'{"messages": [1, null, "text", {"role": 5}], "n": 1.5, "max_tokens": "many"}',
        b'{"model": null, "messages": null}',
        b"{}",
        b' \n{ "messages" : [ ] } \t',
    ],
)
def test_fields_of_the_wrong_type_are_left_to_llama_server(body: bytes) -> None:
    peeked = look(body)
    assert (peeked.model, peeked.stream, peeked.slots_wanted, peeked.max_tokens) == (None, False, 1, 0)


@pytest.mark.parametrize("given", [b"7", b"true", b'["m"]', b'{"name": "m"}', b'"\xff"', b"[" + b"7," * 9_000 + b"7]"])
def test_a_model_that_is_no_name_is_refused_and_told(given: bytes) -> None:
    """Taken as absent it would be the default model that answers, or said to be missing although it is there."""
    with pytest.raises(RouterError, match="'model' is the name of a model, a string, not") as caught:
        look(b'{"messages": [], "model": ' + given + b"}")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_parameter", "model")
    assert given[:40].decode(errors="replace") in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_byte_order_mark_is_passed_over() -> None:
    assert look(b"\xef\xbb\xbf" + json.dumps(chat(("user", "hi"))).encode()).model == "m"
    with pytest.raises(RouterError, match="not a JSON object"):
        look(b"\xef\xbb\xbf\xef\xbb\xbf{}")


@pytest.mark.parametrize("body", [b"", b"[]", b'"model"', b'{"model": "m"', b"{} {}", b"model=m"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RouterError, match="not a JSON object") as caught:
        look(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_body")


@pytest.mark.parametrize(
    ("path", "body", "slots"),
    [
        ("/v1/completions", {"prompt": "a"}, 1),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}, 3),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 4),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/completion", {"prompt": [[1, 2], [3]]}, 2),
        ("/completion", {"prompt": [-1, "mixed"]}, 1),
        ("/v1/embeddings", {"input": "a"}, 1),
        ("/v1/embeddings", {"input": ["a", "b"]}, 2),
        ("/v1/embeddings", {"input": [[1], [2], [3]]}, 3),
        ("/v1/embeddings", {"input": [1, 2]}, 1),
        ("/v1/embeddings", {"input": []}, 1),
        ("/embedding", {"content": ["a", "b"]}, 2),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b", "c", "d"]}, 4),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 5}, 1),
    ],
)
def test_a_request_weighs_what_it_makes_at_once(path: str, body: dict[str, Any], slots: int) -> None:
    assert look(body, path).slots_wanted == slots


def test_tokens_are_estimated_from_text_and_not_from_pictures() -> None:
    words = look(chat(("user", "word " * 1000)))
    assert 1200 < words.prompt_tokens < 1300
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "B" * 1_000_000, "format": "wav"}}
    seen = look({"messages": [{"role": "user", "content": [picture, sound]}]})
    assert 2000 < seen.prompt_tokens < 3000
    assert seen.prompt_bytes > 2_000_000


# --- prefixes -------------------------------------------------------------------------------------------------------


def test_the_next_turn_repeats_the_prefix_of_the_last() -> None:
    turn = [("system", "be brief"), ("user", "one")]
    first = look(chat(*turn))
    second = look(chat(*turn, ("assistant", "1"), ("user", "two")))
    assert second.prefix[: len(first.prefix)] == first.prefix
    assert len(second.prefix) == len(first.prefix) + 2
    assert second.opening == first.opening != ""
    assert second.prefix[-1].bytes == second.prompt_bytes


def test_other_tools_or_another_system_text_are_another_prefix() -> None:
    plain = look(chat(("user", "one")))
    tools = look(chat(("user", "one"), tools=[{"name": "f"}]))
    system = look({**chat(("user", "one")), "system": "be brief"}, "/v1/messages")
    hashes = {peeked.prefix[-1].hash for peeked in (plain, tools, system)}
    assert len(hashes) == 3
    assert len({plain.opening, tools.opening, system.opening}) == 3


def test_hashes_say_nothing_without_the_salt() -> None:
    body = chat(("user", "secret"))
    assert look(body, salt=b"a").prefix != look(body, salt=b"b").prefix
    assert look(body, salt=b"a").opening != look(body, salt=b"b").opening
    assert "secret" not in repr(look(body))


def test_a_plain_prompt_is_hashed_in_blocks() -> None:
    long = "x" * 5000
    first = look({"prompt": long}, "/v1/completions")
    longer = look({"prompt": long + "y" * 2000}, "/v1/completions")
    assert [block.bytes for block in first.prefix] == [1024, 2048, 3072, 4096]
    assert longer.prefix[:4] == first.prefix


def test_responses_input_is_text_or_messages() -> None:
    text = look({"input": "hello"}, "/v1/responses")
    assert (text.messages, text.slots_wanted, len(text.prefix)) == (1, 1, 1)
    items = look({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "/v1/responses")
    assert (items.messages, items.slots_wanted, len(items.prefix)) == (2, 1, 2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), texts), min_size=1, max_size=12), st.data())
def test_prefixes_agree_exactly_as_far_as_the_messages_do(messages: list[tuple[str, str]], data: st.DataObject) -> None:
    shared = data.draw(st.integers(0, len(messages)))
    other = messages[:shared] + [("user", f"different {index}") for index in range(len(messages) - shared)]
    one, two = look(chat(*messages)).prefix, look(chat(*other)).prefix
    agree = sum(1 for left, right in zip(one, two, strict=True) if left == right)
    really = next((n for n, (left, right) in enumerate(zip(messages, other, strict=True)) if left != right), len(one))
    assert agree == really


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(1, 30))
def test_long_prefixes_are_thinned_and_two_turns_still_share_steps(length: int, grown: int) -> None:
    blocks = [PrefixBlock(str(index), index) for index in range(length + grown)]
    before, after = thin(blocks[:length]), thin(blocks)
    assert len(after) <= PREFIX_LIMIT
    assert after[-1:] == blocks[-1:]
    assert after[-PREFIX_RECENT:] == blocks[-PREFIX_RECENT:]
    assert len({block.hash for block in before} & {block.hash for block in after}) >= min(len(before), 16) - grown


def test_a_long_conversation_costs_less_than_a_millisecond() -> None:
    """100 KB, prefix hashes included; the best of a few, since other processes only ever add."""
    turns = [("user" if index % 2 else "assistant", 'lorem ipsum "dolor" é\n' * 38) for index in range(100)]
    body = json.dumps(chat(*turns), ensure_ascii=False).encode()
    assert len(body) > 90_000
    best = min(_seconds(body) for _ in range(40))
    assert best < 0.001


def _seconds(body: bytes) -> float:
    began = time.process_time()
    look(body)
    return time.process_time() - began


# --- forms ----------------------------------------------------------------------------------------------------------


def form(*parts: bytes, boundary: bytes = b"xYz") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b'RIFF\r\n--nearly\r\nContent-Disposition: form-data; name="model"\r\n\r\nforged'
)
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper'
STREAM = b"content-disposition: form-data; name=stream\r\n\r\ntrue"


@pytest.mark.parametrize("parts", [(MODEL, STREAM, FILE), (FILE, MODEL, STREAM), (STREAM, FILE, MODEL)])
@pytest.mark.parametrize(
    "header", [b"multipart/form-data; boundary=xYz", b'Multipart/Form-Data; charset=x; BOUNDARY="xYz"']
)
def test_a_form_is_read_whatever_the_order_of_its_fields(parts: tuple[bytes, ...], header: bytes) -> None:
    """What looks like a field inside the file is none."""
    peeked = form_body(form(*parts), header)
    assert (peeked.model, peeked.stream) == ("whisper", True)


@pytest.mark.parametrize("body", [b"", form(FILE), form(MODEL)[:40], b"--xYz", b"--xYz\r\n\r\n", form(MODEL)[:-12]])
def test_a_form_without_a_model_or_an_end_names_none(body: bytes) -> None:
    assert form_body(body, b"multipart/form-data; boundary=xYz").model is None


def test_a_form_without_a_boundary_is_refused() -> None:
    with pytest.raises(RouterError, match="without a boundary"):
        form_body(b"", b"multipart/form-data")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_form_breaks_the_reader(body: bytes) -> None:
    form_body(body, b"multipart/form-data; boundary=x")
    form_body(b"--x\r\n" + body, b"multipart/form-data; boundary=x")


def test_fingerprints_depend_on_every_part() -> None:
    assert peek.fingerprint(SALT, b"a", b"b") == peek.fingerprint(SALT, b"ab") != peek.fingerprint(SALT, b"ba")
