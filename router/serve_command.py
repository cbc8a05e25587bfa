"""`llama-router serve` and `check`: from a command line to a running router, or to the reasons why there is none."""

import argparse
import logging
import os
import secrets
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from router.check import NVML_TIMEOUT_S, add_config_arguments, check_command, overrides
from router.diary import write_to_stderr

EXAMPLES = """\
examples:
  llama-router serve
  llama-router serve --presets ~/models/presets.ini --port 8080
  llama-router serve --set QUEUE_HEAD_GRACE=30 --set MAX_MODELS_PER_GPU=2

exit codes: 0 stopped in order, 1 it could not start, or its log could not take the end, 2 the command line is wrong,
70 a bug (the log shows its cause)
"""
SALT_BYTES = 32

log = logging.getLogger("llama_router")


def add_serve_command(verbs: Any) -> None:
    parser = verbs.add_parser(
        "serve",
        help="run the router",
        description="Serve until SIGTERM or Ctrl-C; the first one lets running requests end, the second does not wait.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (default 11434; 0 takes a free one and says which)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.set_defaults(run=_serve)


def add_check_command(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        help="find every mistake in the configuration",
        description="Read the configuration as `serve` would; say what it means, or everything that is wrong with it.",
        epilog="examples:\n  llama-router check --show-argv\n  llama-router check --plan\n"
        "  llama-router check --json | jq .problems\n\n"
        "exit codes: 0 it can be served, 1 it cannot, 2 the command line is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument("--show-argv", action="store_true", help="what each llama-server is started with")
    parser.add_argument("--plan", action="store_true", help="who would leave for each model, from which states")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=check_command)


def _serve(args: argparse.Namespace) -> int:
    # It asks for the configuration to be read again; whom it finds starting or ended needs no such thing.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    write_to_stderr(args.log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        chosen = {**overrides(args), "HOST": args.host, "PORT": args.port}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    import uvloop

    code = uvloop.run(_run(chosen))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return code


async def _run(chosen: dict[str, Any]) -> int:
    from eventlog.errors import LogError
    from router.config import ConfigErrors, load
    from router.gpus import Gpus
    from router.ports import PortTaken, listen
    from router.serve import Router

    router: Router | None = None
    gpus = Gpus(
        lambda observation: router.note(observation) if router else None,
        lambda pid: router.replica_of(pid) if router else "",
    )
    topology = await gpus.start(NVML_TIMEOUT_S)
    try:
        read_config = partial(load, chosen, nvml_gpus=len(topology) or None, gpu_uuids=[gpu.uuid for gpu in topology])
        config = read_config()
        for warning in config.warnings:
            log.warning("%s", warning)
        for note in config.notes:
            log.info("%s", note)
        # Who asked what, and what llama-servers print, is nobody else's business on a machine with several users.
        config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        salt = salt_of(config.log_dir)
        sock = listen(config.host, config.port)
        router = Router(config.with_fingerprints(salt), gpus, salt, read_config)
    except ConfigErrors as errors:
        for warning in errors.warnings:
            log.warning("%s", warning)
        print(errors, file=sys.stderr)
        return 1
    except (LogError, PortTaken, OSError) as error:
        print(f"llama-router: {error}", file=sys.stderr)
        return 1
    host, port = sock.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    log.info("serving %d models at http://%s:%d/v1, process %d", len(config.models), at, port, os.getpid())
    return await router.run(sock)


def salt_of(log_dir: Path) -> bytes:
    """The secret that keys every fingerprint in this log; made with the log, readable by its owner alone."""
    path = log_dir / "salt"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name(f"salt.{os.getpid()}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SALT_BYTES))
        file.flush()
        os.fsync(file.fileno())
    os.replace(made, path)
    return path.read_bytes()
