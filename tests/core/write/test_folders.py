"""A folder is put in place as a whole, and nothing of others' is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.errors import NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.write.folders import filled, foreign, place
from tests.core.write.test_files import names


def test_a_folder_is_new_or_takes_the_place_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "E4d"
    place(str(folder), {"README.md": b"one", "old.yaml": b""})
    place(str(folder), {"README.md": b"two"}, instead_of=("README.md", "old.yaml"))
    assert (names(tmp_path), names(folder), (folder / "README.md").read_bytes()) == ({"E4d"}, {"README.md"}, b"two")


def test_a_folder_with_anything_else_in_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "E4d"
    place(str(folder), {"README.md": b"one"})
    (folder / "train.log").write_text("mine")
    with pytest.raises(UnsafeError, match=r"also contains 'train\.log'"):
        place(str(folder), {"README.md": b"two"}, instead_of=("README.md",))
    assert (names(tmp_path), (folder / "README.md").read_bytes()) == ({"E4d"}, b"one")


def test_what_is_no_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "E4d").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("E4d", "link"):
        with pytest.raises(UnsafeError, match="is not a folder"):
            place(str(tmp_path / name), {})
    assert foreign(str(tmp_path / "none"), ()) == ()


def test_a_folder_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "E4d"
    place(str(folder), {"README.md": b"one"})
    renames: list[str] = []

    def refused(source: str, target: str) -> None:
        renames.append(target)
        if len(renames) == 2:
            raise OSError(28, "No space left on device")
        Path(source).rename(target)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(WriteFailedError, match="No space left on device"):
        place(str(folder), {"README.md": b"two"}, instead_of=("README.md",))
    assert (names(tmp_path), (folder / "README.md").read_bytes()) == ({"E4d"}, b"one")


def test_a_disk_that_does_not_confirm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "E4d"
    whole = os.fsync

    def lying(handle: int) -> None:
        if folder.exists():
            raise OSError(5, "Input/output error")
        whole(handle)

    monkeypatch.setattr(os, "fsync", lying)
    with pytest.raises(NotDurableError, match="a power failure may undo it"):
        place(str(folder), {"README.md": b"one"})
    assert names(folder) == {"README.md"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists any folder")
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    with pytest.raises(WriteFailedError, match="cannot be listed"):
        foreign(str(tmp_path / "shut"), ())


def test_a_folder_that_is_filled_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    with filled(str(folder)) as inside:
        place(f"{inside}/E4d", {"README.md": b"one"})
        assert not folder.exists()
    assert (names(tmp_path), names(folder)) == ({"plan"}, {"E4d"})
    with filled(str(folder)) as inside:
        assert inside == str(folder)


def test_nothing_is_left_of_a_folder_that_could_not_be_filled(tmp_path: Path) -> None:
    def fill() -> None:
        with filled(str(tmp_path / "plan")):
            raise OSError(28, "No space left on device")

    with pytest.raises(WriteFailedError, match="No space left on device"):
        fill()
    assert names(tmp_path) == set()
