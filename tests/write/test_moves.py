"""Renames to the trash and back, one by one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpttool.domain.retention import Batch, Move
from ckpttool.domain.shard import FileStamp
from ckpttool.errors import CkptToolError, IncompleteError, UnsafeError, WriteFailedError
from ckpttool.write.moves import delete, move_to_trash, restore

TRASH = ".ckpttool/trash"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of two files and a folder, with an empty trash."""
    for name in ("rank_0/a", "rank_1/a", "iteration_1/x"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "tree" / TRASH).mkdir(parents=True)
    return tmp_path / "tree"


def move(root: Path, path: str) -> Move:
    status = os.lstat(root / path)
    stamp = FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)
    return Move(path=path, stamp=stamp)


def batch(root: Path, *paths: str) -> Batch:
    return Batch(trash=f"{TRASH}/t", moves=tuple(move(root, path) for path in paths))


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_files_and_folders_keep_their_paths_in_the_trash_and_come_back(root: Path) -> None:
    one = batch(root, "rank_0/a", "rank_1/a", "iteration_1")
    move_to_trash(str(root), [one])
    assert names(root) == {f"{TRASH}/t/rank_0/a", f"{TRASH}/t/rank_1/a", f"{TRASH}/t/iteration_1/x"}
    restore(str(root), [one])
    assert names(root) == {"rank_0/a", "rank_1/a", "iteration_1/x"}
    assert list((root / TRASH).iterdir()) == []
    restore(str(root), [one])


def test_a_file_that_is_gone_or_another_stops_before_it_is_touched(root: Path) -> None:
    for change in ("unlink", "write_text"):
        (root / "rank_1/a").write_text("rank_1/a")
        one = batch(root, "rank_0/a", "rank_1/a")
        (root / "rank_1/a").unlink() if change == "unlink" else (root / "rank_1/a").write_text("other content")
        with pytest.raises(IncompleteError, match="'rank_1/a' changed since the plan"):
            move_to_trash(str(root), [one])
        restore(str(root), [one])
        assert (root / "rank_0/a").exists()


def test_a_trash_folder_that_is_there_already_is_not_filled(root: Path) -> None:
    one = batch(root, "rank_0/a")
    (root / TRASH / "t").mkdir()
    with pytest.raises(WriteFailedError, match="File exists"):
        move_to_trash(str(root), [one])
    assert (root / "rank_0/a").exists()


@pytest.mark.parametrize("place", ["rank_1", TRASH, ".ckpttool"])
def test_no_folder_on_the_way_may_be_a_link(place: str, root: Path, tmp_path: Path) -> None:
    one = batch(root, "rank_1/a")
    (root / place).rename(tmp_path / "elsewhere")
    (root / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeError, match="is a link or no folder"):
        move_to_trash(str(root), [one])
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a", "x"}


def test_a_link_in_place_of_a_file_is_not_moved(root: Path) -> None:
    (root / "rank_1/a").unlink()
    (root / "rank_1/a").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeError, match="nothing is moved through a link"):
        move_to_trash(str(root), [batch(root, "rank_1/a")])


def test_another_disk_is_noticed_before_the_rename(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch(root, "rank_1/a")
    real, seen = os.fstat, []

    def fstat(fd: int) -> os.stat_result:
        seen.append(fd)
        status = real(fd)
        return os.stat_result((*status[:2], len(seen), *status[3:]))

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(UnsafeError, match="on another disk than the trash"):
        move_to_trash(str(root), [one])
    assert (root / "rank_1/a").exists()


def test_a_tree_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(WriteFailedError, match="cannot open"):
        move_to_trash(str(tmp_path / "nowhere"), [])


def test_what_cannot_come_back_for_the_disk_s_sake_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch(root, "rank_0/a", "rank_1/a")
    move_to_trash(str(root), [one])

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(WriteFailedError, match="Input/output error"):
        restore(str(root), [one])


def test_the_first_file_leaves_first_and_comes_back_last(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "rank_2").mkdir()
    (root / "rank_2/a").write_text("2")
    one = batch(root, "rank_0/a", "rank_1/a", "rank_2/a")
    events: list[str] = []
    real_rename, real_fsync = os.rename, os.fsync

    def rename(source: str, target: str, **options: int) -> None:
        folder = Path(f"/proc/self/fd/{options['src_dir_fd']}").readlink()
        events.append(folder.name)
        real_rename(source, target, **options)

    def fsync(fd: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        real_fsync(fd)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "fsync", fsync)
    move_to_trash(str(root), [one])
    assert [event for event in events if event not in {"sync trash", "sync t"}] == [
        "rank_0",
        "sync rank_0",
        "sync rank_0",
        "rank_1",
        "rank_2",
        "sync rank_1",
        "sync rank_2",
        "sync rank_1",
        "sync rank_2",
    ]
    events.clear()
    restore(str(root), [one])
    assert events == ["rank_2", "rank_1", "sync rank_1", "sync rank_2", "rank_0", "sync rank_0"]


def test_deleting_follows_no_link_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/x").write_text("mine")
    one = batch(root, "rank_0/a", "iteration_1")
    move_to_trash(str(root), [one])
    (root / one.trash / "link").symlink_to(tmp_path / "mine")
    (root / one.trash / "rank_0/a").chmod(0o400)
    delete(str(root), one.trash)
    assert list((root / TRASH).iterdir()) == []
    assert (tmp_path / "mine/x").exists()


def test_what_cannot_be_deleted_is_tried_again_next_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch(root, "rank_0/a", "rank_1/a")
    move_to_trash(str(root), [one])
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EACCES, "no")))
        with pytest.raises(CkptToolError, match="the next ckpttool prune --apply or trash empty --apply tries again"):
            delete(str(root), one.trash)
    delete(str(root), one.trash)
    assert list((root / TRASH).iterdir()) == []
