"""CSV files with a header, and the mistakes one can find in them, told with file and line."""

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

from replay.workload import WorkloadError

TOKENS_MAX = 1_000_000_000
"""A larger number is no count of tokens."""
SECONDS_MAX = 253_402_300_800
"""The year 10000: milliseconds since 1970 are more than that."""

SHOWN = 60
"""Characters of a value that is wrong."""

_FRACTION = re.compile(r"\.\d+")

csv.field_size_limit(16 << 20)  # a trace may have the text of its prompts in it


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
        except (ValueError, OverflowError):
            number = -1
        if not 0 <= number <= TOKENS_MAX:
            raise self.wrong(column, f"a whole number from 0 to {TOKENS_MAX:,}")
        return number

    def time_us(self, column: str) -> int:
        """Seconds, or a date and time (UTC where it does not say), as microseconds."""
        at_us = time_us(self.text(column))
        if at_us is None:
            raise self.wrong(column, "seconds (milliseconds are too large), or a time such as 2026-03-01 12:00:00.5")
        return at_us

    def wrong(self, column: str, right: str) -> WorkloadError:
        text = self.text(column)
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        return WorkloadError(f"{self.path}, line {self.line}: {column} is {shown!r}, not {right}")


def rows(path: Path, needed: set[str]) -> Iterator[Row]:
    """The lines below the header that are not empty. Raises WorkloadError where a needed column is missing."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = [column.strip().casefold() for column in next((line for line in reader if any(line)), [])]
            missing = sorted(needed - set(header))
            if missing:
                raise WorkloadError(f"{path} has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}")
            for values in reader:
                if any(values):
                    cells = zip_longest(header, values[: len(header)], fillvalue="")
                    yield Row(path, reader.line_num, dict(cells))
        except csv.Error as error:
            raise WorkloadError(f"{path}, line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            raise not_utf8(path) from error


def not_utf8(path: Path) -> WorkloadError:
    """Where a file is something else."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            byte = f"byte {line[error.start]:#04x} is not UTF-8"
            return WorkloadError(f"{path}, line {number}: {byte}; save the file as UTF-8")
    return WorkloadError(f"{path} is not UTF-8")


def time_us(text: str) -> int | None:
    """None for what is no time, or none before the year 10000."""
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return round(seconds * 1_000_000) if abs(seconds) < SECONDS_MAX else None
    try:
        # .NET writes seven digits, Go up to nine; six are read.
        moment = datetime.fromisoformat(_FRACTION.sub(lambda found: found[0][:7].ljust(7, "0"), text))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


__all__ = ["SECONDS_MAX", "TOKENS_MAX", "Row", "not_utf8", "rows", "time_us"]
