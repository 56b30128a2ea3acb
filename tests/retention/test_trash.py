"""What a prune moved away comes back as it was, whatever happens meanwhile, or goes for good."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import Trash
from ckpttool.core.errors import (
    ExitCode,
    IncompleteError,
    LockedError,
    UnsafeError,
    UsageError,
    WriteFailedError,
)
from ckpttool.core.storage.base import Entry
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.write.files import locked
from tests.support.prunable_trees import WAYS, calls_to_stop_at, files, legacy, newer, pruned, small, stopped, whole
from tests.support.trees import TreeBuilder

TREES: dict[str, tuple[Callable[[Path], TreeBuilder], str]] = {
    "legacy": (legacy, "10_2"),
    "sealed": (small, "20_2"),
    "newer": (newer, "iteration_00000010"),
}
"""A tree, and a checkpoint that its prune moves away."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def question(tree: TreeBuilder) -> TreeQuestion:
    return TreeQuestion(path=str(tree.checkpoint))


def trashed(tree: TreeBuilder) -> Trash:
    """Prune into the trash, and list it."""
    assert pruned(tree, trash_days=7).applied
    return ckpttool.library.trash(question(tree))


def shards(tree: TreeBuilder) -> dict[str, bytes]:
    """Every file but the trainer's records, which name a newer checkpoint from then on."""
    return {path: content for path, content in files(tree).items() if not path.endswith(("meta.json", ".txt"))}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TREES)
def test_all_that_is_restored_is_byte_for_byte_what_it_was(name: str, tmp_path: Path) -> None:
    make, _ = TREES[name]
    tree = make(tmp_path)
    before, good = shards(tree), whole(tree)
    content = trashed(tree).content
    assert content
    for save in content:
        restored = ckpttool.library.restore(question(tree), save.name)
        assert [each.name for each in restored.taken] == [save.name]
        assert restored.exit_code is ExitCode.OK
    assert (shards(tree), whole(tree)) == (before, good)
    assert ckpttool.library.trash(question(tree)).content == ()
    assert list((tree.checkpoint / ".ckpttool/trash").iterdir()) == []


def test_a_list_tells_name_step_bytes_and_since_when(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    nbytes = {
        one.name: one.nbytes
        for one in ckpttool.scan(TreeQuestion(path=str(tree.checkpoint), sizes=True)).inventory.checkpoints
    }
    found = trashed(tree)
    assert [(save.name, save.step, save.nbytes) for save in found.content][:2] == [
        ("10_2", 20, nbytes["10_2"]),
        ("15_2", 30, nbytes["15_2"]),
    ]
    assert not any(save.taken for save in found.content)
    assert not found.applied


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["sealed", "newer"])
@pytest.mark.parametrize(("way", "then"), [*((way, "restore") for way in WAYS), ("killed after the call", "prune")])
def test_wherever_a_restore_stops_the_next_command_brings_the_rest(
    name: str, way: str, then: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make, wanted = TREES[name]
    original = make(tmp_path / "original")
    everything = whole(original)
    trashed(original)
    for nth in calls_to_stop_at(way, request.config):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        stayed = whole(tree)
        stop = stopped(partial(ckpttool.library.restore, question(tree), wanted), nth, way)
        if not stop.happened:
            assert nth > 10
            return
        assert stayed <= whole(tree) <= everything
        if then == "restore":
            if wanted not in whole(tree) or (tree.checkpoint / ".ckpttool/prune.json").exists():
                ckpttool.library.restore(question(tree), wanted)
            assert wanted in whole(tree)
        else:
            assert pruned(tree, last=9, trash_days=7).applied
            gone = {save.name for save in ckpttool.library.trash(question(tree)).content}
            assert (wanted in whole(tree)) is (wanted not in gone)
        assert not (tree.checkpoint / ".ckpttool/prune.json").exists()
        shutil.rmtree(tree.base)
    pytest.fail("more calls than a restore should need")


def half_restored(tmp_path: Path) -> TreeBuilder:
    """A restore that was killed when some ranks' files were back."""
    original = legacy(tmp_path / "original")
    trashed(original)
    for nth in range(1, 100):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        stopped(partial(ckpttool.library.restore, question(tree), "10_2"), nth, "killed after the call")
        if (tree.output / tree.shard(1, 10, 2)).exists() and not (tree.output / tree.shard(0, 10, 2)).exists():
            return tree
    raise AssertionError("never half done")


def test_whoever_looks_is_told_that_a_restore_was_interrupted_and_changes_nothing(tmp_path: Path) -> None:
    tree = half_restored(tmp_path)
    before = files(tree)
    for told in (
        ckpttool.library.trash(question(tree)).findings,
        ckpttool.library.empty_trash(question(tree)).findings,
        pruned(tree, apply=False).refusals,
    ):
        assert told[0].code is Code.IN_PROGRESS
        assert "a restore from the trash" in told[0].message
    assert files(tree) == before
    assert "10_2" not in whole(tree)


def test_what_was_half_restored_is_whole_again_before_the_trash_is_emptied(tmp_path: Path) -> None:
    tree = half_restored(tmp_path)
    assert {save.name for save in ckpttool.library.empty_trash(question(tree), apply=True).taken} == {
        "15_2",
        "20_2",
        "_1-25_2",
    }
    assert "10_2" in whole(tree)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    tree.file("checkpoint/rank_1/llama2_7b_rank_1-10_2.ckpt", "new")
    before = files(tree)
    with pytest.raises(UsageError, match=r"rank_1-10_2.ckpt' already exists in its place"):
        ckpttool.library.restore(question(tree), "10_2")
    assert files(tree) == before


def test_nothing_is_restored_while_somebody_is_saving(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    os.utime(tree.output / tree.shard(1, 30, 2, run=1))
    before = files(tree)
    with pytest.raises(IncompleteError, match=r"rank_1_1-30_2.ckpt: .*; nothing was changed"):
        ckpttool.library.restore(question(tree), "10_2")
    assert files(tree) == before
    assert ckpttool.library.restore(question(tree), "10_2", grace=0).exit_code is ExitCode.OK


def test_nothing_is_restored_into_a_folder_that_is_gone(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    tree.remove("checkpoint/rank_1")
    before = files(tree)
    with pytest.raises(UsageError, match="its folder no longer exists; nothing was changed"):
        ckpttool.library.restore(question(tree), "10_2")
    assert files(tree) == before


def test_a_save_that_was_made_anew_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    tree = newer(tmp_path)
    trashed(tree)
    TreeBuilder(tree.base, world=2, sparse=True).iteration(step=10, tracker=False)
    before = files(tree)
    with pytest.raises(UsageError, match="'iteration_00000010' already exists in its place"):
        ckpttool.library.restore(question(tree), "iteration_00000010")
    assert files(tree) == before


def test_what_is_restored_with_a_torn_shard_is_said_to_be_damaged(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    content = trashed(tree).content
    (save,) = (each for each in content if each.name == "10_2")
    shard = tree.checkpoint / ".ckpttool/trash" / save.folder / "rank_2/llama2_7b_rank_2-10_2.ckpt"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)
    restored = ckpttool.library.restore(question(tree), "10_2")
    assert restored.exit_code is ExitCode.DAMAGE
    assert {finding.path for finding in restored.findings} == {"rank_2/llama2_7b_rank_2-10_2.ckpt"}
    assert ckpttool.library.restore(question(tree), "15_2", grace=0).exit_code is ExitCode.OK


def test_the_damage_of_another_training_in_the_folder_is_not_that_of_what_was_restored(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    folder = next((tree.checkpoint / ".ckpttool/trash").glob("*-10_2"))
    for rank in range(3):
        shard = folder / f"rank_{rank}/llama2_7b_rank_{rank}-10_2.ckpt"
        other = tree.checkpoint / f"rank_{rank}/qwen_rank_{rank}-10_2.ckpt"
        other.write_bytes(shard.read_bytes()[: 9 if rank == 1 else None])
        os.utime(other, (1e9, 1e9))
    assert ckpttool.library.restore(question(tree), "10_2").exit_code is ExitCode.OK
    found = {one.key[:2]: one for one in ckpttool.scan(question(tree)).inventory.checkpoints}
    assert {("llama2_7b", "10_2"), ("qwen", "10_2")} <= found.keys()


def test_two_trainings_in_the_trash_are_told_apart_by_their_prefix(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    trash = tree.checkpoint / ".ckpttool/trash"
    folder = next(trash.glob("*-10_2"))
    for shard in folder.glob("rank_*/*"):
        other = trash / "20200101T000000Z-10_2" / shard.parent.name / shard.name.replace("llama2_7b", "qwen")
        other.parent.mkdir(parents=True)
        shutil.copy2(shard, other)
    assert [save.prefix for save in ckpttool.library.trash(question(tree)).content if save.name == "10_2"] == [
        "qwen",
        "llama2_7b",
    ]
    with pytest.raises(UsageError, match=rf"Z-10_2 \(prefix qwen\), {folder.name} \(prefix llama2_7b\)"):
        ckpttool.library.restore(question(tree), "10_2")
    assert ckpttool.library.restore(question(tree), "20200101T000000Z-10_2").exit_code is ExitCode.OK


def test_of_two_with_one_name_the_folder_says_which(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    trash = tree.checkpoint / ".ckpttool/trash"
    (folder,) = trash.glob("*-10_2")
    shutil.copytree(folder, trash / "20200101T000000Z-10_2")
    with pytest.raises(
        UsageError, match="2 checkpoints named 10_2 are in the trash: give the folder of one: 20200101T000000Z-10_2, "
    ):
        ckpttool.library.restore(question(tree), "10_2")
    assert [save.folder for save in ckpttool.library.restore(question(tree), folder.name).taken] == [folder.name]


def test_what_is_no_checkpoint_is_listed_and_left_to_a_person(tmp_path: Path) -> None:
    tree = legacy(tmp_path).file("checkpoint/.ckpttool/trash/20200101T000000Z-7_2/notes", "x")
    (save,) = ckpttool.library.trash(question(tree)).content
    assert (save.name, save.step, save.nbytes) == ("7_2", None, None)
    with pytest.raises(IncompleteError, match="does not contain exactly one checkpoint"):
        ckpttool.library.restore(question(tree), "7_2")


def test_nothing_is_restored_through_a_link(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    (save,) = (each for each in trashed(tree).content if each.name == "10_2")
    shard = tree.checkpoint / ".ckpttool/trash" / save.folder / "rank_2/llama2_7b_rank_2-10_2.ckpt"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    before = files(tree)
    with pytest.raises(UnsafeError, match="is a link"):
        ckpttool.library.restore(question(tree), "10_2")
    assert files(tree) == before


@pytest.mark.parametrize("inside", ["", "rank_1"])
def test_of_a_folder_in_the_trash_that_cannot_be_read_nothing_is_moved_and_the_others_come_back(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    (save,) = (each for each in trashed(tree).content if each.name == "10_2")
    before, closed = files(tree), f"{save.folder}/{inside}".rstrip("/")
    real = LocalStorage.entries

    def entries(storage: LocalStorage, folder: str) -> list[Entry]:
        if f"{storage.root}/{folder}".rstrip("/").endswith(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(storage, folder)

    monkeypatch.setattr(LocalStorage, "entries", entries)
    found = ckpttool.library.trash(question(tree))
    assert found.exit_code is ExitCode.INCOMPLETE
    assert [(each.code, each.path) for each in found.findings] == [(Code.UNREADABLE, f".ckpttool/trash/{closed}")]
    assert {each.name for each in found.content} == {"10_2", "15_2", "20_2", "_1-25_2"}
    with pytest.raises(IncompleteError, match=rf"{closed} cannot be read \(Permission denied\).*; nothing was moved"):
        ckpttool.library.restore(question(tree), "10_2")
    assert files(tree) == before
    assert ckpttool.library.restore(question(tree), "15_2").exit_code is ExitCode.OK


def test_a_link_in_the_trash_is_told_and_keeps_nothing_from_being_emptied_or_pruned(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "rank_0").mkdir(parents=True)
    link = tree.checkpoint / ".ckpttool/trash/20200101T000000Z-7_2"
    link.symlink_to(elsewhere)
    found = ckpttool.library.trash(question(tree))
    assert (len(found.content), found.exit_code) == (4, ExitCode.OK)
    assert [(each.code, each.path) for each in found.findings] == [
        (Code.NOT_A_REGULAR_FILE, ".ckpttool/trash/20200101T000000Z-7_2")
    ]
    assert pruned(tree, last=1, trash_days=1).applied
    emptied = ckpttool.library.empty_trash(question(tree), apply=True)
    assert (emptied.applied, len(emptied.taken)) == (True, 4)
    assert ckpttool.library.trash(question(tree)).content == ()
    assert (elsewhere / "rank_0").exists()
    assert link.is_symlink()


@pytest.mark.parametrize("place", [".ckpttool/trash", ".ckpttool"])
def test_a_trash_that_is_a_link_is_neither_listed_nor_changed_and_no_journal_is_left(
    place: str, tmp_path: Path
) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    (tree.checkpoint / place).rename(tmp_path / "elsewhere")
    (tree.checkpoint / place).symlink_to(tmp_path / "elsewhere")
    for ask in (
        lambda: ckpttool.library.trash(question(tree)),
        lambda: ckpttool.library.restore(question(tree), "10_2"),
        lambda: ckpttool.library.empty_trash(question(tree), apply=True),
        lambda: pruned(tree, trash_days=7),
    ):
        with pytest.raises((UnsafeError, WriteFailedError), match=f"{place} is a link|a symbolic link has its name"):
            ask()
    assert not (tree.checkpoint / ".ckpttool/prune.json").exists()
    (tree.checkpoint / place).unlink()
    (tmp_path / "elsewhere").rename(tree.checkpoint / place)
    assert ckpttool.library.restore(question(tree), "10_2").exit_code is ExitCode.OK


def test_a_restore_that_moved_nothing_leaves_no_journal_and_one_that_moved_something_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    real: Callable[..., None] = os.link
    turns = iter((False, True, False))

    def failing(*names: str, **options: int) -> None:
        if not next(turns):  # the second restore moves one file
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*names, **options)

    monkeypatch.setattr(os, "link", failing)
    for left in (False, True):
        with pytest.raises(WriteFailedError):
            ckpttool.library.restore(question(tree), "10_2")
        assert (tree.checkpoint / ".ckpttool/prune.json").exists() is left


def test_only_what_has_been_there_for_so_long_is_deleted(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    (folder,) = (tree.checkpoint / ".ckpttool/trash").glob("*-10_2")
    folder.rename(folder.with_name("20200101T000000Z-10_2"))
    before = files(tree)
    dry = ckpttool.library.empty_trash(question(tree), older_than=7 * 86400.0)
    assert [save.name for save in dry.taken] == ["10_2"]
    assert files(tree) == before
    done = ckpttool.library.empty_trash(question(tree), older_than=7 * 86400.0, apply=True)
    assert [save.name for save in done.taken] == ["10_2"]
    left = ckpttool.library.trash(question(tree)).content
    assert {save.name for save in left} == {"15_2", "20_2", "_1-25_2"}
    assert ckpttool.library.empty_trash(question(tree), apply=True).applied
    assert ckpttool.library.trash(question(tree)).content == ()


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    tree = legacy(tmp_path)
    trashed(tree)
    before = files(tree)
    with locked(str(tree.checkpoint / ".ckpttool/prune"), timeout=0):
        with pytest.raises(LockedError):
            ckpttool.library.restore(question(tree), "10_2")
        with pytest.raises(LockedError):
            ckpttool.library.empty_trash(question(tree), apply=True)
        assert len(ckpttool.library.trash(question(tree)).content) == 4
    assert files(tree) == before
