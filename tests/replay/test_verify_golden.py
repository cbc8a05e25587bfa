"""Golden logs: real recordings that verify for ever, and one that must not.

Under the policy that they were recorded with every decision is the same, on every machine and Python; under a newer
one the differences are counted, and the states keep their invariants all the same.
"""

import json
from pathlib import Path

import pytest

from eventlog.events import Decision, Fact, RouterStarted
from eventlog.reader import read
from replay.verify import verify
from router.scheduler import POLICY_VERSION, State, fold
from router.scheduler.invariants import check
from tests.replay.make_golden import ALTERED, DIGESTS, GOLDEN, digests_of, unpacked

LOGS = sorted(path.name for path in GOLDEN.glob("*.ndjson.gz"))
GOOD = [name for name in LOGS if ALTERED not in name]


@pytest.mark.parametrize("name", GOOD)
def test_a_golden_log_verifies(tmp_path: Path, name: str) -> None:
    result = verify(unpacked(GOLDEN / name, tmp_path))

    assert result.ok, result.first
    assert result.facts > 50
    if set(result.recorded_policies) == {POLICY_VERSION}:
        assert result.differences == 0
        assert digests_of(result) == json.loads(DIGESTS.read_text())[name]


@pytest.mark.parametrize("name", GOOD)
def test_a_golden_log_folds_and_keeps_the_invariants(tmp_path: Path, name: str) -> None:
    """As it was recorded, whatever the rules of today would do."""
    state = State()
    for event in read(unpacked(GOLDEN / name, tmp_path)):
        if isinstance(event, Fact) and not isinstance(event, RouterStarted) and state.run:
            check(state)
        if isinstance(event, Fact | Decision):
            fold(state, event)
    check(state)


def test_an_altered_decision_is_found_at_its_seq(tmp_path: Path) -> None:
    """The third dispatch says that its request waited a microsecond longer than it did."""
    (name,) = [name for name in LOGS if ALTERED in name]

    result = verify(unpacked(GOLDEN / name, tmp_path), strict=True)

    assert not result.ok
    assert result.first is not None
    assert result.first.seq == json.loads(DIGESTS.read_text())[name]["altered_seq"]
    assert [each.field for each in result.first.fields] == ["waited_us"]
    assert result.first.fields[0].recorded == result.first.fields[0].recomputed + 1


def test_every_policy_has_its_logs() -> None:
    """Whoever raises POLICY_VERSION records logs under it, beside the old ones."""
    recorded = [policy for noted in json.loads(DIGESTS.read_text()).values() for policy in noted.get("policies", ())]

    assert POLICY_VERSION in recorded
