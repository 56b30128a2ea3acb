"""What is to be checked is known before anything is read, and parts of it together are all of it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import Level
from ckpttool.core.verify.plan import HEADER_COST, PART_BYTES, in_bucket, plan_checks
from tests.support.inventories import checkpoint
from tests.support.manifests import seal


def sized(*sizes: int) -> Checkpoint:
    """A checkpoint with as many ranks; their files have these sizes."""
    one = checkpoint(ranks=range(len(sizes)))
    stamps = [FileStamp.on_disk(size=size, mtime_ns=1, inode=rank) for rank, size in enumerate(sizes)]
    return replace(
        one, shards=tuple(replace(shard, stamp=stamp) for shard, stamp in zip(one.shards, stamps, strict=True))
    )


def test_every_shard_is_one_task_in_the_order_of_the_ranks() -> None:
    tasks = plan_checks("root", sized(10, 20, 30), Level.CHECKSUM)
    assert [(task.rank, task.cost, task.part) for task in tasks] == [(0, 10, None), (1, 20, None), (2, 30, None)]
    assert {task.root for task in tasks} == {"root"}


def test_a_header_costs_the_same_whatever_the_file_has() -> None:
    tasks = plan_checks("root", sized(10, 1 << 40), Level.STRUCTURE)
    assert [(task.cost, task.part) for task in tasks] == [(HEADER_COST, None), (HEADER_COST, None)]


def test_a_shard_without_a_known_size_is_planned_all_the_same() -> None:
    (task,) = plan_checks("root", checkpoint(ranks=[0]), Level.NUMERICS)
    assert (task.cost, task.part, task.listed) == (0, None, None)


@given(st.integers(PART_BYTES + 1, 1 << 43))
def test_the_parts_of_a_big_file_are_all_of_it_and_meet_between_two_chunks(size: int) -> None:
    parts = [task.part or (0, 0) for task in plan_checks("root", sized(size), Level.CHECKSUM)]
    assert len(parts) > 1
    assert [parts[0][0], *(end for _, end in parts)] == [*(begin for begin, _ in parts), size]
    assert all(begin % CHUNK_BYTES == 0 for begin, _ in parts)
    assert sum(task.cost for task in plan_checks("root", sized(size), Level.CHECKSUM)) == size


def test_a_file_that_is_hashed_as_a_whole_is_not_shared() -> None:
    (task,) = plan_checks("root", sized(1 << 40), Level.CHECKSUM, hashes=True)
    assert task.part is None
    assert task.hashes


def test_nor_is_one_of_which_the_save_holds_a_digest() -> None:
    save = sized(1 << 40)
    (task,) = plan_checks("root", replace(save, digests=((save.shards[0].path, "0" * 64),)), Level.CHECKSUM)
    assert (task.part, task.sha256) == (None, "0" * 64)


def test_each_task_gets_what_the_manifest_recorded_of_its_file_and_what_the_listing_saw() -> None:
    one = sized(10, 20)
    known = seal(one.shards[1].path)
    tasks = plan_checks("root", one, Level.CHECKSUM, seals={known.path: known})
    assert [task.seal for task in tasks] == [None, known]
    assert [task.listed for task in tasks] == [shard.stamp for shard in one.shards]
    assert pickle.loads(pickle.dumps(tasks)) == tasks  # noqa: S301  ours


PATHS = st.lists(st.text(min_size=1), unique=True, max_size=40)


@given(PATHS, st.integers(1, 12))
def test_the_parts_of_a_subset_are_disjoint_and_cover_everything(paths: Sequence[str], total: int) -> None:
    parts = [{path for path in paths if in_bucket(path, (number, total))} for number in range(1, total + 1)]
    assert sum(map(len, parts)) == len(paths)
    assert set().union(*parts) == set(paths)


def test_without_a_subset_everything_is_in_it() -> None:
    assert in_bucket("a", None)


def test_which_part_a_file_is_in_never_changes() -> None:
    """A night that falls out, or a new release, must not shift files between the nights."""
    path = "rank_3/llama_rank_3-20_2.ckpt"
    assert [in_bucket(path, (number, 7)) for number in range(1, 8)] == [number == 4 for number in range(1, 8)]


@pytest.mark.parametrize("total", [2, 7, 30])
def test_the_parts_are_about_equally_large(total: int) -> None:
    paths = [f"rank_{rank}/llama_rank_{rank}-{step}_2.ckpt" for rank in range(256) for step in range(10, 50, 10)]
    sizes = [sum(in_bucket(path, (number, total)) for path in paths) for number in range(1, total + 1)]
    assert max(sizes) <= 1.5 * len(paths) / total


def test_a_name_that_is_no_utf8_has_its_part_too() -> None:
    assert sum(in_bucket("rank_0/\udcff.ckpt", (number, 3)) for number in (1, 2, 3)) == 1
