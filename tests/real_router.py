"""A router on real llama.cpp: the embedded llama-server with real weights, in a folder of the test's.

with RealRouter(tmp_path, weights, {"a": {"gpus": [0]}, "b": {"gpus": [0]}}, {"QUEUE_HEAD_GRACE": 0}) as router:
    router.base_url
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.standin.fixtures import RouterProcess
from tests.standin.gpu import alive

ONE_THREAD = "1"
"""llama.cpp's threads spin while they wait: on a busy machine two are far slower than one."""


class RealRouter(RouterProcess):
    """`llama-router serve` with the embedded llama-server; every model has the same weights."""

    def __init__(
        self,
        folder: Path,
        weights: Path,
        models: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any] | None = None,
        *,
        parallel: int = 2,
        context: int = 4096,
        preset: Mapping[str, str] | None = None,
        top: Mapping[str, Any] | None = None,
    ) -> None:
        """`models`: entries of config.json's LLM by name. `context` is that of all slots together."""
        binary = [sys.executable, "-m", "router.embedded"]
        super().__init__(folder, [], binary=binary, top=top, **(settings or {}))
        self.entries = dict(models)
        self.preset = {
            "model": str(weights),
            "parallel": str(parallel),
            "ctx-size": str(context),
            "threads": ONE_THREAD,
            **(preset or {}),
        }

    def configure(self) -> None:
        shared = "\n".join(f"{key} = {value}" for key, value in self.preset.items())
        sections = "\n".join(f"[{name}]" for name in self.entries)
        (self.folder / "presets.ini").write_text(f"[*]\n{shared}\n{sections}\n")
        config = {"LLM": self.entries, "ROUTER": self.settings, **self.top}
        (self.folder / "config.json").write_text(json.dumps(config))

    def children(self) -> list[int]:
        """Pids of the llama-servers that are alive, by the router's log."""
        return [event["pid"] for event in self.events("ReplicaSpawned") if alive(event["pid"])]
