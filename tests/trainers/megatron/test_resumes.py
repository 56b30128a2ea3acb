"""What Megatron-LM takes by itself, and what it makes of a resume: as the real one did with these trees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.megatron.findings import MegatronCode
from ckpttool.types import DataQuestion, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import cli, codes, goes_on, plan, scanned
from tests.support.trainer_trees import LAYOUTS, healthy, recount

TRACKER = "latest_checkpointed_iteration.txt"
BOTH = pytest.mark.parametrize("tree", ["mcore_dist_tp2dp2", "mcore_legacy_tp2dp2"])


@BOTH
class TestWhole:
    def test_after_a_change_of_batch_size_no_batches_are_counted(self, tree: str, tmp_path: Path) -> None:
        """24 samples after 6 steps of 4; let it be 30: then some steps took more, and 7 batches of 4 mean nothing."""
        root = healthy(tree, tmp_path)
        for file in (root / "iter_0000006").rglob("*.pt"):
            if file.name in {"common.pt", "model_optim_rng.pt"}:
                recount(file, "consumed_train_samples", 24, 30)
        for size in (None, 8):
            position = goes_on(plan(root, data=DataQuestion(new_global_batch=size)))
            assert (position.samples, position.batches) == (30, None)
        assert "counted as read" not in cli("resolve", str(root)).output


class TestTrackerMixes:
    """Of a legacy save the optimizer's state is read from where the tracker points, whatever `--ckpt-step` says."""

    def mixed(self, root: Path, name: str | None = None) -> list[str | None]:
        found = plan(root, choice=ResumeQuestion(name=name)).findings
        return [finding.actual for finding in found if finding.code is MegatronCode.TRACKER_MIXES]

    def test_another_iteration_than_the_tracker_s_is_a_mixture(self, tmp_path: Path) -> None:
        root = healthy("mcore_legacy_tp2dp2", tmp_path)
        assert self.mixed(root, "iter_0000003") == ["iter_0000006"]
        assert self.mixed(root) == []

    def test_without_a_tracker_there_is_nowhere_to_read_it_from(self, tmp_path: Path) -> None:
        root = healthy("mcore_legacy_tp2dp2", tmp_path)
        (root / TRACKER).unlink()
        assert self.mixed(root) == [None]

    @pytest.mark.parametrize("text", ["release", "six"])
    def test_what_goes_before_the_named_one_is_said(self, text: str, tmp_path: Path) -> None:
        root = healthy("mcore_dist_tp2dp2", tmp_path)
        (root / TRACKER).write_text(text)
        assert len(self.mixed(root)) == 1

    @pytest.mark.parametrize("tree", ["mcore_dist_tp2dp2", "mcore_legacy_tp2dp2"])
    def test_a_tracker_that_is_a_folder_leaves_it_unknown(self, tree: str, tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        (root / TRACKER).unlink()
        (root / TRACKER).mkdir()
        question = PreflightQuestion(config=None, tree=TreeQuestion(path=str(root)))
        reasons = [reason.finding for check in ckpttool.preflight(question).checks for reason in check.reasons]
        told = {finding.code: finding for finding in reasons}
        assert told.keys() >= {MegatronCode.TRACKER_MIXES, Code.START_UNKNOWN}
        assert {finding.severity for finding in reasons} <= {Severity.UNKNOWN, Severity.NOTE}
        assert "is unknown" in told[MegatronCode.TRACKER_MIXES].message

    def test_preflight_is_no_go_until_the_tracker_names_it(self, tmp_path: Path) -> None:
        root = healthy("mcore_legacy_tp2dp2", tmp_path)
        question = PreflightQuestion(
            config=None,
            tree=TreeQuestion(path=str(root)),
            choice=ResumeQuestion(name="iter_0000003"),
        )
        assert not ckpttool.preflight(question).go
        (root / TRACKER).write_text("3")
        assert MegatronCode.TRACKER_MIXES not in {
            reason.finding.code for check in ckpttool.preflight(question).checks for reason in check.reasons
        }

    def test_a_save_between_the_saves_is_said_to_go_before(self, tmp_path: Path) -> None:
        root = healthy("mcore_dist_tp2dp2", tmp_path)
        (root / "non_persistent").mkdir()
        assert Code.STRAY_TAKES_OVER in {finding.code for finding in plan(root).findings}


class TestOfMegatronBridge:
    """It goes by `latest_train_state.pt`, and by the tracker of Megatron-LM only where that is missing."""

    @pytest.fixture
    def bridge(self, tmp_path: Path) -> Path:
        """Two saves, the tracker of Megatron-LM one behind."""
        tree = healthy("mcore_dist_tp2dp2", tmp_path)
        for save in tree.glob("iter_*"):
            shutil.copyfile(LAYOUTS / "loose_models" / "a" / "model.pt", save / "train_state.pt")
            (save / "run_config.yaml").write_text("{}")
        shutil.copyfile(tree / "iter_0000006" / "train_state.pt", tree / "latest_train_state.pt")
        (tree / "latest_checkpointed_iteration.txt").write_text("3")
        return tree

    def test_its_own_settings_load_it_and_no_other_tracker_is_spoken_of(self, bridge: Path) -> None:
        load = plan(bridge).load
        assert load.value("argument:checkpoint.load") == str(bridge)
        assert load.value("argument:checkpoint.ckpt_step") == 6
        said = cli("resolve", str(bridge), "--simulate", "own").output
        assert [word for word in ("--ckpt-step", "repair-meta", "exit-on-missing") if word in said] == []
        assert "latest_train_state.pt" in said

    def test_no_tracker_is_written_for_it(self, bridge: Path) -> None:
        cli("repair-meta", str(bridge), "--grace", "0", "--apply")
        assert (bridge / "latest_checkpointed_iteration.txt").read_text() == "3"
        (bridge / "latest_train_state.pt").unlink()
        assert cli("repair-meta", str(bridge), "--grace", "0", "--apply").exit_code == ExitCode.OK
        assert (bridge / "latest_checkpointed_iteration.txt").read_text() == "6"

    def test_nothing_goes_while_its_tracker_may_name_it(self, bridge: Path) -> None:
        (bridge / "latest_checkpointed_iteration.txt").write_text("6")
        words = ("prune", str(bridge), "--keep-last", "1", "--grace", "0", "--apply")
        answer = cli(*words)
        assert answer.exit_code == ExitCode.INCOMPLETE
        assert "latest_train_state.pt is read only by Megatron-Bridge" in " ".join(answer.output.split())
        assert (bridge / "iter_0000003").is_dir()
        (bridge / "latest_train_state.pt").unlink()
        assert cli(*words).exit_code == ExitCode.OK
        assert not (bridge / "iter_0000003").is_dir()

    def test_without_the_tracker_of_megatron_nothing_disagrees(self, bridge: Path) -> None:
        (bridge / "latest_checkpointed_iteration.txt").unlink()
        assert codes(scanned(bridge).findings) == set()
        (bridge / "latest_train_state.pt").unlink()
        assert codes(scanned(bridge).findings) == {Code.TRACKER_DISAGREES}
