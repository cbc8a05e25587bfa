"""The language of sets: what expressions mean, what +auto:orphans adds, and what is said of a mistake."""

import pytest

from router.scheduler.matrix_language import COMBINATIONS_MAX, Expanded, expand

MODELS = ("gemma", "qwen", "voxtral", "stable-diffusion", "llama-70B")
VARS = {"g": "gemma", "q": "qwen", "v": "voxtral"}


def sets(expanded: Expanded, name: str) -> list[tuple[str, ...]]:
    assert not expanded.mistakes, expanded.mistakes[0][1]
    (found,) = [one for one in expanded.sets if one.name == name]
    return list(found.combinations)


def one(expression: str) -> list[tuple[str, ...]]:
    return sets(expand({"one": expression}, VARS, MODELS), "one")


def mistake(expression: str, **others: str) -> str:
    expanded = expand({"one": expression, **others}, VARS, MODELS)
    assert expanded.mistakes
    return str(expanded.mistakes[0][1])


# --- what expressions mean ------------------------------------------------------------------------------------------


def test_g10_a_var_is_another_name_of_a_model_and_wins_over_a_model_of_that_name() -> None:
    assert one("g") == [("gemma",)]
    expanded = expand({"one": "qwen & q"}, {"qwen": "gemma", "q": "qwen"}, MODELS)
    assert sets(expanded, "one") == [("gemma", "qwen")]


def test_g12_alternatives_beside_one_model() -> None:
    assert one("(g | q) & v") == [("gemma", "voxtral"), ("qwen", "voxtral")]


@pytest.mark.parametrize(
    ("expression", "combinations"),
    [
        ("g & q | v", [("gemma", "qwen"), ("voxtral",)]),
        ("g | q & v", [("gemma",), ("qwen", "voxtral")]),
        ("g & (q | v)", [("gemma", "qwen"), ("gemma", "voxtral")]),
        ("((g))", [("gemma",)]),
        ("g&q&v", [("gemma", "qwen", "voxtral")]),
        (
            "(g|q)&(v|llama-70B)",
            [("gemma", "voxtral"), ("gemma", "llama-70B"), ("qwen", "voxtral"), ("llama-70B", "qwen")],
        ),
        ("g & g", [("gemma",)]),
        ("g | g", [("gemma",)]),
        ("stable-diffusion & g", [("gemma", "stable-diffusion")]),
    ],
)
def test_g11_and_binds_tighter_than_or_and_all_goes_from_left_to_right(
    expression: str, combinations: list[tuple[str, ...]]
) -> None:
    assert one(expression) == [tuple(sorted(each)) for each in combinations]


def test_g11_a_reference_is_the_other_set_in_its_place_also_one_that_is_defined_later() -> None:
    expanded = expand({"main": "+base & v", "base": "g | q"}, VARS, MODELS)
    assert sets(expanded, "main") == [("gemma", "voxtral"), ("qwen", "voxtral")]
    assert [each.name for each in expanded.sets] == ["main", "base"], "the order of definition"


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "position", "says"),
    [
        ("", 1, "expected a model"),
        ("   ", 1, "expected a model"),
        ("g &", 4, 'expected a model, a var, "+" and the name of a set, or "(", found the end'),
        ("& g", 1, "found '&'"),
        ("g && v", 4, "found '&'"),
        ("(g | q", 7, 'expected "&", "|" or ")", found the end'),
        ("g | q)", 6, 'no "(" is open'),
        ("()", 2, "found ')'"),
        ("g q", 3, 'expected "&", "|" or the end, found \'q\''),
        ("g (q)", 3, "found '('"),
        ("g ! q", 3, "'!' has no meaning here"),
        ("g & +", 6, 'expected the name of a set after "+"'),
        ("g & nobody", 5, "there is no model and no var 'nobody'"),
        ("g & +nothing", 5, "there is no set 'nothing'"),
    ],
)
def test_g11_a_mistake_is_told_with_its_place_and_what_was_expected(expression: str, position: int, says: str) -> None:
    """And the text, with a caret under the place."""
    said = mistake(expression)
    first, text, caret = said.split("\n")
    assert first.startswith(f"at character {position}: ")
    assert says in first
    assert text == f"    {expression}"
    assert caret.index("^") == position + 3


def test_g11_a_circle_is_told_with_its_way() -> None:
    assert "one -> two -> three -> one" in mistake("+two", two="g & +three", three="q | +one")
    assert "one -> one" in mistake("g & +one")


def test_g11_a_name_that_is_nearly_right_is_named() -> None:
    expanded = expand({"one": "gema & voxtral", "two": "+on"}, VARS, MODELS)
    assert [error.nearest for _, error in expanded.mistakes] == ["gemma", "one"]


def test_g11_every_set_with_a_mistake_is_named_at_once() -> None:
    expanded = expand({"one": "g &", "two": "g", "three": "(v"}, VARS, MODELS)
    assert [name for name, _ in expanded.mistakes] == ["one", "three"]


def test_g21_only_a_reference_may_hold_a_colon() -> None:
    said = mistake("g & hf:q4")
    assert said.startswith("at character 7: only a reference (+set) may hold a colon; write 'hf:q4' under vars")


def test_more_combinations_than_can_be_looked_at_are_a_mistake() -> None:
    models = [f"m{row}-{column}" for row in range(4) for column in range(8)]
    rows = ["(" + " | ".join(f"m{row}-{column}" for column in range(8)) + ")" for row in range(4)]
    expanded = expand({"many": " & ".join(rows)}, {}, models)
    assert f"more than {COMBINATIONS_MAX:,} combinations" in str(expanded.mistakes[0][1])
    enough = expand({"some": " & ".join(rows[:3])}, {}, models)
    assert len(sets(enough, "some")) == 512


# --- the models that no set names -----------------------------------------------------------------------------------


def test_g17_orphans_are_every_model_that_is_no_leaf_sorted() -> None:
    expanded = expand({"one": "a & +auto:orphans"}, {}, ("c", "a", "b"))
    assert sets(expanded, "one") == [("a", "b"), ("a", "c")]


def test_g17_a_var_is_its_model_before_orphans_are_counted() -> None:
    expanded = expand({"one": "alias & +auto:orphans"}, {"alias": "a"}, ("a", "b"))
    assert sets(expanded, "one") == [("a", "b")]


def test_g17_a_reference_is_no_leaf_and_orphans_of_any_name_are_found() -> None:
    """A model whose name no expression could hold is an orphan all the same."""
    expanded = expand({"one": "a", "two": "+one & +auto:orphans"}, {}, ("a", "qwen3:32b", "x/y"))
    assert sets(expanded, "two") == [("a", "qwen3:32b"), ("a", "x/y")]


def test_g18_an_empty_orphans_term_vanishes_also_through_references() -> None:
    expanded = expand(
        {"one": "a & +auto:orphans", "empty": "+auto:orphans", "outer": "+empty & a | +empty"}, {}, ("a",)
    )
    assert sets(expanded, "one") == [("a",)]
    assert sets(expanded, "outer") == [("a",)]


def test_g18_a_set_of_nothing_but_an_empty_orphans_term_has_no_combination_to_choose() -> None:
    expanded = expand({"empty": "+auto:orphans", "one": "a"}, {}, ("a",))
    assert sets(expanded, "empty") == []


def test_g19_a_set_of_the_owner_named_auto_orphans_wins() -> None:
    expanded = expand({"auto:orphans": "a", "one": "b & +auto:orphans"}, {}, ("a", "b", "c"))
    assert sets(expanded, "one") == [("a", "b")]


@pytest.mark.parametrize(
    ("definitions", "models", "line"),
    [
        ({"one": "a & +auto:orphans"}, "abc", 'matrix: synthesized set "auto:orphans" = (b | c)'),
        (
            {"one": "a & +auto:orphans"},
            "a",
            'matrix: synthesized set "auto:orphans" is empty; +auto:orphans terms dropped',
        ),
        (
            {"auto:orphans": "a", "one": "b & +auto:orphans"},
            "ab",
            'matrix: set "auto:orphans" is user-defined; orphan synthesis disabled',
        ),
        ({"one": "a"}, "ab", ""),
    ],
)
def test_g20_one_line_says_what_became_of_the_orphans(definitions: dict[str, str], models: str, line: str) -> None:
    assert expand(definitions, {}, tuple(models)).note == line
