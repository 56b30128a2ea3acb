"""Renames to the trash and back, one by one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.domain.retention import Batch, Move
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import CkptToolError, IncompleteError, UnsafeError, WriteFailedError
from ckpttool.core.write.moves import delete, move_to_trash, restore

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
    with pytest.raises(UnsafeError, match="is a link or not a folder"):
        move_to_trash(str(root), [one])
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a", "x"}


def test_a_link_in_place_of_a_file_is_not_moved(root: Path) -> None:
    (root / "rank_1/a").unlink()
    (root / "rank_1/a").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeError, match="is a link or not a regular file"):
        move_to_trash(str(root), [batch(root, "rank_1/a")])


def test_another_disk_is_noticed_before_the_rename(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch(root, "rank_1/a")
    real, seen = os.fstat, []

    def fstat(fd: int) -> os.stat_result:
        seen.append(fd)
        status = real(fd)
        return os.stat_result((*status[:2], len(seen), *status[3:]))

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(UnsafeError, match="on a different disk from the trash"):
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

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(WriteFailedError, match="Input/output error"):
        restore(str(root), [one])


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, save: Callable[[], object]) -> None:
    """Let a save land just before the first call that gives a name back."""
    real = getattr(os, name)

    def call(*arguments: str, **options: int) -> None:
        save()
        real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


def test_a_save_that_lands_just_before_a_file_comes_back_is_not_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = batch(root, "rank_0/a", "rank_1/a")
    move_to_trash(str(root), [one])
    with monkeypatch.context() as patch:
        meanwhile(patch, "link", lambda: (root / "rank_1/a").write_text("newer"))
        with pytest.raises(IncompleteError, match="cannot put 'rank_1/a' back: a new file"):
            restore(str(root), [one])
    assert (root / "rank_1/a").read_text() == "newer"
    assert {path: (root / one.trash / path).read_text() for path in ("rank_0/a", "rank_1/a")} == {
        "rank_0/a": "rank_0/a",
        "rank_1/a": "rank_1/a",
    }
    (root / "rank_1/a").unlink()
    restore(str(root), [one])
    assert names(root) == {"rank_0/a", "rank_1/a", "iteration_1/x"}


@pytest.mark.parametrize("as_file", [False, True])
def test_a_save_that_lands_just_before_a_folder_comes_back_is_not_replaced(
    as_file: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = batch(root, "iteration_1")
    move_to_trash(str(root), [one])
    newer = root / "iteration_1" / ("" if as_file else "y")

    def land() -> None:
        newer.parent.mkdir(exist_ok=True)
        newer.write_text("newer")

    with monkeypatch.context() as patch:
        meanwhile(patch, "rename", land)
        with pytest.raises(IncompleteError, match="cannot put 'iteration_1' back: a new file"):
            restore(str(root), [one])
    assert newer.read_text() == "newer"
    assert (root / one.trash / "iteration_1/x").read_text() == "iteration_1/x"


def test_a_file_that_a_power_cut_left_with_both_names_is_back(root: Path) -> None:
    one = batch(root, "rank_0/a", "rank_1/a")
    move_to_trash(str(root), [one])
    (root / "rank_1/a").hardlink_to(root / one.trash / "rank_1/a")
    restore(str(root), [one])
    assert names(root) == {"rank_0/a", "rank_1/a", "iteration_1/x"}
    assert (root / "rank_1/a").stat().st_nlink == 1


@pytest.mark.parametrize("why", [errno.EPERM, errno.ENOTSUP])
def test_where_there_are_no_hard_links_files_come_back_and_over_nothing(
    why: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "link", failing)
    one = batch(root, "rank_0/a", "rank_1/a")
    move_to_trash(str(root), [one])
    (root / "rank_0/a").write_text("newer")
    with pytest.raises(IncompleteError, match="cannot put 'rank_0/a' back: a new file"):
        restore(str(root), [one])
    assert (root / "rank_0/a").read_text() == "newer"
    (root / "rank_0/a").unlink()
    restore(str(root), [one])
    assert names(root) == {"rank_0/a", "rank_1/a", "iteration_1/x"}


def test_the_first_file_leaves_first_and_comes_back_last(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "rank_2").mkdir()
    (root / "rank_2/a").write_text("2")
    one = batch(root, "rank_0/a", "rank_1/a", "rank_2/a")
    events: list[str] = []
    real_fsync = os.fsync

    def told(real: Callable[..., None], fd: str, what: str = "") -> Callable[..., None]:
        def call(*names: str, **options: int) -> None:
            events.append(f"{what}{Path(f'/proc/self/fd/{options[fd]}').readlink().name}")
            real(*names, **options)

        return call

    def fsync(fd: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        real_fsync(fd)

    monkeypatch.setattr(os, "rename", told(os.rename, "src_dir_fd"))
    monkeypatch.setattr(os, "link", told(os.link, "src_dir_fd"))
    monkeypatch.setattr(os, "unlink", told(os.unlink, "dir_fd", "forget "))
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
    back = ["rank_2", "rank_1", "sync rank_1", "sync rank_2", "rank_0", "sync rank_0"]
    assert events == [*back, "forget rank_0", "forget rank_1", "forget rank_2"]


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
