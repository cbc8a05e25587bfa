"""What the installed llama-server understands, read from its own `--help`.

The help text is the authority, so that a new llama.cpp needs no new router: every option is there with all its names,
whether it takes a value, its environment variable, and a remark where it was removed. Its counterpart is
`router.presets`, which looks keys up here. Nothing here knows of models or of what the router wants.

The format (llama.cpp's common/arg.cpp): a line that starts with a dash begins an option; its names stand first, joined
by commas, negatives last; one space and a hint follow where it takes a value; the help text stands in column 41, on the
same line or below; `(env: NAME)` is part of it.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TRUE_WORDS = ("true", "on", "1", "enabled")
FALSE_WORDS = ("false", "off", "0", "disabled")

HELP_TIMEOUT_S = 60.0
"""A cold start of a large CUDA build from a slow disk takes seconds."""


@dataclass(frozen=True)
class Option:
    """One option of llama-server with all its names, without dashes."""

    names: tuple[str, ...]
    """As flags, dashes included, the positive ones."""
    negatives: tuple[str, ...] = ()
    hint: str = ""
    """What the help shows for the value, such as `N` or `[on|off|auto]`; empty for a flag."""
    help: str = ""
    env: str = ""

    @property
    def flag(self) -> str:
        """The name that goes into argv: the last positive one, as llama-server itself picks it."""
        return self.names[-1]

    @property
    def name(self) -> str:
        """The one name under which all names of this option meet."""
        return self.flag.lstrip("-")

    @property
    def takes_value(self) -> bool:
        return bool(self.hint)

    @property
    def takes_two_values(self) -> bool:
        return len(re.sub(r"<[^>]*>", "x", self.hint).split()) > 1

    @property
    def replacement(self) -> str:
        """For an option that was removed: what the help says to use instead. Empty for all others."""
        if "has been removed" not in self.help:
            return ""
        _, _, use = self.help.partition(". use ")
        return re.sub(r"\s*\(env: \w+\)", "", use).strip() or "nothing: it has no replacement"

    @property
    def deprecated(self) -> bool:
        return "(DEPRECATED)" in self.help

    @property
    def downloads(self) -> bool:
        """A flag that names a whole model, which llama-server downloads."""
        return "can download weights" in self.help

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values there are, where the help lists them as {a,b,c}."""
        listed = re.fullmatch(r"\{([^}]*)\}", self.hint)
        return tuple(listed[1].split(",")) if listed else ()

    @property
    def is_number(self) -> bool:
        return self.hint == "N"

    @property
    def words(self) -> tuple[str, ...]:
        """Words that the help quotes, such as 'auto', which may stand where a number is expected."""
        return tuple(re.findall(r"'([a-z][a-z-]*)'", self.help))

    @property
    def keys(self) -> tuple[str, ...]:
        """Every name that a preset may use for it."""
        keys = [name.lstrip("-") for name in (*self.names, *self.negatives)]
        if self.env:
            keys.append(self.env)
        if self.env and self.negatives:
            keys.append(self.negative_env)
        return tuple(keys)

    @property
    def negative_env(self) -> str:
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)

    def negates(self, key: str) -> bool:
        """Whether this key means the opposite of the option, as `no-mmap` does."""
        return any(key == name.lstrip("-") for name in self.negatives) or (
            bool(self.env and self.negatives) and key == self.negative_env
        )


@dataclass(frozen=True)
class OptionTable:
    """All options, by each of their keys."""

    options: tuple[Option, ...]
    extra: tuple[Option, ...] = field(default=())
    """Keys of presets that are no options of the command line."""

    @cached_property
    def by_key(self) -> Mapping[str, Option]:
        # The first of two options with one name wins, as in llama-server, where the later definition is a special case.
        table: dict[str, Option] = {}
        for option in (*self.options, *self.extra):
            for key in option.keys:
                table.setdefault(key, option)
        return table

    def canonical(self, key: str) -> str:
        """The one name of the option that has this key; the key itself where there is none."""
        option = self.by_key.get(key)
        return option.name if option else key


_NAME = re.compile(r"-[^\s,]+")
_COMMA = re.compile(r",\s*(?=-)")
_ENV = re.compile(r"\(env: (\w+)\)")


def parse_help(text: str) -> tuple[Option, ...]:
    """Every option of the help text, in its order; nothing when it is no help of llama-server's."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("-----"):
            continue
        if line.startswith("-"):
            blocks.append([line])
        elif line.startswith(" ") and blocks:
            blocks[-1].append(line.strip())
    return tuple(option for block in blocks if (option := _parse_option(block)))


def _parse_option(block: Sequence[str]) -> Option | None:
    head = block[0]
    names: list[str] = []
    at = 0
    while name := _NAME.match(head, at):
        names.append(name[0])
        at = name.end()
        comma = _COMMA.match(head, at)
        if not comma:
            break
        at = comma.end()
    if not names or not any(len(name.lstrip("-")) for name in names):
        return None
    # One space, then the hint; two or more, then the help text.
    hint, _, rest = head[at + 1 :].partition("  ") if head[at : at + 2].strip() else ("", "", head[at:])
    help_text = " ".join(part for part in (rest.strip(), *block[1:]) if part)
    env = _ENV.search(help_text)
    positive, negative = (tuple(names), ()) if hint else _split_negatives(names)
    return Option(positive, negative, hint.strip(), help_text, env[1] if env else "")


def _split_negatives(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A flag's names without and with a `no`.

    The negatives stand last and end in a long one: -kvo, --kv-offload, -nkvo, --no-kv-offload. A lone --no-host is a
    flag in its own right.
    """
    first = len(names)
    if names[-1].startswith("--no-"):
        while first > 1 and names[first - 1].startswith(("--no-", "-no", "-n")):
            first -= 1
    return tuple(names[:first]), tuple(names[first:])


class HelpFailed(Exception):
    """llama-server could not be asked what it understands."""


def read_help(argv: Sequence[str], cache: Path, *, version: str = "") -> str:
    """What `llama-server --help` prints, run once per binary: known again by path, size and time of change.

    `version` stands for what the files in `argv` do not show. Blocks for as long as the binary takes.
    Raises HelpFailed.
    """
    kept = cache / f"{_identity(argv, version)}.txt"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = kept.read_text(encoding="utf-8")
        if parse_help(text):
            return text
    text = _run_help(argv)
    if not parse_help(text):
        raise HelpFailed(f"{argv[0]} --help names no options; is it llama-server?")
    # Without a cache everything works as well, a little later.
    with contextlib.suppress(OSError):
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache.mkdir(exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(kept)
    return text


def _run_help(argv: Sequence[str]) -> str:
    # Without the inherited LLAMA_ARG_* the defaults in the text are llama-server's own, and without a visible GPU no
    # CUDA context is made for printing a text.
    env = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
    env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [*argv, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HELP_TIMEOUT_S,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HelpFailed(f"{argv[0]} --help did not end within {HELP_TIMEOUT_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise HelpFailed(f"{argv[0]} cannot be run: {error}") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 and not parse_help(text):
        lines = (done.stderr.decode("utf-8", "replace").strip() or text.strip()).splitlines()
        said = " / ".join(lines[-3:]) or "no output"
        raise HelpFailed(f"{argv[0]} --help ended with status {done.returncode}: {said}")
    return text


def files_of(argv: Sequence[str]) -> list[str]:
    """What tells the programs and files that a command line names from others: path, size and time of change.

    Words without a slash are looked for on PATH as well, as a wrapper does: `taskset -c 0-7 llama-server`.
    """
    found = []
    for word in argv:
        with contextlib.suppress(OSError, ValueError):
            path = word if os.sep in word else shutil.which(word) or word
            there = os.stat(path)
            found.append(f"{os.path.realpath(path)} {there.st_size} {there.st_mtime_ns}")
    return found


def _identity(argv: Sequence[str], version: str) -> str:
    parts = [version, *argv, *files_of(argv)]
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
