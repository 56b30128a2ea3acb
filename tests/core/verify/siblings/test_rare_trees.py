"""Rare trees in which nothing went wrong: what headers and last pages say of them, and what digests of tensors do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Row
from ckpttool.core.domain.verdict import Level
from tests.support.healthy_trees import PAGE_OF_FLOATS, alarms
from tests.support.trees import Tensor, TreeBuilder, floats, training_scalars

pytestmark = pytest.mark.sample(2)  # of each level and kind

NAMES = tuple(f"layers.{number}.w" for number in range(12))
Slices = Callable[[str, int, int], object]
"""What a tensor is, by its name, its rank and the step."""


def page(value: float) -> Tensor:
    """Fill the last page of a file."""
    return floats("zz", [PAGE_OF_FLOATS], values=[value] * PAGE_OF_FLOATS)


def saved(
    base: Path, saves: Mapping[tuple[int, int], int], slices: Slices, last: Callable[[int, int], float]
) -> TreeBuilder:
    """Save at (run, step) on so many ranks, with the number that fills each file's end."""
    tree = TreeBuilder(base).legacy(ranks=0)
    for (run, step), ranks in saves.items():
        for rank in range(ranks):
            tensors = [floats(name, [4], seed=hash_of(slices(name, rank, step))) for name in NAMES]
            tensors = [*training_scalars(epoch=step // 2, true_step=step), *tensors, page(last(rank, step))]
            tree.save(epoch=step // 2, step=2, run=run, ranks=[rank], tensors=tensors, scalars=[])
    return tree


def hash_of(content: object) -> int:
    return sum(repr(content).encode())


def doubts(tree: TreeBuilder, level: Level) -> set[Row]:
    """What weighs more than a note; that a training went on with fewer ranks is another question."""
    return {finding.code for finding in alarms(tree.output, level)} - {Code.WORLD_SIZE_DIFFERS}


def replicas(name: str, rank: int, step: int) -> object:  # noqa: ARG001
    return name, step


def slices(name: str, rank: int, step: int) -> object:
    return name, rank, step


THREE = {(0, step): 4 for step in (10, 20, 30)}


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
@pytest.mark.parametrize("kind", [replicas, slices])
def test_tensors_that_never_change_and_equal_scalars_raise_no_doubt(tmp_path: Path, level: Level, kind: Slices) -> None:
    def frozen(name: str, rank: int, step: int) -> object:
        return kind(name, rank, 0 if name < NAMES[6] else step)

    assert doubts(saved(tmp_path, THREE, frozen, lambda rank, step: 7), level) == set()  # noqa: ARG005


@pytest.mark.parametrize(("level", "said"), [(Level.STRUCTURE, {Code.SCHEMA_DIFFERS}), (Level.CHECKSUM, set())])
def test_what_ranks_count_for_themselves_and_is_equal_for_once_is_doubted_by_last_pages_and_not_by_tensors(
    tmp_path: Path, level: Level, said: set[Row]
) -> None:
    tree = saved(tmp_path, THREE, replicas, lambda rank, step: 1 if step == 20 else step + rank)
    assert doubts(tree, level) == said


@pytest.mark.parametrize(("level", "said"), [(Level.STRUCTURE, {Code.SCHEMA_DIFFERS}), (Level.CHECKSUM, set())])
def test_ranks_that_train_alone_and_average_now_and_then_are_doubted_by_last_pages_and_not_by_tensors(
    tmp_path: Path, level: Level, said: set[Row]
) -> None:
    def averaged(name: str, rank: int, step: int) -> object:
        return name, step, 0 if step % 20 == 0 else rank

    saves = {(0, step): 3 for step in (10, 20, 30, 40, 50)}
    tree = saved(tmp_path, saves, averaged, lambda rank, step: step + (rank if step % 20 else 0))
    assert doubts(tree, level) == said


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
@pytest.mark.parametrize("kind", [replicas, slices])
def test_what_is_saved_twice_at_one_step_raises_no_doubt(tmp_path: Path, level: Level, kind: Slices) -> None:
    saves = {(0, 10): 4, (0, 20): 4, (1, 20): 4, (1, 30): 4}
    assert doubts(saved(tmp_path, saves, kind, lambda rank, step: step + rank), level) == set()
    tree = saved(tmp_path, saves, kind, lambda rank, step: step)  # noqa: ARG005
    assert doubts(tree, level) == set()


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
@pytest.mark.parametrize("kind", [replicas, slices])
@pytest.mark.parametrize("after", [2, 8])
def test_a_training_that_goes_on_with_another_number_of_ranks_raises_no_doubt_of_its_files(
    tmp_path: Path, level: Level, kind: Slices, after: int
) -> None:
    saves = {(0, 10): 4, (0, 20): 4, (1, 30): after, (1, 40): after}
    assert doubts(saved(tmp_path, saves, kind, lambda rank, step: step), level) == set()  # noqa: ARG005


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
def test_a_last_page_that_becomes_zero_on_all_ranks_is_doubted_at_both_levels(tmp_path: Path, level: Level) -> None:
    """Moments that were reset look so, and files of one machine after a power cut: replicas agree in both."""
    tree = saved(tmp_path, THREE, replicas, lambda rank, step: 0 if step == 30 else step)  # noqa: ARG005
    assert doubts(tree, level) == {Code.ZERO_TAIL}


@pytest.mark.parametrize(("level", "said"), [(Level.STRUCTURE, set()), (Level.CHECKSUM, {Code.SCHEMA_DIFFERS})])
@pytest.mark.parametrize("ranks", [2, 4])
def test_another_rank_s_slices_under_the_same_last_page_are_seen_by_tensors_alone(
    tmp_path: Path, level: Level, said: set[Row], ranks: int
) -> None:
    tree = saved(tmp_path, dict.fromkeys(THREE, ranks), slices, lambda rank, step: 7)  # noqa: ARG005
    assert doubts(tree, level) == set()
    shutil.copy(tree.output / tree.shard(0, 15, 2), tree.output / tree.shard(1, 15, 2))
    assert doubts(tree, level) == said
