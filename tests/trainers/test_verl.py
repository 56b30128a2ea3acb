"""What verl's saves tell, what it takes by itself, and where its data go on; on a tree laid by its sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.checkpoint import Content
from ckpttool.domain.data_position import DataEffect, GoesOn
from ckpttool.domain.finding import Code
from ckpttool.domain.plan import Outcome, Simulation
from ckpttool.domain.question import AskedSizes
from tests.answers import chosen, codes, named, plan, reasons, refusal, scanned, why_not
from tests.layouts import healthy

TRACKER = "latest_checkpointed_iteration.txt"
NEWEST = "global_step_3"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return healthy("verl_2ranks", tmp_path)


def simulated(root: Path, world: int | None = None) -> Simulation:
    return api.simulate(api.resolve(api.TreeQuestion(path=str(root), world_size=world)), None)


def position(root: Path, data: api.DataQuestion | None = None) -> GoesOn:
    found = plan(root, data=data).data
    assert isinstance(found, GoesOn)
    return found


class TestWhatASaveIs:
    def test_it_has_a_file_of_each_kind_on_each_rank_and_one_of_the_driver(self, tree: Path) -> None:
        save = named(scanned(tree), NEWEST)
        assert (len(save.shards), save.topology.world_size, save.content) == (7, 2, Content.FULL)

    def test_files_of_another_world_size_in_its_folder_spoil_it(self, tree: Path) -> None:
        role = tree / NEWEST / "actor"
        shutil.copyfile(role / "model_world_size_2_rank_0.pt", role / "model_world_size_4_rank_3.pt")
        assert chosen(plan(tree)) == ("global_step_2", 2)
        assert Code.WORLD_SIZE_DIFFERS in codes(reasons(plan(tree), NEWEST))

    def test_one_without_a_role_that_the_others_have_is_suspect(self, tree: Path) -> None:
        for step in (1, 2):
            shutil.copytree(tree / f"global_step_{step}" / "actor", tree / f"global_step_{step}" / "critic")
        assert chosen(plan(tree)) == ("global_step_2", 2)
        assert codes(reasons(plan(tree), NEWEST)) == {Code.METADATA_INCOMPLETE}

    def test_what_no_save_holds_is_not_missed_and_without_optimizer_states_all_are_weights_alone(
        self, tree: Path
    ) -> None:
        for file in tree.glob("*/actor/optim_*"):
            file.unlink()
        assert {save.content for save in scanned(tree).checkpoints} == {Content.WEIGHTS_ONLY}
        assert dict(why_not(refusal(tree))) == {f"global_step_{step}": {Code.WEIGHTS_ONLY} for step in (1, 2, 3)}

    def test_one_of_whose_files_only_the_driver_s_is_left_is_none(self, tree: Path) -> None:
        shutil.rmtree(tree / NEWEST / "actor")
        assert chosen(plan(tree)) == ("global_step_2", 2)

    def test_a_folder_or_link_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        (tree / NEWEST / "actor" / "optim_world_size_2_rank_1.pt").unlink()
        (tree / NEWEST / "actor" / "optim_world_size_2_rank_1.pt").symlink_to("gone")
        (tree / "global_step_4").symlink_to("gone")
        (tree / "global_step_5").mkdir()
        (tree / "global_step_5" / "actor").symlink_to("gone")
        answer = plan(tree)
        assert chosen(answer) == ("global_step_2", 2)
        for name in (NEWEST, "global_step_4", "global_step_5"):
            assert Code.UNREADABLE in codes(reasons(answer, name))

    def test_folders_of_another_trainer_with_an_underscore_less_name_are_strays(self, tree: Path) -> None:
        (tree / "global_step12").mkdir()
        assert scanned(tree).strays == ("global_step12",)


class TestWhatItTakesByItself:
    def test_what_the_tracker_names(self, tree: Path) -> None:
        (tree / TRACKER).write_text("2")
        assert (simulated(tree).would_resume, simulated(tree).outcome) == ("global_step_2", Outcome.LOADS)

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [("", Outcome.STOPS), ("x", Outcome.STOPS), ("9", Outcome.SCRATCH), (None, Outcome.SCRATCH)],
    )
    def test_nothing_where_that_names_nothing(self, tree: Path, text: str | None, outcome: Outcome) -> None:
        (tree / TRACKER).unlink()
        if text is not None:
            (tree / TRACKER).write_text(text)
        assert (simulated(tree).would_resume, simulated(tree).outcome) == (None, outcome)
        assert chosen(plan(tree)) == (NEWEST, 3)
        assert Code.TRACKER_DISAGREES in codes(scanned(tree).findings)

    def test_a_tracker_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        (tree / TRACKER).unlink()
        (tree / TRACKER).mkdir()
        assert simulated(tree).outcome is Outcome.UNKNOWN
        assert Code.UNREADABLE in codes(scanned(tree).findings)

    def test_it_stops_at_a_file_that_is_missing(self, tree: Path) -> None:
        (tree / NEWEST / "actor" / "model_world_size_2_rank_0.pt").unlink()
        told = simulated(tree)
        assert (told.would_resume, told.outcome) == (NEWEST, Outcome.STOPS)


def test_other_ranks_look_for_files_that_nobody_wrote(tree: Path) -> None:
    refused = refusal(tree, choice=api.ResumeQuestion(sizes=AskedSizes(world=4)))
    assert dict(why_not(refused)) == {f"global_step_{step}": {Code.WORLD_SIZE_REFUSED} for step in (1, 2, 3)}
    assert chosen(plan(tree, choice=api.ResumeQuestion(sizes=AskedSizes(world=2)))) == (NEWEST, 3)


class TestWhereTheDataGoOn:
    def test_the_driver_s_loader_goes_on_from_its_own_state(self, tree: Path) -> None:
        data = position(tree, api.DataQuestion(old_global_batch=8))
        assert (data.effect, data.samples, data.batches, data.repeated) == (DataEffect.EXACT, 24, 3, 0)
        assert data.where is not None
        assert data.where.endswith(f"{NEWEST}/data.pt")

    def test_with_batches_of_another_size_it_goes_on_in_another_order(self, tree: Path) -> None:
        data = position(tree, api.DataQuestion(old_global_batch=8, new_global_batch=16))
        assert (data.effect, data.repeated) == (DataEffect.REORDERS, None)

    def test_without_its_state_it_begins_anew(self, tree: Path) -> None:
        (tree / NEWEST / "data.pt").unlink()
        answer = plan(tree)
        assert chosen(answer) == (NEWEST, 3)
        assert Code.DATA_RESTARTS in codes(answer.findings)


def test_it_is_told_the_folder_and_that_it_is_told_one(tree: Path) -> None:
    load = plan(tree).load
    assert load.value("argument:trainer.resume_mode") == "resume_path"
    assert load.value("argument:trainer.resume_from_path") == str(tree / NEWEST)


@pytest.mark.parametrize("text", ["0", "3"])
def test_a_tracker_of_no_step_abandons_no_save(tree: Path, text: str) -> None:
    (tree / "latest_checkpointed_iteration.txt").write_text(text)
    assert chosen(plan(tree)) == ("global_step_3", 3)
