"""Filters: what they change in a body, and that all else goes on byte for byte."""

import json

import pytest

from router.rewrite import Filters, rewritten

BODY = (
    b'{ "model":"m", "messages" : [ {"role":"user", "content": "caf\\u00e9 \\"x\\" "} ],\n'
    b' "temperature": 1.50e0, "n":2}'
)


def test_a_body_without_any_of_the_parameters_stays_as_it_is() -> None:
    assert rewritten(BODY, Filters(strip=("top_p",)), "m") is None


def test_what_is_set_to_the_value_that_it_has_is_no_change() -> None:
    assert rewritten(BODY, Filters(set={"temperature": 1.5, "n": 2}), "m") is None


def test_parameters_are_stripped_and_set_and_the_rest_keeps_its_bytes() -> None:
    """Odd numbers, blanks and escapes within a value are the client's business."""
    result = rewritten(BODY, Filters(strip=("n",), set={"top_k": 40, "stop": ["é"]}), "m")
    assert result is not None
    body, changed = result
    assert changed == ("n", "top_k", "stop")
    assert b'"messages":[ {"role":"user", "content": "caf\\u00e9 \\"x\\" "} ]' in body
    assert b'"temperature":1.50e0' in body
    assert json.loads(body) == {key: value for key, value in json.loads(BODY).items() if key != "n"} | {
        "top_k": 40,
        "stop": ["é"],
    }


@pytest.mark.parametrize(("name", "effort"), [("m", "medium"), ("m:high", "high"), ("m:other", None)])
def test_parameters_by_name_come_last_and_only_for_that_name(name: str, effort: str | None) -> None:
    filters = Filters(set={"seed": 1}, by_name={"m": {"effort": "medium"}, "m:high": {"effort": "high", "seed": 2}})
    result = rewritten(b'{"model":"m"}', filters, name)
    assert result is not None
    assert json.loads(result[0]).get("effort") == effort
    assert json.loads(result[0])["seed"] == (2 if name == "m:high" else 1)


def test_a_parameter_that_was_stripped_and_set_again_is_named_once() -> None:
    result = rewritten(b'{"temperature":1}', Filters(strip=("temperature",), set={"temperature": 0}), "m")
    assert result == (b'{"temperature":0}', ("temperature",))


def test_a_byte_order_mark_is_passed_over() -> None:
    assert rewritten(b'\xef\xbb\xbf{"n":2}', Filters(set={"n": 1}), "m") == (b'{"n":1}', ("n",))
