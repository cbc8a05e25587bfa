"""Every operation of /openapi.json, asked by schemathesis with what its schema allows and with what it does not.

An answer may refuse, and may say that something is not there. It is never an error of the router's own making, other
than the documented ones, and it always comes.
"""

import re
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode

from router.errors import CODES
from tests.standin.fixtures import Model, RouterProcess

ENDLESS = r"^/(events|logs|models/sse)"
"""They never end by themselves."""
ALL = settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
DOCUMENTED = {code for code, status in CODES.items() if status >= 500} - {"internal_error"}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Without keys: what is behind them is what is looked at here."""
    folder = tmp_path_factory.mktemp("schema")
    with RouterProcess(folder, [Model("a", tokens=1), Model("b", tokens=1)]) as router:
        yield router
    assert "Traceback" not in router.stderr.read_text(), router.words()


@pytest.mark.slow
def test_no_request_that_a_schema_can_think_of_breaks_the_router(router: RouterProcess) -> None:
    schema = schemathesis.openapi.from_url(f"{router.base_url}/openapi.json")
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if re.match(ENDLESS, operation.path):
            continue
        for mode in GenerationMode:
            try:
                ask_much(operation.as_strategy(generation_mode=mode))
            except Unsatisfiable:  # an operation without parameters has nothing to be wrong
                continue
            asked += 1
    assert asked > 30


def ask_much(cases: SearchStrategy[Case]) -> None:
    @ALL
    @given(case=cases)
    def ask(case: Case) -> None:
        answer = case.call(timeout=30)
        if answer.status_code >= 500:
            assert answer.json()["error"]["code"] in DOCUMENTED, answer.text

    ask()
