"""The script that runs worlds by the thousand: a seed that goes wrong is named, and can be told again."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from eventlog import events as e
from tests.scheduler import test_world

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "simulate"


@pytest.fixture
def script() -> ModuleType:
    loader = SourceFileLoader("simulate_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_story_of_a_seed_is_told_from_its_first_fact(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.tell_one(["world", "chaos"], 3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["0.000", "RouterStarted(seq=1,"]
    assert "world 3: nothing is wrong" in lines
    assert lines[-1] == "chaos 3: nothing is wrong"


def test_a_violation_is_told_up_to_where_it_happened(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot leak, planted: nobody takes note that a slot was released."""
    monkeypatch.delitem(sys.modules["router.scheduler.fold"]._APPLY, e.SlotReleased)
    _, _, found = script.try_seeds(("world", 0, 40, ""))
    assert found
    kind, seed, wrong = found[0]
    assert script.tell_one([kind], seed) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"{kind} {seed}: {wrong}"
    again = rf"^world {seed}: (.|\n)*\n  repeat it: scripts/simulate --seed {seed} --kind world$"
    with pytest.raises(AssertionError, match=again):
        test_world.test_every_request_ends_once_in_every_world(seed // 10)
