"""Rows for a page: a few small questions to the tables, as dictionaries."""

import json
from typing import Any

from dashboard.history import History

TIME_LIMIT_S = 20.0

Row = dict[str, Any]


async def rows(history: History, sql: str, max_rows: int | None = None, **parameters: Any) -> list[Row]:
    """The answer to one question; `$name` in it stands for a parameter. Raises QuestionFailed."""
    answer = await history.ask(sql, parameters, time_limit_s=TIME_LIMIT_S, max_rows=max_rows)
    return answer.records()


async def one(history: History, sql: str, **parameters: Any) -> Row | None:
    """The first row, if there is one."""
    found = await rows(history, sql, 1, **parameters)
    return found[0] if found else None


def parsed(text: str | None) -> list[Any]:
    """A list that stands in the tables as JSON; empty for NULL."""
    found: list[Any] = json.loads(text) if text else []
    return found
