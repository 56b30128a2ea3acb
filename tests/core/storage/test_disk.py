"""What the file systems of this machine say, and that it is asked for the right folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.storage.disk import LocalDisk


def test_room_is_what_a_user_without_privileges_may_fill(tmp_path: Path) -> None:
    status, room = os.statvfs(tmp_path), LocalDisk().room(str(tmp_path))
    assert room.free_bytes == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2)
    assert (room.free_files is None) is (status.f_files == 0)


def test_a_file_system_that_counts_no_inodes_has_no_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:5], 0, 0, 0, *real[8:])))
    assert LocalDisk().room("/").free_files is None


def test_a_folder_that_is_not_there_has_no_room(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalDisk().room(str(tmp_path / "none"))


def test_the_nearest_folder_is_the_one_above_what_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    disk = LocalDisk()
    assert disk.nearest(str(tmp_path)) == str(tmp_path)
    assert disk.nearest(f"{tmp_path}/a/b/c/") == str(tmp_path)
    assert disk.nearest(f"{tmp_path}/file/b") == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert disk.nearest("a/b") == "."


def test_a_read_only_place_is_not_writable_and_a_fresh_folder_is(tmp_path: Path) -> None:
    assert LocalDisk().is_writable(str(tmp_path))
    assert not LocalDisk().is_writable("/proc/1")
    assert not LocalDisk().is_writable(str(tmp_path / "none"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_not_writable(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o550)
    assert not LocalDisk().is_writable(str(folder))
