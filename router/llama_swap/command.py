"""A command line that starts llama-server, as preset keys.

llama-swap starts commands without a shell: comment lines and trailing backslashes go, quotes group, nothing else means
anything. What an option is and whether a value follows is asked of the llama-server that will run it (`OptionTable`).
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol

from router.llama_options import Option, OptionTable
from router.presets import ALWAYS_ON, NO_SERVER, ROUTER_OWNED
from router.problems import nearest, without_secret


class Note(Protocol):
    """Takes a word about an option: how it was written, what became of it, and what can be done."""

    def __call__(self, shown: str, became: str, advice: str = "", *, lost: bool = True) -> None: ...


_PROGRAM = re.compile(r"llama-server([-_.].*)?", re.IGNORECASE)
CONTAINERS = ("docker", "podman", "nerdctl")
SHELLS = ("sh", "bash", "zsh", "dash", "cmd", "powershell", "pwsh")
RENAMED = {"no-mmap": ("load-mode", "none"), "mlock": ("load-mode", "mmap+mlock")}
"""Flags that newer llama-servers no longer know, as they would be written now."""
SAMPLERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
}
"""llama.cpp's letters for its samplers."""
DROPPED = ("host", "port", "slots", "metrics")
"""Options whose going needs no word: the router has its own."""
PLACES = ("device", "main-gpu", "split-mode")
"""Options that say on which GPUs; whoever places the model reads them."""


class NotLlamaServer(Exception):
    """The command starts something else; the message says what."""


@dataclass(slots=True)
class Command:
    """`program` is llama-server with whatever stands before it; `keys` are preset keys in the order of the command."""

    program: tuple[str, ...]
    keys: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """Values of PLACES; `split-mode` is among the keys as well."""


def read_command(text: str, table: OptionTable, note: Note) -> Command:
    """Raises NotLlamaServer; what else does not come along is noted."""
    words = _split(text)
    command = Command(_program(words))
    _read_options(words[len(command.program) :], table, command, note)
    return command


def usual_program(texts: Iterable[str]) -> tuple[str, ...]:
    """What most of these commands start llama-server with; empty where none does."""
    programs = []
    for text in texts:
        with suppress(NotLlamaServer):
            programs.append(_program(_split(text)))
    return max(dict.fromkeys(programs), key=programs.count) if programs else ()


def _program(words: Sequence[str]) -> tuple[str, ...]:
    first = PurePath(words[0]).name if words else ""
    if first in CONTAINERS:
        raise NotLlamaServer("it runs in a container, and the router starts llama-server itself")
    if first in SHELLS:
        raise NotLlamaServer("it is started through a shell")
    for index, word in enumerate(words):
        if _PROGRAM.fullmatch(PurePath(word).name):
            return tuple(words[: index + 1])
    raise NotLlamaServer(f"it starts {first}, and the router runs llama-server only" if first else "it is empty")


def _split(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    joined = "\n".join(line.removesuffix("\\") for line in lines if not line.startswith("#"))
    try:
        return shlex.split(joined)
    except ValueError as error:
        raise NotLlamaServer(f"its command line cannot be read: {error}") from error


def _read_options(words: list[str], table: OptionTable, command: Command, note: Note) -> None:
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        option = _option(word, table)
        if option is None and (renamed := RENAMED.get(word.lstrip("-"))) and renamed[0] in table.by_key:
            key, value = renamed
            command.keys[key] = value
            note(word, f"is `{key} = {value}` in this llama-server", lost=False)
            continue
        if option is None:
            follows = _values_after(words, index, table)
            _note_unknown(word, words[index : index + follows], table, note)
            index += follows
            continue
        wanted = (2 if option.takes_two_values else 1) if option.takes_value else 0
        given = words[index : index + wanted]
        if given and (re.match(r"--[A-Za-z]", given[0]) or _option(given[0], table) is not None):
            given = []  # it had no value when this was written
        index += len(given)
        if option.replacement and (now := _successor(option, table)) is not None:
            note(" ".join([word, *given]), f"is --{now.name} in this llama-server", lost=False)
            option, word = now, now.flag
        if "--samplers" in option.names and given and (letters := _sampler_letters(given[0])):
            sequence = table.by_key.get("sampling-seq")
            if sequence is not None:
                note(f"{word} {given[0]}", f"is `{sequence.name} = {letters}`: a preset ends at `;`", lost=False)
                option, word, given = sequence, sequence.flag, [letters]
        _take(option, word, given, command, note)


def _sampler_letters(value: str) -> str:
    """`top_k;min_p` as `km`, which a preset can hold; empty where a sampler has no letter, or there is but one."""
    names = value.replace("-", "_").split(";")
    known = all(name in SAMPLERS for name in names)
    return "".join(SAMPLERS[name] for name in names) if known and len(names) > 1 else ""


def _option(word: str, table: OptionTable) -> Option | None:
    """The option of a word such as `--ctx-size`, `--ctx_size` or `-c`."""
    if not re.match(r"--?[A-Za-z]", word):
        return None
    key = word.lstrip("-")
    return table.by_key.get(key.replace("_", "-") if word.startswith("--") else key)


def _successor(option: Option, table: OptionTable) -> Option | None:
    """What took the place of an option that was removed, where the help names one that is used in the same way."""
    named = re.match(r"--([a-z][a-z0-9-]*)(?=\s|$)", option.replacement)
    now = table.by_key.get(named[1]) if named else None
    return now if now is not None and not now.replacement and now.takes_value == option.takes_value else None


def _values_after(words: list[str], index: int, table: OptionTable) -> int:
    """How many words belong to an option that nobody knows: up to the next that looks like one."""
    count = 0
    while index + count < len(words) and not re.match(r"--?[A-Za-z]", words[index + count]):
        count += 1
    return count


def _note_unknown(word: str, values: list[str], table: OptionTable, note: Note) -> None:
    shown = without_secret(" ".join([word, *values]))
    if not word.startswith("-"):
        note(shown, "is no option of llama-server, and was left out")
        return
    near = nearest(word.lstrip("-"), table.by_key)
    note(shown, "is not known to this llama-server, and was left out", f"did you mean --{near}?" if near else "")


def _take(option: Option, word: str, given: list[str], command: Command, note: Note) -> None:
    shown = without_secret(" ".join([word, *given]))
    names = {name.lstrip("-") for name in option.names}
    place = next((name for name in PLACES if name in names), "")
    if place and given:
        command.places[place] = given[0]
        if place != "split-mode":
            return
    if names & set(DROPPED):
        return
    if names & ROUTER_OWNED.keys():
        reason = next(why for name, why in ROUTER_OWNED.items() if name in names)
        note(shown, f"was left out: {reason}", lost=False)
    elif names & ALWAYS_ON.keys():
        note(shown, "was left out: it stays switched on", lost=False)
    elif names & set(NO_SERVER):
        note(shown, "was left out: with it llama-server prints something and ends")
    elif option.replacement:
        note(shown, "was removed from llama-server, and was left out", f"use {option.replacement}")
    elif option.takes_two_values:
        note(shown, "was left out: a preset cannot give two values to an option", "look for a form with one value")
    elif not option.takes_value:
        spellings = [option.name, *(name.lstrip("-") for name in option.negatives[-1:])]
        for name in spellings:
            command.keys.pop(name, None)
        command.keys[spellings[-1] if option.negates(word.lstrip("-")) else option.name] = "true"
    elif not given and "on" in option.hint:
        command.keys[option.name] = "on"
        note(shown, "stood without a value, and was written as `on`", lost=False)
    elif not given:
        note(shown, "was left out: it has no value", f"a value such as {option.hint}")
    else:
        _take_value(option, shown, given[0], command, note)


def _take_value(option: Option, shown: str, value: str, command: Command, note: Note) -> None:
    if re.search(r"[;#\r\n\0]", value) or value != value.strip(" \t"):
        why = "was left out: in presets.ini a value ends at `;`, `#` and the line's end, and blanks around it go"
        note(shown, why, f"if there is an option --{option.name}-file, put it into a file")
        return
    before = command.keys.get(option.name)
    if before is not None and before != value and ("comma-separated" in option.help or ",..." in option.hint):
        value = f"{before},{value}"
    elif before is not None and before != value:
        note(shown, f"was given before, as {before}; the last one counts, as in llama-server", lost=False)
    command.keys[option.name] = value
