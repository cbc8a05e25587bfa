"""The chat completion that a translation becomes: fixed words first, the text last, thinking off."""

from pathlib import Path

from router.api.translate import Translation, chat_of
from tests.router.config_desk import Desk


def test_the_text_is_the_last_message_and_all_that_is_fixed_stands_before_it(tmp_path: Path) -> None:
    """So two texts into one language share their prompt up to the text, which the replica's cache then holds."""
    config = Desk(tmp_path / "home").models(m={}).load()
    one = chat_of(Translation(text="One.", source="English", target="German", additionals="Be polite."), config)
    two = chat_of(Translation(text="Two.", source="English", target="German", additionals="Be polite."), config)
    assert [message["role"] for message in one["messages"]] == ["system", "user"]
    assert one["messages"][0] == two["messages"][0]
    assert one["messages"][1] == {"role": "user", "content": "One."}
    said = one["messages"][0]["content"]
    assert "from English into German" in said
    assert said.endswith("Be polite.")
    assert one["chat_template_kwargs"] == {"enable_thinking": False}
    assert "model" not in one


def test_a_language_that_is_not_named_is_for_the_model_to_find_out(tmp_path: Path) -> None:
    config = Desk(tmp_path / "home").models(m={}).load()
    for source in ("", "auto", " Auto "):
        said = chat_of(Translation(text="x", source=source, target="de"), config)["messages"][0]["content"]
        assert "what the user sends into de" in said


def test_a_model_that_says_how_its_thinking_is_switched_off_is_told_so(tmp_path: Path) -> None:
    effort = {"options": ["none", "high"], "default": "high", "disable": "none"}
    config = Desk(tmp_path / "home").models(m={"reasoning_effort": effort}, plain={}).load()
    assert chat_of(Translation(text="x", target="de", model="m"), config)["reasoning_effort"] == "none"
    assert "reasoning_effort" not in chat_of(Translation(text="x", target="de", model="plain"), config)
