"""The `llama-router` command: one place where every verb is listed, each in a module of its own.

Modules are imported when their verb is called, so that `llama-router status` does not pay for the server.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

EPILOG = """\
examples:
  llama-router demo                      try it: small weights, three models, two pretended GPUs
  llama-router check                     find every mistake in the configuration, start nothing
  llama-router serve                     serve at 127.0.0.1:11434
  llama-router status --watch            what is loaded, what waits and for what
  llama-router load qwen3-8b --wait      load a model now
  llama-router log cat --model qwen3-8b  what the log says about a model
  llama-router sql --ask models          what each model did today

exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 70 a bug (the log holds what led to it)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llama-router",
        description="One OpenAI-compatible endpoint in front of a pile of small GPUs, for llama.cpp's llama-server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llama-router {version('llama-router')}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    from eventlog.commands import add_commands as add_log_commands
    from projections.commands import add_commands as add_projections_commands
    from replay.commands import add_commands as add_replay_commands
    from router.admin_commands import add_admin_commands
    from router.demo import add_demo_command
    from router.fit_command import add_fit_command
    from router.import_command import add_import_command
    from router.key_command import add_key_command
    from router.logs_command import add_logs_command
    from router.serve_command import add_check_command, add_serve_command

    add_serve_command(verbs)
    add_demo_command(verbs)
    add_check_command(verbs)
    add_import_command(verbs)
    add_fit_command(verbs)
    add_admin_commands(verbs)
    add_key_command(verbs)
    add_logs_command(verbs, configured_log_dir)
    add_log_commands(verbs, configured_log_dir)
    add_replay_commands(verbs, configured_log_dir)
    add_projections_commands(verbs, configured_log_dir, configured_history_db, configured_dashboard_socket)
    return parser


def configured_log_dir() -> Path:
    """Where the event log lies by environment and defaults alone: usable when the configuration is broken."""
    from router.places import log_dir

    return log_dir()


def configured_history_db() -> Path:
    """The same for the dashboard's database."""
    from router.places import history_db

    return history_db()


def configured_dashboard_socket() -> Path:
    """Where the dashboard's process listens."""
    from router.places import dashboard_socket

    return dashboard_socket()


if __name__ == "__main__":
    sys.exit(main())
