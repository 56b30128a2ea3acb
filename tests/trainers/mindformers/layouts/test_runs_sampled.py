"""One header a save is believed as long as nothing is odd about it; then most of several ranks are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.domain.finding import Code
from ckpttool.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.runs import MOST_ASKED
from tests.support.answers import chosen, coded, named, plan, reasons, scanned, why_not
from tests.support.faulty_storages import FaultyStorage, scan
from tests.support.trees import TreeBuilder


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
    def test_on_rank_0_does_not_hide_the_newest_checkpoint(self, tmp_path: Path) -> None:
        tree = three_saves(tmp_path)
        stale(tree, 0)
        assert named(scanned(tree.output), "15_2").step == 30
        answer = plan(tree.output)
        assert (chosen(answer), answer.point.lost_steps) == (("10_2", 20), 10)
        (disagrees,) = [one for one in coded(reasons(answer, "15_2"), Code.STEP_DISAGREES) if "step_num" in one.message]
        assert disagrees.path == "rank_0/llama2_7b_rank_0-15_2.ckpt"

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

    def test_without_a_majority_is_no_step(self, resumed: TreeBuilder) -> None:
        resumed.save(epoch=20, step=2, run=1, true_step=8, ranks=[0, 1])
        assert named(scanned(resumed.output), "_1-20_2").step is None
        answer = plan(resumed.output)
        assert chosen(answer) == ("15_2", 30)
        assert why_not(answer)[0][0] == "_1-20_2"

    @pytest.mark.parametrize("flipped", [40 + (1 << 50), 40 + (1 << 20), 40 + (1 << 12)])
    def test_that_no_training_reaches_is_not_lost(self, resumed: TreeBuilder, flipped: int) -> None:
        resumed.save(epoch=20, step=2, true_step=flipped, optimizer_step=40, ranks=[0]).save(
            epoch=20, step=2, ranks=[1, 2, 3]
        )
        for rank in range(4):
            resumed.remove(resumed.shard(rank, 20, 2, run=1))
        answer = plan(resumed.output)
        assert (chosen(answer), answer.point.lost_steps) == (("15_2", 30), 10)

    def test_beyond_any_training_on_every_rank_is_none(self, resumed: TreeBuilder) -> None:
        resumed.save(epoch=20, step=2, run=1, true_step=40 + (1 << 50), optimizer_step=40)
        assert plan(resumed.output).point.lost_steps == 0


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


def test_one_save_in_two_formats_is_in_order(tmp_path: Path) -> None:
    tree = three_saves(tmp_path).save(epoch=15, step=2, fmt="safetensors")
    storage = FaultyStorage(str(tree.checkpoint))
    scan(storage)
    assert len(storage.opened) == 4


def test_other_ranks_that_cannot_be_read_leave_the_first_word(tmp_path: Path) -> None:
    tree = three_saves(tmp_path, ranks=2).save(epoch=6, step=2, run=1)
    tree.truncate(tree.shard(0, 6, 2, run=1), 0)
    assert named(scanned(tree.output), "_1-6_2").step == 12
