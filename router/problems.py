"""Mistakes in the configuration: collected, so that one run of `check` shows all of them.

A mistake says where it stands (file, line, section, key), the value found, what is wrong, what is allowed, and the
nearest valid name. Its counterpart is `router.errors`: those go to clients, these to the owner.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

HIDDEN = "(not shown)"
"""In the place of what may be a secret: mistakes are printed, kept in the log and shown in /status."""

_SECRET = re.compile(r"(?:^|[-_. ])(?:api-?key|key|token|secret|passw(?:or)?d|hft)$", re.IGNORECASE)
_SECRET_IN_LINE = re.compile(r"(?:key|token|secret|passw(?:or)?d|\bhft)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. Empty fields do not apply; `line` counts from 1, 0 when unknown.

    The value of a key that names a secret, and of what goes into an environment, is never kept.
    """

    message: str
    file: str = ""
    line: int = 0
    section: str = ""
    key: str = ""
    value: str = ""
    allowed: str = ""
    nearest: str = ""

    def __post_init__(self) -> None:
        if self.value and (hides_a_value(self.key) or self.key == "env" or self.section.endswith(".env")):
            object.__setattr__(self, "value", HIDDEN)

    def __str__(self) -> str:
        return "\n  ".join(line for line in (self.where(), *self._what()) if line)

    def where(self) -> str:
        """`file:line, section [x], key = value`, as far as known."""
        parts = []
        if self.file:
            parts.append(f"{self.file}:{self.line}" if self.line else self.file)
        if self.section:
            parts.append(f"section [{self.section}]")
        if self.key:
            parts.append(f"{self.key} = {shortened(self.value)}" if self.value else self.key)
        return ", ".join(parts)

    def _what(self) -> list[str]:
        return [
            self.message,
            f"allowed: {self.allowed}" if self.allowed else "",
            f"did you mean {self.nearest!r}?" if self.nearest else "",
        ]


class ConfigErrors(Exception):
    """The configuration cannot be used; `problems` holds every mistake that was found, `warnings` what else was."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[str] = ()) -> None:
        self.problems = list(problems)
        self.warnings = list(warnings)
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} mistake{'s' if count != 1 else ''} in the configuration"
        return "\n\n".join([head, *map(str, self.problems)])


@dataclass(slots=True)
class Findings:
    """What a reading of the configuration found: mistakes stop the start, warnings are told and lived with."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)

    def warn(self, problem: Problem) -> None:
        """The same shape on one line: nothing stops, but the owner should know."""
        self.warnings.append(
            ": ".join(part.replace("\n  ", "; ") for part in (problem.where(), _plain(problem)) if part)
        )


def _plain(problem: Problem) -> str:
    rest = Problem(problem.message, allowed=problem.allowed, nearest=problem.nearest)
    return str(rest)


def at(place: Problem, message: str, *, allowed: str = "", nearest: str = "") -> Problem:
    """A mistake at a place that is known already."""
    return replace(place, message=message, allowed=allowed, nearest=nearest)


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """The valid name most like `wrong`, or nothing when none is close; a wrong case is close."""
    names = list(valid)
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(wrong.casefold()[:100], folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""


def hides_a_value(key: str) -> bool:
    """Whether what this key holds is a secret, by its name."""
    return _SECRET.search(key) is not None


def without_secret(line: str) -> str:
    """A line or an option as it was written; what follows the name of a secret in it is left out."""
    found = _SECRET_IN_LINE.search(line)
    return line if found is None or not line[found.end() :].strip(" \t=:") else f"{line[: found.end()]} {HIDDEN}"


def shortened(text: str, at_most: int = 120) -> str:
    """`text` on one line, cut where it is too long to show."""
    line = text.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    return line if len(line) <= at_most else line[:at_most] + "..."
