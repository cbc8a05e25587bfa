"""A router on stand-ins: its configuration in a folder of the test's, the process, and what both ledgers say.

    with RouterProcess(tmp_path, [Model("a", tokens=60, gap_s=0.1), Model("b")]) as router:
        call = router.chat("a", stream=True)

Only loopback and the test's folder are used, and nothing survives the block: leaving it stops the router by its pid
and fails if a stand-in is still alive.
"""

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import left_logs
from tests.mortal import mortal
from tests.standin.client import Call
from tests.standin.gpu import GpuMemory, alive
from tests.standin.ledger import Ledger, polls
from tests.standin.script import Script

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
STANDIN = [sys.executable, "-IS", str(FOLDER / "llama-server")]
"""The stand-in under this very Python, without a search for it."""

Event = dict[str, Any]


class Model:
    """One model of a test: its place, its llama-server options, and the script of its stand-ins."""

    def __init__(
        self,
        name: str,
        *,
        gpus: Sequence[int] | None = (0,),
        replicas: int = 1,
        slots: int = 1,
        preset: Mapping[str, str] | None = None,
        entry: Mapping[str, Any] | None = None,
        **script: Any,
    ) -> None:
        Script(**script)
        self.name = name
        self.entry = {"num_instance": replicas, **({} if gpus is None else {"gpus": list(gpus)}), **(entry or {})}
        self.preset = {"parallel": str(slots), "ctx-size": "4096", **(preset or {})}
        self.script = script

    def file(self, folder: Path) -> Path:
        """Its model file, which is its script."""
        return folder / f"{self.name.replace('/', '%')}.gguf"


def write_config(folder: Path, models: Sequence[Model], settings: Mapping[str, Any], top: Mapping[str, Any]) -> None:
    """config.json, presets.ini and the models' scripts. Written again, it changes them for a reload."""
    lines = ["version = 1"]
    for model in models:
        path = model.file(folder)
        path.write_text(json.dumps(model.script))
        options = {"model": str(path), **model.preset}
        lines += [f"[{model.name}]", *(f"{key} = {value}" for key, value in options.items())]
    (folder / "presets.ini").write_text("\n".join(lines) + "\n")
    config = {"LLM": {model.name: model.entry for model in models}, "ROUTER": dict(settings), **top}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


WORKERS_MAX = 8


def free_port() -> int:
    """A port that nobody listens on. Each process of pytest-xdist takes others: one that is free now may be asked for
    by a router of the next before ours listens."""
    ours = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port // 2 % WORKERS_MAX == ours:  # the kernel gives odd ones, or even ones
            return port


QUICK = {
    "LOAD_POLL_INTERVAL": 0.05,
    "UNLOAD_POLL_INTERVAL": 0.05,
    "UNLOAD_POLL_TIMEOUT": 1.0,
    "DASHBOARD": False,
}
"""Settings that make the router look often; a test's own settings come on top."""


RUN_DIR_BYTES = 79
"""The longest path of a run directory: sockets have their names in it."""


class RouterProcess:
    """`llama-router serve` as a process of its own, on stand-ins."""

    def __init__(
        self,
        folder: Path,
        models: Sequence[Model],
        *,
        binary: Sequence[str] = STANDIN,
        env: Mapping[str, str] | None = None,
        top: Mapping[str, Any] | None = None,
        gpu_cap: int = 0,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.models = list(models)
        self.settings = {**QUICK, **settings}
        self.port = free_port()
        self.top = {"llama-server-executable": list(binary), "API-port": self.port, **(top or {})}
        self.ledger = Ledger(folder / "ledger")
        self.memory = GpuMemory(folder / "gpus")
        self.log_dir = folder / "log"
        self.run_dir = folder / "run"
        if len(os.fsencode(self.run_dir)) > RUN_DIR_BYTES:
            self.run_dir = Path(tempfile.gettempdir()) / f"run-{os.getpid()}-{self.port}"
        self.run_dir.mkdir(mode=0o700, exist_ok=True)
        ours = {
            "ROUTER_CONFIG_PATH": str(folder / "config.json"),
            "LLAMA_PRESETS_PATH": str(folder / "presets.ini"),
            "EVENT_LOG_DIR": str(self.log_dir),
            "RUN_DIR": str(self.run_dir),
            "LLAMA_ROUTER_STATE_DIR": str(folder / "state"),
            "STANDIN_LEDGER": str(folder / "ledger"),
            "STANDIN_GPU_DIR": str(folder / "gpus"),
            "STANDIN_GPU_CAP": str(gpu_cap),
            "PYTHONPATH": str(REPOSITORY),
        }
        masked = ("STANDIN_", "LLAMA_", "ROUTER_", "CUDA_", "HIP_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(masked)}
        self.env = {**inherited, **ours, **(env or {})}
        self.stderr = folder / "router.stderr"
        self.process: subprocess.Popen[bytes] | None = None

    # --- life

    def __enter__(self) -> "RouterProcess":
        self.configure()
        try:
            self.start()
        except BaseException:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:  # that it would not end in peace now is no news, and would stand before what went wrong
            error.add_note(f"the router said:\n{self.words()}")
            self.kill()
        left = self.kill_children()
        if not self.run_dir.is_relative_to(self.folder):
            shutil.rmtree(self.run_dir)
        if kind is None:
            assert not left, f"the router left children behind: {left}"

    def configure(self) -> None:
        write_config(self.folder, self.models, self.settings, self.top)

    def start(self, deadline_s: float = 60.0) -> None:
        """Starts it and waits until /health says ok."""
        with open(self.stderr, "ab") as stderr:
            self.process = subprocess.Popen(
                mortal([sys.executable, "-m", "router.cli", "serve"]),
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )
        for _ in polls(deadline_s, every_s=0.02):
            assert self.process.poll() is None, f"the router ended with {self.process.returncode}:\n{self.words()}"
            try:
                if Call(self.address, "GET", "/health").status == 200:
                    return
            except OSError:
                pass
        raise AssertionError(f"no /health within {deadline_s} s:\n{self.words()}")

    def stop(self, deadline_s: float = 10.0) -> int:
        """SIGTERM, then SIGKILL; its exit code."""
        assert self.process
        self.process.terminate()
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the router did not stop within {deadline_s} s:\n{self.words()}") from None
        left_logs.left(self.log_dir)
        return code

    def kill(self) -> None:
        """SIGKILL, as a crash of the router."""
        assert self.process
        self.process.kill()
        self.process.wait()
        left_logs.left(self.log_dir)

    def hang_up(self) -> None:
        """SIGHUP: the configuration is to be read again."""
        assert self.process
        self.process.send_signal(signal.SIGHUP)

    def children(self) -> list[int]:
        """Pids of all stand-ins, their grandchildren included, that are alive."""
        return [line["pid"] for line in self.ledger.events("started") if alive(line["pid"])]

    def kill_children(self) -> list[int]:
        """Ends what should have ended; returns what it had to end."""
        left = self.children()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    # --- talking to it

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: bytes | Mapping[str, Any] | None = None, **headers: str) -> Call:
        return Call(self.address, method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})

    def post(
        self, path: str, model: str, *, stream: bool = False, standin: Mapping[str, Any] | None = None, **more: Any
    ) -> Call:
        """A generation on any route; `standin` are orders for this request alone."""
        body = {**body_for(path, model), "stream": stream, **({"standin": dict(standin)} if standin else {}), **more}
        if path.endswith("/audio/transcriptions"):
            return self.call("POST", path, form_of(body), Content_Type="multipart/form-data; boundary=standin")
        return self.call("POST", path, body)

    def chat(self, model: str, **more: Any) -> Call:
        return self.post("/v1/chat/completions", model, **more)

    def asks(self, model: str, **more: Any) -> int:
        """The status of a chat, whose answer is read to its end and whose connection is closed."""
        call = self.chat(model, **more)
        call.read()
        return call.status

    def status(self) -> Any:
        return self.call("GET", "/status").json()

    # --- what it says

    def words(self) -> str:
        """The end of its stderr."""
        return self.stderr.read_text()[-6000:]

    def wait_words(self, text: str, deadline_s: float = 10.0) -> None:
        """Until its diary says so."""
        for _ in polls(deadline_s, every_s=0.02):
            if text in self.words():
                return
        raise AssertionError(f"it never said {text!r}:\n{self.words()}")

    def events(self, *types: str, **fields: Any) -> list[Event]:
        """The events of its log, in order; only these types, and only with these values."""
        by_seq: dict[int, Event] = {}
        for path in sorted(self.log_dir.glob("*.ndjson")) + sorted(self.log_dir.glob("*.ndjson.gz")):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            events: list[Event] = [json.loads(line) for line in data.split(b"\n")[:-1]]
            by_seq |= {event["seq"]: event for event in events if "seq" in event}
        found = [by_seq[seq] for seq in sorted(by_seq)]
        found = [event for event in found if not types or event["type"] in types]
        return [event for event in found if all(event.get(name) == value for name, value in fields.items())]

    def wait_event(
        self, type_: str, predicate: Callable[[Event], bool] | None = None, deadline_s: float = 10.0, **fields: Any
    ) -> Event:
        """The first such event, waiting for it; AssertionError with the end of the log."""
        for _ in polls(deadline_s, every_s=0.02):
            for event in self.events(type_, **fields):
                if predicate is None or predicate(event):
                    return event
        tail = "\n".join(json.dumps(event) for event in self.events()[-30:])
        raise AssertionError(f"no {type_} {fields} within {deadline_s} s; the log ends with:\n{tail}\n{self.words()}")


ROUTES = [
    "/v1/chat/completions",
    "/v1/completions",
    "/completion",
    "/infill",
    "/v1/messages",
    "/v1/responses",
    "/v1/audio/transcriptions",
]
"""Generation routes that can stream."""
WHOLE_ROUTES = ["/v1/embeddings", "/embedding", "/v1/rerank", "/v1/systemone"]
"""Generation routes that cannot."""


def body_for(path: str, model: str) -> dict[str, Any]:
    """The least that the route asks for."""
    short = path.removeprefix("/v1")
    if short in ("/chat/completions", "/messages"):
        return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10_000}
    fields: dict[str, dict[str, Any]] = {
        "/completions": {"prompt": "hello"},
        "/completion": {"prompt": "hello"},
        "/infill": {"input_prefix": "hel", "input_suffix": "o"},
        "/responses": {"input": "hello"},
        "/embeddings": {"input": "hello"},
        "/embedding": {"content": "hello"},
        "/rerank": {"query": "hello", "documents": ["hello", "world"]},
        "/systemone": {"state": "hello"},
        "/audio/transcriptions": {"language": "en"},
    }
    return {"model": model, **fields[short]}


def form_of(fields: Mapping[str, Any]) -> bytes:
    """An upload with a small file first and the fields after it, with the boundary `standin`."""
    parts = [b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF']
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode())
    return b"".join(b"--standin\r\n" + part + b"\r\n" for part in parts) + b"--standin--\r\n"
