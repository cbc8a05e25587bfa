"""An answer as text: a table for people, JSON or CSV for programs."""

import csv
import io
import json
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from projections.sandbox import Answer
from projections.units import by_name

CELL_WIDTH = 60
"""A longer value is cut in a table; JSON and CSV have all of it."""


def as_table(answer: Answer) -> str:
    """Columns side by side, numbers to the right; times and shares with their units, by the names of their columns."""
    cells = [
        [by_name(column, value) or _cell(value) for column, value in zip(answer.columns, row, strict=True)]
        for row in answer.rows
    ]
    widths = [max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(answer.columns)]
    right = [all(_is_number(row[place]) for row in answer.rows) and answer.rows != [] for place in range(len(widths))]
    lines = [_line(answer.columns, widths, right), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, right) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def as_json(answer: Answer) -> str:
    """A list of objects, one per line."""
    rows = ",\n ".join(json.dumps(plain(record), ensure_ascii=False) for record in answer.records())
    return f"[{rows}]"


def as_csv(answer: Answer) -> str:
    """With a line of names; lists and objects as JSON, NULL as nothing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([_flat(plain(value)) for value in row] for row in answer.rows)
    return text.getvalue().rstrip("\n")


def plain(value: Any) -> Any:
    """The value in JSON's own types."""
    match value:
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case Decimal():
            return float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    value = _flat(plain(value))
    text = value if isinstance(value, str) else json.dumps(value)
    # What a client or a model has written must not move the cursor of a terminal.
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= CELL_WIDTH else text[: CELL_WIDTH - 1] + "…"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))


def _line(cells: Iterable[str], widths: list[int], right: list[bool]) -> str:
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded)
