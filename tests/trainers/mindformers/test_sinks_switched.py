"""Data sinks switched on, or off, between two runs: the number of a save's epochs then counts something else.

What MindFormers 2.1.0 does with each was run: beyond the end of its data it stops with an exception, and saves nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.counters import SavedSinks, saved_sinks
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.scalars import TrainState
from ckpttool.types import TreeQuestion
from tests.support.answers import FIXTURES, coded, codes, plan, writable_copy
from tests.support.trees import TreeBuilder

CONFIG = (FIXTURES / "configs/pretrain_sink2.yaml").read_text()


def config(folder: Path, *, sinks: int | None, epochs: int = 4) -> Path:
    """The config of 4 ranks in batches of 8, with sinks of this size, or none."""
    text = CONFIG.replace("epochs: 2", f"epochs: {epochs}")
    text = text.replace("sink_mode: True", f"sink_mode: {sinks is not None}")
    file = folder / "base.yaml"
    file.write_text(text.replace("sink_size: 2", f"sink_size: {sinks or 2}"))
    return file


def found(tree: Path, base: Path) -> tuple[Finding, ...]:
    """What is said about a resume with this config."""
    answer = plan(tree, tree=TreeQuestion(path=str(tree), config=ckpttool.library.read_config(str(base))))
    return (*answer.findings, *answer.point.findings)


@pytest.fixture
def without_sinks(tmp_path: Path) -> TreeBuilder:
    """Saved at steps 20 and 27 of 80, in epochs of 20."""
    tree = TreeBuilder(tmp_path).legacy()
    return tree.save(epoch=1, step=20, true_step=20).save(epoch=2, step=7, true_step=27)


@pytest.mark.parametrize(("sinks", "too_many"), [(2, 23), (1, 25)])
def test_sinks_switched_on_are_told(without_sinks: TreeBuilder, tmp_path: Path, sinks: int, too_many: int) -> None:
    told = found(without_sinks.checkpoint, config(tmp_path, sinks=sinks))
    (finding,) = coded(told, MindFormersCode.SINK_SIZE_CHANGED)
    assert f"plans {too_many} batches too many" in finding.message
    assert "2 epochs at step 27, which are not sinks" in finding.message
    assert "sink_mode: False" in str(finding.remedy)
    assert MindFormersCode.EPOCH_COUNTER_SHIFTS not in codes(told)


def test_real_saves_without_sinks_are_no_sinks_though_the_newest_divides(tmp_path: Path) -> None:
    """Real: 4_5 is step 20 in epoch 4 of 5 steps each, as if there had been 4 sinks of 5."""
    output = writable_copy("nosink_ckpt", tmp_path / "tree")
    (finding,) = coded(found(output, config(tmp_path, sinks=2)), MindFormersCode.SINK_SIZE_CHANGED)
    assert "sink_mode: False" in str(finding.remedy)
    assert MindFormersCode.SINK_SIZE_CHANGED not in codes(found(output, config(tmp_path, sinks=None)))


class TestTheNewerLayout:
    def test_a_size_that_nobody_had_is_not_advised(self, tmp_path: Path) -> None:
        """Without sinks, in the first epoch: it may as well be one sink of 30."""
        tree = TreeBuilder(tmp_path).legacy().iteration(step=30, epoch=1)
        (finding,) = coded(found(tree.checkpoint, config(tmp_path, sinks=2)), MindFormersCode.SINK_SIZE_CHANGED)
        assert "sink_size: 30" not in str(finding.remedy)
        assert "or as many steps without sinks" in finding.message

    def test_other_saves_tell_that_there_were_no_sinks(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().iteration(step=10, epoch=1).iteration(step=30, epoch=1)
        (finding,) = coded(found(tree.checkpoint, config(tmp_path, sinks=2)), MindFormersCode.SINK_SIZE_CHANGED)
        assert "sink_mode: False" in str(finding.remedy)

    def test_sinks_that_stay_are_left_alone_and_others_are_told_by_their_size(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().iteration(step=20).iteration(step=30)
        assert MindFormersCode.SINK_SIZE_CHANGED not in codes(found(tree.checkpoint, config(tmp_path, sinks=2)))
        (finding,) = coded(found(tree.checkpoint, config(tmp_path, sinks=5)), MindFormersCode.SINK_SIZE_CHANGED)
        assert finding.remedy == "set runner_config.sink_size: 2"


class TestSwitchedOff:
    def test_sinks_are_taken_for_epochs_and_the_training_is_not_called_complete(self, tmp_path: Path) -> None:
        output = writable_copy("sink2_ckpt", tmp_path / "tree")
        told = found(output, config(tmp_path, sinks=None))
        (finding,) = coded(told, MindFormersCode.SINK_SIZE_CHANGED)
        assert "sinks of 2 batches, but the config now has no sinks" in finding.message
        assert finding.remedy == "set runner_config.sink_mode: True and sink_size: 2"
        assert TrainersCode.TRAINING_COMPLETE not in codes(told)

    @pytest.mark.parametrize(("samples", "is_told"), [(40, False), (160, True)])
    def test_saves_at_the_ends_of_epochs_are_no_sinks(self, tmp_path: Path, samples: int, is_told: bool) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=2, step=5).save(epoch=3, step=5)
        base = config(tmp_path, sinks=None)
        data = f"train_dataset: {{data_loader: {{type: BlendedMegatronDatasetDataLoader, sizes: [{samples}, 0, 0]}}}}\n"
        base.write_text(base.read_text() + data)
        assert (MindFormersCode.SINK_SIZE_CHANGED in codes(found(tree.checkpoint, base))) is is_told


def test_saves_of_another_batch_size_do_not_tell_of_these(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy().save(epoch=3, step=3, true_step=7, global_batch_size=4)
    saves = ckpttool.scan(TreeQuestion(path=str(tree.save(epoch=5, step=2).checkpoint))).inventory.checkpoints
    state = TrainState(epoch_num=5, step_num=10, global_batch_size=8)
    assert saved_sinks(state.scalars, saves) == SavedSinks(size=2, is_sure=True)


class TestSinksOfTheWholeDataSet:
    """`sink_size: -1`, which begins whole epochs only."""

    def test_in_the_newer_layout_steps_and_epochs_tell_it(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().iteration(step=20, epoch=1).iteration(step=27, epoch=2)
        (finding,) = coded(found(tree.checkpoint, config(tmp_path, sinks=-1)), MindFormersCode.SINK_SIZE_CHANGED)
        assert finding.severity is Severity.SUSPECT
        assert "is within epoch 2, at step 27" in finding.message

    def test_a_save_within_an_epoch_is_told(self, without_sinks: TreeBuilder, tmp_path: Path) -> None:
        (finding,) = coded(
            found(without_sinks.checkpoint, config(tmp_path, sinks=-1)), MindFormersCode.SINK_SIZE_CHANGED
        )
        assert finding.severity is Severity.SUSPECT
        assert "is 7 batches into an epoch of 20 (from the file names)" in finding.message
        assert "sink_mode: False" in str(finding.remedy)

    @pytest.mark.parametrize("epochs", [(1,), (1, 2)])
    def test_whether_an_epoch_ended_may_be_unknown(self, epochs: tuple[int, ...], tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in epochs:
            tree.iteration(step=26 if epoch == 2 else 7, epoch=epoch)
        (finding,) = coded(found(tree.checkpoint, config(tmp_path, sinks=-1)), MindFormersCode.SINK_SIZE_CHANGED)
        assert finding.severity is Severity.UNKNOWN

    @pytest.mark.parametrize("last", [2, 3])
    def test_saves_at_the_ends_of_epochs_go_on_as_they_were(self, last: int, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=1, step=20, true_step=20)
        tree.save(epoch=last, step=20, true_step=20 * last)
        assert MindFormersCode.SINK_SIZE_CHANGED not in codes(found(tree.checkpoint, config(tmp_path, sinks=-1)))
