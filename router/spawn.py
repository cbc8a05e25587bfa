"""What a llama-server is started with, and the start itself.

The command, the environment and the GPU mask are plain values, made here without side effects; `start` then makes the
process. Its last step before the exec is in `exec_child.py`. What becomes of the process is `replicas.py`'s concern.
"""

import errno
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from router import proc
from router.upstream import Endpoint

MARKER = "LLAMA_ROUTER_RUN"
"""Names, in a child's environment, the router, its run and the replica: `<dir id>:<run>:<replica>`."""

SOCKET_PATH_MAX = 100
"""Bytes. The kernel takes 107; some of the wrappers and libraries on the way take a little less."""

_OURS = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LLAMA_API_KEY", MARKER})
_NOT_INHERITED = ("LLAMA_ARG_", "LLAMA_SERVER_", "LLAMA_ROUTER_")
_NOT_INHERITED_NAMES = frozenset({"LLAMA_API_KEY", "AIP_MODE", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"})
"""Settings of another llama-server, of Vertex AI's port, and systemd's link to the router itself."""

_MAY_PASS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""No room for another process, or no descriptor for its output."""

_EXEC = str(Path(__file__).with_name("exec_child.py"))


class SpawnError(Exception):
    """The process could not be started; the text says why.

    `may_pass`: the system lacked something that others may give back soon.
    """

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class Child:
    """A process that runs, or has just run. `output` is the reading end of its stdout and stderr, not blocking.

    It leads its own session and process group, so `pid` names those as well.
    """

    process: "subprocess.Popen[bytes]"
    output: int
    started_ticks: int

    @property
    def pid(self) -> int:
        return self.process.pid


def unix_endpoint(run_dir: Path, directory: str) -> Endpoint:
    """A fresh socket path in the run directory, and a key.

    `directory` is the `places.directory_id` of this router: several may share a run directory. Raises SpawnError when
    the path would be too long to listen on, or when others may write to the directory and put a socket of theirs there.
    """
    path = os.fspath(run_dir.absolute() / f"{directory[:6]}-{secrets.token_hex(4)}.sock")
    if (length := len(os.fsencode(path))) > SOCKET_PATH_MAX:
        raise SpawnError(
            f"socket path {path!r} has {length} bytes, more than the {SOCKET_PATH_MAX} it may have: "
            "set RUN_DIR to a directory with a shorter path"
        )
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = run_dir.stat()
    except OSError as error:
        raise SpawnError(f"the run directory {run_dir} cannot be used: {error.strerror}") from error
    if found.st_mode & 0o022 or found.st_uid != os.getuid():
        raise SpawnError(f"others may write to the run directory {run_dir}: set RUN_DIR to one of yours with mode 0700")
    return Endpoint(path=path, key=secrets.token_urlsafe(24))


def remove_stale_sockets(run_dir: Path, directory: str) -> None:
    """What earlier runs of this router left: llama-server does not remove the file that it listened on."""
    for path in run_dir.glob(f"{directory[:6]}-*.sock"):
        path.unlink(missing_ok=True)


def tcp_endpoint() -> Endpoint:
    """A port of the loopback interface that nobody listens on at this moment, and a key."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Endpoint(host="127.0.0.1", port=port, key=secrets.token_urlsafe(24))


def command(
    prefix: Sequence[str], options: Sequence[str], endpoint: Endpoint, name: str, slot_save_path: Path | None = None
) -> tuple[str, ...]:
    """The argv of a llama-server. Ours comes last: llama-server heeds the last of options that repeat.

    The name follows `--alias` as an argument of its own, which llama-server takes whatever it begins with.
    """
    where = [endpoint.path] if endpoint.path is not None else [endpoint.host, "--port", str(endpoint.port)]
    saved = [] if slot_save_path is None else ["--slot-save-path", f"{slot_save_path}/"]
    return (*prefix, *options, *saved, "--slots", "--metrics", "--alias", name, "--host", *where)


def mask(gpus: Sequence[int], inherited: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES for these GPUs, counted within the mask that the router inherited, if any.

    No GPU, or an inherited mask without any, gives the empty mask: all GPUs are hidden. Raises SpawnError for a GPU
    beyond the inherited mask.
    """
    if inherited is None:
        return ",".join(map(str, gpus))
    visible = [entry.strip() for entry in inherited.split(",")]
    ends = next((i for i, entry in enumerate(visible) if not entry or entry.startswith("-")), len(visible))
    visible = visible[:ends]
    if not visible:
        return ""
    for gpu in gpus:
        if gpu >= len(visible):
            raise SpawnError(
                f"GPU {gpu} is not visible: the router was started with CUDA_VISIBLE_DEVICES={inherited}, "
                f"which leaves {len(visible)}, counted from 0"
            )
    return ",".join(visible[gpu] for gpu in gpus)


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], gpus: Sequence[int], key: str, marker: str
) -> dict[str, str]:
    """The environment of a llama-server: what the router inherited, what the model adds, then what is the router's.

    A model's own variables may be any but the masks, the key and the marker. Raises SpawnError as `mask` does.
    """
    result = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_NOT_INHERITED) and name not in _NOT_INHERITED_NAMES
    }
    result.update((name, value) for name, value in added.items() if name not in _OURS)
    cuda = inherited.get("CUDA_VISIBLE_DEVICES")
    result["CUDA_VISIBLE_DEVICES"] = mask(gpus, cuda)
    result["HIP_VISIBLE_DEVICES"] = mask(gpus, inherited.get("HIP_VISIBLE_DEVICES", cuda))
    result["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    result["LLAMA_API_KEY"] = key
    result[MARKER] = marker
    return result


def start(argv: Sequence[str], env: Mapping[str, str], *, with_input: bool = False) -> Child:
    """Start a process in a session of its own. Blocks for well under a millisecond; raises SpawnError.

    `with_input`: its stdin is a pipe that stays open as long as its `Child`; otherwise there is nothing to read.
    To be called from the main thread: the child is told of the death of the *thread* that made it.
    """
    binary = shutil.which(argv[0], path=env.get("PATH"))
    if binary is None:
        raise SpawnError(f"cannot run {argv[0]!r}: no such program, or it may not be executed")
    try:
        reading, writing = os.pipe()
    except OSError as error:
        raise _not_run(argv[0], error) from error
    os.set_blocking(reading, False)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _EXEC, str(os.getpid()), binary, *argv[1:]],
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=env,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(reading)
        raise _not_run(argv[0], error) from error
    finally:
        os.close(writing)
    found = proc.stat(process.pid)
    return Child(process, reading, found.started_ticks if found else 0)


def _not_run(program: str, error: OSError | ValueError) -> SpawnError:
    may_pass = isinstance(error, OSError) and error.errno in _MAY_PASS
    return SpawnError(f"cannot run {program!r}: {error}", may_pass=may_pass)
