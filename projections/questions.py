"""Questions with a name, each a file of questions/: what the dashboard draws and `llama-router sql --ask` answers.

A file begins with a line on what it answers. It may use `$since_us`, `$until_us` (microseconds; from then on, before
then), `$model` (empty: all) and `$bucket_us` (the step of a course over time).
"""

import re
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from projections.errors import QuestionFailed

BUCKETS = 120
"""A course over time has about so many points."""
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Question:
    """One file of questions/."""

    name: str
    title: str
    sql: str

    def parameters(self, *, since_us: int, until_us: int, model: str = "", bucket_us: int = 0) -> dict[str, Any]:
        """Those of these values that its SQL names."""
        values = {
            "since_us": since_us,
            "until_us": until_us,
            "model": model,
            "bucket_us": bucket_us or bucket_for(until_us - since_us),
        }
        return {name: value for name, value in values.items() if f"${name}" in self.sql}


@cache
def all_questions() -> tuple[Question, ...]:
    """Every question, by name."""
    found = []
    for file in sorted((files("projections") / "questions").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".sql"):
            sql = file.read_text(encoding="utf-8")
            found.append(Question(file.name.removesuffix(".sql"), sql.splitlines()[0].removeprefix("-- "), sql))
    return tuple(found)


def find(name: str) -> Question:
    """The question of this name. Raises QuestionFailed with the nearest names."""
    by_name = {question.name: question for question in all_questions()}
    if name not in by_name:
        near = get_close_matches(name, by_name)
        hint = f"is it {' or '.join(near)}?" if near else f"known are {', '.join(by_name)}"
        raise QuestionFailed(f"no question is called {name!r}; {hint}")
    return by_name[name]


def bucket_for(range_us: int) -> int:
    """A round step, in microseconds, that parts a range of time into about BUCKETS."""
    for step_s in STEPS_S:
        if step_s * 1_000_000 * BUCKETS >= range_us:
            return step_s * 1_000_000
    return STEPS_S[-1] * 1_000_000


def time_us(text: str, now_us: int) -> int:
    """`2h` (ago), seconds since the epoch, or a date and time; local where it names no zone. Raises QuestionFailed."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text):
        return now_us - round(float(match[1]) * _UNITS_S[match[2]] * 1e6)
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return round(float(text) * 1e6)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e6)
    except ValueError:
        raise QuestionFailed(
            f"{text!r} is no time: expected 30m, 2h, 1d, 2026-03-01, 2026-03-01T12:00 or seconds since 1970"
        ) from None
