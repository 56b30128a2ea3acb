"""First step, samples and saves of a resumed run, as the real trainer printed them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect, DataQuestion, GoesOn
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.core.verbs.resolving import resolve
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.pynative.ramp_up import RampUp
from tests.support.answers import cli, coded, codes, document
from tests.support.trainer_trees import edit_json
from tests.trainers.mindformers.pynative.support import changed, config_of, tree_of

RAMP_UP = "42\n  rampup_batch_size: [4, 4, 96]"
MEGATRON = "train_dataset:\n  dataloader:\n    type: BlendedMegatronDatasetDataLoader\n    sizes: [%d, 0, 0]\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed at step 34, seen from the folder in which it was started."""
    monkeypatch.chdir(tmp_path)
    return tree_of("one_rank_killed_34", tmp_path)


def plan(tree: Path, text: str | None, data: DataQuestion = DataQuestion()) -> ResumePlan:
    config = None if text is None else config_of(text)
    decision = resolve(TreeQuestion(path=str(tree), config=config), data=data).decision
    assert isinstance(decision, ResumePlan)
    return decision


def position(tree: Path, text: str | None) -> GoesOn:
    found = plan(tree, text).data
    assert isinstance(found, GoesOn)
    return found


@pytest.mark.parametrize(
    ("values", "next_step", "batches"),
    [
        ({}, 31, 30),
        ({"global_batch_size": 16}, 16, 15),
        ({"global_batch_size": 12}, 21, 20),
        ({"global_batch_size": 4}, 61, 60),
        ({"global_batch_size": 16, "seed": RAMP_UP}, 31, None),  # a schedule: the step is not scaled
    ],
    ids=str,
)
def test_the_step_is_scaled_as_the_trainer_does(
    values: dict[str, object], next_step: int, batches: int | None, tree: Path
) -> None:
    found = plan(tree, changed(**values))
    assert found.next_step == next_step
    assert isinstance(found.data, GoesOn)
    assert (found.data.samples, found.data.batches, found.data.repeated) == (240, batches, 0)


def test_a_scaled_step_is_suspect_with_the_optimizers_own(tree: Path) -> None:
    (found,) = coded(plan(tree, changed(global_batch_size=16)).findings, MindFormersCode.COUNTER_ROUNDED)
    assert (found.severity, found.expected, found.actual) == (Severity.SUSPECT, "15", "30")
    assert MindFormersCode.COUNTER_ROUNDED not in codes(plan(tree, changed()).findings)
    without_config = plan(tree, None, DataQuestion(new_global_batch=16))
    assert without_config.next_step == 16
    assert MindFormersCode.COUNTER_ROUNDED in codes(without_config.findings)


def test_the_optimizers_step_is_read_from_its_file(tmp_path: Path) -> None:
    tree = tree_of("one_rank_batch_8_to_16", tmp_path)  # step 40, after 30 updates of 8 samples and 25 of 16
    (found,) = coded(plan(tree, None, DataQuestion(new_global_batch=32)).findings, MindFormersCode.COUNTER_ROUNDED)
    assert (found.expected, found.actual) == ("20", "55")


def test_samples_that_fill_no_micro_batch_are_read_again(tree: Path) -> None:
    found = position(tree, changed(local_batch_size=7, global_batch_size=14))
    assert (found.effect, found.repeated) == (DataEffect.REPEATS, 240 % 7)
    assert Code.DATA_MISPLACED in codes(plan(tree, changed(local_batch_size=7, global_batch_size=14)).findings)


class TestAnEndOfTheData:
    def text(self, samples: int, steps: int = 40) -> str:
        text = changed(steps=steps)
        before, _, after = text.partition("train_dataset:\n  dataloader:\n    type: MindDataset\n")
        return before + MEGATRON % samples + after

    def test_ahead_of_the_run_loses_the_samples_before_the_position(self, tree: Path) -> None:
        found = position(tree, self.text(300))
        assert (found.effect, found.lost) == (DataEffect.LOSES, 240)
        assert "each epoch begins at sample 240" in str(found.why)
        assert Code.DATA_MISPLACED in codes(plan(tree, self.text(300)).findings)

    def test_behind_the_run_is_exact(self, tree: Path) -> None:
        found = position(tree, self.text(320))
        assert (found.effect, found.lost, len(found.exact_if)) == (DataEffect.EXACT, 0, 1)
        assert position(tree, self.text(320, steps=41)).effect is DataEffect.LOSES

    def test_at_an_epochs_end_loses_nothing(self, tree: Path) -> None:
        assert position(tree, self.text(240)).effect is DataEffect.EXACT

    def test_of_unknown_size_is_a_condition(self, tree: Path) -> None:
        assert any("ends within the epoch" in condition for condition in position(tree, changed()).exact_if)
        assert any("shuffled" in condition for condition in position(tree, changed(shuffle=True)).exact_if)


def test_the_end_of_the_data_is_no_condition_with_a_schedule(tree: Path) -> None:
    """A run with a growing batch begins each later epoch at its first sample."""
    assert len(position(tree, changed(global_batch_size=16, seed=RAMP_UP)).exact_if) == 1


def test_repeated_samples_depend_on_the_micro_batch(tree: Path) -> None:
    text = changed(local_batch_size=7, global_batch_size=14)
    (found,) = coded(plan(tree, text).findings, Code.DATA_MISPLACED)
    assert "local_batch_size" in str(found.remedy)


def test_a_record_without_a_batch_size_is_counted_in_that_of_the_run(tree: Path) -> None:
    edit_json(tree / "iteration_00000030" / "common.json", global_batch_size=None, consumed_samples=None)
    assert position(tree, changed()).samples == 240


@pytest.mark.parametrize("size", [0, 10**400], ids=["none", "beyond floats"])
def test_an_odd_batch_size_in_a_record_stops_no_answer(size: int, tree: Path) -> None:
    edit_json(tree / "iteration_00000030" / "common.json", global_batch_size=size)
    assert plan(tree, changed()).point.step == 30


def test_a_run_of_any_length_takes_no_more_memory(tree: Path) -> None:
    found = plan(tree, changed(steps=10**18, save_interleaved_steps=1))
    assert found.load.remarks == (f"The run begins after step 30, and saves every 1 step from step 31 to {10**18}.",)


def test_a_run_without_a_step_is_described_as_such(tree: Path) -> None:
    (remark,) = plan(tree, changed(steps=30)).load.remarks
    assert remark == "The run begins after step 30, trains nothing, because `training.steps` is 30, and saves step 30."


def test_saves_count_from_the_first_step_of_the_run(tree: Path) -> None:
    assert plan(tree, changed(save_interleaved_steps=4)).load.remarks == (
        "The run begins after step 30, and saves every 4 steps from step 34 to 40.",
    )
    assert "only at its end, at step 40" in plan(tree, changed(save_interleaved_steps=40)).load.remarks[0]
    assert "saves nothing" in plan(tree, changed(enable_save=False)).load.remarks[0]
    assert plan(tree, None).load.remarks == ()


def test_an_older_save_with_a_greater_number_is_named(tmp_path: Path) -> None:
    tree = tree_of("one_rank_batch_8_to_16", tmp_path)
    assert plan(tree, None).load.remarks == ()
    for step in (35, 40):
        shutil.rmtree(tree / f"iteration_{step:08d}")
    (tree / "latest_checkpointed_iteration.txt").write_text("25")
    found = plan(tree, None)
    assert found.point.step == 25
    (remark,) = found.load.remarks
    assert remark.startswith("iteration_00000030 has a greater number but is older, with 240 of 400 samples")


class TestOverwrittenSaves:
    def test_are_named(self, tree: Path) -> None:
        (found,) = coded(plan(tree, changed(global_batch_size=16, save_interleaved_steps=5)).findings, OVERWRITTEN)
        assert found.severity is Severity.NOTE
        assert "iteration_00000020" in found.message
        assert "from step 20 on" in found.message

    def test_are_none_beyond_the_newest_save_or_in_another_folder(self, tree: Path) -> None:
        for values in ({}, {"global_batch_size": 16, "save_interleaved_steps": 5, "save_path": '"./other"'}):
            assert OVERWRITTEN not in codes(plan(tree, changed(**values)).findings)


OVERWRITTEN = MindFormersCode.SAVES_OVERWRITTEN


def test_another_number_of_steps_is_a_note(tree: Path) -> None:
    (found,) = coded(plan(tree, changed(steps=60)).findings, Code.CONFIG_DISAGREES)
    assert (found.severity, "60" in found.message) == (Severity.NOTE, True)
    assert not coded(plan(tree, changed()).findings, Code.CONFIG_DISAGREES)


def test_data_cannot_be_moved_by_an_option(tree: Path) -> None:
    for data in (DataQuestion(new_dataset=True), DataQuestion(dataset_changed_at=Step(10))):
        with pytest.raises(UsageError, match="applies only to trainers with a setting"):
            plan(tree, changed(), data)


def test_a_save_without_samples_is_counted_by_step_or_schedule(tmp_path: Path) -> None:
    tree = tree_of("one_rank_1.9.0", tmp_path)
    assert position(tree, None).samples == 240
    assert position(tree, changed(global_batch_size=16, seed=RAMP_UP)).samples == 100 + 15 * 16


def test_scale_skip_counts_the_recorded_samples(tmp_path: Path) -> None:
    tree = tree_of("one_rank_batch_8_to_16", tmp_path)
    answer = document("scale-skip", str(tree), "--new-gbs", "32")
    assert (answer["samples"], answer["batches"], answer["data_skip_steps"]) == (640, 20, None)
    assert "nothing has to be set" in cli("scale-skip", str(tree), "--new-gbs", "32").output
    assert ckpttool.scale_skip(str(tree), new_gbs=32).skip.repeated_samples == 0


class TestTheSchedule:
    RAMP_UP = RampUp(start=4, increment=4, samples=96, final=16)

    def test_grows_as_the_real_one(self) -> None:
        consumed, batches = 0, []
        for _ in range(17):
            batches.append(self.RAMP_UP.batch_at(consumed))
            consumed += batches[-1]
        assert batches == [4] * 8 + [8] * 4 + [12] * 3 + [16] * 2

    def test_counts_its_samples_by_step(self) -> None:
        consumed = 0
        for step in range(40):
            assert self.RAMP_UP.consumed_at(step) == consumed
            consumed += self.RAMP_UP.batch_at(consumed)

    def test_of_very_many_levels_is_counted_at_once(self) -> None:
        found = RampUp.of([1, 1, 10], 10**9)
        assert found is not None
        assert found.consumed_at(3) == 1 + found.batch_at(1) + found.batch_at(1 + found.batch_at(1))

    def test_of_no_samples_is_constant(self) -> None:
        constant = RampUp(start=4, increment=4, samples=0, final=16)
        assert (constant.batch_at(0), constant.consumed_at(3)) == (16, 48)

    @pytest.mark.parametrize("value", [[4, 4], [4, 5, 96], [0, 4, 96], [4, 0, 96], [4, 4, -1], [20, 4, 96], "4", None])
    def test_that_the_trainer_refuses_is_none(self, value: object) -> None:
        assert RampUp.of(value, 16) is None


def test_resolve_shows_the_first_step_and_the_saves(tree: Path) -> None:
    Path("base.yaml").write_text(changed())
    said = cli("resolve", str(tree), "--config", "base.yaml")
    assert said.exit_code == ExitCode.OK
    assert "The run begins after step 30 and saves only at its end, at step 40." in said.output


def test_a_requested_batch_size_decides_where_the_data_ends(tree: Path) -> None:
    text = TestAnEndOfTheData().text(330)
    assert position(tree, text).effect is DataEffect.EXACT  # 10 steps of 8
    found = plan(tree, text, DataQuestion(new_global_batch=12)).data  # 20 steps of 12
    assert isinstance(found, GoesOn)
    assert found.effect is DataEffect.LOSES
