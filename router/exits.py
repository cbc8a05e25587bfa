"""Why a llama-server ended: its exit status, its last lines and the kernel's account, made into one cause and sentence.

PURE. Its counterpart is `replicas.py`, which watches the processes. The words of llama.cpp that mean a cause stand in
the tables below and nowhere else; where several causes are named, the first table that matches wins, because what went
wrong first is what the later lines are only the consequence of.
"""

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass

from eventlog.events import ExitCause, LoadFailure

ROUTER_GONE, CANNOT_RUN = 125, 127
"""Exit codes of `exec_child.py`; shells use 127 in the same sense."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: one of the two is set; neither when nobody could find out."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"ended by {signal_name(self.signal)}"
        if self.code is not None:
            return f"exit code {self.code}"
        return "exit status unknown"


GPU_OOM = re.compile(
    r"cuda error: out of memory|(cuda|hip|musa)malloc\w* failed: out of memory|rocm error: out of memory"
    r"|errorout(of)?devicememory|device memory allocation of size \d+ failed|requested buffer size exceeds device"
    r"|out_of_device_memory|out_of_resources"
    r"|(failed|unable) to allocate (cuda|rocm|hip|musa|vulkan|sycl|opencl|cann|metal|mtl)\w* buffer"
    r"|cublas_status_alloc_failed",
    re.IGNORECASE,
)
HOST_OOM = re.compile(
    r"std::bad_alloc|cannot allocate memory|erroroutofhostmemory|insufficient memory"
    r"|(failed|unable) to allocate (cpu|\w+_host)\w* buffer",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(
    r"failed to allocate (compute|buffer|output|graph|context|memory)|out of memory|memoryerror", re.IGNORECASE
)
"""Memory ran out, and the line does not say whose."""
BAD_FLAG = re.compile(
    r"error: (invalid|unknown) argument|unknown argument:|error while handling (argument|environment variable)"
    r"|the argument has been removed|expected value for argument|invalid parameter for argument",
    re.IGNORECASE,
)
MISSING_FILE = re.compile(
    r"failed to open \S.*(no such file|permission denied|is a directory)|no such file or directory"
    r"|does this file exist|failed to open gguf file|model file .*(not found|does not exist)"
    r"|failed to download|download failed|no gguf files? found",
    re.IGNORECASE,
)
BAD_MODEL = re.compile(
    r"invalid magic|unknown model architecture|corrupted or incomplete|wrong number of tensors"
    r"|error loading model (architecture|hyperparameters|vocabulary)|unknown (pre-)?tokenizer|missing tensor"
    r"|tensor '[^']*' (not found|has wrong shape)|gguf_init_from|failed to read (magic|header|key-value|tensor)"
    r"|unsupported (gguf|model)|invalid split file|bad (gguf )?magic|quantization (type|version).*not supported"
    r"|is there a mismatch between the host and model endianness|failed to load model|error loading model",
    re.IGNORECASE,
)

_STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ ([DIWE]) +")
"""llama-server's time and level in front of a line."""
_WORDS = re.compile(r"error|fail|abort|fatal|assert|terminate|exception|cannot|couldn't|unable", re.IGNORECASE)
_LINE_MAX = 300

KILLED_BY = "by hand, by another program, or by the out-of-memory killer of a container"
"""Who sends a SIGKILL that the kernel's count of out-of-memory kills knows nothing of."""

_SENTENCES: dict[str, str] = {
    "gpu_oom": "out of GPU memory",
    "host_oom": "out of main memory",
    "bad_flag": "llama-server refuses an option",
    "missing_file": "a file of the model is missing or cannot be read",
    "bad_model": "the model file cannot be loaded",
    "spawn": "llama-server could not be started",
    "signal": "the process was ended by a signal",
    "exit": "the process ended by itself",
    "killed": "the process was killed",
}


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """Why a load failed; `reason` is one sentence for the client."""

    kind: LoadFailure
    reason: str


@dataclass(frozen=True, slots=True)
class CrashVerdict:
    """Why a replica that was ready ended; `reason` is one sentence for the client."""

    cause: ExitCause
    reason: str


def load_failure(how: Exit, last_lines: Sequence[str], *, oom_killed: bool = False) -> LoadVerdict:
    """`oom_killed`: the kernel killed something for want of memory since the process began."""
    if how.code == CANNOT_RUN or how.code == ROUTER_GONE:
        line = _find(re.compile("llama-router: cannot run|not found"), last_lines)
        return LoadVerdict("spawn", _sentence("spawn", how, line))
    if how.signal == signals.SIGKILL and oom_killed:
        return LoadVerdict("host_oom", _sentence("host_oom", how, "the kernel killed it"))
    tables: tuple[tuple[LoadFailure, re.Pattern[str]], ...] = (
        ("gpu_oom", GPU_OOM),
        ("host_oom", HOST_OOM),
        ("bad_flag", BAD_FLAG),
        ("missing_file", MISSING_FILE),
    )
    # A tidy end means that llama-server understood what was wrong; a signal, that its last words may mean nothing.
    for kind, pattern in tables if how.signal is None else tables[:2]:
        if line := _find(pattern, last_lines):
            return LoadVerdict(kind, _sentence(kind, how, line))
    if line := _find(OUT_OF_MEMORY, last_lines):
        kind = "gpu_oom"
        return LoadVerdict(kind, _sentence(kind, how, line))
    if how.signal is not None:
        return LoadVerdict("signal", _sentence("signal", how, telling(last_lines)))
    if how.code != 0 and (line := _find(BAD_MODEL, last_lines)):
        return LoadVerdict("bad_model", _sentence("bad_model", how, line))
    return LoadVerdict("exit", _sentence("exit", how, telling(last_lines)))


def crash(how: Exit, last_lines: Sequence[str], *, oom_killed: bool = False) -> CrashVerdict:
    """Of a replica that was ready and that nobody asked to stop."""
    if how.signal == signals.SIGKILL:
        if oom_killed:
            return CrashVerdict("host_oom", _sentence("host_oom", how, "the kernel killed it"))
        return CrashVerdict("killed", _sentence("killed", how, KILLED_BY))
    oom: tuple[tuple[ExitCause, re.Pattern[str]], ...] = (("gpu_oom", GPU_OOM), ("host_oom", HOST_OOM))
    for cause, pattern in oom:
        if line := _find(pattern, last_lines):
            return CrashVerdict(cause, _sentence(cause, how, line))
    cause = "signal" if how.signal is not None else "exit"
    return CrashVerdict(cause, _sentence(cause, how, telling(last_lines)))


def signal_name(number: int) -> str:
    """SIGSEGV and its like; a number for real-time signals."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _sentence(kind: str, how: Exit, line: str) -> str:
    return f"{_SENTENCES[kind]} ({how})" + (f": {line}" if line else "")


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """The first error that matches, without its time stamp: what follows from it comes later."""
    return next((_plain(line) for line in lines if pattern.search(line) and _level(line) == "E"), "")


def telling(lines: Sequence[str]) -> str:
    """The last line that sounds like trouble, else the last one at all; a line that says it is none is neither."""
    said = [line for line in lines if _plain(line)]
    trouble = [line for line in said if _WORDS.search(line) and _level(line) in ("E", "W")]
    telling = trouble or [line for line in said[-1:] if _level(line) == "E"]
    return _plain(telling[-1]) if telling else ""


def _level(line: str) -> str:
    """A line that does not say its level may be an error."""
    stamp = _STAMP.match(line)
    return stamp.group(1) if stamp else "E"


def _plain(line: str) -> str:
    text = _STAMP.sub("", line.strip(), count=1).strip()
    return text if len(text) <= _LINE_MAX else text[:_LINE_MAX] + "..."
