"""Pretended GPU memory: who is resident on which GPU, at any instant, and whether a cap was ever broken.

In `$STANDIN_GPU_DIR` a process keeps one file per entry of CUDA_VISIBLE_DEVICES, `<gpu>/<pid>`, holding the time
(CLOCK_MONOTONIC, us) until which its memory stays taken after the process is gone. A process that would exceed
`$STANDIN_GPU_CAP` writes a line to `violations.jsonl` and fails as CUDA does when it is out of memory.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.standin.ledger import now_us


class GpuMemory:
    """The memory of all GPUs, as seen by one process or by a test."""

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.directory = os.fspath(directory) if directory else ""
        self.held: list[str] = []

    def take(self, mask: str, cap: int) -> str:
        """Registers this process on the GPUs of the mask; returns the GPU that is full, or nothing. cap 0: no cap."""
        if not self.directory:
            return ""
        with self._locked():
            gpus = [gpu.strip() for gpu in mask.split(",") if gpu.strip()]
            for gpu in gpus:
                residents = self._residents(gpu)
                if cap and len(residents) >= cap:
                    with open(f"{self.directory}/violations.jsonl", "a") as file:
                        line = {"gpu": gpu, "pid": os.getpid(), "residents": residents, "mono_us": now_us()}
                        file.write(json.dumps(line) + "\n")
                    return gpu
            for gpu in gpus:
                os.makedirs(f"{self.directory}/{gpu}", exist_ok=True)
                self.held.append(f"{self.directory}/{gpu}/{os.getpid()}")
                with open(self.held[-1], "w") as file:
                    file.write("0")
        return ""

    def release(self, lag_s: float) -> None:
        """The memory comes back `lag_s` from now, or when the process is gone, whichever is later."""
        for path in self.held:
            with open(path, "w") as file:
                file.write(str(now_us() + int(lag_s * 1e6)))

    def residents(self, gpu: int | str) -> list[int]:
        """The pids whose memory is taken on this GPU at this instant."""
        with self._locked():
            return self._residents(str(gpu))

    def violations(self) -> list[dict[str, object]]:
        """Every attempt to take more than the cap."""
        path = f"{self.directory}/violations.jsonl"
        if not os.path.exists(path):
            return []
        with open(path) as file:
            return [json.loads(line) for line in file]

    def _residents(self, gpu: str) -> list[int]:
        folder = f"{self.directory}/{gpu}"
        found = []
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            with open(f"{folder}/{name}") as file:
                taken_until_us = int(file.read() or 0)
            if alive(int(name)) or now_us() < taken_until_us:
                found.append(int(name))
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(self.directory, exist_ok=True)
        lock = os.open(f"{self.directory}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie has given its memory back."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
