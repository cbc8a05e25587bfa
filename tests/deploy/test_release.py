"""What is released: wheels that are the same when built twice, a source archive that is enough, an installation that
needs no repository beside it."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS = ("pyproject.toml", "README.md", "LICENSE", "eventlog", "router", "projections", "replay", "dashboard")

pytestmark = pytest.mark.slow


def clean_copy(target: Path) -> Path:
    """The project's parts without what a build or a run leaves."""
    target.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, target / part)
    return target


def build(source: Path, kind: str) -> Path:
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1764500000"}
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        f"--{kind}",
        "--outdir",
        str(source / "made"),
        str(source),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = (source / "made").iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clean_copy(tmp_path_factory.mktemp("first") / "src"), "wheel")


def test_a_wheel_is_the_same_byte_for_byte_when_it_is_built_again(tmp_path: Path, wheel: Path) -> None:
    again = build(clean_copy(tmp_path / "elsewhere"), "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_source_archive_makes_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    """Every asset, template and SQL file is in it."""
    archive = build(clean_copy(tmp_path / "src"), "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    again = build(source, "wheel")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        packaged = {name for name in one.namelist() if not name.split("/")[0].endswith(".dist-info")}
    files = {
        str(path.relative_to(ROOT))
        for part in PARTS[3:]
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
    assert packaged == files


def test_an_installed_router_knows_its_version_and_its_tables(tmp_path: Path, wheel: Path) -> None:
    """Away from the repository: the command, and the SQL that it brings."""
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    (tmp_path / "events").mkdir()
    environment = {"PYTHONPATH": str(target), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment["EVENT_LOG_DIR"] = str(tmp_path / "events")

    def said(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "router.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("--version") == f"llama-router {PROJECT['project']['version']}\n"
    assert "swap_candidates" in said("sql", "--tables")


def test_every_dependency_has_a_lower_bound() -> None:
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.match(r"[\w-]+>=[\d.]+", requirement), requirement


def test_the_lock_file_has_every_dependency() -> None:
    """Those of development too, each with one version; `make lock` writes it. pip leaves setuptools out."""
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    locked = dict(line.split("==") for line in lines)
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["embedded"], *extras["dev"]]
    names = {re.split(r"[<>=;\s]", requirement)[0] for requirement in wanted} - {"setuptools"}
    assert names <= {name.lower().replace("_", "-") for name in locked}


def test_the_pythons_that_are_supported_are_stated() -> None:
    """As classifiers, for those who look at the package; the least of them is what an installation demands."""
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert stated == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["project"]["requires-python"] == f">={stated[0]}"
