"""Proves that a shard in another folder, or under another spelling, is told from one that is where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.domain.units import MAX_RANKS
from ckpttool.trainers.mindformers.layouts.misplaced import misplaced_shards, ranks_found_elsewhere
from tests.support.inventories import checkpoint, tree

_SMALL = st.integers(0, 30)
_ZEROS = st.text("0", max_size=3)


def found(*paths: str) -> dict[str, str]:
    """Return where each would belong, of those that are misplaced."""
    inventory = replace(tree(checkpoint("10_2")), strays=paths)
    return {one.path: one.target for one in misplaced_shards(inventory).values()}


@given(
    numbers=st.tuples(_SMALL, _SMALL, _SMALL, _SMALL), zeros=st.tuples(_ZEROS, _ZEROS, _ZEROS, _ZEROS), folder=_SMALL
)
def test_a_shard_belongs_where_and_as_mindformers_would_have_written_it(
    numbers: tuple[int, ...], zeros: tuple[str, ...], folder: int
) -> None:
    spelled = [f"{zero}{number}" for zero, number in zip(zeros, numbers, strict=True)]
    path = "rank_{}/a_rank_{}_{}-{}_{}.ckpt".format(folder, *spelled)
    rank, run, epoch, step = numbers
    suffix = f"_{run}" if run else ""
    target = f"rank_{rank}/a_rank_{rank}{suffix}-{epoch}_{step}.ckpt"
    assert found(path) == ({} if path == target else {path: target})
    assert found(target) == {}


@pytest.mark.parametrize(
    "path",
    [
        "rank_0/a_rank_1.ckpt",
        "rank_0/a_rank_1-best.ckpt",
        "rank_0/a_rank_1-10_2.ckpt.bak",
        "rank_0_bak/a_rank_1-10_2.ckpt",
        "rank_0/b/../a_rank_1-10_2",
        f"rank_0/a_rank_{MAX_RANKS}-10_2.ckpt",
        "best.ckpt",
    ],
)
def test_what_is_no_ranks_shard_is_not_misplaced(path: str) -> None:
    assert found(path) == {}


def test_a_rank_takes_part_in_the_run_whose_save_its_file_lies_beside() -> None:
    inventory = tree(checkpoint("10_2", ranks=[0]), checkpoint("15_2", run=1, ranks=[0]))
    strays = ("rank_0/llama_rank_1-10_2.ckpt", "rank_0/llama_rank_5-10_2.ckpt", "rank_0/llama_rank_9-11_2.ckpt")
    inventory = replace(inventory, strays=strays)
    highest = ranks_found_elsewhere(inventory, misplaced_shards(inventory))
    assert {run: one.rank for run, one in highest.items()} == {("llama", 0): 5}
