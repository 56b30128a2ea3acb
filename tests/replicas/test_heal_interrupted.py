"""A heal that is stopped anywhere, in any way: the next change of the tree finds the old state or makes the new one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.errors import IncompleteError, WriteFailedError
from ckpttool.replicas.model import Healing, HealOrder
from tests.support.prunable_trees import WAYS, Stop, call_of_the_half, files, outside_trash, pruned, stopped
from tests.support.trees import TreeBuilder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk, and let no second pass between two heals: manifests and trash folders tell the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("ckpttool.replicas.write.moment", lambda _: "2026-01-01T00:00:00Z")
    monkeypatch.setattr("time.strftime", lambda *_: "20260101T000000Z")


def legacy(folder: Path) -> TreeBuilder:
    """Three saves on three ranks; of the newest one rank's shard is gone and another one's is cut."""
    tree = TreeBuilder(folder).legacy(ranks=3, sparse=True)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
    for rank in range(3):
        tree.meta(rank, 15, 2, f"llama2_7b_rank_{rank}-15_2.ckpt")
    (tree.output / tree.shard(1, 20, 2)).unlink()
    cut = tree.output / tree.shard(2, 20, 2)
    cut.write_bytes(cut.read_bytes()[:-3])
    (tree.checkpoint / "rank_2/gone").touch()
    (tree.checkpoint / "rank_2/gone").unlink()
    return tree


def healed(tree: TreeBuilder, *, apply: bool = True) -> Healing:
    return ckpttool.heal(str(tree.checkpoint), HealOrder(checkpoint="20_2", grace=0, apply=apply))


def stop_at_calls(tmp_path: Path, calls: range, way_at: Callable[[int], str]) -> None:
    """Stop at one call after the other, and then heal: it ends as if nothing had been."""
    original = legacy(tmp_path / "original")
    (tmp_path / "undisturbed").mkdir()
    done = TreeBuilder(tmp_path / "undisturbed")
    shutil.copytree(original.output, done.output)
    before = files(done)
    assert healed(done).applied
    expected = files(done)
    assert before.keys() <= expected.keys()
    for nth in calls:
        way = way_at(nth)
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        stop = stopped(partial(healed, tree), nth, way)
        if not stop.happened:
            assert nth > 20
            return
        left = {path: content for path, content in files(tree).items() if path in before}
        assert left.keys() == before.keys(), f"a file was away after call {nth}"
        assert all(content in {before[path], expected[path]} for path, content in left.items())
        # Some are old and some new where it was killed between two renames, and then the journal tells.
        if left not in (before, {path: expected[path] for path in before}):
            assert "killed" in way or "all after it" in way
            assert (tree.checkpoint / ".ckpttool/heal.json").exists()
        healed(tree)
        assert files(tree) == expected, f"stopped at call {nth}, {stop.calls[nth - 1]}"
        shutil.rmtree(tree.base)
    pytest.fail("more calls than a heal should need")


@pytest.mark.no_cover
def test_wherever_it_stops_the_tree_is_as_before_or_the_next_one_ends_it(tmp_path: Path) -> None:
    ways = [*WAYS]
    stop_at_calls(tmp_path, range(1, 1000, 5), lambda nth: ways[nth % len(ways)])


@cache
def half() -> int:
    return call_of_the_half(legacy, healed, is_half)


def is_half(tree: TreeBuilder) -> bool:
    return (tree.checkpoint / ".ckpttool/heal.json").exists() and (tree.output / tree.shard(1, 20, 2)).exists()


def half_done(tmp_path: Path) -> TreeBuilder:
    """A heal that was killed when one of two files was in its place."""
    tree = legacy(tmp_path)
    stopped(partial(healed, tree), half(), "killed after the call")
    return tree


def test_a_dry_run_says_that_one_was_interrupted_and_changes_nothing(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    before = files(tree)
    assert (Code.IN_PROGRESS, ".ckpttool/heal.json") in {
        (one.code, one.path) for one in healed(tree, apply=False).refusals
    }
    assert (Code.IN_PROGRESS, ".ckpttool/heal.json") in {
        (one.code, one.path) for one in ckpttool.scan(str(tree.checkpoint)).inventory.findings
    }
    assert files(tree) == before


def test_whatever_changes_the_tree_next_ends_it(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    assert pruned(tree, last=9).applied
    assert not (tree.checkpoint / ".ckpttool/heal.json").exists()
    assert healed(tree, apply=False).shards == ()


def test_what_was_laid_ready_and_is_gone_is_for_a_person_to_decide(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    for ready in tree.checkpoint.rglob("*/.ckpttool-*.tmp"):
        ready.unlink()
    with pytest.raises(IncompleteError, match="the file to be moved there, has changed; check both"):
        healed(tree)
    (tree.checkpoint / ".ckpttool/heal.json").unlink()
    assert healed(tree).applied


def test_a_new_save_in_the_place_is_for_a_person_to_decide(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    place = tree.output / tree.shard(2, 20, 2)
    place.write_bytes(b"new")
    with pytest.raises(IncompleteError, match="it was changed after it was read, so it was not replaced"):
        healed(tree)
    assert place.read_bytes() == b"new"


@pytest.mark.parametrize("content", [b"", b'{"files": []}'])
def test_a_journal_that_is_not_believed_stops_every_change(content: bytes, tmp_path: Path) -> None:
    tree = legacy(tmp_path).file("checkpoint/.ckpttool/heal.json", content)
    before = files(tree)
    for apply in (False, True):
        with pytest.raises(IncompleteError, match=r"a heal was interrupted, and its journal .* not match its own hash"):
            healed(tree, apply=apply)
    assert files(tree) == before


def test_a_full_disk_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = legacy(tmp_path)
    before = files(tree)
    real = os.fstatvfs
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstatvfs", lambda fd: os.statvfs_result((4096, 4096, 9, 0, 0, *tuple(real(fd))[5:])))
        with pytest.raises(WriteFailedError, match="and the disk has 0 free; nothing was changed"):
            healed(tree)
    assert outside_trash(files(tree)) == before
    with monkeypatch.context() as patch:
        stop = Stop(patch, 10**9, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=False, for_good=False)
        healed(tree)
        writes = [index for index, name in enumerate(stop.calls, 1) if name == "write"]
    assert len(writes) >= 5


def full_at(nth: int) -> Callable[[int, bytes], int]:
    """A write that finds the disk full when it is called so many times."""
    real, count = os.write, iter(range(1, 10**6))

    def write(fd: int, data: bytes) -> int:
        if next(count) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    return write


def test_each_write_may_find_the_disk_full_and_nothing_is_changed(tmp_path: Path) -> None:
    original = legacy(tmp_path / "original")
    before = files(original)
    for nth in range(1, 50):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", full_at(nth))
            try:
                healed(tree)
            except WriteFailedError:
                assert outside_trash(files(tree)) == before
                continue
        assert nth > 4
        return


def test_a_folder_that_is_read_only_is_refused_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    before = files(tree)
    real = os.open

    def refused(path: str, flags: int, *mode: int, dir_fd: int | None = None) -> int:
        if path.startswith(".ckpttool-") and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(WriteFailedError, match="Read-only file system"):
        healed(tree)
    monkeypatch.undo()
    assert files(tree) == before


def test_where_there_are_no_hard_links_what_is_replaced_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    damaged = (tree.output / tree.shard(2, 20, 2)).read_bytes()

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    healing = healed(tree)
    assert (
        tree.checkpoint / str(healing.trash) / tree.shard(2, 20, 2).removeprefix("checkpoint/")
    ).read_bytes() == damaged
