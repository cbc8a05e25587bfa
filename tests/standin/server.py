"""The life of a stand-in process: arguments, load, service, end.

A thread per connection, the main thread for signals. Every end goes through the ledger, except that by SIGKILL from
outside.
"""

import os
import signal
import socket
import sys
import threading
import time

from tests.standin.dialects import dialect_of
from tests.standin.generate import LOOK_S, Generation, Service, die
from tests.standin.gpu import GpuMemory
from tests.standin.ledger import LedgerWriter
from tests.standin.metadata import Metadata, error, loading
from tests.standin.options import Options, UsageError, help_text, parse
from tests.standin.script import Script, from_environment, from_model_file
from tests.standin.slots import Slots
from tests.standin.wire import Connection, Gone, listen

VERSION = "version: 0 (standin)\nbuilt with Python for tests"
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
MAX_LIFE_S = 600
"""A stand-in that a test forgot ends by itself."""
BEGUN = time.monotonic()


def main(argv: list[str]) -> None:
    """Runs until SIGTERM or a fault; leaves through `os._exit` or a signal."""
    if "--version" in argv:
        print(VERSION, file=sys.stderr)
        return
    try:
        options = parse(argv, dict(os.environ))
    except UsageError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
    if options.help:
        print(help_text())
        return
    Process(options).run()


class Process:
    """One process from its first ledger line to its last."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ledger = LedgerWriter(os.environ.get("STANDIN_LEDGER"), options.model)
        self.memory = GpuMemory(os.environ.get("STANDIN_GPU_DIR"))
        self.script = self._script()
        self.stop = threading.Event()
        load = self.ledger.count_load()
        self.faulty = self.script.faulty_loads == 0 or load <= self.script.faulty_loads
        service = Service(self.script, self.ledger, Slots(options.parallel), options.aliases[0], self.faulty)
        self.service = service
        self.metadata = Metadata(service, options)
        self.ledger.write(
            "started",
            argv=options.argv,
            load=load,
            ppid=os.getppid(),
            pgid=os.getpgid(0),
            has_key=bool(options.api_key),
            env={name: os.environ.get(name) for name in MASKS},
            leaked=sorted(name for name in os.environ if name.startswith("LLAMA_ARG_")),
        )

    def _script(self) -> Script:
        base = from_environment(os.environ)
        if os.path.isfile(self.options.model):
            with open(self.options.model, "rb") as file:
                return from_model_file(file.read(1 << 16), base)
        return base

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        signal.alarm(MAX_LIFE_S)
        if self.script.grandchild:
            leave_grandchild()
        if not self.script.load_silent_socket:
            self._serve()
        say(f"srv    load_model: loading model '{self.options.model}'")
        self._load()
        if self.script.load_silent_socket:
            self._serve()
        self.metadata.ready = True
        self.ledger.write("ready", cpu_ms=int(time.process_time() * 1000))
        say("srv          init: model loaded")
        self.stop.wait()
        time.sleep(self.script.exit_delay_s)
        self._exit(0)

    def _on_term(self, number: int, _: object) -> None:
        self.ledger.write("sigterm", signal=signal.Signals(number).name)
        if not self.script.ignore_term:
            self.stop.set()

    def _exit(self, code: int) -> None:
        self.memory.release(self.script.gpu_lag_s)
        self.ledger.write("exit", how=f"exit:{code}")
        os._exit(code)

    # --- loading

    def _load(self) -> None:
        """Takes the GPUs, passes the time, then fails or returns. Ends the process when it is told to stop."""
        full = self.memory.take(os.environ.get("CUDA_VISIBLE_DEVICES", ""), int(os.environ.get("STANDIN_GPU_CAP", "0")))
        if full:
            self.ledger.write("gpu_over_cap", gpu=full)
            self._fail("oom")
        stalls = self.faulty and self.script.fail == "stall"
        end = time.monotonic() + (MAX_LIFE_S if stalls else self.script.load_s)
        lines = 0
        while (left := self._load_left_s(end)) > 0 and not self.stop.is_set():
            if self.script.load_cpu:
                burn(min(left, 0.05))
            else:
                self.stop.wait(min(left, 0.1))
            if self.script.load_progress:
                lines += 1
                say(f"load_tensors: {lines} tensors read")
        if self.stop.is_set():
            time.sleep(self.script.exit_delay_s)
            self._exit(0)
        if self.script.fail and self.faulty:
            self._fail(self.script.fail)
        if not os.path.exists(self.options.model):
            self._fail("missing")

    def _load_left_s(self, end: float) -> float:
        left = end - time.monotonic()
        gate = self.script.load_gate
        return LOOK_S if left <= 0 and gate and not os.path.exists(gate) else left

    def _fail(self, how: str) -> None:
        model = self.options.model
        reasons = {
            "oom": [
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8148.38 MiB on device 0: "
                "cudaMalloc failed: out of memory",
                "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8544200704",
                "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            ],
            "missing": [
                f"gguf_init_from_file: failed to open GGUF file '{model}' (No such file or directory)",
                f"llama_model_load: error loading model: llama_model_loader: failed to load model from {model}",
            ],
            "magic": [
                "gguf_init_from_file_impl: invalid magic characters: '????', expected 'GGUF'",
                f"llama_model_load: error loading model: llama_model_loader: failed to load model from {model}",
            ],
            "flag": ["error: invalid argument: --surprise"],
        }
        self.ledger.write("load_failed", how=how)
        if how not in reasons:
            die(how, self.script.last_words, self.ledger)
        if how == "flag":
            print(*reasons[how], sep="\n", file=sys.stderr, flush=True)
            self._exit(1)
        say(*reasons[how], level="E")
        say("llama_model_load_from_file_impl: failed to load model", level="E")
        say(f"srv    load_model: failed to load model, '{model}'", level="E")
        say("srv    operator(): operator(): cleaning up before exit...")
        say("srv          init: exiting due to model loading error", level="E")
        self._exit(1)

    # --- serving

    def _serve(self) -> None:
        try:
            listener = listen(self.options.host, self.options.port)
        except OSError:
            where = f"hostname: {self.options.host}, port: {self.options.port}"
            say(f"srv         start: couldn't bind HTTP server socket, {where}", level="E")
            say("srv          init: exiting due to HTTP server error", level="E")
            self._exit(1)
            raise
        name = listener.getsockname()
        address = f"unix://{name}" if isinstance(name, str) else f"http://{name[0]}:{name[1]}"
        say(f"srv          init: listening on {address}")
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=(Connection(sock),), daemon=True).start()

    def _converse(self, conn: Connection) -> None:
        try:
            while self._answer(conn):
                pass
        except Gone:
            pass
        finally:
            conn.close()

    def _answer(self, conn: Connection) -> bool:
        request = conn.read_request()
        dialect = dialect_of(request.path) if request.method == "POST" else None
        key = self.options.api_key
        if dialect is None or (key and request.headers.get("authorization") != f"Bearer {key}"):
            return self.metadata.answer(conn, request)
        if not self.metadata.ready:
            return conn.answer_json(*loading(), {})
        if "content-encoding" in request.headers:
            return conn.answer_json(*error(415, "unsupported content encoding", "invalid_request_error"), {})
        try:
            generation = Generation(self.service, conn, request, dialect)
        except ValueError as problem:
            return conn.answer_json(*error(400, str(problem), "invalid_request_error"), {})
        return generation.run()


def say(*lines: str, level: str = "I") -> None:
    """Prints as llama-server logs: minutes, seconds, milli- and microseconds since the start, a level, the text."""
    seconds, us = divmod(int((time.monotonic() - BEGUN) * 1e6), 1_000_000)
    stamp = f"{seconds // 60}.{seconds % 60:02d}.{us // 1000:03d}.{us % 1000:03d}"
    for line in lines:
        os.write(2, f"{stamp} {level} {line}\n".encode())


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def leave_grandchild() -> None:
    """Forks a process of the same group that ignores SIGTERM and ends by itself after a minute."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ledger = LedgerWriter(os.environ.get("STANDIN_LEDGER"), "grandchild")
        ledger.write("started", ppid=os.getppid(), pgid=os.getpgid(0))
        signal.alarm(0)
        time.sleep(60)
        os._exit(0)
