"""A place to write configurations and load them: a home of its own, an environment of its own, a captured --help."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from router.config import Config, ConfigErrors, Problem, load

XDG = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
HELP = (Path(__file__).parent / "fixtures" / "llama-server-help.txt").read_text()


@dataclass
class Desk:
    """`config` and `presets` write the files; `load`, `mistakes` read them as the router would."""

    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environ = {"HOME": str(self.home), "PATH": str(self.home / "bin")}
        self.here.mkdir(parents=True)
        (self.home / "bin").mkdir()
        server = self.home / "bin" / "llama-server"
        server.write_text("#!/bin/sh\nexit 1\n")
        server.chmod(0o755)
        self.weights = self.home / "weights.gguf"
        self.weights.write_bytes(b"GGUF\x03\0\0\0")

    @property
    def here(self) -> Path:
        return self.home / ".config" / "llama-router"

    def config(self, value: Any) -> "Desk":
        text = value if isinstance(value, str) else json.dumps(value)
        (self.here / "config.json").write_text(text)
        return self

    def presets(self, text: str) -> "Desk":
        """$W stands for the path of a file that looks like weights."""
        (self.here / "presets.ini").write_text(text.replace("$W", str(self.weights)))
        return self

    def models(self, **entries: Any) -> "Desk":
        """One section with weights, and one entry in LLM, per model."""
        self.presets("".join(f"[{name}]\nmodel = $W\n" for name in entries))
        return self.config({"LLM": entries})

    def move_in(self, monkeypatch: pytest.MonkeyPatch) -> "Desk":
        """Make this the environment of this process, with a llama-server that prints the captured help."""
        (self.home / "help.txt").write_text(HELP)
        server = self.home / "bin" / "llama-server"
        server.write_text(f"#!/bin/sh\nexec /bin/cat {shlex.quote(str(self.home / 'help.txt'))}\n")
        for name in (
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "XDG_RUNTIME_DIR",
            "ROUTER_CONFIG_PATH",
            "LLAMA_PRESETS_PATH",
        ):
            monkeypatch.delenv(name, raising=False)
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        return self

    def load(self, overrides: dict[str, Any] | None = None, **given: Any) -> Config:
        return load(overrides, **{"environ": self.environ, "help_text": HELP, "nvml_gpus": 3, **given})

    def mistakes(self, overrides: dict[str, Any] | None = None, **given: Any) -> list[Problem]:
        """Every mistake; none when the configuration can be served."""
        try:
            self.load(overrides, **given)
        except ConfigErrors as errors:
            return errors.problems
        return []

    def mistake(self, overrides: dict[str, Any] | None = None, **given: Any) -> Problem:
        """The one mistake there is."""
        problems = self.mistakes(overrides, **given)
        assert len(problems) == 1, [str(problem) for problem in problems]
        return problems[0]
