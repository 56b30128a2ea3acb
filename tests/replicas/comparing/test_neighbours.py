"""A whole checkpoint stays whole, however damaged or incomplete the saves beside it are.

Each of these once made `resolve` pass over a whole checkpoint; the storms and the planted faults found them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prunable_trees import resumes_from
from tests.support.trees import Fmt, TreeBuilder, floats, shard_bytes, training_scalars

RANKS = 8
FORMATS: tuple[Fmt, ...] = ("ckpt", "safetensors")
each_format = pytest.mark.parametrize("fmt", FORMATS)


def staged(base: Path, fmt: Fmt, *epochs: int) -> TreeBuilder:
    """Two pipeline stages of replicas."""
    tree = TreeBuilder(base).legacy(ranks=RANKS, fmt=fmt)
    for epoch in epochs:
        for rank in range(RANKS):
            tree.file(tree.shard(rank, epoch, 2), content(rank, epoch, fmt)).meta(rank, epoch, 2, None)
    return tree


def content(rank: int, epoch: int, fmt: Fmt, *, stage: int | None = None, seed: int | None = None) -> bytes:
    stage = 2 * rank // RANKS if stage is None else stage
    tensor = floats(f"stage{stage}.weight", [64], seed=epoch if seed is None else seed)
    return shard_bytes([tensor, *training_scalars(epoch=epoch, true_step=2 * epoch)], fmt)


@each_format
def test_ranks_that_a_neighbour_lacks(fmt: Fmt, tmp_path: Path) -> None:
    tree = staged(tmp_path, fmt, 10, 20, 30)
    for rank in (2, 3, 6):  # so the others of each stage have another witness
        tree.remove(tree.shard(rank, 20, 2))
    assert resumes_from(tree) == "30_2"


@each_format
def test_shards_of_an_older_step_in_a_neighbour(fmt: Fmt, tmp_path: Path) -> None:
    tree = staged(tmp_path, fmt, 10, 20, 30)
    for rank in (2, 3, 6):
        tree.file(tree.shard(rank, 20, 2), content(rank, 10, fmt))
    assert resumes_from(tree) == "30_2"


@each_format
def test_several_shards_of_a_neighbour_with_other_weights(fmt: Fmt, tmp_path: Path) -> None:
    tree = staged(tmp_path, fmt, 10, 20, 30)
    for rank in (2, 3):
        tree.file(tree.shard(rank, 20, 2), content(rank, 20, fmt, seed=rank))
    assert resumes_from(tree) == "30_2"


@each_format
def test_a_tensor_name_that_broke_in_the_only_neighbour(fmt: Fmt, tmp_path: Path) -> None:
    tree = staged(tmp_path, fmt, 20, 30)
    tree.file(tree.shard(2, 20, 2), content(2, 20, fmt, stage=7))
    assert resumes_from(tree) == "30_2"


@each_format
def test_and_a_shard_that_is_a_copy_is_still_seen(fmt: Fmt, tmp_path: Path) -> None:
    """As a judge that acquits everybody would not: slices, one of which is another rank's."""
    tree = TreeBuilder(tmp_path).legacy(ranks=RANKS, fmt=fmt)
    for epoch in (10, 20, 30):
        for rank in range(RANKS):
            tree.file(tree.shard(rank, epoch, 2), content(rank, epoch, fmt, seed=100 * rank + epoch))
    tree.remove(tree.shard(5, 20, 2)).file(tree.shard(2, 30, 2), content(3, 30, fmt, seed=300 + 30))
    assert resumes_from(tree) == "10_2"
