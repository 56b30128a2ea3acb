"""What a scan of each of MindFormers' layouts answers alike: sizes if they are asked for, and the same in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.storage.local import LocalStorage
from tests.support.answers import named, writable_copy
from tests.support.faulty_storages import DENIED, FaultyStorage, scan
from tests.support.healthy_trees import unified_tree
from tests.support.trees import TreeBuilder


def ranks(base: Path) -> Path:
    return TreeBuilder(base).legacy().save(epoch=10, step=2).save(epoch=15, step=2).checkpoint


def iterations(base: Path) -> Path:
    return TreeBuilder(base).iteration(step=20).iteration(step=30).checkpoint


EACH = pytest.mark.parametrize(
    ("build", "save"), [(ranks, "15_2"), (iterations, "iteration_00000030"), (unified_tree, "unified")]
)


@EACH
def test_sizes_are_taken_where_they_are_asked_for(build: Callable[[Path], Path], save: str, tmp_path: Path) -> None:
    root = build(tmp_path)
    storage = LocalStorage(str(root))
    shards = named(scan(storage), save).shards
    assert named(scan(storage), save).nbytes is None
    sized = scan(storage, sizes=True)
    assert named(sized, save).nbytes == sum((root / shard.path).stat().st_size for shard in shards)
    denied = scan(FaultyStorage(str(root), {shards[0].path: DENIED}), sizes=True)
    assert named(denied, save).nbytes is None
    assert all(one.nbytes is not None for one in denied.checkpoints if one.name != save)


def odd_ranks(base: Path) -> Path:
    root = writable_copy("nosink_ckpt", base / "tree") / "checkpoint"
    (root / "rank_1/llama2_7b_rank_1-2_3.ckpt").unlink()
    (root / "rank_2/llama2_7b_rank_2_1-3_3.ckpt").rename(root / "rank_2/llama2_7b_rank_2_4-3_3.ckpt")
    for name in ("a", "b", "rank_0_bak", "rank_1/x", "rank_1/y", "rank_2/x", "rank_3/llama2_7b_rank_0-1_3.ckpt"):
        (root / name).write_bytes(b"")
    for rank in (0, 2):
        (root / f"rank_{rank}/meta.json").unlink()
    assert len(scan(LocalStorage(str(root))).findings) > 6
    return root


def odd_iterations(base: Path) -> Path:
    root, newest = iterations(base), "iteration_00000030"
    for name in ("a", "b", f"{newest}/x", f"{newest}/y", f"{newest}/llama2_7b-opt-0000001-0000008.safetensors"):
        (root / name).write_bytes(b"")
    return root


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("build", [odd_ranks, odd_iterations, unified_tree])
def test_a_shuffled_listing_gives_the_same_inventory(build: Callable[[Path], Path], seed: int, tmp_path: Path) -> None:
    root = str(build(tmp_path))
    expected = scan(LocalStorage(root), sizes=True)
    assert scan(FaultyStorage(root, chance=Random(seed)), sizes=True) == expected  # noqa: S311  no secret
