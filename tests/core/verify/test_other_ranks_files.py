"""A shard that is another rank's file is seen, whatever befell the saves before; ranks that differ by right are not.

Each of these was missed, or raised a false alarm, once. All of it goes through `verify`, by headers alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ckpttool.core.domain.verdict import Level
from tests.support.prunable_trees import resumes_from
from tests.support.trees import Fmt, Tensor, TreeBuilder, floats, shard_bytes, training_scalars
from tests.support.verifying import found, verdicts

Content = Callable[[int, int], Sequence[Tensor]]
"""What a rank holds after an epoch."""

pytestmark = pytest.mark.sample(2)  # of each format and number of ranks

each_format = pytest.mark.parametrize("fmt", ["ckpt", "safetensors"])
LAST = 15


def tree_of(
    base: Path, fmt: Fmt, content: Content, *, ranks: int = 4, epochs: Sequence[int] = (5, 10, LAST)
) -> TreeBuilder:
    tree = TreeBuilder(base).legacy(ranks=ranks, fmt=fmt)
    for epoch in epochs:
        for rank in range(ranks):
            tensors = [*content(rank, epoch), *training_scalars(epoch=epoch, true_step=2 * epoch)]
            tree.file(tree.shard(rank, epoch, 2), shard_bytes(tensors, fmt)).meta(rank, epoch, 2, None)
    return tree


def copy(tree: TreeBuilder, *, of: int, to: int, epoch: int = LAST) -> None:
    shutil.copy(tree.output / tree.shard(of, epoch, 2), tree.output / tree.shard(to, epoch, 2))


def blamed(tree: TreeBuilder, epoch: int = LAST) -> set[str]:
    """The ranks of a save of which more than a note is said."""
    paths = [path or "" for _, path in found(verdicts(tree.checkpoint, name=f"{epoch}_2"))]
    return {path.partition("/")[0] for path in paths}


def slices(rank: int, epoch: int) -> Sequence[Tensor]:
    return [floats("weight", [64], seed=100 * rank + epoch)]


def with_one_of_its_own(*owners: int) -> Content:
    """Replicas, but for one tensor that each of some ranks holds alone."""

    def content(rank: int, epoch: int) -> Sequence[Tensor]:
        own = [floats(f"a{rank}", [8], seed=epoch)] if rank in owners else []
        return [*own, floats("weight", [64], seed=epoch)]

    return content


def counting(*counts: int) -> Content:
    """Replicas that each count something, which is equal on all at the last save."""

    def content(rank: int, epoch: int) -> Sequence[Tensor]:
        count = floats("zz_count", [1], values=[float(7 if epoch == LAST else counts[rank])])
        return [floats("weight", [64], seed=epoch), count]

    return content


@each_format
@pytest.mark.parametrize("is_torn", [True, False])
def test_a_copy_is_seen_where_the_save_before_lacks_that_rank(fmt: Fmt, is_torn: bool, tmp_path: Path) -> None:
    tree = tree_of(tmp_path, fmt, slices)
    earlier = tree.output / tree.shard(3, 10, 2)
    earlier.write_bytes(earlier.read_bytes()[: 100 if is_torn else None])
    if not is_torn:
        earlier.unlink()
    assert blamed(tree) == set()
    assert resumes_from(tree) == "15_2"
    copy(tree, of=2, to=3)
    assert blamed(tree) == {"rank_2", "rank_3"}
    assert resumes_from(tree) == "5_2"


@each_format
@pytest.mark.parametrize(("ranks", "owners"), [(6, (0, 5)), (4, (0,)), (8, (0, 7))])
@pytest.mark.parametrize("epochs", [(5, 10, LAST), (10, LAST)])
def test_a_rank_that_lost_its_own_tensor_is_seen(
    fmt: Fmt, ranks: int, owners: Sequence[int], epochs: Sequence[int], tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, fmt, with_one_of_its_own(*owners), ranks=ranks, epochs=epochs)
    assert blamed(tree) == set()
    copy(tree, of=1, to=0)
    assert blamed(tree) == {"rank_0"}
    assert resumes_from(tree) == "10_2"


@each_format
@pytest.mark.parametrize("epochs", [(5, 10, LAST), (10, LAST)])
def test_a_save_is_not_blamed_for_a_rank_that_lost_its_own_tensor_before(
    fmt: Fmt, epochs: Sequence[int], tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, fmt, with_one_of_its_own(0), epochs=epochs)
    copy(tree, of=1, to=0, epoch=10)
    assert blamed(tree) == set()
    assert resumes_from(tree) == "15_2"


@each_format
def test_the_one_save_of_ranks_one_of_which_holds_more_is_whole(fmt: Fmt, tmp_path: Path) -> None:
    tree = tree_of(tmp_path / "more", fmt, with_one_of_its_own(0), epochs=[LAST])
    assert blamed(tree) == set()
    assert resumes_from(tree) == "15_2"
    fewer = tree_of(tmp_path / "fewer", fmt, with_one_of_its_own(0, 1, 2), epochs=[LAST])
    for rank in (1, 2):
        copy(fewer, of=0, to=rank)
    assert blamed(fewer) == {"rank_3"}


@each_format
def test_what_each_rank_counts_may_become_equal_on_all(fmt: Fmt, tmp_path: Path) -> None:
    tree = tree_of(tmp_path, fmt, counting(1, 2, 1, 2), epochs=[10, LAST])
    assert blamed(tree) == set()
    assert resumes_from(tree) == "15_2"


@each_format
def test_a_copy_among_slices_with_replicas_is_seen_beside_one_save(fmt: Fmt, tmp_path: Path) -> None:
    tree = tree_of(tmp_path, fmt, lambda rank, epoch: slices(rank % 2, epoch), ranks=6, epochs=[10, LAST])
    assert blamed(tree) == set()
    copy(tree, of=1, to=0)
    assert blamed(tree) == {"rank_0"}


@each_format
def test_a_save_is_not_blamed_for_a_copy_in_the_save_before(fmt: Fmt, tmp_path: Path) -> None:
    tree = tree_of(tmp_path, fmt, lambda rank, epoch: slices(rank % 2, epoch), ranks=6)
    copy(tree, of=0, to=5, epoch=10)
    assert blamed(tree) == set()
    assert blamed(tree, 10) == {"rank_5"}
    assert resumes_from(tree) == "15_2"


def test_a_chronic_copy_is_seen_where_another_save_shows_slices(tmp_path: Path) -> None:
    """Each rank is a slice of its own at the save before; that the two are equal before that excuses nothing."""
    tree = tree_of(tmp_path, "safetensors", slices)
    for epoch in (5, LAST):
        copy(tree, of=2, to=3, epoch=epoch)
    assert blamed(tree) == {"rank_2", "rank_3"}


@pytest.mark.parametrize("level", Level)
@each_format
def test_a_copy_of_a_file_that_agrees_with_its_replicas_is_seen_at_every_level(
    fmt: Fmt, level: Level, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, fmt, lambda rank, epoch: slices(rank % 2, epoch))
    assert found(verdicts(tree.checkpoint, level, "15_2", jump=0)) == []
    copy(tree, of=0, to=1)
    assert "rank_1/" in str(found(verdicts(tree.checkpoint, level, "15_2", jump=0)))
