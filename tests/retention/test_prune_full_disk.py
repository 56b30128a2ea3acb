"""A disk without a free block can be pruned: nothing is written before something is freed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.errors import ExitCode, WriteFailedError
from ckpttool.core.write.reserve import keep_reserve
from tests.reliability.disks import in_memory, why_not
from tests.support.commands import ask
from tests.support.prunable_trees import files, legacy, outside_trash, pruned, resumes_from, seal, stopped, whole
from tests.support.trees import TreeBuilder

PAGES = 2048
"""Of 4 KiB: 8 MiB."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 8 MiB in memory."""
    reason = why_not(tmp_path, images=False)
    if reason is not None:
        pytest.skip(reason)
    with in_memory(tmp_path / "disk", pages=PAGES, inodes=PAGES) as place:
        yield place


def fill(disk: Path) -> None:
    """Leave no page."""
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0


def reserve(tree: TreeBuilder) -> Path:
    return tree.checkpoint / ".ckpttool/reserve"


class TestAFullDisk:
    def test_it_is_pruned_with_what_an_earlier_seal_left(self, disk: Path, tmp_path: Path) -> None:
        undisturbed = legacy(tmp_path / "undisturbed")
        tree = legacy(disk)
        for each in (undisturbed, tree):
            seal(each)
        fill(disk)
        assert pruned(undisturbed, last=2).applied
        assert pruned(tree, last=2).applied
        assert whole(tree) == {"_1-25_2", "_1-30_2"}
        assert files(tree).keys() == files(undisturbed).keys()
        assert outside_trash(files(tree)) == files(tree)

    def test_it_is_pruned_with_what_an_earlier_prune_left_and_leaves_it_again(self, disk: Path) -> None:
        tree = legacy(disk)
        (tree.output / "big").write_bytes(bytes(3 << 20))
        assert pruned(tree, last=4).applied
        fill(disk)
        assert pruned(tree, last=3).applied
        assert not reserve(tree).exists()
        (disk / "filler").unlink()
        assert pruned(tree, last=3).applied
        assert reserve(tree).exists()

    def test_with_trash_days_it_goes_to_the_trash_there_too(self, disk: Path) -> None:
        tree = legacy(disk)
        seal(tree)
        before = whole(tree)
        fill(disk)
        assert pruned(tree, last=2, trash_days=7).applied
        (disk / "filler").unlink()
        for save in ckpttool.library.trash(TreeQuestion(path=str(tree.checkpoint))).content:
            ckpttool.library.restore(TreeQuestion(path=str(tree.checkpoint)), save.name)
        assert whole(tree) == before

    def test_what_was_to_be_deleted_from_the_trash_makes_room_first(self, disk: Path) -> None:
        tree = legacy(disk)
        assert pruned(tree, last=3, trash_days=7).applied
        reserve(tree).unlink()
        fill(disk)
        assert pruned(tree, last=1).applied
        assert whole(tree) == {"_1-30_2"}

    def test_where_nothing_can_be_freed_nothing_is_changed_and_the_way_on_is_said(self, disk: Path) -> None:
        tree = legacy(disk)
        before = files(tree)
        fill(disk)
        with pytest.raises(WriteFailedError, match="free a few hundred KiB by hand"):
            pruned(tree)
        assert files(tree) == before
        (disk / "filler").write_bytes(b"")
        assert pruned(tree).applied

    def test_the_command_says_it_in_one_line(self, disk: Path) -> None:
        tree = legacy(disk)
        fill(disk)
        said = ask("prune", str(tree.checkpoint), "--keep-last", "1", "--grace", "0", "--apply", "-q")
        assert said.code == ExitCode.FAILED
        assert said.stderr.count("\n") == 1
        assert "No space left on device; nothing was changed; the disk is full" in said.stderr

    def test_no_reserve_is_left_where_room_is_short(self, disk: Path) -> None:
        tree = legacy(disk)
        with (disk / "filler").open("wb") as file:
            file.write(bytes((PAGES - 200) << 12))
        seal(tree)
        assert pruned(tree, last=3).applied
        assert not reserve(tree).exists()


class _Full:
    """Writes fail as long as the reserve is there: what a disk without any other room does, without a disk."""

    def __init__(self, patch: pytest.MonkeyPatch, reserve: Path) -> None:
        self.was_met = False
        real = os.write

        def write(fd: int, data: bytes) -> int:
            if reserve.exists():
                self.was_met = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data)

        patch.setattr(os, "write", write)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["the call fails", "killed before the call", "killed after the call"])
def test_wherever_it_stops_the_next_one_finishes_and_the_newest_good_one_was_never_away(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    original = legacy(tmp_path / "original", ranks=2)
    done = TreeBuilder(tmp_path / "done")
    shutil.copytree(original.output, done.output)
    everything = whole(done)
    pruned(done)
    expected = files(done)
    (original.checkpoint / ".ckpttool").mkdir()
    keep_reserve(str(original.checkpoint / ".ckpttool"), files=2)
    for nth in range(1, 1000, 3):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        with pytest.MonkeyPatch.context() as patch:
            full = _Full(patch, reserve(tree))
            stop = stopped(partial(pruned, tree), nth, way)
        if not stop.happened:
            assert full.was_met
            assert nth > 50
            return
        assert {"_1-30_2"} <= whole(tree) <= everything
        assert pruned(tree).applied
        assert files(tree) == expected, f"stopped at call {nth}, {stop.calls[nth - 1]}"
        assert resumes_from(tree) == "_1-30_2"
        shutil.rmtree(tree.base)
    pytest.fail("more calls than a prune should need")
