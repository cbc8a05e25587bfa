"""JSON as an owner writes it by hand: every slip is found, and where it can be guessed what was meant, reading goes on.

Python's own reader keeps the last of two equal keys, takes NaN, and says "Expecting property name" for a trailing
comma. Here each of them is a mistake with its place, all of them at once.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from router.problems import Findings, Problem

LEVELS_MAX = 64
"""Whoever walks through a value does so by calling itself: no file needs so many."""


class _Twice(dict[str, Any]):
    """An object of which some keys were written more than once."""

    twice: tuple[str, ...] = ()


def read_json(text: str, file: str, findings: Findings) -> Any:
    """The value in `text`, or None when it cannot be read; mistakes go to `findings`."""
    text = text.removeprefix("\ufeff")
    text = _without_comments_and_commas(text, file, findings)
    strange: list[str] = []
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=lambda word: strange.append(word))
    except json.JSONDecodeError as error:
        # The line itself is not shown: it may hold a key.
        message = f"this is no JSON: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})"
        findings.add(Problem(message, file=file, line=error.lineno))
        return None
    except (RecursionError, ValueError) as error:
        findings.add(Problem(f"this cannot be read: {error}", file=file))
        return None
    if _is_deeper(value, LEVELS_MAX):
        message = f"objects and lists stand in each other more than {LEVELS_MAX} levels deep"
        findings.add(Problem(message, file=file))
        return None
    for word in strange:
        findings.add(Problem(f"JSON has no {word}", file=file, value=word))
    for path, key in _doubled(value):
        findings.add(Problem("this key is written twice; only one of them can count", file=file, section=path, key=key))
    return _mended(value, file, findings)


_STRING_OR_SLIP = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'  # a string, in which nothing is a slip
    r"|(?P<comment>//[^\n]*|/\*.*?\*/|\#[^\n]*)"
    r"|(?P<comma>,)(?=(?:\s|//[^\n]*|/\*.*?\*/|\#[^\n]*)*[}\]])",
    re.DOTALL,
)


def _without_comments_and_commas(text: str, file: str, findings: Findings) -> str:
    """`text` with comments and trailing commas replaced by blanks, so that places stay where they are."""
    said_comment = False
    pieces: list[str] = []
    end = 0
    for slip in _STRING_OR_SLIP.finditer(text):
        if not slip.lastgroup:
            continue
        line = text.count("\n", 0, slip.start()) + 1
        column = slip.start() - text.rfind("\n", 0, slip.start())
        if slip.lastgroup == "comma":
            findings.add(
                Problem(f"a comma after the last value is no JSON (column {column}); remove it", file=file, line=line)
            )
        elif not said_comment:
            said_comment = True
            sign = "#" if slip[0].startswith("#") else slip[0][:2]
            findings.add(Problem(f"JSON has no comments (column {column})", file=file, line=line, value=sign))
        pieces += [text[end : slip.start()], re.sub(r"[^\n]", " ", slip[0])]
        end = slip.end()
    return "".join([*pieces, text[end:]])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = _Twice(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        value.twice = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1))
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [inner for values in inside for inner in values]
    return any(isinstance(one, dict | list) for one in level)


_HALF = re.compile(r"[\ud800-\udfff]")
"""A lone surrogate, such as `"\\ud800"`: text that cannot be written anywhere, in the event log least of all."""


def _mended(value: Any, file: str, findings: Findings, path: str = "", key: str = "") -> Any:
    """`value` without halves of characters, each place of which is a mistake. Texts may be secrets: none is shown."""
    if isinstance(value, str):
        whole = _HALF.sub("\ufffd", value)
        if whole != value:
            message = "there is half of a character in this text, as a lone \\ud800 is one"
            findings.add(Problem(message, file=file, section=path, key=key))
        return whole
    inside = f"{path}.{key}" if path else key
    if isinstance(value, dict):
        mended = {}
        for name, inner in value.items():
            whole = _mended(name, file, findings, inside, _HALF.sub("\ufffd", name))
            mended[whole] = _mended(inner, file, findings, inside, whole)
        return mended
    if isinstance(value, list):
        return [_mended(inner, file, findings, inside, f"[{index}]") for index, inner in enumerate(value)]
    return value


def _doubled(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each key that was written twice, with the path of the object that holds it."""
    if isinstance(value, _Twice):
        for key in value.twice:
            yield path, key
        for key, inner in value.items():
            yield from _doubled(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _doubled(inner, f"{path}[{index}]")
