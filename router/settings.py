"""Every setting of the router itself: its name, its default, what it may be, and where it can be written.

One table serves all: reading, checking, the environment, the command line, and the test that docs/configuration.md
names each of them. A setting is taken from the first of: the command line, LLAMA_ROUTER_<NAME>, its older environment
variable, config.json (under ROUTER, or at the top under its own spelling), its default.

Counterpart: `router.config`, which turns the values into a Config. This module knows types and ranges, not meanings.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router.problems import Findings, Problem, nearest

ENV_PREFIX = "LLAMA_ROUTER_"


class BadValue(ValueError):
    """A value is not what its setting may be; the message says what would be right."""


Check = Callable[[Any], Any]
"""Takes a value as JSON gives it and returns it as the setting wants it, or raises BadValue."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    name: str
    default: Any
    check: Check
    about: str
    """In a few words, as a mistake in it quotes them."""
    legacy_env: str = ""
    top_key: str = ""
    """Its key at the top of config.json, for those that stand there and not under ROUTER."""
    in_file: bool = True
    more: str = ""
    """What the reference says after `about`, in Markdown; a semicolon joins them unless it begins with a sign."""
    page: str = ""
    """The document that explains it, without `.md`."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an object of config.json: what a reader and the reference need to know of it."""

    about: str
    """In Markdown."""
    check: Check | None = None
    """None for those that are read by a function of their own."""
    default: Any = None
    shown: str = ""
    """The default as the reference shows it, where it is not `default` itself."""
    allowed: str = ""
    """What it may be, where no `check` says it."""
    page: str = ""


# --- what a value may be --------------------------------------------------------------------------------------------


def integer(low: int, high: int = 10**9, *, or_none: bool = False) -> Check:
    """A whole number in a range."""
    wanted = f"a whole number from {low}" + (f" to {high}" if high < 10**9 else "")

    def check(value: Any) -> int | None:
        if value is None and or_none:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadValue(wanted)
        return value

    return check


def number(low: float, high: float = 1e12) -> Check:
    """A finite number in a range; seconds, mostly."""
    wanted = f"a number from {low:g}" + (f" to {high:g}" if high < 1e12 else "")

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValue(wanted)
        if not (isinstance(value, int) or math.isfinite(value)) or not low <= value <= high:
            raise BadValue(wanted)
        return float(value)

    return check


def flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise BadValue("true or false")
    return value


def text(value: Any) -> str:
    """A text without control characters."""
    if not isinstance(value, str) or any(ord(char) < 32 for char in value):
        raise BadValue("a text on one line")
    if not is_writable(value):
        raise BadValue("a text in UTF-8")
    return value


def is_writable(value: str) -> bool:
    """Whether it can be written as UTF-8, in the event log above all: not so bytes of another encoding in a path."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_of(*words: str) -> Check:
    """One of a few words; case does not matter."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value.casefold() not in words:
            raise BadValue(", ".join(words))
        return value.casefold()

    return check


def command(value: Any) -> tuple[str, ...]:
    """A program, or a list of a program and its arguments; empty for none."""
    if isinstance(value, str):
        return (text(value),) if value else ()
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return tuple(map(text, value))
    raise BadValue('a path, the name of a program on PATH, or a list such as ["taskset", "-c", "0-7", "llama-server"]')


def origins_of_pages(value: Any) -> tuple[str, ...]:
    """Origins as browsers send them, or `*` for every page."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise BadValue('a list such as ["https://chat.example.org"], or ["*"]')
    for part in value:
        if part != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", part):
            raise BadValue(f'origins such as "https://chat.example.org", without a path, not {part!r}')
    return tuple(value)


SECONDS = number(0)
SOME_SECONDS = number(0.001)

PLACES: tuple[Setting, ...] = (
    Setting("CONFIG_PATH", "", text, "config.json", "ROUTER_CONFIG_PATH", in_file=False),
    Setting("PRESETS_PATH", "", text, "presets.ini", "LLAMA_PRESETS_PATH", in_file=False),
    Setting("STATE_DIR", "", text, "what outlives a run, the event log included"),
    Setting("EVENT_LOG_DIR", "", text, "the event log", "EVENT_LOG_DIR"),
    Setting("RUN_DIR", "", text, "sockets of the children; private to the user", "RUN_DIR"),
    Setting("HISTORY_DB_PATH", "", text, "the dashboard's disposable DuckDB file", "HISTORY_DB_PATH"),
    Setting(
        "LLAMA_SERVER",
        (),
        command,
        "the llama-server binary",
        top_key="llama-server-executable",
        more="without it `llama-server` on PATH, then the embedded one (CPU only)",
    ),
)

DASHBOARD: tuple[Setting, ...] = (
    Setting("DASHBOARD", True, flag, "run the dashboard's process beside the router", page="dashboard"),
    Setting("DASHBOARD_MEMORY_MIB", 1024, integer(64, 1 << 20), "memory for its database"),
    Setting("DASHBOARD_THREADS", 2, integer(1, 1024), "threads for its database"),
)

FRONT_DOOR: tuple[Setting, ...] = (
    Setting(
        "HOST",
        "127.0.0.1",
        text,
        "address to listen on",
        "ROUTER_HOST",
        more="others than this machine's own deserve `keys`",
        page="security",
    ),
    Setting("PORT", 11434, integer(0, 65535), "port to listen on; 0 for any free one", top_key="API-port"),
    Setting(
        "LLM_BASE_PORT",
        None,
        integer(0, 65535, or_none=True),
        "accepted and not used",
        top_key="LLM-base-port",
        more="children listen on UNIX sockets",
    ),
    Setting(
        "API_KEY",
        "",
        text,
        "one API key for all clients, with the admin right",
        in_file=False,
        more="from the environment alone, since everybody can read a command line",
        page="security",
    ),
    Setting("API_KEY_FILE", "", text, "a file that holds that key", in_file=False),
    Setting(
        "CORS_ORIGINS",
        (),
        origins_of_pages,
        "pages of other hosts that may use the router from a browser",
        more='`["*"]` for every page. Its own pages and those of this machine always may',
    ),
    Setting("DEFAULT_MODEL", "", text, "for requests that name no model", more="not needed with one model"),
    Setting("INCLUDE_ALIASES_IN_LIST", False, flag, "list aliases as models of their own"),
    Setting(
        "WATCH_CONFIG",
        False,
        flag,
        "read config.json and presets.ini again when they change",
        more=", half a second after the last of several saves",
    ),
)

SCHEDULING: tuple[Setting, ...] = (
    Setting("NUM_GPUS", None, integer(1, 1024, or_none=True), "number of GPUs; NVML's count where absent"),
    Setting(
        "MAX_MODELS_PER_GPU",
        1,
        integer(1, 1000),
        "models that may be resident on one GPU",
        more="under another engine it holds only where it is written, as a second rule",
        page="routing",
    ),
    Setting(
        "EVICTION_POLICY",
        "lru",
        text,
        "who leaves",
        more=": `lru` the longest unused, `fifo` the longest loaded, `worth` what is used least times how long it "
        "loads; anything else is taken as `lru`, with a warning",
        page="policies",
    ),
    Setting("EVICT_PREFER_IDLE", True, flag, "among victims, an idle one goes before a busy one"),
    Setting(
        "QUEUE_HEAD_GRACE",
        0.0,
        SECONDS,
        "seconds for which later requests may overtake a blocked head",
        more="at 0 the order of arrival is absolute, and alternating models pay a swap each time",
        page="tuning",
    ),
    Setting(
        "QUEUE_HEAD_GRACE_FROM",
        "head",
        one_of("head", "arrival"),
        "when the grace begins",
        more=": when the request is first in line (`head`), or its `arrival`",
    ),
    Setting(
        "QUEUE_HEAD_RELEASE",
        "grace",
        one_of("grace", "accrued"),
        "what ends a head's patience",
        more=": its `grace`, or the waiting that its model's requests have `accrued`; a grace above 0 is the most",
        page="policies",
    ),
    Setting("QUEUE_FORCE_LOAD_TIMEOUT", 300.0, SECONDS, "seconds after which a request goes first; 0 for never"),
    Setting(
        "DISPATCH_OVERCOMMIT",
        0,
        integer(-1, 100_000),
        "generations beyond a replica's slots; -1 without limit",
        more=", to use llama-server's own queue",
    ),
    Setting("CONVERSATION_AFFINITY", True, flag, "ties between replicas go to the one that knows the conversation"),
    Setting("CRASH_RETRIES", 1, integer(0, 100), "how often a request is sent again after a crash"),
    Setting("LOAD_RETRIES", 1, integer(0, 100), "how often a load is tried again where that can help"),
    Setting("COOLDOWN_FIRST", 10.0, SECONDS, "seconds without a load after the first failure; doubles"),
    Setting("COOLDOWN_MAX", 300.0, SECONDS, "the most it doubles to"),
    Setting("CRASH_WINDOW", 60.0, SECONDS, "two crashes within so many seconds cool a model down"),
    Setting("GLOBAL_TTL", 0.0, SECONDS, "idle seconds after which a model is unloaded; 0 for never"),
)

LIMITS: tuple[Setting, ...] = (
    Setting("MAX_QUEUE", 0, integer(0), "requests that may wait; 0 without limit", more=", more get a 503"),
    Setting(
        "HEAD_TIMEOUT",
        30.0,
        SOME_SECONDS,
        "seconds for the headers of a request to come in",
        more=", after which the client gets a 408",
    ),
    Setting(
        "BODY_TIMEOUT",
        60.0,
        SOME_SECONDS,
        "seconds without a byte of a body that is to come",
        more=", after which the client gets a 408",
    ),
    Setting("MAX_HEAD_KIB", 1024, integer(1, 1 << 20), "largest request line and headers together"),
    Setting(
        "MAX_BODY_MIB",
        1024,
        integer(1, 1 << 20),
        "largest request body, decoded",
        more="llama-server's own limit, 100 MiB today, comes on top",
    ),
    Setting("BODY_MEMORY_MIB", 64, integer(0, 1 << 20), "memory for waiting bodies together; more spills to disk"),
)

DURATIONS: tuple[Setting, ...] = (
    Setting(
        "HEALTH_CHECK_INTERVAL",
        1.0,
        SOME_SECONDS,
        "seconds at most between looks at a ready replica that is in doubt",
        more="nobody looks at the others: the end of a process is noticed at once",
    ),
    Setting("HEALTH_CHECK_TIMEOUT", 30.0, SOME_SECONDS, "seconds for an answer to such a look"),
    Setting(
        "LOAD_POLL_INTERVAL",
        1.0,
        SOME_SECONDS,
        "seconds at most between questions whether a load is done",
        more="never more than a quarter of a second, and what the process prints is heard at once",
    ),
    Setting("LOAD_POLL_TIMEOUT", 120.0, SOME_SECONDS, "seconds without any progress after which a load is given up"),
    Setting("LOAD_TIMEOUT_CEILING", 1800.0, SOME_SECONDS, "seconds after which a load is given up whatever it does"),
    Setting("UNLOAD_POLL_INTERVAL", 0.5, SOME_SECONDS, "seconds between looks at the memory of a GPU after a stop"),
    Setting(
        "UNLOAD_POLL_TIMEOUT",
        60.0,
        SECONDS,
        "seconds for that memory to come back",
        more=" (where NVML is), for which the next load there waits; 0 for not at all",
    ),
    Setting(
        "STALL_STREAM_TIMEOUT",
        60.0,
        SOME_SECONDS,
        "seconds without a token in a stream, or 10 times its norm",
        more="then the replica counts as wedged; a model whose tokens come slower has 10 times its own mean gap",
    ),
    Setting(
        "STALL_FIRST_TIMEOUT",
        120.0,
        SOME_SECONDS,
        "seconds without a first token, or 10 times the norm",
        more="a long prompt has 10 times the time it should take",
    ),
    Setting(
        "CHILD_TRANSPORT",
        "unix",
        one_of("unix", "tcp"),
        "how the router talks to its llama-servers",
        more="`tcp` for a llama-server that cannot listen on a socket file",
    ),
    Setting(
        "START_RETRIES",
        3,
        integer(0, 100),
        "how often a process that could not be spawned is tried again",
        more=", where the want of memory, processes or descriptors may pass",
    ),
    Setting(
        "GRACEFUL_KILL_TIMEOUT", 5.0, SECONDS, "seconds from SIGTERM to SIGKILL", more="a model's `stop-timeout` wins"
    ),
    Setting("SHUTDOWN_TIMEOUT", 30.0, SECONDS, "seconds for streams to end when the router stops"),
    Setting("CONNECT_TIMEOUT", 5.0, SOME_SECONDS, "seconds for a connection to a child"),
    Setting("QUEUE_COMMENT_INTERVAL", 15.0, SOME_SECONDS, "seconds between comments on a stream that waits"),
)

EVENT_LOG: tuple[Setting, ...] = (
    Setting(
        "EVENT_LOG_SYNC",
        "group",
        one_of("group", "always", "never"),
        "when the log is synced to disk",
        more=": `group` within 50 ms, `always` each event, `never` when the system likes",
    ),
    Setting("EVENT_LOG_SEGMENT_MIB", 8, integer(1, 1 << 20), "size at which a new segment begins; a start reads one"),
    Setting("EVENT_LOG_KEEP_MIB", 2048, integer(0), "size of old segments that is kept; 0 keeps all"),
    Setting("EVENT_LOG_KEEP_DAYS", 0.0, number(0, 100_000), "age of old segments that is kept; 0 keeps all"),
)

GROUPS: Mapping[str, tuple[Setting, ...]] = {
    "Where things are": PLACES,
    "The dashboard": DASHBOARD,
    "The front door": FRONT_DOOR,
    "Scheduling": SCHEDULING,
    "Limits": LIMITS,
    "How long the world may take": DURATIONS,
    "The event log": EVENT_LOG,
}
"""As the reference shows them."""

SETTINGS: tuple[Setting, ...] = tuple(setting for group in GROUPS.values() for setting in group)

NEVER_IN_ARGV = frozenset({"API_KEY"})
"""Secrets: neither taken from a command line nor shown in a mistake."""

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
TOP_KEYS: Mapping[str, Setting] = {setting.top_key: setting for setting in SETTINGS if setting.top_key}
ROUTER_KEYS: Mapping[str, Setting] = {
    setting.name: setting for setting in SETTINGS if setting.in_file and not setting.top_key
}


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Values:
    """The value of every setting, and where each one came from."""

    by_name: dict[str, Any]
    origins: dict[str, Problem]
    """A Problem without a message: the place of each value that is not a default."""

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def given(self, name: str) -> bool:
        """Whether somebody wrote it."""
        return name in self.origins

    def problem(self, name: str, message: str, *, allowed: str = "", nearest: str = "") -> Problem:
        """A mistake in this setting, told at the place where it was written."""
        place = self.origins.get(name, Problem("", key=name))
        return Problem(
            message,
            file=place.file,
            section=place.section,
            key=place.key,
            value=place.value,
            allowed=allowed,
            nearest=nearest,
        )


def read_outside(overrides: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> Values:
    """The settings that the command line and the environment give; all others are left out."""
    values = Values({}, {})
    for name, value in overrides.items():
        if name not in BY_NAME:
            place = Problem("there is no such setting", file="command line", key=name, nearest=nearest(name, BY_NAME))
            findings.add(place)
        elif name in NEVER_IN_ARGV and value is not None:
            message = "everybody on this machine can read a command line"
            allowed = f"{ENV_PREFIX}{name} in the environment, or a file named by {name}_FILE"
            findings.add(Problem(message, file="command line", key=name, allowed=allowed))
        elif value is not None:
            _take(values, BY_NAME[name], value, Problem("", file="command line", key=name), findings)
    for setting in SETTINGS:
        for variable in (ENV_PREFIX + setting.name, setting.legacy_env):
            if setting.name not in values.by_name and environ.get(variable):
                place = Problem("", file="environment", key=variable)
                _take(values, setting, environ[variable], place, findings)
    for variable in environ:
        name = variable.removeprefix(ENV_PREFIX)
        if name != variable and name not in BY_NAME and name != "RUN" and (near := nearest(name, BY_NAME)):
            unknown = "there is no such setting"
            findings.warn(Problem(unknown, file="environment", key=variable, nearest=ENV_PREFIX + near))
    return values


def complete(outside: Values, top: Mapping[str, Any], file: str, findings: Findings) -> Values:
    """All settings: those from outside, then those of config.json, then the defaults."""
    values = Values(dict(outside.by_name), dict(outside.origins))
    router = top.get("ROUTER", {})
    if not isinstance(router, dict):
        findings.add(Problem("ROUTER holds the settings of the router", file=file, key="ROUTER", allowed="an object"))
        router = {}
    for key, value in router.items():
        place = Problem("", file=file, section="ROUTER", key=key)
        if key in ROUTER_KEYS:
            _take(values, ROUTER_KEYS[key], value, place, findings)
        else:
            findings.add(_unknown_router_key(key, file))
    for key, setting in TOP_KEYS.items():
        if key in top:
            _take(values, setting, top[key], Problem("", file=file, key=key), findings)
    for setting in SETTINGS:
        values.by_name.setdefault(setting.name, setting.default)
    return values


def _unknown_router_key(key: str, file: str) -> Problem:
    unknown = "there is no such setting"
    if key in BY_NAME and BY_NAME[key].top_key:
        unknown = f"this stands at the top of the file, as {BY_NAME[key].top_key!r}"
    elif key in BY_NAME:
        unknown = f"this can only be set by the environment ({ENV_PREFIX}{key}) or on the command line"
    return Problem(unknown, file=file, section="ROUTER", key=key, nearest=nearest(key, ROUTER_KEYS))


def _take(values: Values, setting: Setting, value: Any, place: Problem, findings: Findings) -> None:
    """Check one value; the first place that gives a setting wins, but each place is checked."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if setting.name in NEVER_IN_ARGV:
        shown = "(secret)"
    place = Problem("", file=place.file, section=place.section, key=place.key, value=shown)
    if isinstance(value, str) and place.file in ("environment", "command line"):
        value = _typed(setting, value)
    try:
        checked = setting.check(value)
    except BadValue as error:
        near = nearest(value, str(error).split(", ")) if isinstance(value, str) else ""
        findings.add(
            Problem(
                f"not a value for this setting ({setting.about})",
                file=place.file,
                section=place.section,
                key=place.key,
                value=place.value,
                allowed=str(error),
                nearest=near,
            )
        )
        checked = setting.default
    if setting.name not in values.by_name:
        values.by_name[setting.name] = checked
        values.origins[setting.name] = place


_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def _typed(setting: Setting, value: str) -> Any:
    """A text of the environment or the command line as JSON would have given it."""
    if isinstance(setting.default, bool):
        return {"1": True, "0": False}.get(value, _WORDS.get(value.casefold(), value))
    if isinstance(setting.default, int | float | None):
        try:
            return int(value)
        except ValueError:
            try:
                return float(value)
            except ValueError:
                return value
    if isinstance(setting.default, tuple) and value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
