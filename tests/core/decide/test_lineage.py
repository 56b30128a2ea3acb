"""A branch that was left is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.progress import newest_first
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT
from tests.support.inventories import checkpoint, tree

ITERATION = ITERATION_LAYOUT


def iterations(*steps: int, tracked: int | None, sizes: Sequence[int | None] = (8, 8, 8)) -> Inventory:
    name = None if tracked is None else f"iteration_{tracked:08d}"
    found = [
        replace(checkpoint(f"{step}_1", batch=size), name=f"iteration_{step:08d}", label=None, sort_key=())
        for step, size in zip(steps, sizes, strict=False)
    ]
    return tree(*found, layout=ITERATION, tracked=name)


class TestAbandoned:
    def test_a_step_that_a_later_run_is_behind_is_on_a_branch_that_was_left(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("15_2", run=1))
        found = Lineage(inventory).abandoned(inventory.checkpoints[1])
        assert found is not None
        assert (found.code, found.severity) == (Code.ABANDONED_BRANCH, Severity.SUSPECT)
        assert "run 1 was started later and is at step 30" in found.message

    def test_a_step_at_or_before_the_later_runs_last_is_not(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("15_2"), checkpoint("15_2", run=1))
        assert [Lineage(inventory).abandoned(one) for one in inventory.checkpoints] == [None, None, None]

    def test_a_later_run_of_another_training_leaves_nothing(self) -> None:
        inventory = tree(checkpoint("20_2"), checkpoint("15_2", run=1, prefix="other"))
        assert Lineage(inventory).abandoned(inventory.checkpoints[0]) is None

    def test_a_run_whose_steps_nobody_knows_leaves_nothing(self) -> None:
        inventory = tree(checkpoint("20_2"), checkpoint("15_2", run=1, step=None))
        assert [Lineage(inventory).abandoned(one) for one in inventory.checkpoints] == [None, None]

    @pytest.mark.parametrize(("tracked", "left"), [(10, True), (20, False), (30, False), (None, False)])
    def test_iterations_beyond_the_tracker_were_left_where_there_are_several(
        self, tracked: int | None, *, left: bool
    ) -> None:
        inventory = iterations(10, 20, 30, tracked=tracked)
        assert (Lineage(inventory).abandoned(inventory.checkpoints[2]) is not None) is left
        assert Lineage(inventory).abandoned(inventory.checkpoints[0]) is None


class TestRewinds:
    def test_a_run_behind_an_earlier_one_is_told_with_both_steps(self) -> None:
        inventory = tree(checkpoint("20_2"), checkpoint("15_2", run=1))
        (found,) = Lineage(inventory).rewinds()
        assert (found.code, found.severity) == (Code.RUN_REWOUND, Severity.NOTE)
        assert "it is at step 30, behind run 0's step 40" in found.message

    def test_runs_that_went_on_are_not_told(self) -> None:
        assert (
            Lineage(tree(checkpoint("20_2"), checkpoint("25_2", run=1), checkpoint("20_2", run=2, step=None))).rewinds()
            == []
        )

    def test_the_nearest_earlier_run_that_is_ahead_is_named(self) -> None:
        inventory = tree(checkpoint("30_2"), checkpoint("25_2", run=1), checkpoint("20_2", run=2))
        assert ["run 1" in found.message.partition("behind")[2] for found in Lineage(inventory).rewinds()] == [
            False,
            True,
        ]

    def test_a_tracker_behind_several_iterations_is_a_rewind(self) -> None:
        (found,) = Lineage(iterations(10, 20, 30, tracked=10)).rewinds()
        assert found.code is Code.RUN_REWOUND

    def test_a_tracker_behind_one_iteration_is_an_unfinished_save(self) -> None:
        (found,) = Lineage(iterations(10, 20, tracked=10)).rewinds()
        assert found.code is Code.TRACKER_DISAGREES
        assert found.message == (
            "the tracker is at step 10; iteration_00000020 was saved, but the tracker was not written after it"
        )

    def test_a_tracker_at_the_newest_is_no_news(self) -> None:
        assert Lineage(iterations(10, 20, tracked=20)).rewinds() == []

    @pytest.mark.parametrize("torn", [True, False])
    def test_of_two_that_are_as_far_the_one_that_the_tracker_names_replaces_the_other_unless_it_is_torn(
        self, torn: bool
    ) -> None:
        inventory = iterations(10, 20, tracked=20, sizes=(16, 8))
        older, tracked = inventory.checkpoints
        tracked = replace(tracked, commit=CommitState.UNCOMMITTED if torn else CommitState.COMMITTED)
        course = Lineage(replace(inventory, checkpoints=(older, tracked)))
        assert (course.abandoned(older) is None) == torn

    def test_a_tracker_without_any_save_beside_it_says_nothing(self) -> None:
        assert Lineage(iterations(tracked=20)).rewinds() == []


def sized(label: str, batch: int | None, *, run: int = 0, step: int | None = -1) -> Checkpoint:
    return checkpoint(label, run=run, step=step, batch=batch)


class TestBatchSizes:
    def test_inside_a_run_one_size_that_most_saves_tell_holds_for_all(self) -> None:
        """A flipped bit in one batch size moves nothing."""
        inventory = tree(sized("10_1", 8), sized("20_1", 8), sized("30_1", 1 << 40), sized("40_1", 8, run=1))
        assert Lineage(inventory).rewinds() == []
        assert [one.name for one in newest_first(inventory.checkpoints)][:2] == ["_1-40_1", "30_1"]

    def test_where_a_run_contradicts_itself_nothing_is_said_of_it(self) -> None:
        inventory = tree(sized("10_1", 8), sized("20_1", 16), sized("5_1", 8, run=1))
        assert [Lineage(inventory).abandoned(one) for one in inventory.checkpoints] == [None, None, None]
        assert Lineage(inventory).rewinds() == []

    def test_a_save_that_lacks_the_size_has_its_runs(self) -> None:
        inventory = tree(sized("20_1", None), sized("10_1", 8), sized("8_1", 16, run=1))
        assert Lineage(inventory).progress.of(inventory.checkpoints[0]) == 160
        assert Lineage(inventory).abandoned(inventory.checkpoints[0]) is not None

    def test_another_trainings_sizes_do_not_matter(self) -> None:
        other = checkpoint("5_1", prefix="other", batch=16)
        inventory = tree(sized("20_1", 8), sized("10_1", None, run=1), other)
        assert Lineage(inventory).abandoned(inventory.checkpoints[0]) is not None

    def test_an_iteration_of_unknown_size_stands_first_and_is_no_rewind(self) -> None:
        inventory = iterations(10, 20, 30, tracked=30, sizes=(8, None, 16))
        assert next(one.name for one in newest_first(inventory.checkpoints)) == "iteration_00000020"
        assert [Lineage(inventory).abandoned(one) for one in inventory.checkpoints] == [None] * 3

    def test_a_tracker_at_an_iteration_of_unknown_size_or_at_none_says_nothing_where_sizes_differ(self) -> None:
        for tracked in (20, 5):
            inventory = iterations(10, 20, 30, tracked=tracked, sizes=(8, None, 16))
            assert [Lineage(inventory).abandoned(one) for one in inventory.checkpoints] == [None] * 3

    def test_in_words_samples_are_told_where_steps_are_not_enough(self) -> None:
        (found,) = Lineage(tree(sized("20_1", 16), sized("30_1", 8, run=1))).rewinds()
        assert "it is at step 30 (240 samples), behind run 0's step 20 (320 samples)" in found.message

    def test_a_checkpoint_of_unknown_step_is_nowhere(self) -> None:
        inventory = tree(sized("20_1", 16, step=None), sized("30_1", 8, run=1))
        course = Lineage(inventory)
        assert (course.progress.of(inventory.checkpoints[0]), course.done_again(inventory.checkpoints[0])) == (
            None,
            None,
        )


class TestDoneAgain:
    def test_what_a_later_run_did_again_and_went_beyond_is_behind_all_others(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("15_2", run=1), checkpoint("25_2", run=1))
        course = Lineage(inventory)
        found = course.done_again(inventory.checkpoints[1])
        assert found is not None
        assert (found.code, found.severity) == (Code.ABANDONED_BRANCH, Severity.SUSPECT)
        best = [one.name for one in course.best_first(newest_first(inventory.checkpoints))]
        assert best == ["_1-25_2", "_1-15_2", "10_2", "20_2"]

    def test_what_a_later_run_only_went_on_from_is_not(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("25_2", run=1))
        assert [Lineage(inventory).done_again(one) for one in inventory.checkpoints] == [None, None, None]


class TestOverlaps:
    def test_a_checkpoint_whose_steps_a_later_run_did_again_is_said_to_be_of_the_earlier_course(self) -> None:
        earlier = checkpoint("20_2")
        found = Lineage(tree(earlier, checkpoint("15_2", run=1), checkpoint("25_2", run=1))).overlaps(earlier)
        assert [(one.code, one.severity) for one in found] == [(Code.RUN_REWOUND, Severity.NOTE)]
        assert "run 1 repeated the steps from 30" in found[0].message

    def test_a_run_that_went_on_behind_it_says_nothing(self) -> None:
        earlier = checkpoint("20_2")
        assert Lineage(tree(earlier, checkpoint("25_2", run=1))).overlaps(earlier) == []

    def test_a_checkpoint_that_does_not_tell_its_step_overlaps_with_nothing_that_we_know_of(self) -> None:
        silent = checkpoint("20_2", step=None)
        assert Lineage(tree(silent, checkpoint("15_2", run=1))).overlaps(silent) == []
