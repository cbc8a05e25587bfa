"""What the page's scripts know by heart is what the router says."""

import ast
import re
import typing
from pathlib import Path

from dashboard.assets import assets
from dashboard.request_list import OPEN, OUTCOMES, UNWELL
from eventlog import events as e
from router.api import listing, waiting
from router.scheduler.state import Model


def keys_of(script: str, name: str) -> set[str]:
    """Of an object literal at the top of a script."""
    text = assets().files[script].content.decode()
    found = re.search(rf"^(?:export )?const {name} = {{\n(.*?)^}};", text, re.DOTALL | re.MULTILINE)
    assert found, f"{script} has no {name}"
    return set(re.findall(r"^  (\w+):", found[1], re.MULTILINE))


def first_of_returned_tuples(module: object, function: str) -> set[str]:
    """Constants that a function returns in the first place of a tuple."""
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    returned = [node.value for node in ast.walk(found) if isinstance(node, ast.Return)]
    firsts = [value.elts[0] for value in returned if isinstance(value, ast.Tuple)]
    return {first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)}


def test_every_reason_to_wait_has_its_words() -> None:
    held = set(typing.get_args(typing.get_type_hints(e.RequestHeld)["why"]))
    others = first_of_returned_tuples(waiting, "_reason")
    assert {"slots", "order", "loading"} <= others
    assert keys_of("lib/waits.js", "WORDS") == held | others


def test_every_phase_of_a_model_and_every_outcome_has_its_words() -> None:
    phases = set(typing.get_args(typing.get_type_hints(Model)["phase"])) or set(listing.STATUS)
    assert keys_of("dash-now.js", "PHASES") == phases
    assert keys_of("dash-requests.js", "OUTCOMES") == set(OUTCOMES)
    assert keys_of("dash-requests.js", "KINDS") == {"crash", "load_failed", "stall"}


def test_every_outcome_can_be_filtered_for() -> None:
    from dashboard.overview import OUTCOMES as offered

    assert {value for value, _ in offered} == {"", OPEN, UNWELL, *OUTCOMES}


def test_every_tile_of_the_page_is_filled_by_the_script() -> None:
    from dashboard.overview import TILES

    assert keys_of("dash-past.js", "TILES") == {key for key, _ in TILES}
