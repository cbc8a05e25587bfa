"""CSV files with a header, and the mistakes one can find in them, told with file and line."""

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from replay.workload import WorkloadError

_FRACTION = re.compile(r"\.\d+")


class Row:
    """One line of a table; columns by name, whatever their case."""

    def __init__(self, path: Path, line: int, values: dict[str, str]) -> None:
        self.path = path
        self.line = line
        self.values = values

    def text(self, column: str) -> str:
        return self.values.get(column, "").strip()

    def count(self, column: str, *, missing: int | None = None) -> int:
        """A number of tokens."""
        text = self.text(column)
        if not text and missing is not None:
            return missing
        try:
            number = int(float(text))
        except ValueError:
            number = -1
        if number < 0:
            raise self.wrong(column, "a whole number of 0 or more")
        return number

    def time_us(self, column: str) -> int:
        """Seconds, or a date and time (UTC where it does not say), as microseconds."""
        at_us = time_us(self.text(column))
        if at_us is None:
            raise self.wrong(column, "seconds, or a time such as 2026-03-01 12:00:00.5")
        return at_us

    def wrong(self, column: str, right: str) -> WorkloadError:
        return WorkloadError(f"{self.path}, line {self.line}: {column} is {self.text(column)!r}, not {right}")


def rows(path: Path, needed: set[str]) -> Iterator[Row]:
    """The lines below the header. Raises WorkloadError where a needed column is missing."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = [column.strip().casefold() for column in next(reader, [])]
        missing = sorted(needed - set(header))
        if missing:
            raise WorkloadError(f"{path} has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}")
        for values in reader:
            if values:
                yield Row(path, reader.line_num, dict(zip(header, values, strict=False)))


def time_us(text: str) -> int | None:
    try:
        return round(float(text) * 1_000_000)
    except ValueError:
        pass
    try:
        # .NET writes seven digits, Go up to nine; six are read.
        moment = datetime.fromisoformat(_FRACTION.sub(lambda found: found[0][:7].ljust(7, "0"), text))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


__all__ = ["Row", "rows", "time_us"]
