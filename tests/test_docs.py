"""What the documents point at exists: files, headings, commands, options, targets of make, settings, routes."""

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from router import routes
from router.cli import _parser
from router.settings import SETTINGS

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "*/README.md", "*/*/README.md")
    for page in ROOT.glob(pattern)
    if not page.is_relative_to(ROOT / ".venv")
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOLDERS = ("eventlog", "router", "projections", "replay", "dashboard", "tests", "scripts", "docs", "examples")


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_the_documents_are_found() -> None:
    """So that nothing below passes for want of anything to look at."""
    assert {"README.md", "docs/configuration.md", "docs/not-planned.md", "router/scheduler/README.md"} <= set(NAMES)
    assert len(list(_commands(ROOT / "README.md"))) >= 8


# --- files --------------------------------------------------------------------------------------------------------


def _anchors(page: Path) -> set[str]:
    """The headings as GitHub makes links of them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative ones to a file in the project, and to a heading in it if they name one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{page.name} links to {target}"
        assert found.is_relative_to(ROOT), f"{page.name} links out of the project: {target}"
        assert not anchor or anchor in _anchors(found), f"{target} has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    """A page that nothing links to is read by nobody."""
    reached, new = set(), [ROOT / "README.md"]
    while new:
        found = new.pop()
        reached.add(found)
        links = re.findall(r"\]\(([^)#\s]+\.md)", found.read_text())
        pages = {(found.parent / link).resolve() for link in links if "://" not in link}
        new += sorted(pages - reached)
    assert set((ROOT / "docs").glob("*.md")) <= reached


def test_every_file_that_is_spoken_of_exists(page: Path) -> None:
    """`router/loop.py`, `scripts/bench-relay` and the like."""
    for text in re.findall(r"`([^`\n]+)`", page.read_text()):
        named = text.split()[0].rstrip("/")
        if re.fullmatch(r"[\w./-]+", named) and "/" in named and named.split("/")[0] in FOLDERS:
            assert (ROOT / named).exists() or (page.parent / named).exists(), f"{page.name} speaks of {named}"


# --- commands -----------------------------------------------------------------------------------------------------


def _commands(page: Path) -> Iterator[str]:
    """What follows `llama-router` in code, in text and in blocks."""
    text = page.read_text().replace("\\\n", "")
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^(?: {4}|\t)(.+)$", text, re.MULTILINE)
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for piece in [*(line for block in blocks for line in block.splitlines()), *indented, *quoted]:
        for line in re.split(r"&&|\||;", piece.split(" #")[0]):
            match = re.match(r"\s*(?:\$ )?llama-router (.+)", line)
            if match:
                yield match.group(1).strip()


@cache
def _verbs() -> argparse.ArgumentParser:
    return _parser()


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def test_every_command_that_is_shown_exists(page: Path) -> None:
    """The verb, the verb below it, and every option that is shown with it."""
    for command in _commands(page):
        parser = _verbs()
        words = shlex.split(command.replace("...", ""))
        for word in words:
            below = _subparsers(parser)
            if word.startswith("-"):
                known = {option for action in parser._actions for option in action.option_strings}
                assert word.split("=")[0] in known, f"{page.name}: llama-router {command} has no {word}"
            elif below and "|" not in word:
                assert word in below, f"{page.name}: llama-router {command}: there is no {word!r}"
                parser = below[word]


def _every_parser(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for verb, below in _subparsers(parser).items():
        yield from _every_parser(below, f"{name} {verb}")


@pytest.mark.parametrize("name", [name for name, _ in _every_parser(_verbs(), "llama-router")])
def test_every_command_helps_with_examples_and_exit_codes(name: str) -> None:
    """And each example that it shows is one that it would take."""
    parser = dict(_every_parser(_verbs(), "llama-router"))[name]
    epilog = parser.epilog or ""
    assert "examples:" in epilog
    assert "exit code" in epilog
    examples = [line.strip() for line in epilog.split("exit code")[0].splitlines() if "llama-router" in line]
    assert examples
    for example in examples:
        command = re.split(r"\s{2,}|&&|\||>", example.partition("llama-router ")[2])[0]
        _verbs().parse_args(shlex.split(command))


# --- make, settings, routes ---------------------------------------------------------------------------------------


def test_every_target_of_make_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets


@cache
def _constants() -> set[str]:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {word for path in sources for word in re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", path.read_text())}


def test_every_setting_that_is_named_exists(page: Path) -> None:
    """Words in capitals with an underscore: settings, variables of the environment, constants of the code."""
    known = {setting.name for setting in SETTINGS} | _constants()
    for word in re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:=\S*)?`", page.read_text()):
        assert word in known or word.removeprefix("LLAMA_ROUTER_") in known, f"{page.name} names {word}"


def test_the_routes_that_the_readme_names_exist() -> None:
    """By the relay's table or by the text of the routes."""
    sources = "".join(path.read_text() for path in (ROOT / "router" / "api").glob("*.py"))
    for path in re.findall(r"`(/[a-z/]+)`", (ROOT / "README.md").read_text()):
        assert f'"{path}"' in sources or path in routes.POST or path in routes.GET, path


# --- what is packaged ---------------------------------------------------------------------------------------------


def test_every_folder_of_code_and_data_is_packaged() -> None:
    """The names are generic, so each package is listed; one that is forgotten is missing after an installation only."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = setup["package-data"]
    listed = set(setup["packages"])
    for top in ("eventlog", "router", "projections", "replay", "dashboard"):
        for file in (ROOT / top).rglob("*"):
            package = ".".join(file.parent.relative_to(ROOT).parts)
            if file.suffix == ".py":
                assert package in listed, f"{package} is not in pyproject.toml"
            elif file.is_file() and file.suffix not in (".pyc", ".md"):
                assert package in listed, f"{package} is not in pyproject.toml"
                assert any(file.match(pattern) for pattern in data.get(package, ())), f"{file} is not packaged"
