"""What verl's saves tell, what it takes by itself, and where its data go on; on a tree laid by its sources."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.verl.epochs import epoch_length
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
from tests.support.trainer_trees import healthy, recount
from tests.trainers.test_locate import deny

TRACKER = "latest_checkpointed_iteration.txt"
NEWEST = "global_step_3"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return healthy("verl_2ranks", tmp_path)


def write_state(file: Path, state: dict[str, object]) -> None:
    """Write a loader's state as torch does."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data/data.pkl", pickle.dumps(state, protocol=2))


def chosen_data(question: TreeQuestion, name: str) -> GoesOn:
    answer = ckpttool.resolve(question, ResumeQuestion(name=name), DataQuestion(old_global_batch=8))
    assert isinstance(answer.decision, ResumePlan)
    assert isinstance(answer.decision.data, GoesOn)
    return answer.decision.data


class TestWhatASaveIs:
    def test_it_has_a_file_of_each_kind_on_each_rank_and_one_of_the_driver(self, tree: Path) -> None:
        save = named(scanned(tree), NEWEST)
        assert (len(save.shards), save.topology.world_size, save.content) == (7, 2, Content.FULL)

    def test_without_optimizer_states_all_saves_are_weights_alone(self, tree: Path) -> None:
        for file in tree.glob("*/actor/optim_*"):
            file.unlink()
        assert {save.content for save in scanned(tree).checkpoints} == {Content.WEIGHTS_ONLY}
        assert dict(why_not(refusal(tree))) == {f"global_step_{step}": {Code.WEIGHTS_ONLY} for step in (1, 2, 3)}

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

    def test_one_that_cannot_be_listed_hides_none_of_the_others(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deny(monkeypatch, str(tree / "global_step_1"), errno.EACCES)
        assert (chosen(plan(tree)), scanned(tree).layout) == ((NEWEST, 3), "verl")


class TestAFolderOfAModel:
    """Under whatever name: what a rank wrote is a part of the save."""

    @pytest.fixture
    def reward(self, tree: Path) -> Path:
        for step in (1, 2, 3):
            shutil.copytree(tree / f"global_step_{step}" / "actor", tree / f"global_step_{step}" / "reward")
        return tree

    @pytest.mark.parametrize("cut", [0, 100])
    def test_spoils_the_save_where_a_file_of_it_is_missing_or_cut(self, reward: Path, cut: int) -> None:
        file = reward / NEWEST / "reward" / "model_world_size_2_rank_1.pt"
        file.write_bytes(file.read_bytes()[:cut])
        if not cut:
            file.unlink()
        assert chosen(plan(reward)) == ("global_step_2", 2)
        assert codes(reasons(plan(reward), NEWEST)) & {Code.SHARD_MISSING, Code.SHARD_TRUNCATED}

    def test_may_be_one_that_cannot_be_listed(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tree / NEWEST / "reward").mkdir()
        deny(monkeypatch, str(tree / NEWEST / "reward"), errno.EACCES)
        assert chosen(plan(tree)) == ("global_step_2", 2)
        assert codes(reasons(plan(tree), NEWEST)) == {Code.UNREADABLE}


class TestWhatTheSftTrainerSaves:
    """One model, whose files lie in the save's folder, and a loader on each data-parallel rank."""

    @pytest.fixture
    def tuned(self, tree: Path) -> Path:
        for save in tree.glob("global_step_*"):
            for file in (save / "actor").iterdir():
                file.rename(save / file.name)
            (save / "actor").rmdir()
            (save / "fsdp_config.json").write_text("{}")
            shutil.copyfile(save / "data.pt", save / "data_1.pt")
            (save / "data.pt").rename(save / "data_0.pt")
        return tree

    def test_is_read_with_the_states_of_all_loaders(self, tuned: Path) -> None:
        save = named(scanned(tuned), NEWEST)
        assert (len(save.shards), save.topology.world_size, save.content) == (8, 2, Content.FULL)
        assert (chosen(plan(tuned)), codes(save.findings)) == ((NEWEST, 3), set())
        assert simulated(tuned).would_resume == NEWEST

    @pytest.mark.parametrize("file", ["optim_world_size_2_rank_1.pt", "data_1.pt"])
    def test_is_passed_over_where_a_file_is_missing(self, tuned: Path, file: str) -> None:
        (tuned / NEWEST / file).unlink()
        assert chosen(plan(tuned)) == ("global_step_2", 2)
        assert codes(reasons(plan(tuned), NEWEST)) == {Code.SHARD_MISSING}

    def test_is_short_of_a_loader_s_state_only_if_another_save_of_its_batch_size_has_more(self, tuned: Path) -> None:
        """Two saves with the same number, or with the same global batch, have all of their data-parallel ranks."""
        for save in ("global_step_2", NEWEST):
            (tuned / save / "data_1.pt").unlink()
        assert chosen(plan(tuned)) == (NEWEST, 3)


class TestWhereTheDataOfTheSftTrainerGoOn:
    """Each answer is what verl 0.9.1 itself did on two ranks with 5 batches an epoch."""

    @pytest.fixture
    def sft(self, tmp_path: Path) -> Path:
        return healthy("verl_sft", tmp_path)

    def test_within_an_epoch_each_loader_continues(self, sft: Path) -> None:
        data = goes_on(plan(sft))
        assert (data.effect, data.batches, data.repeated, data.lost) == (DataEffect.EXACT, 2, 0, 0)
        assert "data.num_workers is 0" in data.exact_if

    def test_a_single_save_does_not_show_how_long_an_epoch_is(self, sft: Path) -> None:
        for name in ("global_step_8", "global_step_12"):
            shutil.rmtree(sft / name)
        (sft / TRACKER).write_text("4")
        data = goes_on(plan(sft))
        assert (data.effect, data.samples) == (DataEffect.UNKNOWN, 16)
        assert data.exact_if[0] == "an epoch has more than 4 batches"

    @pytest.fixture
    def ended(self, sft: Path) -> Path:
        """The newest save was made at the last batch of the third epoch."""
        (sft / "global_step_12").rename(sft / "global_step_15")
        for file in (sft / "global_step_15").glob("data_*.pt"):
            recount(file, "samples_yielded", 4, 10)
            recount(file, "_num_yielded", 2, 5)
        (sft / TRACKER).write_text("15")
        return sft

    def test_at_an_epoch_s_last_batch_the_next_epoch_is_skipped(self, ended: Path) -> None:
        answer = plan(ended)
        assert (goes_on(answer).effect, goes_on(answer).lost) == (DataEffect.LOSES, 20)
        (found,) = (each for each in answer.findings if each.code is Code.DATA_MISPLACED)
        assert "move all data_N.pt files out of the save" in (found.remedy or "")

    def test_which_the_remedy_prevents(self, ended: Path) -> None:
        for file in (ended / "global_step_15").glob("data_*.pt"):
            file.unlink()
        answer = plan(ended)
        assert (chosen(answer), goes_on(answer).effect) == (("global_step_15", 15), DataEffect.EXACT)
        assert Code.DATA_MISPLACED not in codes(answer.findings)

    @pytest.mark.parametrize(("old", "repeated"), [(None, None), (4, 8)])
    def test_without_states_each_loader_starts_the_epoch_again(
        self, sft: Path, old: int | None, repeated: int | None
    ) -> None:
        for file in (sft / "global_step_12").glob("data_*.pt"):
            file.unlink()
        data = goes_on(plan(sft, data=DataQuestion(old_global_batch=old)))
        assert (data.effect, data.repeated, data.exact_if) == (DataEffect.RESTARTS, repeated, ())

    def test_nor_is_it_known_without_them_whether_an_epoch_ended(self, sft: Path) -> None:
        for file in sft.glob("global_step_*/data_*.pt"):
            file.unlink()
        data = goes_on(plan(sft))
        assert data.effect is DataEffect.RESTARTS
        assert "the save was made at the last batch of an epoch" in data.exact_if

    @pytest.mark.parametrize(
        ("ranks", "effect", "repeated"),
        [(1, DataEffect.REPEATS, 4), (2, DataEffect.EXACT, 0), (4, DataEffect.UNKNOWN, None)],
    )
    def test_with_another_data_parallel_size_it_is_another_place(
        self, sft: Path, ranks: int, effect: DataEffect, repeated: int | None
    ) -> None:
        data = goes_on(plan(sft, choice=ResumeQuestion(sizes=AskedSizes(data=ranks))))
        assert (data.effect, data.repeated) == (effect, repeated)

    @pytest.mark.parametrize(("save", "conditions"), [("global_step_4", 2), ("global_step_12", 0)])
    def test_another_batch_size_may_be_another_epoch(self, sft: Path, save: str, conditions: int) -> None:
        """In the first epoch, it is not, unless the epoch is shorter than that in steps of the new size."""
        answer = ckpttool.resolve(
            TreeQuestion(path=str(sft)), ResumeQuestion(name=save), DataQuestion(old_global_batch=4, new_global_batch=8)
        )
        assert isinstance(answer.decision, ResumePlan)
        data = answer.decision.data
        assert isinstance(data, GoesOn)
        assert (data.effect, len(data.exact_if)) == (DataEffect.UNKNOWN, conditions)

    def test_loaders_that_are_apart_or_torn_tell_no_place(self, sft: Path) -> None:
        recount(sft / "global_step_12" / "data_1.pt", "_num_yielded", 2, 1)
        assert "different numbers of batches" in (goes_on(plan(sft)).why or "")
        for rank in range(2):
            write_state(sft / "global_step_12" / f"data_{rank}.pt", {"_iterator_finished": False})
        assert "do not show" in (goes_on(plan(sft)).why or "")

    @pytest.mark.parametrize(("since", "samples"), [(0, 16), (1, None)])
    def test_a_loader_with_processes_of_its_own(self, sft: Path, since: int, samples: int | None) -> None:
        """Counted as of its last snapshot, which is older than its last batch if that is not zero batches ago."""
        for name in ("global_step_8", "global_step_12"):
            shutil.rmtree(sft / name)
        (sft / TRACKER).write_text("4")
        main = {"_num_workers": 3, "_sampler_iter_state": {"samples_yielded": 8 - 2 * since}}
        snapshot = {"_snapshot_step": 4 - since, "_main_snapshot": main}
        for rank in range(2):
            state = {"_snapshot": snapshot, "_steps_since_snapshot": since}
            write_state(sft / "global_step_4" / f"data_{rank}.pt", state)
        data = goes_on(plan(sft))
        assert (data.batches, data.samples) == (4, samples)
        assert "data.num_workers is 3" in data.exact_if

    def test_with_one_loader_for_all_ranks_the_condition_says_so(self, sft: Path) -> None:
        for file in sft.glob("global_step_*/data_1.pt"):
            file.unlink()
        assert "the run has 1 data-parallel rank" in goes_on(plan(sft)).exact_if

    def test_its_own_start_needs_no_state(self, sft: Path) -> None:
        (sft / "global_step_12" / "data_1.pt").unlink()
        told = simulated(sft)
        assert (told.would_resume, told.outcome) == ("global_step_12", Outcome.LOADS)
        assert "global_step_12/data_1.pt" in told.because
        assert chosen(plan(sft)) == ("global_step_8", 8)


@pytest.mark.parametrize(
    ("counts", "length"),
    [
        ({4: 4, 8: 3, 12: 2}, 5),
        ({5: 5, 10: 5}, 5),
        ({4: 4}, None),  # the first epoch shows no end
        ({4: 4, 12: 2}, None),  # 5 or 10 batches
        ({4: 4, 14: 4}, None),
        ({4: 5, 9: 4}, None),  # more batches than steps
        ({}, None),
    ],
)
def test_the_length_of_an_epoch_follows_from_saves_in_several(counts: dict[int, int], length: int | None) -> None:
    assert epoch_length(counts) == length


class TestItsOwnRetention:
    """`max_actor_ckpt_to_keep` takes `actor/` away and leaves `data.pt`, and `critic/` if all of these are kept."""

    @pytest.mark.parametrize("removed", ["actor", "critic"])
    def test_of_one_of_two_models_leaves_no_checkpoint_and_no_alarm(self, tree: Path, removed: str) -> None:
        for step in (1, 2, 3):
            shutil.copytree(tree / f"global_step_{step}" / "actor", tree / f"global_step_{step}" / "critic")
        for step in (1, 2):
            shutil.rmtree(tree / f"global_step_{step}" / removed)
        found = scanned(tree)
        assert [save.name for save in found.checkpoints] == [NEWEST]
        assert codes(found.findings) == {Code.STRAY_FILE}
        assert (chosen(plan(tree)), cli("scan", str(tree)).exit_code) == ((NEWEST, 3), ExitCode.OK)
        (tree / NEWEST / "actor" / "model_world_size_2_rank_0.pt").unlink()
        assert set(dict(why_not(refusal(tree)))) == {NEWEST}

    def test_leaves_no_checkpoint_and_no_alarm(self, tree: Path) -> None:
        shutil.rmtree(tree / "global_step_1" / "actor")
        found = scanned(tree)
        assert [save.name for save in found.checkpoints] == ["global_step_2", NEWEST]
        assert chosen(plan(tree)) == (NEWEST, 3)
        assert cli("scan", str(tree)).exit_code == ExitCode.OK
        assert any("own retention" in each.message for each in found.findings if each.path == "global_step_1")

    def test_never_leaves_so_what_the_tracker_names(self, tree: Path) -> None:
        shutil.rmtree(tree / "global_step_1" / "actor")
        (tree / TRACKER).write_text("1")
        assert "global_step_1" in [save.name for save in scanned(tree).checkpoints]


class TestWhatItTakesByItself:
    def test_what_the_tracker_names(self, tree: Path) -> None:
        (tree / TRACKER).write_text("2")
        assert (simulated(tree).would_resume, simulated(tree).outcome) == ("global_step_2", Outcome.LOADS)

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            ("", Outcome.STOPS),
            ("x", Outcome.STOPS),
            ("9", Outcome.SCRATCH),
            ("0", Outcome.SCRATCH),
            (None, Outcome.SCRATCH),
        ],
    )
    def test_nothing_where_that_names_nothing(self, tree: Path, text: str | None, outcome: Outcome) -> None:
        (tree / TRACKER).unlink()
        if text is not None:
            (tree / TRACKER).write_text(text)
        assert (simulated(tree).would_resume, simulated(tree).outcome) == (None, outcome)
        assert chosen(plan(tree)) == (NEWEST, 3)
        assert Code.TRACKER_DISAGREES in codes(scanned(tree).findings)

    def test_what_is_further_than_a_save_that_it_names_and_that_is_gone_was_left(self, tree: Path) -> None:
        shutil.rmtree(tree / "global_step_2")
        (tree / TRACKER).write_text("2")
        for file in (tree / NEWEST).rglob("*"):
            os.utime(file, (0, 0))
        assert codes(reasons(plan(tree), NEWEST)) == {Code.ABANDONED_BRANCH}

    def test_a_tracker_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        (tree / TRACKER).unlink()
        (tree / TRACKER).mkdir()
        assert simulated(tree).outcome is Outcome.UNKNOWN
        assert Code.UNREADABLE in codes(scanned(tree).findings)


class TestWhereTheDataGoOn:
    def test_the_driver_s_loader_goes_on_from_its_own_state(self, tree: Path) -> None:
        """Another save of three batches of an epoch proves that the second one is not its last."""
        question = TreeQuestion(path=str(tree))
        data = chosen_data(question, "global_step_2")
        assert (data.effect, data.samples, data.batches, data.repeated) == (DataEffect.EXACT, 16, 2, 0)
        assert data.exact_if == ("the data set and data.train_batch_size are unchanged",)
        assert data.where is not None
        assert data.where.endswith("global_step_2/data.pt")

    def test_a_state_that_is_torn_tells_nothing(self, tree: Path) -> None:
        (tree / "global_step_3" / "data.pt").write_bytes(b"")
        assert chosen_data(TreeQuestion(path=str(tree)), "global_step_2").effect is DataEffect.UNKNOWN

    @pytest.mark.parametrize(("inside", "batches"), [(3, 3), (None, None)])
    def test_a_loader_with_processes_of_its_own(self, tree: Path, inside: int | None, batches: int | None) -> None:
        state: dict[str, object] = {"_iterator_finished": False}
        if inside is not None:
            state |= {"_snapshot": {"_snapshot_step": inside - 1}, "_steps_since_snapshot": 1}
        write_state(tree / NEWEST / "data.pt", state)
        data = goes_on(plan(tree))
        assert (data.effect, data.batches) == (DataEffect.UNKNOWN, batches)

    def test_without_its_state_it_begins_anew(self, tree: Path) -> None:
        (tree / NEWEST / "data.pt").unlink()
        answer = plan(tree)
        assert chosen(answer) == (NEWEST, 3)
        assert Code.DATA_RESTARTS in codes(answer.findings)
