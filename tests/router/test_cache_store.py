"""Files of saved prompt caches: private, bounded, and only whole ones are ever read."""

import os
import stat
from pathlib import Path

import pytest

from router.cache_store import CacheStore, Entry, Unusable


class Shelf:
    """A store in a directory of the test's, and what it said about files that went."""

    def __init__(self, folder: Path, budget: int = 1000) -> None:
        self.gone: list[tuple[str, str]] = []
        self.folder = folder / "caches"
        self.store = CacheStore(self.folder, budget, lambda entry, why: self.gone.append((entry.conversation, why)))

    def saved(self, conversation: str, size: int = 100, *, used_us: int = 0, said: int | None = None) -> Entry:
        """As a llama-server would: write to the name that was given, then tell how much."""
        name = self.store.begin(size)
        (self.folder / name).write_bytes(b"x" * size)
        try:
            self.store.commit(name, entry_of(name, conversation, size if said is None else said, used_us))
        except Unusable:
            self.store.abort(name)
            raise
        return self.store.find("m", conversation, "f")

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if self.folder.exists() else []


def entry_of(name: str, conversation: str, size: int, used_us: int = 0) -> Entry:
    return Entry(
        name=name, model="m", conversation=conversation, tokens=9, bytes=size, fingerprint="f", used_us=used_us
    )


def test_a_saved_file_is_found_again_and_private(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    old = os.umask(0)
    try:
        entry = shelf.saved("secret words")
    finally:
        os.umask(old)
    path = shelf.folder / entry.name
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, shelf.folder)] == [0o600, 0o700]
    assert "secret" not in entry.name


def test_a_directory_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir(mode=0o755)
    assert stat.S_IMODE(Shelf(tmp_path).folder.stat().st_mode) == 0o700


def test_a_file_that_is_shorter_than_was_said_is_not_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with pytest.raises(Unusable, match="has 100 bytes, not 200"):
        shelf.saved("x", 100, said=200)
    assert shelf.names() == []
    with pytest.raises(Unusable, match="no such file"):
        shelf.store.find("m", "x", "f")


def test_an_empty_file_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        Shelf(tmp_path).saved("x", 0)


def test_a_link_that_was_put_in_place_of_a_file_is_not_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    name = shelf.store.begin(4)
    (shelf.folder / name).unlink()
    (tmp_path / "elsewhere").write_bytes(b"1234")
    (shelf.folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unusable):
        shelf.store.commit(name, entry_of(name, "x", 4))


def test_a_file_that_changed_its_length_since_is_not_read(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    entry = shelf.saved("x")
    os.truncate(shelf.folder / entry.name, 50)
    with pytest.raises(Unusable, match="not as long"):
        shelf.store.find("m", "x", "f")


def test_a_file_of_other_weights_is_not_read(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.saved("x")
    with pytest.raises(Unusable, match="other weights"):
        shelf.store.find("m", "x", "another")


def test_a_later_save_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    first = shelf.saved("x", 100)
    second = shelf.saved("x", 200)
    assert shelf.names() == [second.name]
    assert first.name != second.name
    assert shelf.store.bytes == 200
    assert shelf.gone == []


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.saved("old", 400, used_us=5)
    shelf.saved("older", 400, used_us=2)
    shelf.saved("new", 400, used_us=9)
    assert shelf.gone == [("older", "budget")]
    assert shelf.store.bytes == 800
    shelf.store.set_budget(500)
    assert shelf.gone[1:] == [("old", "budget")]


def test_a_file_beyond_the_budget_is_not_kept_and_costs_nobody_else(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.saved("x", 100)
    name = shelf.store.begin(0)
    (shelf.folder / name).write_bytes(b"x" * 1001)
    with pytest.raises(Unusable, match="larger than the budget"):
        shelf.store.commit(name, entry_of(name, "y", 1001))
    shelf.store.abort(name)
    assert len(shelf.names()) == 1


def test_a_clean_end_removes_everything(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.saved("x")
    shelf.store.begin(1)
    shelf.store.close(persist=False)
    assert not shelf.folder.exists()


def test_a_clean_end_keeps_what_is_to_be_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    entry = shelf.saved("x", used_us=7)
    shelf.store.close(persist=True)
    again = Shelf(tmp_path)
    assert list(again.store) == [entry]
    assert again.names() == [entry.name]


def test_an_index_is_good_once(tmp_path: Path) -> None:
    """Whoever dies after it was read has changed the files since."""
    shelf = Shelf(tmp_path)
    shelf.saved("x")
    shelf.store.close(persist=True)
    Shelf(tmp_path)
    third = Shelf(tmp_path)
    assert list(third.store) == []
    assert third.names() == []


def test_what_a_crash_leaves_is_removed_unread(tmp_path: Path) -> None:
    """A whole file and a half-written one; without a clean end neither is known."""
    shelf = Shelf(tmp_path)
    shelf.saved("x")
    (shelf.folder / shelf.store.begin(50)).write_bytes(b"half")
    again = Shelf(tmp_path)
    assert list(again.store) == []
    assert again.names() == []


def test_files_of_an_index_that_were_cut_or_lie_elsewhere_are_not_taken(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    cut, whole = shelf.saved("cut"), shelf.saved("whole")
    shelf.store.close(persist=True)
    os.truncate(shelf.folder / cut.name, 1)
    index = shelf.folder / "index.json"
    text = index.read_text()
    (tmp_path / "outside.cache").write_bytes(b"x" * 100)
    again = Shelf(tmp_path)
    assert [entry.conversation for entry in again.store] == ["whole"]
    again.store.close(persist=True)
    index.write_text(text.replace(whole.name, "../outside.cache"))
    assert list(Shelf(tmp_path).store) == []
    assert (tmp_path / "outside.cache").exists()


def test_an_index_that_cannot_be_read_costs_the_files(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.saved("x")
    shelf.store.close(persist=True)
    (shelf.folder / "index.json").write_text("[{")
    assert Shelf(tmp_path).names() == []


def test_a_directory_that_cannot_be_made_is_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "caches").write_text("a file")
    shelf = Shelf(tmp_path)
    assert not shelf.store.usable
    with pytest.raises(Unusable, match="no directory"):
        shelf.store.begin(1)
    shelf.store.close(persist=True)


def test_a_directory_that_vanishes_is_not_fatal(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    entry = shelf.saved("x")
    (shelf.folder / entry.name).unlink()
    shelf.folder.rmdir()
    with pytest.raises(Unusable, match="no file can be made"):
        shelf.store.begin(1)
    with pytest.raises(Unusable, match="not as long"):
        shelf.store.find("m", "x", "f")
    shelf.store.close(persist=True)
