"""Runs are matched by the true steps they saved, because every rank counts its runs by itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder
from ckpttool.trainers.mindformers.layouts.runs import MOST_ASKED, Place, align_runs, cohorts_of
from ckpttool.trainers.mindformers.scalars import EpochStep
from tests.support.answers import chosen, named, plan, scanned, why_not
from tests.support.faulty_storages import FaultyStorage, scan
from tests.support.trees import TreeBuilder

Runs = dict[int, dict[EpochStep, Place]]


def runs(**saved: Mapping[str, int | None]) -> Runs:
    """`run0={"10_2": 20}`: what each run saved, by label."""
    return {
        int(name.removeprefix("run")): {
            label_of(label): Place(step=None if step is None else Step(step)) for label, step in labels.items()
        }
        for name, labels in saved.items()
    }


def label_of(text: str) -> EpochStep:
    epoch, step = map(int, text.split("_"))
    return EpochStep(epoch=epoch, step=step)


OLD = {"10_2": 20, "15_2": 30}
NEW = {"20_2": 40, "25_2": 50}
NEWEST = {"30_2": 60}
ALL: Runs = runs(run0=OLD, run1=NEW, run2=NEWEST)


class TestAlign:
    @pytest.mark.parametrize(
        ("own", "aligned"),
        [
            (ALL, {0: 0, 1: 1, 2: 2}),
            (runs(run0=NEW, run1=NEWEST), {0: 1, 1: 2}),  # a node replaced before the second run
            (runs(run0=NEWEST), {0: 2}),  # before the third
            (runs(run0=OLD, run1=NEWEST), {0: 0, 1: 2}),  # died before its first save of the second
            (runs(run0={"5_2": 10}), {0: 0}),  # shares nothing: keeps its own number
            (runs(run0=OLD, run1={"40_2": 80}), {0: 0, 1: 1}),
            (runs(run1=NEWEST, run2={"35_2": 70}), {1: 2, 2: 3}),  # later runs stay later
            ({}, {}),
        ],
    )
    def test_a_run_goes_where_its_saves_are(self, own: Runs, aligned: dict[int, int]) -> None:
        assert align_runs(own, ALL) == aligned

    def test_the_same_label_and_step_at_another_batch_size_is_another_save(self) -> None:
        """4 steps of 8 samples, and again, and then 4 of 16: a rank that lost the first counts one run less."""
        label = label_of("4_1")
        small, large = Place(step=Step(4), global_batch_size=8), Place(step=Step(4), global_batch_size=16)
        reference = {0: {label: small}, 1: {label: small}, 2: {label: large}}
        assert align_runs({0: {label: small}, 1: {label: large}}, reference) == {0: 0, 1: 2}
        assert align_runs({0: {label: Place(step=Step(4))}}, {0: {label: large}}) == {0: 0}

    def test_the_same_label_at_another_step_is_another_save(self) -> None:
        reference = runs(run0={"3_3": 8}, run1={"3_3": 11})
        assert align_runs(runs(run0={"3_3": 11}), reference) == {0: 1}

    def test_a_label_whose_step_nobody_told_may_be_the_same(self) -> None:
        reference = runs(run0={"10_2": 20}, run1={"25_2": None})
        assert align_runs(runs(run0={"25_2": 50}), reference) == {0: 1}
        assert align_runs(runs(run0={"25_2": None}), runs(run0={"10_2": 20}, run1={"25_2": 50})) == {0: 1}

    def test_among_equal_matches_its_own_number_wins(self) -> None:
        twice = runs(run0={"10_2": 20}, run1={"10_2": 20})
        assert align_runs(runs(run1={"10_2": 20}), twice) == {1: 1}
        assert align_runs(runs(run0={"10_2": 20}), twice) == {0: 0}
        assert align_runs(runs(run5={"10_2": 20}), twice) == {5: 0}

    def test_a_run_of_which_some_files_were_renamed_is_one_run_again(self) -> None:
        half_renamed = runs(run0={"20_2": 40}, run1={"25_2": 50})
        assert align_runs(half_renamed, runs(run0=OLD, run1=NEW)) == {0: 1, 1: 1}

    SAVES = st.dictionaries(
        st.integers(0, 4),
        st.dictionaries(
            st.builds(EpochStep, epoch=st.integers(1, 4), step=st.just(2)),
            st.builds(
                Place,
                step=st.none() | st.integers(1, 6).map(Step),
                global_batch_size=st.sampled_from([None, 8, 16]),
            ),
            min_size=1,
        ),
        max_size=4,
    )

    @given(SAVES, SAVES)
    def test_later_runs_stay_later_and_no_file_is_taken_for_another(self, own: Runs, reference: Runs) -> None:
        aligned = align_runs(own, reference)
        numbers = [aligned[run] for run in sorted(own)]
        assert numbers == sorted(numbers)
        saves = [(aligned[run], label) for run, labels in own.items() for label in labels]
        assert len(saves) == len(set(saves))


def folder(rank: int, *shapes: str) -> RankFolder:
    return RankFolder(Rank(rank), tuple(sorted(shapes)), None, ())


class TestCohorts:
    def test_ranks_with_the_same_names_are_one_and_the_largest_comes_first(self) -> None:
        one, other = "x_rank_\0-1_2.ckpt", "x_rank_\0-2_2.ckpt"
        found = cohorts_of([folder(0, other), folder(1, one), folder(2, one, "stray"), folder(3, one)])
        assert [[member.rank for member in cohort.folders] for cohort in found] == [[1, 3], [0], [2]]
        assert [[shape for _, shape, _ in cohort.checkpoints] for cohort in found] == [[one], [other], [one]]


class TestTrees:
    def test_a_rename_never_lands_on_another_file(self, tmp_path: Path) -> None:
        """Rank 0 counts one run more, so its `_1` is a dead run's; to rename its `_2` to that would destroy it."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        tree.save(epoch=25, step=2, run=1, ranks=[0])
        tree.save(epoch=25, step=2, run=2, ranks=[0]).save(epoch=30, step=2, run=2, ranks=[0])
        tree.save(epoch=25, step=2, run=1, ranks=[1, 2, 3]).save(epoch=30, step=2, run=1, ranks=[1, 2, 3])
        inventory = scanned(tree.checkpoint)
        found = named(inventory, "_2-25_2")
        assert found.ranks == (0, 1, 2, 3)
        assert [rename.target for rename in found.renames] == [
            f"rank_{rank}/llama2_7b_rank_{rank}_2-25_2.ckpt" for rank in (1, 2, 3)
        ]
        assert [rename.target for rename in named(inventory, "_2-30_2").renames] == [
            "rank_0/llama2_7b_rank_0_1-30_2.ckpt"
        ]

    def test_where_every_suffix_is_taken_a_fresh_one_is_found(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=2)
        tree.save(epoch=5, step=2, true_step=10, ranks=[0]).save(epoch=9, step=2, true_step=19, ranks=[0])
        tree.save(epoch=9, step=2, true_step=20, run=1, ranks=[0])
        tree.save(epoch=9, step=2, true_step=20, ranks=[1]).save(epoch=9, step=2, true_step=99, run=1, ranks=[1])
        found = named(scanned(tree.checkpoint), "_1-9_2")
        assert found.ranks == (0, 1)
        assert {rename.target for rename in found.renames} == {
            f"rank_{rank}/llama2_7b_rank_{rank}_2-9_2.ckpt" for rank in (0, 1)
        }


def test_a_rank_that_alone_kept_a_step_of_before_a_rewind_does_not_part_the_run_after_it(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=5, step=1).save(epoch=6, step=1, ranks=[2])
    tree.save(epoch=5, step=1, run=1).save(epoch=6, step=1, run=1)
    newest = named(scanned(tree.checkpoint), "_1-6_1")
    assert (newest.ranks, newest.renames) == ((0, 1, 2), ())


def three_saves(base: Path, *, ranks: int = 4) -> TreeBuilder:
    tree = TreeBuilder(base).legacy(ranks=ranks)
    for epoch in (5, 10, 15):
        tree.save(epoch=epoch, step=2)
    return tree


def stale(tree: TreeBuilder, *ranks: int) -> None:
    """Put the oldest save's shards under the newest one's name."""
    for rank in ranks:
        shutil.copyfile(tree.output / tree.shard(rank, 5, 2), tree.output / tree.shard(rank, 15, 2))


class TestAStaleShard:
    @pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2), (1, 3)])
    def test_on_most_ranks_is_outvoted_by_what_fits_the_name(self, tmp_path: Path, ranks: tuple[int, ...]) -> None:
        tree = three_saves(tmp_path)
        stale(tree, *ranks)
        assert named(scanned(tree.output), "15_2").step == 30

    def test_on_every_rank_tells_no_step_and_the_checkpoint_stays_where_its_name_puts_it(self, tmp_path: Path) -> None:
        tree = three_saves(tmp_path)
        stale(tree, *range(4))
        assert named(scanned(tree.output), "15_2").step is None
        assert why_not(plan(tree.output))[0][0] == "15_2"
        assert named(scan(LocalStorage(str(tree.checkpoint)), steps_per_epoch=2), "15_2").step_source == "name"

    def test_asks_few_further_ranks_spread_over_all(self, tmp_path: Path) -> None:
        tree = three_saves(tmp_path, ranks=64)
        stale(tree, 0)
        storage = FaultyStorage(str(tree.checkpoint))
        scan(storage)
        asked = {path.partition("/")[0] for path in storage.opened if path.endswith("15_2.ckpt")}
        assert asked == {"rank_0", "rank_15", "rank_31", "rank_47", "rank_63"}
        assert len(storage.opened) <= 3 + 2 * MOST_ASKED


class TestAWrongStep:
    @pytest.fixture
    def resumed(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in (5, 10, 15):
            tree.save(epoch=epoch, step=2)
        return tree.save(epoch=20, step=2, run=1)

    def test_in_one_shard_of_a_later_run_does_not_abandon_the_earlier(self, resumed: TreeBuilder) -> None:
        resumed.save(epoch=20, step=2, run=1, true_step=8, ranks=[0])
        answer = plan(resumed.output)
        assert (chosen(answer), answer.point.lost_steps) == (("15_2", 30), 10)
        assert why_not(answer)[0][0] == "_1-20_2"

    @pytest.mark.parametrize("flipped", [40 + (1 << 50), 40 + (1 << 12)])
    def test_that_no_training_reaches_is_not_lost(self, resumed: TreeBuilder, flipped: int) -> None:
        resumed.save(epoch=20, step=2, true_step=flipped, optimizer_step=40, ranks=[0]).save(
            epoch=20, step=2, ranks=[1, 2, 3]
        )
        for rank in range(4):
            resumed.remove(resumed.shard(rank, 20, 2, run=1))
        answer = plan(resumed.output)
        assert (chosen(answer), answer.point.lost_steps) == (("15_2", 30), 10)


def test_a_rewind_is_asked_twice_and_believed(tmp_path: Path) -> None:
    tree = three_saves(tmp_path).save(epoch=6, step=2, run=1)
    assert named(scanned(tree.output), "_1-6_2").step == 12
    assert chosen(plan(tree.output)) == ("_1-6_2", 12)


def test_a_run_that_went_on_with_larger_batches_is_not_asked_twice(tmp_path: Path) -> None:
    """Its steps are lower than the last run's, but it is further: one header a save is enough."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=50, step=1).save(epoch=100, step=1)
    for step in (55, 60):
        tree.save(epoch=step, step=1, run=1, global_batch_size=16)
    storage = FaultyStorage(str(tree.checkpoint))
    scan(storage)
    assert len(storage.opened) == 4
