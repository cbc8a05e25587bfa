"""A stand-in started by a test itself, without a router."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.mortal import mortal
from tests.standin.client import Call
from tests.standin.gpu import GpuMemory
from tests.standin.ledger import Ledger, polls

FOLDER = Path(__file__).resolve().parent
KEY = "test-key"


class StandIn:
    """One process; the script is its model file. Use as a context manager: it never outlives the block."""

    def __init__(self, folder: Path, *argv: str, model: str = "", env: dict[str, str] | None = None, **script: Any):
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.memory = GpuMemory(folder / "gpus")
        self.socket = str(folder / f"s{len(list(folder.glob('*.sock')))}.sock")
        path = folder / "m.gguf"
        path.write_text(json.dumps(script))
        ours = {"STANDIN_LEDGER": str(folder / "ledger"), "STANDIN_GPU_DIR": str(folder / "gpus"), "LLAMA_API_KEY": KEY}
        command = [sys.executable, "-IS", str(FOLDER / "llama-server")]
        command += ["-m", model or str(path), "--host", self.socket, "-np", "2", *argv]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STANDIN_", "LLAMA_"))}
        self.process = subprocess.Popen(
            mortal(command),
            env=inherited | ours | (env or {}),
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()

    def call(self, method: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Call:
        sent = {"Authorization": f"Bearer {KEY}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return Call(self.socket, method, path, body, sent)

    def until_ready(self) -> "StandIn":
        self.ledger.wait_for("ready", pid=self.process.pid)
        return self

    def until_listening(self) -> "StandIn":
        for _ in polls(5):
            if os.path.exists(self.socket):
                return self
        raise AssertionError("the stand-in does not listen")

    def end(self) -> tuple[int, str]:
        """Waits for its end: exit code (negative: signal) and stderr."""
        _, text = self.process.communicate(timeout=10)
        return self.process.returncode, text

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
