"""The embedded llama-server: `llama-router-llama-server`, llama.cpp's server out of the PyPI wheel xllamacpp.

For machines without a `llama-server` binary: the demo, the tests, a first try. One process serves one model, with
llama-server's argv, environment, `--help`, log lines, routes, web UI and exit codes, on a TCP port or a UNIX socket.

Counterpart: `router.replicas`, which runs it like any llama-server. It does not know that a router exists.

Exit codes: 0 after SIGTERM, SIGINT, `--help` or `--version`; 1 for arguments that are refused, a model that does not
load, an address that is taken, or a missing wheel. The reason is on stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
from typing import Any, NoReturn

from router import embedded_argv


def main() -> NoReturn:
    """Serve until SIGTERM or SIGINT."""
    _end_at_once_on(signal.SIGTERM, signal.SIGINT)
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        _fail(f"the embedded server needs the wheel xllamacpp (pip install 'llama-router[embedded]'): {error}")

    try:
        params = embedded_argv.parse(xllamacpp, ["llama-server", *sys.argv[1:]])
    except embedded_argv.Refused:
        sys.exit(1)
    except embedded_argv.UnknownWheel as error:
        _fail(f"xllamacpp {xllamacpp.__version__} is not a version that this launcher understands: {error}")
    if _is_remote(params.model) or _is_remote(params.speculative.draft.mparams):
        _fail("the embedded server does not download models: it needs --model FILE. llama.cpp's own llama-server can")
    if not params.model.path:
        _fail("the embedded server needs --model FILE. Router mode needs llama.cpp's own llama-server")

    try:
        # Listens at once and answers 503 while the model loads; returns when it is loaded. Serves from its own threads.
        _server = xllamacpp.Server(params)
    except RuntimeError as error:
        _fail(str(error))
    while True:
        signal.pause()


def _is_remote(model: Any) -> bool:
    """Whether an option names a place on the network. The wheel would ignore that and load, or miss, a local file."""
    return bool(model.hf_repo or model.url or model.docker_repo)


def _end_at_once_on(*signals: signal.Signals) -> None:
    """Exit with code 0 as soon as one of `signals` comes, in every phase.

    The wheel keeps the interpreter's lock while it loads, so a handler written in Python would wait for the load, which
    can take minutes; its own shutdown would wait for the batch that is being computed. Nothing needs saving, so the
    handler is the C library's quick_exit(), and the one thing that this calls is _exit(0). Where the C library lacks
    them (musl, macOS), the signals keep their default: the process ends at once too, but is reported as killed.
    """
    libc = ctypes.CDLL(None)
    can_exit_cleanly = hasattr(libc, "__cxa_at_quick_exit") and hasattr(libc, "quick_exit")
    if can_exit_cleanly:
        libc["__cxa_at_quick_exit"](libc["_exit"], None)
    for number in signals:
        if can_exit_cleanly:
            libc["signal"](number, libc["quick_exit"])
        else:
            signal.signal(number, signal.SIG_DFL)


def _fail(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
