"""The weights, made once, and the profile that a case runs under: `cpu` always, `gpu` when asked for (-m gpu)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.weights.profile import MADE_HERE, Profile, profile

pytest.importorskip("xllamacpp", reason="the extra 'embedded' is not installed")

Weights = Callable[[str], Path]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The file of "smollm2" or "tiny"."""
    made: dict[str, Path] = {}

    def weights(name: str) -> Path:
        if name not in made:
            made[name] = MADE_HERE[name](tmp_path_factory.mktemp("weights"))
        return made[name]

    return weights


ON_CPU = [pytest.mark.weights]
ON_GPU = [pytest.mark.gpu, pytest.mark.timeout(7200)]


@pytest.fixture(params=[pytest.param("cpu", marks=ON_CPU), pytest.param("gpu", marks=ON_GPU)])
def where(request: pytest.FixtureRequest) -> Profile:
    """The profile; a case that uses it runs in both."""
    return profile(request.param)
