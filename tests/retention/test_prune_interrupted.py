"""A prune that is stopped anywhere, in any way, loses nothing good, and the next one ends as if nothing had been."""

from __future__ import annotations

import errno
import os
import shutil
from functools import cache, partial
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.errors import IncompleteError, WriteFailedError
from tests.support.prunable_trees import (
    WAYS,
    call_of_the_half,
    calls_to_stop_at,
    files,
    legacy,
    newer,
    outside_trash,
    pruned,
    small,
    stopped,
    whole,
)
from tests.support.trees import TreeBuilder

NEWEST = {"legacy": "_1-30_2", "newer": "iteration_00000030"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: a thousand prunes run here, and each waits a hundred times."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", NEWEST)
@pytest.mark.parametrize("way", WAYS)
def test_wherever_it_stops_the_next_one_finishes_and_the_newest_good_one_was_never_away(
    layout: str, way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "undisturbed").mkdir()
    original = {"legacy": small, "newer": newer}[layout](tmp_path / "original")
    done = TreeBuilder(tmp_path / "undisturbed")
    shutil.copytree(original.output, done.output)
    everything = whole(done)
    pruned(done)
    expected = files(done)
    for nth in calls_to_stop_at(way, request.config):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        stop = stopped(partial(pruned, tree), nth, way)
        if not stop.happened:
            assert nth > 20
            return
        assert {NEWEST[layout]} <= whole(tree) <= everything
        assert pruned(tree).applied
        assert files(tree) == expected, f"stopped at call {nth}, {stop.calls[nth - 1]}"
        shutil.rmtree(tree.base)
    pytest.fail("more calls than a prune should need")


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_moment_shows_a_checkpoint_on_fewer_ranks(
    ranks: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The only checkpoint of its run on all ranks, beside a run on half of them, which is taken for meant."""
    original = TreeBuilder(tmp_path / "original").legacy(ranks=ranks, sparse=True)
    original.save(epoch=10, step=2).save(epoch=30, step=2, run=1)
    for nth in range(1, 1000, 1 if request.config.getoption("--nightly") else 3):
        tree = TreeBuilder(tmp_path / str(nth))
        shutil.copytree(original.output, tree.output)
        stop = stopped(partial(pruned, tree), nth, "killed after the call")
        if not stop.happened:
            return
        kept = {path.rpartition("/")[2].rpartition("-")[2] for path in outside_trash(files(tree)) if "ckpt" in path}
        for name in whole(tree):
            label = f"{name.rpartition('-')[2]}.ckpt"
            assert label in kept
            assert sum(path.endswith(f"-{label}") for path in outside_trash(files(tree))) == ranks
        shutil.rmtree(tree.base)
    pytest.fail("more calls than a prune should need")


@cache
def half() -> int:
    return call_of_the_half(legacy, pruned, is_half)


def is_half(tree: TreeBuilder) -> bool:
    return (tree.checkpoint / ".ckpttool/prune.json").exists() and not (tree.output / tree.shard(1, 10, 2)).exists()


def half_done(tmp_path: Path) -> TreeBuilder:
    """A prune that was killed when some ranks' files were moved."""
    tree = legacy(tmp_path)
    stopped(partial(pruned, tree), half(), "killed after the call")
    return tree


def test_a_dry_run_says_that_one_was_interrupted_and_changes_nothing(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    before = files(tree)
    pruning = pruned(tree, apply=False)
    assert [(one.code, one.path) for one in pruning.refusals][:1] == [(Code.IN_PROGRESS, ".ckpttool/prune.json")]
    assert files(tree) == before


def test_what_was_interrupted_is_undone_even_where_the_new_policy_keeps_it(tmp_path: Path) -> None:
    tree = half_done(tmp_path)
    pruned(tree, last=5)
    assert whole(tree) == {"10_2", "15_2", "20_2", "_1-25_2", "_1-30_2"}
    assert not (tree.checkpoint / ".ckpttool/prune.json").exists()
    assert list((tree.checkpoint / ".ckpttool/trash").iterdir()) == []


def test_a_place_that_was_taken_meanwhile_is_for_a_person_to_decide(tmp_path: Path) -> None:
    tree = half_done(tmp_path).file("checkpoint/rank_1/llama2_7b_rank_1-10_2.ckpt", "new")
    before = files(tree)
    with pytest.raises(IncompleteError, match=r"rank_1-10_2.ckpt' back: a new file has its name; move it"):
        pruned(tree)
    assert sorted(files(tree).values()) == sorted(before.values())
    (tree.output / tree.shard(1, 10, 2)).unlink()
    assert pruned(tree).applied


def test_a_rank_folder_that_is_gone_meanwhile_is_for_a_person_to_decide(tmp_path: Path) -> None:
    tree = half_done(tmp_path).remove("checkpoint/rank_1")
    with pytest.raises(IncompleteError, match="its folder no longer exists"):
        pruned(tree)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not match its own hash"),
        (b'{"batches": []}', "does not match its own hash"),
    ],
)
def test_a_journal_that_is_not_believed_stops_every_prune(content: bytes, words: str, tmp_path: Path) -> None:
    tree = legacy(tmp_path).file("checkpoint/.ckpttool/prune.json", content)
    before = files(tree)
    for apply in (False, True):
        with pytest.raises(IncompleteError, match=words):
            pruned(tree, apply=apply)
    assert files(tree) == before


def test_nothing_goes_while_a_record_that_may_name_it_cannot_be_read(tmp_path: Path) -> None:
    tree = small(tmp_path).file("checkpoint/rank_1/meta.json", b" " * 100_000)
    before = files(tree)
    pruning = pruned(tree)
    assert [(one.code, one.path) for one in pruning.refusals] == [(Code.META_UNREADABLE, "rank_1/meta.json")]
    assert files(tree) == before


def test_nothing_moves_where_the_disk_does_not_confirm_what_must_be_there_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = small(tmp_path)
    before = whole(tree)

    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "rank_1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        WriteFailedError, match="nothing was moved, because the journal or a record could not be flushed to disk"
    ):
        pruned(tree)
    assert whole(tree) == before
