"""llama-server's options as the stand-in knows them: the help in llama-server's own layout, and argv read by it.

An option is a row of `options.txt`: section, names, value, environment variable, text. The layout of the help is that
of llama.cpp: names at column 0, the short one padded to 7 characters, text from column 40 in lines of 70.
"""

import os
import textwrap

SECTIONS = {"common": "common params", "sampling": "sampling params", "server": "example-specific params"}
COLUMN = 40
WIDTH = 70


class UsageError(Exception):
    """What llama-server says about an argument that it does not take."""


class Row:
    """One option."""

    def __init__(self, line: str) -> None:
        section, names, self.value, self.env, self.text = (cell.strip() for cell in line.split("~"))
        self.section = SECTIONS[section]
        self.names = names.replace(",", " ").split()

    def helped(self) -> str:
        first, *more = self.names
        head = f"{first + ',':<6} " + ", ".join(more) if more else first
        head += f" {self.value}" if self.value else ""
        head = f"{head}\n{'':{COLUMN}}" if len(head) > COLUMN - 3 else f"{head:<{COLUMN}}"
        lines = textwrap.wrap(self.text, WIDTH) + ([f"(env: {self.env})"] if self.env else [])
        return head + f"\n{'':{COLUMN}}".join(lines)


def rows() -> list[Row]:
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "options.txt")
    with open(path) as file:
        return [Row(line) for line in file if line.strip() and not line.startswith("#")]


def help_text() -> str:
    """The help, section after section."""
    known = rows()
    blocks = []
    for section in SECTIONS.values():
        lines = "\n".join(row.helped() for row in known if row.section == section)
        blocks.append(f"----- {section} -----\n\n{lines}\n")
    return "\n\n".join(blocks)


class Options:
    """The few values that change what the stand-in does; everything else is accepted and ignored."""

    def __init__(self, argv: list[str], values: dict[str, str]) -> None:
        self.argv = argv
        self.help = "--help" in values
        self.model = values.get("--model", "")
        self.aliases = values.get("--alias", self.model or "standin").split(",")
        self.host = values.get("--host", "127.0.0.1")
        self.port = int(values.get("--port", "8080"))
        self.api_key = values.get("--api-key", "")
        asked = int(values.get("--parallel", "-1"))
        self.parallel = asked if asked > 0 else 4
        ctx = int(values.get("--ctx-size", "0")) or 4096
        self.slot_ctx = ctx // self.parallel if asked > 0 else ctx
        self.slot_save_path = values.get("--slot-save-path", "")
        self.metrics = "--metrics" in values
        self.slots = "--no-slots" not in values
        self.webui = not {"--no-webui", "--no-ui"} & values.keys()


KEPT = ("--help", "--model", "--alias", "--host", "--port", "--api-key", "--parallel", "--ctx-size", "--slot-save-path")


def parse(argv: list[str], environ: dict[str, str]) -> Options:
    """Reads argv, then the environment for what argv leaves out. Raises UsageError."""
    by_name = {name: row for row in rows() for name in row.names}
    values: dict[str, str] = {}
    for row in by_name.values():
        if row.env in environ and row.value:
            values[_canonical(row, row.names[-1])] = environ[row.env]
    arguments = iter(argv)
    for argument in arguments:
        found = by_name.get(argument)
        if found is None:
            raise UsageError(f"error: invalid argument: {argument}")
        if "has been removed" in found.text:
            raise UsageError(f'error while handling argument "{argument}": {found.text}')
        value = ""
        for _ in found.value.split():
            value = next(arguments, "")
            if not value:
                raise UsageError(f'error while handling argument "{argument}": expected value for argument')
        values[_canonical(found, argument)] = value
    return Options(list(argv), values)


def _canonical(row: Row, name: str) -> str:
    """The name under which `Options` looks for it; negative names stay themselves."""
    return next((kept for kept in KEPT if kept in row.names), name)
