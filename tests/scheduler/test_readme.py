"""The scheduler's page names every rule and every decision, in their order, and nothing that does not exist."""

import re
from pathlib import Path

from eventlog import events as e
from router.scheduler.queue_pass import serve_the_queue
from router.scheduler.rules import RULES_AFTER, RULES_BEFORE

PAGE = (Path(__file__).parents[2] / "router" / "scheduler" / "README.md").read_text()


def first_column(heading: str) -> list[str]:
    """Names in backticks in the first column of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]


def test_every_rule_stands_there_in_its_order() -> None:
    assert first_column("The rules, in order") == [
        rule.__name__ for rule in (*RULES_BEFORE, serve_the_queue, *RULES_AFTER)
    ]


def test_every_decision_stands_there() -> None:
    assert sorted(first_column("The decisions")) == sorted(decision.__name__ for decision in e.DECISIONS)


def test_the_files_it_speaks_of_exist() -> None:
    folder = Path(__file__).parents[2]
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        places = [folder / "router" / "scheduler", folder / "router", folder / "tests" / "scheduler", folder]
        assert any((place / name).is_file() for place in places), name
