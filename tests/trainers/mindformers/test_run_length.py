"""Proves where a resumed run ends; every number called real is what a run of MindFormers 2.1.0 did on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Finding, Row, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import Step
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.run_length import length_findings, run_length
from ckpttool.trainers.mindformers.scalars import EpochStep, TrainState
from ckpttool.trainers.mindformers.train_config import TrainConfig
from tests.support.inventories import tree
from tests.support.plans import resume_plan
from tests.trainers.mindformers.test_launch_check import FITS, settings_at

PLAIN = replace(
    FITS,
    sink_mode=False,
    sink_size=None,
    epochs=8,
    global_batch_size=2,
    settings=settings_at(**{"runner_config.epochs": 7}),
)
SINKS = replace(PLAIN, sink_mode=True, sink_size=2)
SIZED = replace(SINKS, dataset_samples=41)
"""Of a data set of 20 batches of 2 samples; one sample fills none."""


def saved(epoch: int, step: int, true: int, *, run: int = 0, batch: int | None = 2) -> Checkpoint:
    """A checkpoint under a label, at its true step."""
    base = resume_plan().point.checkpoint
    label = EpochStep(epoch=epoch, step=step)
    scalars = TrainState(epoch_num=epoch, step_num=true, global_step=true, global_batch_size=batch).scalars
    return replace(
        base, name=str(label), label=str(label), sort_key=label.sort_key, scalars=scalars, step=Step(true), run=run
    )


def planned(
    chosen: Checkpoint,
    skip: int | None,
    *,
    batch: int | None = 2,
    sink: int | None = None,
    next_step: int | None = None,
) -> ResumePlan:
    """A plan to resume from it; a skip of None lets the data begin anew."""
    plan = resume_plan(batches=skip or 0, global_batch_size=batch, sink_size=sink)
    after = Step((chosen.step or 0) + 1 if next_step is None else next_step)
    return replace(plan, point=replace(plan.point, checkpoint=chosen), next_step=after)


def told(config: TrainConfig | None, plan: ResumePlan, inventory: Inventory | None = None) -> list[Finding]:
    return list(length_findings(config, plan, inventory or tree(plan.point.checkpoint)))


def only(config: TrainConfig | None, plan: ResumePlan, code: Row, inventory: Inventory | None = None) -> Finding:
    (finding,) = told(config, plan, inventory)
    assert finding.code is code
    assert finding.severity is (
        Severity.SUSPECT
        if code in {TrainersCode.TRAINING_COMPLETE, MindFormersCode.SKIP_BEYOND_DATA}
        else Severity.NOTE
    )
    assert finding.remedy
    assert (finding.path, finding.line) == ((None, None) if config is None else ("base.yaml", 7))
    return finding


AT_48 = saved(3, 8, 48)
AT_48_SINKS = saved(24, 2, 48)


class TestAnOrdinaryResume:
    def test_the_run_ends_where_it_should(self) -> None:
        for config, chosen, sink in ((replace(PLAIN, dataset_samples=41), AT_48, None), (SIZED, AT_48_SINKS, 2)):
            plan = planned(chosen, 48, sink=sink)
            length = run_length(config, plan, tree(chosen))
            assert length is not None
            assert (length.per_epoch, length.total, length.planned, length.left, length.due) == (20, 160, 112, 112, 112)
            assert told(config, plan) == []

    @given(per_epoch=st.integers(1, 60), epochs=st.integers(2, 9), data=st.data())
    def test_steps_and_data_end_together(self, per_epoch: int, epochs: int, data: st.DataObject) -> None:
        step = data.draw(st.integers(1, per_epoch * epochs - 1))
        chosen = saved((step - 1) // per_epoch + 1, (step - 1) % per_epoch + 1, step)
        config = replace(PLAIN, epochs=epochs, dataset_samples=2 * per_epoch)
        plan = planned(chosen, step)
        length = run_length(config, plan, tree(chosen))
        assert length is not None
        assert length.planned == length.left == length.due == per_epoch * epochs - step
        assert told(config, plan) == []
        done = saved(epochs, per_epoch, per_epoch * epochs)
        only(config, planned(done, per_epoch * epochs), TrainersCode.TRAINING_COMPLETE)

    def test_a_smaller_batch_size_changes_no_end(self) -> None:
        """Real: 27 of 80 steps at 2 samples are 13 of 40 at 4; 27 more are trained."""
        config = replace(PLAIN, epochs=4, dataset_samples=40)
        plan = planned(saved(2, 7, 27), 13, batch=4, next_step=14)
        length = run_length(config, plan, tree(plan.point.checkpoint))
        assert length is not None
        assert (length.per_epoch, length.planned, length.due) == (10, 27, 27)
        assert told(config, plan) == []


class TestWhatTellsTheBatchesOfAnEpoch:
    def test_names_of_a_first_run_tell(self) -> None:
        length = run_length(PLAIN, planned(AT_48, 48), tree(AT_48, saved(2, 8, 28)))
        assert length is not None
        assert (length.per_epoch, length.source) == (20, "from the file names")

    @pytest.mark.parametrize(
        "others",
        [
            (saved(1, 8, 8),),  # the first epoch implies nothing
            (saved(3, 8, 48, run=1),),  # after a resume labels start anew
            (saved(3, 8, 49),),  # no whole number
            (saved(3, 30, 48),),  # more than an epoch has
            (AT_48, saved(3, 8, 28)),  # two that differ
            (replace(AT_48, label=None, sort_key=()),),
            (replace(AT_48, prefix="other"),),
            (replace(AT_48, step=None),),
        ],
    )
    def test_names_that_imply_nothing_or_two_things_tell_nothing(self, others: tuple[Checkpoint, ...]) -> None:
        chosen = replace(AT_48, label="1_8", sort_key=(1, 8))
        assert run_length(PLAIN, planned(chosen, 48), tree(chosen, *others)) is None

    def test_names_of_sinks_tell_nothing_unless_a_sink_is_an_epoch(self) -> None:
        assert run_length(SINKS, planned(AT_48_SINKS, 48, sink=2), tree(AT_48_SINKS)) is None
        whole = replace(SINKS, sink_size=None, sinks_all=True)
        chosen = saved(3, 20, 60)
        length = run_length(whole, planned(chosen, 60), tree(chosen))
        assert length is not None
        assert (length.per_epoch, length.planned, length.over) == (20, 100, False)
        assert run_length(whole, planned(saved(3, 8, 48), 48), tree(saved(3, 8, 48))) is None
        assert run_length(replace(whole, sinks_all=False), planned(chosen, 60), tree(chosen)) is None

    @pytest.mark.parametrize(("batch", "batches"), [(2, 20), (4, 10), (3, 13), (41, None), (None, 20)])
    def test_another_batch_size_is_converted(self, batch: int | None, batches: int | None) -> None:
        """20 batches of 2 are 40 samples, or 41: 10 of 4 and 13 of 3 either way, but none or one of 41."""
        length = run_length(PLAIN, planned(AT_48, 48, batch=batch), tree(AT_48))
        assert (length and length.per_epoch) == batches


class TestATrainingThatIsComplete:
    def test_the_last_step_of_the_last_epoch_is_the_end(self) -> None:
        """Real, with sinks and without: the parameter 'epoch' must bigger than parameter 'initial_epoch'."""
        finding = only(replace(PLAIN, epochs=4), planned(saved(4, 20, 80), 80), TrainersCode.TRAINING_COMPLETE)
        assert "step 80: all 4 epochs of 20 batches (from the file names) are complete" in finding.message
        sized = only(replace(SIZED, epochs=4), planned(saved(40, 2, 80), 80, sink=2), TrainersCode.TRAINING_COMPLETE)
        assert "`sizes` has 41 samples" in sized.message

    def test_one_epoch_more_or_one_step_fewer_is_not(self) -> None:
        sized = replace(PLAIN, dataset_samples=41)
        assert told(replace(sized, epochs=5), planned(saved(4, 20, 80), 80)) == []
        assert told(replace(sized, epochs=4), planned(saved(4, 19, 79), 79)) == []
        assert told(replace(SIZED, epochs=4), planned(saved(39, 2, 78), 78, sink=2)) == []

    def test_where_no_epoch_is_known_only_more_epochs_than_there_are_are_the_end(self) -> None:
        only(replace(PLAIN, epochs=4), planned(saved(5, 1, 9, run=1), 9), TrainersCode.TRAINING_COMPLETE)
        assert told(replace(PLAIN, epochs=None), planned(saved(5, 1, 9, run=1), 9)) == []

    def test_the_training_log_tells_it_with_sinks_and_without(self) -> None:
        done = planned(saved(40, 2, 80), 80, sink=2)
        (finding,) = length_findings(replace(SINKS, epochs=4), done, tree(done.point.checkpoint), 20)
        assert (finding.code, finding.severity) == (TrainersCode.TRAINING_COMPLETE, Severity.SUSPECT)
        assert "all 4 epochs of 20 batches (from the training log) are complete" in finding.message
        assert not [*length_findings(replace(SINKS, epochs=5), done, tree(done.point.checkpoint), 20)]
        again = planned(saved(4, 20, 80, run=1), 80)
        (finding,) = length_findings(replace(PLAIN, epochs=4), again, tree(again.point.checkpoint), 20)
        assert (finding.code, finding.severity) == (TrainersCode.TRAINING_COMPLETE, Severity.SUSPECT)

    def test_the_log_counts_batches_of_the_size_that_was_saved(self) -> None:
        """20 batches of 2 are 13 of 3; of 41 nobody knows whether there is one."""
        for batch, batches in ((4, 10), (3, 13), (41, None)):
            length = run_length(PLAIN, planned(AT_48, 48, batch=batch), tree(AT_48), 20)
            assert (length and (length.per_epoch, length.source)) == (batches and (batches, "from the training log"))

    def test_with_sinks_of_unknown_epochs_the_condition_is_told(self) -> None:
        """Real: a ValueError where a GO had been given."""
        finding = told(replace(SINKS, epochs=4), planned(saved(40, 2, 80), 80, sink=2))[0]
        assert (finding.code, finding.severity) == (TrainersCode.TRAINING_COMPLETE, Severity.NOTE)
        assert "if it has 20 batches or fewer, the training is complete" in finding.message
        assert told(replace(SINKS, epochs=81), planned(saved(40, 2, 80), 80, sink=2)) == []

    def test_without_sinks_the_condition_is_told_in_the_last_epoch_alone(self) -> None:
        config = replace(PLAIN, epochs=4)
        last = told(config, planned(saved(4, 1, 9, run=1), 9))[0]
        assert (last.code, last.severity) == (TrainersCode.TRAINING_COMPLETE, Severity.NOTE)
        assert "if epoch 4 ends at step 9, the training is complete" in last.message
        only(config, planned(saved(3, 1, 9, run=1), 9), MindFormersCode.ENDS_ELSEWHERE)
        assert told(config, planned(saved(1, 9, 9), 9)) == []
        bare = replace(AT_48, scalars=TrainState(step_num=48).scalars)
        assert told(config, planned(bare, 48)) == []

    def test_sinks_of_another_size_pass_for_done_before_the_end(self) -> None:
        """The start stops all the same, but there are steps left, and another remedy."""
        plan = planned(saved(20, 2, 40), 40, sink=4)
        (finding,) = length_findings(replace(SINKS, sink_size=4, epochs=4), plan, tree(plan.point.checkpoint), 20)
        assert finding.code is TrainersCode.TRAINING_COMPLETE
        assert "count as complete at step 40 of 80" in finding.message
        assert (finding.remedy or "").startswith("keep data sinks and batch size unchanged")


class TestADataSetOfAnotherSize:
    """Of 20 batches an epoch when step 50 was saved; 4 epochs are asked for."""

    GROWN = replace(PLAIN, epochs=4, dataset_samples=60)
    PLAN = planned(saved(3, 10, 50), 50)

    def test_that_grew_the_run_without_sinks_ends_before_its_epochs_do(self) -> None:
        """Real: 20 batches became 30, and it ends at step 90 of 120 without a word."""
        finding = only(self.GROWN, self.PLAN, MindFormersCode.ENDS_ELSEWHERE)
        assert "trains 40 more steps and ends at step 90, not at 120" in finding.message
        assert "raise runner_config.epochs by 1, and" in str(finding.remedy)

    def test_that_shrank_the_data_end_before_the_plan(self) -> None:
        finding = only(replace(self.GROWN, dataset_samples=30), self.PLAN, MindFormersCode.DATA_END_EARLY)
        assert "plans 25 more steps, but the data is enough for 10: at step 60" in finding.message

    def test_that_the_config_does_not_tell_the_end_carries_its_condition(self) -> None:
        finding = only(replace(PLAIN, epochs=4), self.PLAN, MindFormersCode.ENDS_ELSEWHERE)
        assert "ends at step 80 if an epoch still has 20 batches (from the file names)" in finding.message
        assert "grown or shrunk" in finding.message

    def test_that_grew_before_a_resume_is_told_by_its_log(self) -> None:
        """Names of the first run have 20 batches; the log of the second, which was cut at step 70, has 30."""
        plan = planned(saved(4, 10, 70, run=1), 70)
        (finding,) = length_findings(replace(PLAIN, epochs=4), plan, tree(AT_48, plan.point.checkpoint), 30)
        assert "ends at step 90, not at 120" in finding.message


class TestDataAheadOfTheSteps:
    @pytest.mark.parametrize(("config", "chosen", "sink"), [(PLAIN, AT_48, None), (SIZED, AT_48_SINKS, 2)])
    def test_the_data_end_before_the_plan(self, config: TrainConfig, chosen: Checkpoint, sink: int | None) -> None:
        """Real: 72 steps, to 120, then an exception; with 10 epochs 112, to 160; with `stop_step: 72` exit 0."""
        finding = only(config, planned(chosen, 88, sink=sink), MindFormersCode.DATA_END_EARLY)
        assert "plans 112 more steps, but the data is enough for 72: at step 120" in finding.message
        assert "stop_step: 72}" in str(finding.remedy)
        assert "raised by 2 it can be 112, which ends at step 160" in str(finding.remedy)

    def test_within_the_epoch_that_was_begun_the_run_ends_with_its_data(self) -> None:
        """Real: 108 steps, to 156; with 9 epochs and `stop_step: 112` 112, to 160."""
        finding = only(PLAIN, planned(AT_48, 52), MindFormersCode.ENDS_ELSEWHERE)
        assert "trains 108 more steps and ends at step 156, not at 160" in finding.message
        assert "raising runner_config.epochs by 1 and" in finding.message
        assert "stop_step: 112}" in str(finding.remedy)

    def test_a_skip_behind_the_end_is_no_start(self) -> None:
        """Real: fails before the first step at 208, and `reset step must be less` means that 160 is too far."""
        for skip, epochs in ((160, 9), (208, 11)):
            finding = only(PLAIN, planned(AT_48, skip), MindFormersCode.SKIP_BEYOND_DATA)
            assert f"at least {epochs}" in str(finding.remedy)
        only(PLAIN, planned(AT_48, 159), MindFormersCode.DATA_END_EARLY)

    @pytest.mark.parametrize("config", [SINKS, None])
    def test_where_no_epoch_is_known_it_is_told_without_the_end(self, config: TrainConfig | None) -> None:
        finding = only(config, planned(AT_48_SINKS, 88, sink=2), MindFormersCode.DATA_END_EARLY)
        assert "40 batches ahead of the steps" in finding.message


class TestDataBehindTheSteps:
    def test_without_sinks_whole_epochs_are_trained(self) -> None:
        """Real: 60 steps from 27 of 80, to 87; and 120 from 48 of 160, to 168."""
        sized = replace(PLAIN, dataset_samples=40)
        finding = only(replace(sized, epochs=4), planned(saved(2, 7, 27), None), MindFormersCode.ENDS_ELSEWHERE)
        assert "trains 60 more steps and ends at step 87, not at 80" in finding.message
        assert "not at 80, because it counts whole epochs of 20 batches" in finding.message
        assert (finding.remedy or "").startswith("give the callback `- {type: TrainCallBack, stop_step: 53}`")
        assert "ends at step 168" in only(sized, planned(AT_48, None), MindFormersCode.ENDS_ELSEWHERE).message

    def test_data_that_were_replaced_in_the_middle_of_an_epoch_end_in_the_middle_of_another(self) -> None:
        """Real: 102 steps, to 150."""
        finding = only(replace(PLAIN, dataset_samples=40), planned(AT_48, 38), MindFormersCode.ENDS_ELSEWHERE)
        assert "trains 102 more steps and ends at step 150, not at 160" in finding.message

    def test_of_data_of_unknown_length_the_epochs_are_told(self) -> None:
        finding = only(PLAIN, planned(AT_48, None), MindFormersCode.ENDS_ELSEWHERE)
        assert "to the end of epoch 8: 5 or 6 epochs" in finding.message
        bare = replace(AT_48, scalars=TrainState(step_num=48).scalars)
        assert told(PLAIN, planned(bare, None)) == []
        assert told(replace(PLAIN, epochs=None), planned(AT_48, None)) == []

    @pytest.mark.parametrize("config", [SINKS, SIZED, None])
    def test_with_sinks_the_run_ends_where_it_should(self, config: TrainConfig | None) -> None:
        """Real: 80 of 80."""
        assert told(config, planned(AT_48_SINKS, None, sink=2)) == []
