"""Where the router finds and keeps its files: an unprivileged user's XDG directories unless told otherwise.

Containers and services set their own by the environment. Nothing is created here, only judged: a directory that could
not be made or written is a mistake of the configuration, found before anything starts.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from router.problems import Findings, Problem
from router.settings import BY_NAME, Values, complete, is_writable, read_outside
from router.strict_json import read_json

NAME = "llama-router"

SOCKET_BYTES = 100
"""A socket path may have 107 bytes on Linux and fewer elsewhere; llama-server cuts a longer one without a word."""
SOCKET_NAME_BYTES = len("/012345-01234567.sock")


@dataclass(frozen=True, slots=True)
class Places:
    """Every path the router works with, absolute."""

    config: Path
    presets: Path
    state: Path
    log: Path
    run: Path
    history_db: Path


def log_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the event log lies, also while there are mistakes in config.json: what can be read of it counts."""
    return _as_far_as_known(environ)[0].log


def history_db(environ: Mapping[str, str] = os.environ) -> Path:
    """The same for the dashboard's database."""
    return _as_far_as_known(environ)[0].history_db


def dashboard_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The same for the socket of the dashboard's process."""
    places, _ = _as_far_as_known(environ)
    return dashboard_socket_in(places.run, places.log)


def router_url(environ: Mapping[str, str] = os.environ) -> str:
    """Where the router is to be asked from this machine, by the same."""
    _, values = _as_far_as_known(environ)
    host: str = values["HOST"].strip("[]")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = values["PORT"] or BY_NAME["PORT"].default
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def dashboard_socket_in(run: Path, log: Path) -> Path:
    """Where the dashboard of the router with this event log listens; several routers may share a run directory."""
    return run / f"dashboard-{directory_id(log)[:6]}.sock"


def directory_id(log: Path) -> str:
    """Names a router by its event log, of which it is the only writer: two routers never end each other's children."""
    return sha256(os.fsencode(log.resolve())).hexdigest()[:12]


def _as_far_as_known(environ: Mapping[str, str]) -> tuple[Places, Values]:
    findings = Findings()
    outside = read_outside({}, environ, findings)
    config, presets = find_places(outside, environ)
    try:
        top = read_json(config.read_bytes().decode(), str(config), findings)
    except (OSError, UnicodeDecodeError):
        top = None
    values = complete(outside, top if isinstance(top, dict) else {}, str(config), findings)
    return place(values, config, presets, environ, findings), values


def find_places(outside: Values, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """config.json and presets.ini. A preset beside a config.json that was named goes with it."""
    home = _home(environ, "XDG_CONFIG_HOME", ".config")
    config = _path(outside.by_name.get("CONFIG_PATH"), environ) or home / NAME / "config.json"
    presets = _path(outside.by_name.get("PRESETS_PATH"), environ)
    if presets is None:
        beside = config.with_name("presets.ini")
        presets = beside if outside.given("CONFIG_PATH") and may_be_there(beside) else home / NAME / "presets.ini"
    return config, presets


def may_be_there(file: Path) -> bool:
    """Also where nobody may look, or no file can have such a name: who reads it then says why it cannot."""
    try:
        return file.exists()
    except OSError:
        return True


def place(values: Values, config: Path, presets: Path, environ: Mapping[str, str], findings: Findings) -> Places:
    """All places; what cannot be used is a mistake."""
    state = _path(values["STATE_DIR"], environ) or _home(environ, "XDG_STATE_HOME", ".local/state") / NAME
    history = _path(values["HISTORY_DB_PATH"], environ)
    log = _path(values["EVENT_LOG_DIR"], environ)
    if log is None:
        log = history.parent / "events" if history and history.suffix == ".db" else state / "events"
    if history is None:
        history = state / "history.duckdb"
    elif history.suffix == ".db":
        # The name is that of an older SQLite history; its file is left alone.
        history = history.with_suffix(".duckdb")
    places = Places(config, presets, state, log, _run_dir(values, state, environ), history)
    for name, path in (("STATE_DIR", state), ("EVENT_LOG_DIR", log), ("RUN_DIR", places.run)):
        _check_directory(values, name, path, findings)
    _check_run_dir(values, places.run, findings)
    return places


def _run_dir(values: Values, state: Path, environ: Mapping[str, str]) -> Path:
    given = _path(values["RUN_DIR"], environ)
    if given:
        return given
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / NAME
    # Without a session: private by its mode and owner, which `_check_run_dir` insists on, and short. A state directory
    # can be too long for a socket, and /tmp can be shared.
    inside = state / "run"
    return inside if socket_fits(inside) else Path("/tmp") / f"{NAME}-{os.getuid()}"


def _check_directory(values: Values, name: str, path: Path, findings: Findings) -> None:
    if not is_writable(str(path)):
        findings.add(_wrong(values, name, path, "holds bytes that are no UTF-8, which the event log cannot name"))
        return
    there = path
    while not os.path.exists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        findings.add(_wrong(values, name, path, f"{there} is not a directory"))
    elif not os.access(there, os.W_OK | os.X_OK):
        why = "cannot be written by this user" if there == path else f"cannot be made: {there} is not writable"
        findings.add(_wrong(values, name, path, why))


def _check_run_dir(values: Values, path: Path, findings: Findings) -> None:
    if not socket_fits(path):
        size, most = len(os.fsencode(path)), SOCKET_BYTES - SOCKET_NAME_BYTES
        why = f"has {size} bytes, too long for sockets in it"
        findings.add(_wrong(values, "RUN_DIR", path, why, allowed=f"a path of at most {most} bytes"))
    if os.path.isdir(path) and (path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o022):
        why = "belongs to another user or can be written by others, who could take the place of a child"
        findings.add(_wrong(values, "RUN_DIR", path, why, allowed="a directory of yours with mode 0700"))


def _wrong(values: Values, name: str, path: Path, why: str, *, allowed: str = "") -> Problem:
    return values.problem(name, f"{path} {why}", allowed=allowed)


def socket_fits(directory: Path) -> bool:
    """Whether the path of a socket in this directory is short enough for the system."""
    return len(os.fsencode(directory)) + SOCKET_NAME_BYTES <= SOCKET_BYTES


def _path(text: str | None, environ: Mapping[str, str]) -> Path | None:
    if not text:
        return None
    if text == "~" or text.startswith("~/"):
        text = environ.get("HOME", "") + text[1:] or text
    return Path(os.path.abspath(text))


def _home(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    # The specification says that a relative path there is to be ignored.
    given = environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path(environ.get("HOME") or Path.home()) / otherwise
