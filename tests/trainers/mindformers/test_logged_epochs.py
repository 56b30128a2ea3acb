"""How many batches an epoch has by the training log, and what that makes of a start."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.logs import places
from ckpttool.trainers.mindformers.logs.places import logged_epoch
from ckpttool.types import TreeQuestion
from tests.support.answers import FIXTURES, coded, plan
from tests.support.trees import TreeBuilder

CONFIG = (FIXTURES / "configs/pretrain_sink2.yaml").read_text()


def log(output: Path, *, first: int, last: int, size: int, name: str = "log/rank_0/info.log") -> Path:
    """A log of 2 epochs beside the tree; more lines are added to those that are there."""
    path = output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        for step in range(first, last + 1):
            epoch, within = divmod(step - 1, size)
            stream.write(
                f"[INFO] 2025-03-01 08:00:00,000 [mindformers/core/callback/callback.py:540] on_train_step_end: {{ "
                f"Epoch:[{epoch + 1:3d}/  2], step:[{within + 1:5d}/{size:5d}], loss: 2.000, per_step_time: 157ms\n"
            )
    return path


def found(tree: TreeBuilder, more: str = "") -> tuple[Finding, ...]:
    """What is said of a resume of two epochs in sinks of 2 batches."""
    base = tree.output / "base.yaml"
    base.write_text(CONFIG + more)
    path = str(tree.checkpoint)
    return plan(path, tree=TreeQuestion(path=path, config=ckpttool.library.read_config(str(base)))).findings


@pytest.fixture
def done(tmp_path: Path) -> TreeBuilder:
    """Saved at steps 30 and 40, in sinks of 2 batches."""
    return TreeBuilder(tmp_path).legacy().save(epoch=15, step=2).save(epoch=20, step=2)


class TestAStart:
    def test_of_a_complete_training_with_sinks_stops_by_its_log(self, done: TreeBuilder) -> None:
        log(done.output, first=1, last=40, size=20)
        (finding,) = coded(found(done), TrainersCode.TRAINING_COMPLETE)
        assert finding.severity is Severity.SUSPECT
        assert "all 2 epochs of 20 batches (from the training log) are complete" in finding.message

    def test_without_a_log_carries_its_condition(self, done: TreeBuilder) -> None:
        (finding,) = coded(found(done), TrainersCode.TRAINING_COMPLETE)
        assert finding.severity is Severity.NOTE
        assert "if it has 20 batches or fewer" in finding.message

    def test_of_a_config_that_tells_the_data_s_size_goes_by_that(self, done: TreeBuilder) -> None:
        log(done.output, first=1, last=40, size=20)
        data = "\ntrain_dataset: {data_loader: {type: BlendedMegatronDatasetDataLoader, sizes: [400, 0, 0]}}\n"
        assert coded(found(done, data), TrainersCode.TRAINING_COMPLETE) == []


class TestTheLogsLine:
    def test_about_the_save_s_step_tells(self, tmp_path: Path) -> None:
        log(tmp_path, first=1, last=40, size=20)
        root = str(tmp_path / "checkpoint")
        assert [logged_epoch(root, step=step, epoch=None) for step in (1, 40, 41)] == [20, 20, None]

    def test_without_sinks_has_the_epoch_that_the_save_counts(self, tmp_path: Path) -> None:
        """A data set of 20 batches grew to 30 at step 50: MindSpore goes on in epoch 3, at 21 of 30."""
        log(tmp_path, first=81, last=100, size=30)
        root = str(tmp_path / "checkpoint")
        assert logged_epoch(root, step=51, epoch=3) == 30
        assert logged_epoch(root, step=51, epoch=2) is None

    def test_of_the_newest_run_wins(self, tmp_path: Path) -> None:
        log(tmp_path, first=1, last=40, size=20)
        log(tmp_path, first=31, last=40, size=40)
        root = str(tmp_path / "checkpoint")
        assert [logged_epoch(root, step=step, epoch=None) for step in (30, 31)] == [20, 40]

    def test_may_stand_in_the_log_before_or_in_what_the_launcher_catches(self, tmp_path: Path) -> None:
        log(tmp_path / "a", first=1, last=20, size=20, name="log/rank_0/info.log.1")
        log(tmp_path / "a", first=21, last=40, size=20)
        log(tmp_path / "b", first=1, last=40, size=20, name="msrun_log/worker_0.log")
        assert logged_epoch(str(tmp_path / "a/checkpoint"), step=10, epoch=None) == 20
        assert logged_epoch(str(tmp_path / "b/checkpoint"), step=10, epoch=None) == 20

    def test_that_cannot_be_read_tells_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "log/rank_0/info.log").mkdir(parents=True)
        assert logged_epoch(str(tmp_path / "checkpoint"), step=1, epoch=1) is None
        assert logged_epoch(str(tmp_path / "none/checkpoint"), step=1, epoch=1) is None

    def test_of_no_sense_or_too_far_back_tells_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = log(tmp_path, first=1, last=40, size=20)
        root = str(tmp_path / "checkpoint")
        monkeypatch.setattr(places, "TAIL_BYTES", 1000)
        assert [logged_epoch(root, step=step, epoch=None) for step in (40, 1)] == [20, None]
        path.write_text("Epoch:[  1/  2], step:[    0/    0], loss\n")
        assert logged_epoch(root, step=1, epoch=1) is None
