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
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.core.errors import ExitCode
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

TRACKER = "latest_checkpointed_iteration.txt"
NEWEST = "global_step_3"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks."""
    return healthy("verl_2ranks", tmp_path)


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

    @pytest.mark.parametrize("state", ["data_0.pt", "data.pt"])
    def test_goes_on_in_the_data_as_nobody_knows(self, tuned: Path, state: str) -> None:
        for save in tuned.glob("global_step_*"):
            (save / "data_0.pt").rename(save / state)
        data = plan(tuned).data
        assert isinstance(data, Unknown)
        assert state in data.why


class TestItsOwnRetention:
    """`max_actor_ckpt_to_keep` takes `actor/` away and leaves `data.pt`."""

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
        with zipfile.ZipFile(tree / NEWEST / "data.pt", "w") as archive:
            archive.writestr("data/data.pkl", pickle.dumps(state, protocol=2))
        data = goes_on(plan(tree))
        assert (data.effect, data.batches) == (DataEffect.UNKNOWN, batches)

    def test_without_its_state_it_begins_anew(self, tree: Path) -> None:
        (tree / NEWEST / "data.pt").unlink()
        answer = plan(tree)
        assert chosen(answer) == (NEWEST, 3)
        assert Code.DATA_RESTARTS in codes(answer.findings)
