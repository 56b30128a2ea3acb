"""What SkyRL's saves tell, what it takes by itself, and where its data go on; on trees that its own code wrote."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import CommitState, Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.locate import locate
from ckpttool.types import DataQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import (
    chosen,
    cli,
    codes,
    goes_on,
    named,
    plan,
    reasons,
    refusal,
    scanned,
    simulated,
    why_not,
)
from tests.support.trainer_trees import healthy
from tests.trainers.test_locate import deny

TRACKER = "latest_ckpt_global_step.txt"
NEWEST, OLDER = "global_step_12", "global_step_10"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two saves of two ranks: at the last batch of the second epoch, and within the third."""
    return healthy("skyrl_2ranks", tmp_path)


def write_record(file: Path, record: object) -> None:
    """Write plain values as torch does."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data/data.pkl", pickle.dumps(record, protocol=2))


def fine_tuned(tree: Path, resume_from: str = "") -> Path:
    """Make a tree as the SFT trainer saves it: without a critic, and with another config."""
    for step in (10, 12):
        shutil.rmtree(tree / f"global_step_{step}" / "critic")
        config: dict[str, Any] = {"resume_from": resume_from, "ckpt_interval": 4, "num_epochs": 3}
        record = {"global_step": step, "config": config}
        write_record(tree / f"global_step_{step}" / "trainer_state.pt", record)
    return tree


class TestWhatASaveIs:
    def test_it_has_the_files_of_all_models_and_the_step_inside(self, tree: Path) -> None:
        save = named(scanned(tree), NEWEST)
        assert (len(save.shards), save.topology.world_size, save.content) == (14, 2, Content.FULL)
        assert (save.scalars.step, save.commit, codes(save.findings)) == (12, CommitState.COMMITTED, set())

    @pytest.mark.parametrize("kind", ["model", "optim", "extra_state"])
    @pytest.mark.parametrize("cut", [None, 0, 500])
    @pytest.mark.parametrize("model", ["policy", "critic"])
    def test_a_missing_or_cut_file_of_either_model_spoils_it(
        self, tree: Path, model: str, kind: str, cut: int | None
    ) -> None:
        file = tree / NEWEST / model / f"{kind}_world_size_2_rank_1.pt"
        if cut is None:
            file.unlink()
        else:
            os.truncate(file, cut)
        assert chosen(plan(tree)) == (OLDER, 10)
        expected = {None: Code.SHARD_MISSING, 0: Code.SHARD_EMPTY, 500: Code.SHARD_TRUNCATED}
        assert expected[cut] in codes(reasons(plan(tree), NEWEST))

    @pytest.mark.parametrize("is_empty", [True, False])
    def test_without_a_policy_it_is_damaged_also_beside_a_critic(self, tree: Path, is_empty: bool) -> None:
        for save in (OLDER, NEWEST):
            shutil.rmtree(tree / save / "policy")
            if is_empty:
                (tree / save / "policy").mkdir()
        assert dict(why_not(refusal(tree))) == {OLDER: {Code.SHARD_MISSING}, NEWEST: {Code.SHARD_MISSING}}
        assert scanned(tree).layout == "skyrl"

    def test_a_critic_that_the_others_have_is_asked_for(self, tree: Path) -> None:
        shutil.rmtree(tree / NEWEST / "critic")
        assert (chosen(plan(tree)), codes(reasons(plan(tree), NEWEST))) == ((OLDER, 10), {Code.METADATA_INCOMPLETE})

    def test_any_other_folder_with_a_rank_s_file_is_a_part_of_it(self, tree: Path) -> None:
        for save in (OLDER, NEWEST):
            shutil.copytree(tree / save / "critic", tree / save / "reward")
        (tree / NEWEST / "reward" / "model_world_size_2_rank_0.pt").unlink()
        assert chosen(plan(tree)) == (OLDER, 10)

    def test_without_its_record_it_is_unfinished_unless_no_save_has_one(self, tree: Path) -> None:
        (tree / NEWEST / "trainer_state.pt").unlink()
        assert codes(reasons(plan(tree), NEWEST)) == {Code.UNCOMMITTED_SAVE}
        (tree / OLDER / "trainer_state.pt").unlink()
        assert chosen(plan(tree)) == (NEWEST, 12)

    def test_what_the_asynchronous_trainer_needs_is_asked_for_where_a_save_has_it(self, tree: Path) -> None:
        write_record(tree / OLDER / "fully_async_state.pt", {"consumed_uids": []})
        assert (chosen(plan(tree)), codes(reasons(plan(tree), NEWEST))) == ((OLDER, 10), {Code.SHARD_MISSING})

    def test_saves_of_megatron_workers_are_never_chosen_nor_called_damaged(self, tree: Path) -> None:
        for save in (OLDER, NEWEST):
            shutil.rmtree(tree / save / "critic")
            shutil.rmtree(tree / save / "policy")
            (tree / save / "policy").mkdir()
            (tree / save / "policy" / ".metadata").write_text("x")
        told = dict(why_not(refusal(tree)))
        assert set(told) == {OLDER, NEWEST}
        assert Code.SHARD_MISSING not in {code for against in told.values() for code in against}

    def test_a_folder_that_cannot_be_listed_is_unknown(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        deny(monkeypatch, str(tree / NEWEST / "policy"), errno.EACCES)
        assert (chosen(plan(tree)), codes(reasons(plan(tree), NEWEST))) == ((OLDER, 10), {Code.UNREADABLE})

    def test_a_save_that_cannot_be_listed_is_unknown(self, tree: Path) -> None:
        (tree / "global_step_16").symlink_to("gone")
        assert codes(reasons(plan(tree), "global_step_16")) >= {Code.UNREADABLE}

    def test_nothing_is_missing_in_a_save_whose_folder_is_closed(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deny(monkeypatch, str(tree / NEWEST), errno.EACCES)
        answer = plan(tree)
        assert (chosen(answer), codes(reasons(answer, NEWEST))) == ((OLDER, 10), {Code.UNREADABLE})

    def test_a_copy_under_a_higher_number_is_not_newer(self, tree: Path) -> None:
        shutil.copytree(tree / OLDER, tree / "global_step_99")
        assert chosen(plan(tree)) == (NEWEST, 12)
        assert codes(reasons(plan(tree), "global_step_99")) == {Code.STEP_DISAGREES}

    def test_what_belongs_to_no_save_is_listed(self, tree: Path) -> None:
        shutil.copytree(tree / NEWEST, tree / "global_step_12_backup")
        (tree / NEWEST / "notes.txt").write_text("x")
        assert [each.path for each in scanned(tree).findings if each.code is Code.STRAY_FILE] == [
            "global_step_12_backup"
        ]
        assert [each.path for each in named(scanned(tree), NEWEST).findings] == [f"{NEWEST}/notes.txt"]

    def test_its_parts_and_its_tracker_lead_to_the_tree(self, tree: Path) -> None:
        assert locate(str(tree / NEWEST / "policy")).focus == NEWEST
        assert locate(str(tree / TRACKER)).focus is None
        assert (locate(str(tree / NEWEST)).layout.name, locate(str(tree / NEWEST)).focus) == ("skyrl", NEWEST)

    def test_exported_weights_are_none_of_its_saves(self, tmp_path: Path) -> None:
        """Its `export_path` has folders of the same names, without rank files."""
        for step in (4, 8):
            (tmp_path / "exports" / f"global_step_{step}" / "policy").mkdir(parents=True)
            (tmp_path / "exports" / f"global_step_{step}" / "policy" / "model.safetensors").write_text("x")
        assert cli("scan", str(tmp_path / "exports")).exit_code == ExitCode.UNKNOWN_LAYOUT


class TestHowItIsLoaded:
    def test_by_a_mode_and_a_path(self, tree: Path) -> None:
        settings = {str(each.place): each.value for each in plan(tree).load.settings}
        assert list(settings.values()) == ["from_path", str(tree / NEWEST)]

    def test_by_one_setting_of_the_sft_trainer(self, tree: Path) -> None:
        (setting,) = plan(fine_tuned(tree)).load.settings
        assert (str(setting.place).endswith("resume_from"), setting.value) == (True, str(tree / NEWEST))

    def test_not_with_another_number_of_ranks(self, tree: Path) -> None:
        answer = refusal(tree, choice=ResumeQuestion(sizes=AskedSizes(world=4)))
        assert dict(why_not(answer))[NEWEST] == {Code.WORLD_SIZE_REFUSED}


class TestWhatItTakesByItself:
    """As skyrl 0.4.0 was seen to do, if `faults.jsonl` does not say otherwise."""

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [("", Outcome.STOPS), ("x", Outcome.STOPS), ("99", Outcome.STOPS), (None, Outcome.SCRATCH)],
    )
    def test_nothing_where_its_tracker_names_nothing(self, tree: Path, text: str | None, outcome: Outcome) -> None:
        (tree / TRACKER).unlink()
        if text is not None:
            (tree / TRACKER).write_text(text)
        assert (simulated(tree).would_resume, simulated(tree).outcome) == (None, outcome)
        assert Code.TRACKER_DISAGREES in codes(scanned(tree).findings)

    def test_a_tracker_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        (tree / TRACKER).unlink()
        (tree / TRACKER).mkdir()
        assert simulated(tree).outcome is Outcome.UNKNOWN
        assert Code.UNREADABLE in codes(scanned(tree).findings)

    @pytest.mark.parametrize(("interval", "outcome"), [(2, Outcome.LOADS), (1, Outcome.STOPS)])
    def test_an_older_save_only_within_an_interval(self, tree: Path, interval: int, outcome: Outcome) -> None:
        """The newest may be half written, but much later ones are of another run."""
        (tree / TRACKER).write_text("10")
        record = {"global_step": 10, "config": {"trainer": {"ckpt_interval": interval}}}
        write_record(tree / OLDER / "trainer_state.pt", record)
        assert simulated(tree).outcome is outcome

    def test_which_it_is_is_unknown_without_the_interval(self, tree: Path) -> None:
        (tree / TRACKER).write_text("10")
        write_record(tree / OLDER / "trainer_state.pt", {"global_step": 10})
        assert simulated(tree).outcome is Outcome.UNKNOWN

    def test_a_folder_without_a_number_stops_it(self, tree: Path) -> None:
        shutil.copytree(tree / NEWEST, tree / "global_step_12_backup")
        told = simulated(tree)
        assert (told.outcome, "global_step_12_backup has no number" in told.because) == (Outcome.STOPS, True)

    @pytest.mark.parametrize(
        ("file", "outcome", "words"),
        [
            ("policy/model_world_size_2_rank_1.pt", Outcome.STOPS, "model_world_size_2_rank_1.pt"),
            ("policy/optim_world_size_2_rank_1.pt", Outcome.LOADS, "starts with a new optimizer"),
            ("data.pt", Outcome.LOADS, "the tracker names it"),
            ("trainer_state.pt", Outcome.STOPS, "the save is not complete"),
        ],
    )
    def test_it_needs_neither_the_optimizer_nor_the_loader_s_state(
        self, tree: Path, file: str, outcome: Outcome, words: str
    ) -> None:
        (tree / NEWEST / file).unlink()
        told = simulated(tree)
        assert (told.would_resume, told.outcome, words in told.because) == (NEWEST, outcome, True), told

    def test_a_damaged_state_of_the_loader_costs_the_position_alone(self, tree: Path) -> None:
        os.truncate(tree / NEWEST / "data.pt", 500)
        told = simulated(tree)
        assert (told.outcome, "data.pt is damaged" in told.because) == (Outcome.LOADS, True)
        assert chosen(plan(tree)) == (OLDER, 10)

    @pytest.mark.parametrize(("resume_from", "outcome"), [("", Outcome.SCRATCH), ("latest", Outcome.LOADS)])
    def test_the_sft_trainer_only_where_it_is_told_to(self, tree: Path, resume_from: str, outcome: Outcome) -> None:
        assert simulated(fine_tuned(tree, resume_from)).outcome is outcome

    def test_the_sft_trainer_s_interval_is_beside_it(self, tree: Path) -> None:
        fine_tuned(tree, "latest")
        (tree / TRACKER).write_text("10")
        assert simulated(tree).outcome is Outcome.LOADS

    def test_not_with_other_ranks(self, tree: Path) -> None:
        said = cli("resolve", str(tree), "--simulate", "own", "--world-size", "4")
        assert "with --world-size 4, no rank finds the files that 2 ranks wrote" in " ".join(said.output.split())


class TestWhereTheDataGoOn:
    def test_within_an_epoch_the_loader_continues(self, tree: Path) -> None:
        data = goes_on(plan(tree))
        assert (data.effect, data.batches, data.lost) == (DataEffect.EXACT, 2, 0)
        assert "the loader has 2 processes" in data.exact_if

    def resumed_at_the_end(self, tree: Path) -> ResumePlan:
        answer = ckpttool.resolve(TreeQuestion(path=str(tree)), ResumeQuestion(name=OLDER))
        assert isinstance(answer.decision, ResumePlan)
        return answer.decision

    def test_at_an_epoch_s_last_batch_the_next_epoch_is_skipped(self, tree: Path) -> None:
        answer = self.resumed_at_the_end(tree)
        data = goes_on(answer)
        assert (data.effect, data.lost) == (DataEffect.LOSES, 20)
        assert Code.DATA_MISPLACED in codes(answer.findings)

    def test_but_not_by_the_sft_trainer(self, tree: Path) -> None:
        assert goes_on(self.resumed_at_the_end(fine_tuned(tree))).effect is DataEffect.EXACT

    def test_one_save_does_not_show_where_an_epoch_ends(self, tree: Path) -> None:
        shutil.rmtree(tree / OLDER)
        data = goes_on(plan(tree))
        assert data.effect is DataEffect.EXACT or data.exact_if[0] == "an epoch has more than 2 batches"

    def test_without_processes_later_epochs_have_another_order(self, tree: Path) -> None:
        for save, batches in ((OLDER, 5), (NEWEST, 2)):
            state = {"_num_yielded": batches, "_sampler_iter_state": {"samples_yielded": 4 * batches}}
            write_record(tree / save / "data.pt", state)
        answer = plan(tree)
        assert goes_on(answer).effect is DataEffect.REORDERS
        assert Code.DATA_REORDERED in codes(answer.findings)
        shutil.rmtree(tree / OLDER)
        assert goes_on(plan(tree)).exact_if == ()

    def test_without_its_state_it_begins_anew(self, tree: Path) -> None:
        (tree / NEWEST / "data.pt").unlink()
        answer = plan(tree)
        assert (chosen(answer), goes_on(answer).effect) == ((NEWEST, 12), DataEffect.RESTARTS)
        assert Code.DATA_RESTARTS in codes(answer.findings)

    @pytest.mark.parametrize("is_fine_tuned", [False, True])
    def test_a_state_of_another_save_shows_no_position(self, tree: Path, is_fine_tuned: bool) -> None:
        if is_fine_tuned:
            fine_tuned(tree)
        shutil.copyfile(tree / OLDER / "data.pt", tree / NEWEST / "data.pt")
        data = goes_on(plan(tree))
        assert (data.effect, data.exact_if) == (DataEffect.UNKNOWN, ())
        assert "fit no length of an epoch" in (data.why or "")

    def test_a_state_that_shows_no_count_is_unknown(self, tree: Path) -> None:
        write_record(tree / NEWEST / "data.pt", {"_iterator_finished": False})
        assert "does not show" in (goes_on(plan(tree)).why or "")

    def test_another_batch_size_is_unknown_and_the_same_one_is_not(self, tree: Path) -> None:
        for new, effect in ((8, DataEffect.UNKNOWN), (4, DataEffect.EXACT)):
            data = plan(tree, data=DataQuestion(old_global_batch=4, new_global_batch=new)).data
            assert isinstance(data, GoesOn)
            assert data.effect is effect

    def test_so_are_filtered_prompts_and_the_asynchronous_trainer(self, tree: Path) -> None:
        sampling = {"dynamic_sampling": {"type": "filter"}}
        record = {"global_step": 12, "config": {"trainer": {"ckpt_interval": 4, "algorithm": sampling}}}
        write_record(tree / NEWEST / "trainer_state.pt", record)
        assert "dynamic sampling" in (goes_on(plan(tree)).why or "")
        for save in (OLDER, NEWEST):
            write_record(tree / save / "fully_async_state.pt", {"consumed_uids": []})
        data = plan(tree).data
        assert isinstance(data, Unknown)
        assert "fully asynchronous" in data.why
