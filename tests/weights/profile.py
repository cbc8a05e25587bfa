"""What `tests/configs.toml` says: two profiles of the same cases, and the prompt that every request of them sends."""

import itertools
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from router.weights import demo_weights
from tests.tiny_gguf import write_tiny_gguf

TESTS = Path(__file__).resolve().parent.parent
PARAGRAPHS = (TESTS / "prompt.txt").read_text().split("\n\n")


@dataclass(frozen=True)
class Case:
    """The sizes of one case, by the names that they have in the file."""

    sizes: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.sizes[name]
        except KeyError:
            raise AttributeError(f"tests/configs.toml gives no {name!r} for this case: {self.sizes}") from None

    def prompt(self, closing: str) -> str:
        """The essay as far as this case wants it, and a closing line of the request's own."""
        return f"{essay(self.sizes['prompt_words'])}\n\n{closing}"


@dataclass(frozen=True)
class Profile:
    """Where the cases run, and on what."""

    name: str
    settings: dict[str, Any]

    def case(self, name: str) -> Case:
        return Case(self.settings[name])

    @property
    def deadline_s(self) -> float:
        """For anything that is waited for; generous, since a slow machine is no fault."""
        return float(self.settings["deadline_s"])

    def models(self, make: Callable[[str], Path]) -> list[Path]:
        """The weights of model 0 and model 1; `make` gives the file of a name that stands for weights made here.

        Skips the test when the profile's own are not there.
        """
        files = [make(name) if name in MADE_HERE else _found(Path(name)) for name in self.settings["models"]]
        command = self.settings["llama_server"]
        if command and shutil.which(command[0]) is None:
            pytest.skip(f"tests/configs.toml: [{self.name}] llama_server {command[0]!r} is not on PATH")
        return files


MADE_HERE: dict[str, Callable[[Path], Path]] = {
    "smollm2": lambda folder: demo_weights(),
    "tiny": lambda folder: write_tiny_gguf(folder / "tiny.gguf"),
}
"""Names of weights that need no download but Python packages; called with a folder to put them into."""


def profile(name: str) -> Profile:
    with open(TESTS / "configs.toml", "rb") as file:
        return Profile(name, tomllib.load(file)[name])


def essay(words: int) -> str:
    """The first so many words of prompt.txt, from the start again where it is shorter, in numbered parts."""
    parts: list[str] = []
    left = words
    for part, paragraph in enumerate(itertools.cycle(PARAGRAPHS), 1):
        chosen = paragraph.split()[:left]
        parts.append(f"{part}. {' '.join(chosen)}")
        left -= len(chosen)
        if left <= 0:
            return "\n\n".join(parts)
    raise AssertionError("an endless essay ended")


def _found(path: Path) -> Path:
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        pytest.skip(f"tests/configs.toml: no weights at {path}")
    return files[0]
