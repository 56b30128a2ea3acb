"""AutoModel's saves: what each file tells, what LATEST leads to, and where its data continue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.trainers.findings import TrainersCode
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.answers import (
    chosen,
    codes,
    goes_on,
    going,
    named,
    plan,
    refusal,
    scanned,
    simulated,
    why_not,
)
from tests.support.shard_writers import torch_file
from tests.support.trainer_trees import LAYOUTS, healthy

NEWEST, BEFORE, OLDEST = "epoch_1_step_11", "epoch_0_step_9", "epoch_0_step_4"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return healthy("automodel_2ranks", tmp_path)


class TestWhatASaveTells:
    def test_the_step_inside_is_one_more_than_that_in_the_name(self, tree: Path) -> None:
        newest = named(scanned(tree), NEWEST)
        assert (newest.step, newest.step_source.value, newest.facts) == (12, "content", (("epoch", 1),))
        assert (newest.topology.world_size, newest.ranks, newest.content) == (2, (0, 1), Content.FULL)
        assert newest.findings == ()

    def test_pointers_and_unfinished_folders_are_no_strays(self, tree: Path) -> None:
        shutil.copytree(tree / OLDEST, tree / "epoch_1_step_14.reserving-0a1b")
        (tree / "LOWEST_VAL.txt").write_text(OLDEST)
        assert (scanned(tree).strays, scanned(tree).findings) == ((), ())

    def test_weights_in_slices_are_read_by_their_own_record(self, tree: Path) -> None:
        """As `model_save_format: torch_save` writes them."""
        for save in (NEWEST, BEFORE, OLDEST):
            shutil.rmtree(tree / save / "model")
            shutil.copytree(LAYOUTS / "dcp_fsdp2_4ranks/step_000005", tree / save / "model")
        assert Code.SHARD_MISSING in codes(blocking(named(scanned(tree), NEWEST).findings))
        for save in (NEWEST, BEFORE, OLDEST):
            for rank in (2, 3):
                shutil.copyfile(
                    tree / save / "rng/rng_global_rank_1.pt", tree / save / f"rng/rng_global_rank_{rank}.pt"
                )
        assert chosen(plan(tree)) == (NEWEST, 12)
        (tree / NEWEST / "model/__3_0.distcp").unlink()
        assert chosen(plan(tree)) == (BEFORE, 10)

    @pytest.mark.parametrize("part", ["model", "optim"])
    def test_a_save_without_a_part_was_not_finished(self, part: str, tree: Path) -> None:
        shutil.rmtree(tree / NEWEST / part)
        assert Code.UNCOMMITTED_SAVE in codes(blocking(named(scanned(tree), NEWEST).findings))

    def test_counters_without_a_step_cost_their_save(self, tree: Path) -> None:
        (tree / NEWEST / "step_scheduler.pt").write_bytes(torch_file({"epoch": 1}))
        assert Code.METADATA_INCOMPLETE in codes(blocking(named(scanned(tree), NEWEST).findings))
        assert chosen(plan(tree)) == (BEFORE, 10)

    def test_counters_that_cannot_be_read_are_not_damaged(self, tree: Path) -> None:
        counters = tree / NEWEST / "step_scheduler.pt"
        counters.unlink()
        counters.symlink_to("gone")
        assert codes(blocking(named(scanned(tree), NEWEST).findings)) == {Code.UNREADABLE}

    def test_the_optimizer_shows_that_a_rank_s_weights_are_missing_in_all_saves(self, tree: Path) -> None:
        assert chosen(plan(tree)) == (NEWEST, 12)
        for save in (NEWEST, BEFORE, OLDEST):
            (tree / save / "model/shard-00002-model-00001-of-00001.safetensors").unlink()
        told = why_not(refusal(tree))
        assert told == [(save, {Code.ENTRIES_MISSING}) for save in (NEWEST, BEFORE, OLDEST)]

    def test_a_save_without_any_random_number_state_is_passed_over_if_others_have_them(self, tree: Path) -> None:
        shutil.rmtree(tree / NEWEST / "rng")
        assert chosen(plan(tree)) == (BEFORE, 10)
        for save in (BEFORE, OLDEST):
            shutil.rmtree(tree / save / "rng")
        assert chosen(plan(tree)) == (NEWEST, 12)

    def test_no_prune_takes_a_save_that_a_text_in_place_of_a_link_names(self, tree: Path) -> None:
        assert going(tree) == {BEFORE, OLDEST}
        for link, save in (("LATEST", OLDEST), ("LOWEST_VAL", BEFORE)):
            (tree / link).unlink()
            (tree / f"{link}.txt").write_text(f"{save}\n")
        assert going(tree) == set()


class TestItsOwnChoice:
    def test_a_folder_in_place_of_the_link_leaves_the_choice_open(self, tree: Path) -> None:
        (tree / "LATEST").unlink()
        shutil.copytree(tree / NEWEST, tree / "LATEST")
        assert simulated(tree).outcome is Outcome.UNKNOWN

    @pytest.mark.parametrize(("world", "outcome"), [(1, Outcome.LOADS), (2, Outcome.LOADS), (4, Outcome.STOPS)])
    def test_more_ranks_than_have_saved_stop_it(self, world: int, outcome: Outcome, tree: Path) -> None:
        assert simulated(tree, world=world).outcome is outcome

    def test_a_text_that_names_nothing_here_is_passed_over(self, tree: Path) -> None:
        (tree / "LATEST").unlink()
        (tree / "LATEST.txt").write_text("epoch_9_step_99")
        assert simulated(tree).would_resume == NEWEST
        (tree / "LATEST.txt").write_text("/elsewhere/epoch_9_step_99")
        assert simulated(tree).outcome is Outcome.UNKNOWN

    def test_without_the_link_a_copy_under_a_higher_number_is_taken(self, tree: Path) -> None:
        (tree / "LATEST").unlink()
        shutil.copytree(tree / OLDEST, tree / "epoch_1_step_99")
        told = simulated(tree)
        assert (told.would_resume, told.outcome) == ("epoch_1_step_99", Outcome.LOADS)
        shutil.copytree(tree / OLDEST, tree / "my_step_100")
        assert simulated(tree).outcome is Outcome.UNKNOWN

    def test_without_a_complete_save_it_starts_from_scratch(self, tree: Path) -> None:
        for save in (NEWEST, BEFORE, OLDEST):
            (tree / save / ".incomplete").touch()
        assert simulated(tree).outcome is Outcome.SCRATCH


class TestData:
    def test_a_save_without_loader_states_starts_the_data_again(self, tree: Path) -> None:
        for save in (NEWEST, BEFORE, OLDEST):
            shutil.rmtree(tree / save / "dataloader")
        assert goes_on(plan(tree)).effect is DataEffect.RESTARTS

    @pytest.mark.parametrize(
        ("gbs", "world", "conditions"), [(None, None, 2), (None, 2, 2), (None, 1, 0), (8, None, 0), (4, None, 2)]
    )
    def test_the_conditions_of_an_exact_position_end_with_other_sizes(
        self, gbs: int | None, world: int | None, conditions: int, tree: Path
    ) -> None:
        choice = ResumeQuestion(sizes=AskedSizes(world=world))
        position = goes_on(plan(tree, choice=choice, data=DataQuestion(new_global_batch=gbs, old_global_batch=4)))
        assert (position.effect, len(position.exact_if)) == (DataEffect.UNKNOWN, conditions)

    def test_a_later_save_that_is_not_overwritten_is_noted(self, tree: Path) -> None:
        assert TrainersCode.NEXT_SAVE_BLOCKED not in codes(plan(tree).findings)
        (tree / NEWEST / "optim/.metadata").unlink()
        assert TrainersCode.NEXT_SAVE_BLOCKED in codes(plan(tree).findings)
        (tree / NEWEST / ".incomplete").touch()
        assert TrainersCode.NEXT_SAVE_BLOCKED not in codes(plan(tree).findings)
