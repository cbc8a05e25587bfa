"""presets.ini, in the grammar of llama.cpp's own preset files, and its translation into argv.

The same file works under `llama-server --models-preset`: a section per model, `[*]` for all, keys before any header in
section `default`; a key is any name of an option without its dashes (`c`, `ctx-size`, `LLAMA_ARG_CTX_SIZE`,
`no-mmap`); keys are case-sensitive; a value ends at the line's end, at `;` or at `#`; nothing is quoted, nothing goes
on in the next line, and no line starts with a blank. What llama.cpp swallows in silence (a section or an option written
twice, a value cut in the middle of a word) is found here.

Which keys there are is known to `router.llama_options`, which model gets which layers to `router.models`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from router.llama_options import FALSE_WORDS, TRUE_WORDS, Option, OptionTable
from router.problems import HIDDEN, Findings, Problem, hides_a_value, nearest, without_secret

GLOBAL = "*"
DEFAULT = "default"

PRESET_ONLY = (
    Option(("load-on-startup",), help="load the model when the router starts"),
    Option(("stop-timeout",), hint="N", help="seconds from SIGTERM to SIGKILL"),
    Option(("dedup-cache-models",), help="of llama-server's own router: hide the cached model behind this one"),
)
"""Keys for whoever runs the llama-server, never for its command line."""

SKIPPED = "version"
"""Reserved by llama.cpp for the format of the file."""

ROUTER_OWNED = {
    "host": "children listen on a UNIX socket of their own",
    "port": "children listen on a UNIX socket of their own",
    "reuse-port": "children listen on a UNIX socket of their own",
    "api-prefix": "under a prefix a child's plain paths vanish",
    "api-key": "every child gets a random key of its own",
    "api-key-file": "every child gets a random key of its own",
    "ssl-key-file": "children are reached by a UNIX socket only",
    "ssl-cert-file": "children are reached by a UNIX socket only",
    "alias": "the section's name is the model's name; write others as `aliases` in config.json, LLM",
    "models-dir": "one process serves one model here",
    "models-preset": "one process serves one model here",
    "models-max": "one process serves one model here; see MAX_MODELS_PER_GPU",
    "models-autoload": "one process serves one model here",
    "device": "`gpus` in config.json masks the GPUs, and the visible ones are numbered from 0 within each process, "
    "so that a name such as CUDA2 would not be found",
}
"""Options that the router sets itself, and why a preset's are dropped."""

ALWAYS_ON = {
    "slots": "the router reads /slots of every child",
    "metrics": "the router reads /metrics of every child",
}
"""Flags that the router sets; it says so only to whoever switches one off."""

NO_SERVER = ("help", "usage", "list-devices", "cache-list", "completion-bash", "license")
"""Options that make llama-server print something and end."""

CONFIG_KEYS = (
    "num_instance",
    "gpus",
    "reasoning_effort",
    "cost",
    "aliases",
    "unlisted",
    "priority",
    "ttl",
    "persistent",
    "filters",
)
"""Keys of config.json that one might look for here."""


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key = value` as written, and where."""

    key: str
    value: str
    file: str
    section: str = ""
    line: int = 0

    def problem(self, message: str, *, allowed: str = "", nearest: str = "") -> Problem:
        return Problem(
            message,
            file=self.file,
            line=self.line,
            section=self.section,
            key=self.key,
            value=self.value,
            allowed=allowed,
            nearest=nearest,
        )


@dataclass(slots=True)
class Section:
    """One section in the order of the file; `line` 0 for keys before any header."""

    name: str
    line: int = 0
    entries: list[Entry] = field(default_factory=list)


_IDENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_COMMENT = re.compile(r"[ \t]*[;#]")
_QUANT = re.compile(r"(UD-)?(I?Q\d\w*|TQ\d\w*|MXFP\d\w*|NVFP\d\w*|BF16|F16|F32)", re.IGNORECASE)


def read_ini(text: str, file: str, findings: Findings) -> dict[str, Section]:
    """All sections by name. Mistakes go to `findings`; what can be read is read."""
    sections: dict[str, Section] = {}
    current = Section(DEFAULT)
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), start=1):
        if not line.strip(" \t") or _COMMENT.match(line):
            continue
        if line[0] in " \t":
            message = "a line may not start with a blank (llama-server cannot read the file then)"
            findings.add(
                Problem(message, file=file, line=number, section=current.name, value=without_secret(line.strip()))
            )
            line = line.lstrip(" \t")
        if line.startswith("["):
            current = _open_section(line, number, file, sections, findings)
        elif entry := _read_entry(line, number, current.name, file, findings):
            current.entries.append(entry)
            sections.setdefault(current.name, current)
    return sections


def _open_section(line: str, number: int, file: str, sections: dict[str, Section], findings: Findings) -> Section:
    def mistake(message: str) -> None:
        findings.add(Problem(message, file=file, line=number, value=line))

    name, closed, rest = line[1:].partition("]")
    name = canonical_name(name.strip(" \t"))
    if not closed:
        mistake("this header has no ]")
    elif rest.strip(" \t") and not _COMMENT.match(rest):
        mistake(f"after ] there may only be a comment, not {rest.strip()!r}")
    if name in sections:
        first = sections[name].line
        findings.add(
            Problem(
                f"this section is there already, in line {first}; llama-server would forget the first one"
                if first
                else "keys before any header belong to this section already",
                file=file,
                line=number,
                section=name,
            )
        )
        return Section(name, number)
    return sections.setdefault(name, Section(name, number))


def _read_entry(line: str, number: int, section: str, file: str, findings: Findings) -> Entry | None:
    def mistake(message: str, *, near: str = "") -> None:
        shown = without_secret(line.strip())
        findings.add(Problem(message, file=file, line=number, section=section, value=shown, nearest=near))

    key = _IDENT.match(line)
    if not key:
        bare = _IDENT.match(line.lstrip("-"))
        mistake(
            "a key is a name of letters, digits, '_', '.' and '-', without dashes before it",
            near=bare[0] if bare else "",
        )
        return None
    equals, value = line[key.end() :].lstrip(" \t")[:1], line[key.end() :].lstrip(" \t")[1:].lstrip(" \t")
    if equals != "=":
        mistake("this is no `key = value`, no [header] and no comment")
        return None
    entry = Entry(key[0], value, file, section, number)
    if cut := re.search(r"[ \t]*[;#]", value):
        entry = replace(entry, value=value[: cut.start()])
        if cut.start() > 0 and value[cut.start()] in ";#":
            findings.warn(entry.problem(f"the value ends here, because {value[cut.start()]!r} begins a comment"))
    entry = replace(entry, value=entry.value.rstrip(" \t"))
    return entry if _is_printable(entry, findings) else None


def _is_printable(entry: Entry, findings: Findings) -> bool:
    if "\0" in entry.value:
        findings.add(entry.problem("a value cannot hold a zero byte"))
        return False
    return True


def canonical_name(name: str) -> str:
    """The name of a model as llama-server would call it: a quantisation after the last ":" in capitals.

    Only a word that is a quantisation as a whole is changed: `repo:q4_k_m-thinking` stays what it is.
    """
    head, colon, tag = name.rpartition(":")
    return f"{head}:{tag.upper()}" if colon and _QUANT.fullmatch(tag) else name


# --- what the keys mean ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """An option with its value after all spellings have met: `no-mmap = true` is mmap with "false"."""

    option: Option
    value: str
    entry: Entry


Layer = Mapping[str, Setting]
"""Settings by the canonical name of their option."""


def read_layer(
    entries: Iterable[Entry], table: OptionTable, findings: Findings, *, optional: bool = False
) -> dict[str, Setting]:
    """What the entries of one section mean. Unknown, removed, doubled and malformed ones are mistakes.

    `optional`: nobody wrote these entries, they are defaults of ours, and one that is unknown to this llama-server is
    left out.
    """
    layer: dict[str, Setting] = {}
    for entry in entries:
        if entry.key == SKIPPED:
            continue
        option = table.by_key.get(entry.key)
        if option is None:
            if not optional:
                findings.add(_unknown(entry, table))
            continue
        if option.name in layer:
            other = layer[option.name].entry
            findings.add(
                entry.problem(
                    f"this option is there already, as {other.key} in line {other.line}"
                    if other.line
                    else f"this option is there already, as {other.key}"
                )
            )
            continue
        if setting := _read_setting(option, entry, findings):
            layer[option.name] = setting
    return layer


def _unknown(entry: Entry, table: OptionTable) -> Problem:
    if entry.key in CONFIG_KEYS:
        return entry.problem(f"{entry.key} is no option of llama-server: it belongs into config.json, LLM, this model")
    near = nearest(entry.key, table.by_key)
    if hides_a_value(near):
        entry = replace(entry, value=HIDDEN)
    return entry.problem(
        "this llama-server knows no such option",
        allowed="any option that `llama-server --help` lists, without its dashes",
        nearest=near,
    )


def _read_setting(option: Option, entry: Entry, findings: Findings) -> Setting | None:
    if reason := _reason(option, ROUTER_OWNED):
        findings.warn(entry.problem(f"the router sets this option itself and ignores yours: {reason}"))
        return None
    if reason := _reason(option, ALWAYS_ON):
        if _read_flag(option, entry, findings) == "false":
            findings.warn(entry.problem(f"this stays switched on: {reason}"))
        return None
    if any(f"--{name}" in option.names for name in NO_SERVER):
        findings.add(entry.problem("with this option llama-server prints something and ends"))
        return None
    if option.replacement:
        findings.add(entry.problem("this option was removed from llama-server", allowed=option.replacement))
        return None
    if option.takes_two_values:
        findings.add(entry.problem(f"this option takes two values ({option.hint}), which a preset cannot give"))
        return None
    if option.deprecated:
        findings.warn(entry.problem("this option is deprecated in llama-server"))
    value = _read_value(option, entry, findings) if option.takes_value else _read_flag(option, entry, findings)
    return None if value is None else Setting(option, value, entry)


def _reason(option: Option, reasons: Mapping[str, str]) -> str:
    return next((why for key, why in reasons.items() if f"--{key}" in option.names), "")


def _read_value(option: Option, entry: Entry, findings: Findings) -> str | None:
    value = entry.value
    if not value:
        findings.add(entry.problem("this option needs a value", allowed=option.hint))
    elif option.choices and value not in option.choices:
        findings.add(
            entry.problem(
                "no such value for this option",
                allowed=", ".join(option.choices),
                nearest=nearest(value, option.choices),
            )
        )
    elif option.is_number and not _is_number(value) and value not in option.words:
        words = ", ".join(option.words)
        findings.add(entry.problem("this option takes a number", allowed=f"a number, {words}" if words else "a number"))
    else:
        return value
    return None


def _read_flag(option: Option, entry: Entry, findings: Findings) -> str | None:
    if entry.value not in (*TRUE_WORDS, *FALSE_WORDS):
        findings.add(
            entry.problem(
                "this option is switched on or off",
                allowed=", ".join((*TRUE_WORDS, *FALSE_WORDS)),
                nearest=nearest(entry.value, (*TRUE_WORDS, *FALSE_WORDS)),
            )
        )
        return None
    on = entry.value in TRUE_WORDS
    return "true" if on != option.negates(entry.key) else "false"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None


def merge(layers: Iterable[Layer]) -> dict[str, Setting]:
    """All layers in one, later ones winning; in the order in which options first appear."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged.update(layer)
    return merged


def to_argv(layer: Layer) -> tuple[str, ...]:
    """Options for llama-server's command line: `--name value`, or for a flag `--name`, its negative, or nothing."""
    argv: list[str] = []
    for setting in layer.values():
        option = setting.option
        if option in PRESET_ONLY:
            continue
        if option.takes_value:
            argv += [option.flag, setting.value]
        elif setting.value == "true":
            argv.append(option.flag)
        elif option.negatives:
            argv.append(option.negatives[-1])
    return tuple(argv)
