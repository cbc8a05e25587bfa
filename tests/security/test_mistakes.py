"""A mistake in the configuration is printed, logged and shown in /status: no secret is in it, whatever was written."""

from pathlib import Path

import pytest

from router.callers import caller_of
from router.config import ConfigErrors
from router.errors import RouterError
from router.problems import HIDDEN, without_secret
from tests.router.config_desk import Desk

SECRET = "lr-3f1d9c5bb1be4a6f"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "home").models(m={})


def told(desk: Desk) -> str:
    """Everything that a reading says: mistakes and warnings, as text and as `check --json` has them."""
    try:
        config = desk.load()
    except ConfigErrors as errors:
        return f"{errors}\n{errors.problems}\n{errors.warnings}"
    return str(config.warnings)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"keys": {{"alice": "{SECRET}" "bob": "x"}}}}',
        f'{{"keys": {{"alice": {SECRET}}}}}',
        f'{{"keys": {{"alice": "{SECRET}}}}}',
        f'{{\n  // "alice": "{SECRET}",\n  "keys": {{}}\n}}',
        f'{{\n  # {SECRET}\n  "keys": {{}}\n}}',
        f'{{"keys": {{"alice": {{"kee": "{SECRET}"}}}}}}',
        f'{{"keys": {{"alice": {{"key": ["{SECRET}"]}}}}}}',
        f'{{"keys": {{"alice": ["{SECRET}"]}}}}',
        f'{{"keys": "{SECRET}"}}',
        f'{{"keys": {{"alice": " {SECRET}"}}}}',
        f'{{"ROUTER": {{"API_KEY": "{SECRET}"}}}}',
        f'{{"LLM": {{"m": {{"env": {{"HF_TOKEN": "{SECRET}", "N": 1}}}}}}}}',
        f'{{"LLM": {{"m": {{"env": "HF_TOKEN={SECRET}"}}}}}}',
        f'{{"LLM": {{"m": {{"env": {{"LLAMA_API_KEY": "{SECRET}"}}}}}}}}',
        f'{{"presetGlobals": {{"api-key": "{SECRET}"}}}}',
    ],
)
def test_a_mistake_in_config_json_shows_no_secret(desk: Desk, text: str) -> None:
    desk.config(text)
    said = told(desk)
    assert len(said) > 20
    assert SECRET not in said


@pytest.mark.parametrize(
    "line",
    [
        f"api-key = {SECRET}",
        f" api-key = {SECRET}",
        f"--api-key {SECRET}",
        f"--api-key={SECRET}",
        f"api-key {SECRET}",
        f"api-key = {SECRET} ; mine",
        f"LLAMA_API_KEY = {SECRET}",
        f"hf-token = {SECRET}\nhft = {SECRET}",
        f"hf-tokn = {SECRET}",
    ],
)
def test_a_mistake_in_presets_ini_shows_no_secret(desk: Desk, line: str) -> None:
    desk.presets(f"[m]\nmodel = $W\n{line}\n")
    said = told(desk)
    assert len(said) > 20
    assert SECRET not in said


def test_a_mistake_that_holds_no_secret_shows_what_was_written(desk: Desk) -> None:
    assert without_secret("ctx-size 4096") == "ctx-size 4096"
    assert without_secret("--api-key abc") == f"--api-key {HIDDEN}"
    assert without_secret("api-key") == "api-key"
    desk.presets("[m]\nmodel = $W\n ctx-size = 4096\n")
    assert desk.mistake().value == "ctx-size = 4096"


# --- keys that could not be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (" a", "blank"),
        ("a\n", "blank"),
        ("a\tb", "control"),
        ("${BOBS_KEY}", "reference"),
        ("${env.NOT_THERE}", "not set"),
    ],
)
def test_a_key_that_nobody_could_send_or_that_is_no_key_is_a_mistake(desk: Desk, key: str, said: str) -> None:
    """It would lock its owner out, or be known to everybody who can read."""
    desk.config({"LLM": {"m": {}}, "keys": {"bob": {"key": key, "admin": True}}})
    assert said in str(desk.mistake())


@pytest.mark.parametrize("sent", ["schlüssel".encode(), "schlüssel".encode("latin-1")])
def test_a_key_of_any_language_is_taken_as_programs_and_as_browsers_send_it(desk: Desk, sent: bytes) -> None:
    config = desk.config({"LLM": {"m": {}}, "keys": {"bob": {"key": "schlüssel", "admin": True}}}).load()
    assert caller_of(config, [(b"authorization", b"Bearer " + sent)]).key == "bob"
    assert caller_of(config, [(b"x-api-key", sent)]).key == "bob"
    with pytest.raises(RouterError):
        caller_of(config, [(b"x-api-key", sent + b"x")])


def test_the_key_of_the_environment_is_not_passed_over_for_one_of_the_same_name(desk: Desk) -> None:
    desk.environ["LLAMA_ROUTER_API_KEY"] = SECRET
    desk.config({"LLM": {"m": {}}, "keys": {"default": "another"}})
    assert "another name" in str(desk.mistake())
    desk.config({"LLM": {"m": {}}, "keys": {"default": SECRET}})
    assert list(desk.load().keys) == ["default"]
