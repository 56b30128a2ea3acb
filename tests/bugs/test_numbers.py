"""B13, B16 to B19, B34: counters that MindFormers rounds, scales twice or does not scale.

The data position does not suffer from them, because a launch config names it; the tests hold us to exact numbers there
and to telling what the trainer's own counters will do.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.decide.data_position import plan_data, skip_seen_data
from ckpttool.domain.finding import Code
from ckpttool.domain.plan import BatchSegment
from ckpttool.domain.units import Step
from ckpttool.errors import UsageError
from ckpttool.trainers.mindformers.counters import mindformers_counters
from ckpttool.trainers.mindformers.launch_check import check
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.trainers.mindformers.scalars import TrainState
from tests.support.answers import FIXTURES, cli, coded, document, notes, plan
from tests.support.training_configs import read_train_config
from tests.support.trees import TreeBuilder

NEWER = FIXTURES / "newfmt_4rank" / "output"


def test_b13_an_optimizer_step_that_the_newer_layout_does_not_scale_is_told_with_the_right_one(tmp_path: Path) -> None:
    """The trainer passes 20, but the optimizer's own file says 40: the learning rate is not where it was."""
    tree = TreeBuilder(tmp_path).iteration(step=40, global_batch_size=16)
    answer = plan(tree.checkpoint, data=api.DataQuestion(new_global_batch=32))
    (finding,) = [one for one in coded(answer.findings, Code.COUNTER_ROUNDED) if "optimizer" in one.message]
    assert (finding.expected, finding.actual) == ("20", "40")
    assert planned_skip(answer).batches == 20


def test_b13_without_a_change_of_batch_size_there_is_nothing_to_tell() -> None:
    assert notes(plan(NEWER, data=api.DataQuestion(new_global_batch=8))) == set()


@pytest.mark.parametrize(
    ("legacy", "step", "old", "new", "theirs", "exact"),
    [
        (True, 27, 56, 12, 125, 126),
        (True, 16_777_217, 8, 8, 16_777_216, 16_777_217),
        (False, 49, 1, 49, 0, 1),
        (False, 45, 56, 40, 62, 63),
    ],
)
def test_b16_the_skip_is_exact_where_mindformers_rounds_a_step_away(
    *, legacy: bool, step: int, old: int, new: int, theirs: int, exact: int
) -> None:
    skip = skip_seen_data([BatchSegment(steps=step, global_batch_size=old)], new_global_batch=new)
    assert skip.batches == exact == Fraction(step * old, new).__floor__()
    scalars = TrainState(epoch_num=1, step_num=step, global_step=step, global_batch_size=old).scalars
    counters = mindformers_counters(scalars=scalars, new_global_batch_size=new, new_sink_size=None, legacy=legacy)
    assert counters.initial_step == theirs
    rounded = coded(counters.findings, Code.COUNTER_ROUNDED)
    assert [(one.expected, one.actual) for one in rounded if "optimizer" not in one.message] == [
        (str(exact), str(theirs))
    ]


@pytest.mark.parametrize(
    ("legacy", "step", "old", "new"), [(True, 49, 1, 49), (True, 100, 512, 768), (False, 40, 8, 4)]
)
def test_b16_where_it_rounds_rightly_it_is_not_blamed(*, legacy: bool, step: int, old: int, new: int) -> None:
    skip = skip_seen_data([BatchSegment(steps=step, global_batch_size=old)], new_global_batch=new)
    counters = mindformers_counters(
        scalars=TrainState(epoch_num=1, step_num=step, global_batch_size=old).scalars,
        new_global_batch_size=new,
        new_sink_size=None,
        legacy=legacy,
    )
    assert counters.initial_step == skip.batches
    assert coded(counters.findings, Code.COUNTER_ROUNDED) == []


def test_b17_a_changed_sink_size_is_told_with_the_batches_that_would_be_missing(tmp_path: Path) -> None:
    """20 sinks of 2 are taken for 20 sinks of 4: of 200 steps 120 more are trained instead of 160."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=20, step=2)
    answer = plan(tree.checkpoint, data=api.DataQuestion(sink_size=4))
    (finding,) = coded(answer.findings, Code.SINK_SIZE_CHANGED)
    assert "40 batches too few" in finding.message
    assert finding.remedy is not None
    assert "sink_size: 2" in finding.remedy
    assert planned_skip(answer).batches == 40
    assert Code.SINK_SIZE_CHANGED not in notes(plan(tree.checkpoint, data=api.DataQuestion(sink_size=2)))


def test_b18_the_skip_is_rounded_to_whole_sinks_and_the_samples_seen_twice_are_counted(tmp_path: Path) -> None:
    """50 steps, 16 to 24 samples: 33 batches, but 16 sinks are 32; MindSpore rounds the data and not the step."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=25, step=2, global_batch_size=16)
    answer = plan(tree.checkpoint, data=api.DataQuestion(new_global_batch=24, sink_size=2))
    assert planned_skip(answer).batches == 32
    assert planned_skip(answer).repeated_samples == 50 * 16 - 32 * 24
    assert answer.next_step == 34
    assert Code.EPOCH_COUNTER_SHIFTS in notes(answer)


def test_b18_where_both_counters_agree_nothing_is_said(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy().save(epoch=25, step=2, global_batch_size=16)
    answer = plan(tree.checkpoint, data=api.DataQuestion(new_global_batch=8, sink_size=2))
    assert (planned_skip(answer).batches, planned_skip(answer).repeated_samples) == (100, 0)
    assert notes(answer) == set()


def test_b18_what_sinks_repeat_of_batches_of_unknown_size_is_not_called_nothing(tmp_path: Path) -> None:
    """Files of 1.2 hold no batch size: the 31st batch is seen again, and nobody knows how many samples that is."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=31, step=1, global_batch_size=None)
    odd = cli("resolve", str(tree.checkpoint), "--sink-size", "2").stdout
    assert "less than a sink seen twice" in " ".join(odd.split())
    even = cli("resolve", str(tree.checkpoint), "--sink-size", "1").stdout
    assert "no sample seen twice" in " ".join(even.split())


def test_b19_a_step_that_becomes_zero_is_told_because_a_whole_epoch_would_be_skipped(tmp_path: Path) -> None:
    """Step 1 at 16 samples is step 0 at 64, and `0 % n == 0` passes for the end of the epoch."""
    tree = TreeBuilder(tmp_path).legacy().save(epoch=1, step=1, global_batch_size=16)
    answer = plan(tree.checkpoint, data=api.DataQuestion(new_global_batch=64))
    assert Code.EPOCH_COUNTER_SHIFTS in notes(answer)
    assert (planned_skip(answer).batches, planned_skip(answer).repeated_samples) == (0, 16)
    # 0 would mean "not set" to MindFormers, which would then skip by its own count.
    assert planned_skip(answer).batches == 0
    assert Code.EPOCH_COUNTER_SHIFTS not in notes(plan(tree.checkpoint, data=api.DataQuestion(new_global_batch=16)))


WRITTEN_BY_1_3_2 = """\
use_parallel: True
parallel: {parallel_mode: 1, full_batch: False}
runner_config: {batch_size: 2, epochs: 2, sink_size: 2, gradient_accumulation_steps: 1}
parallel_config: {data_parallel: 1, model_parallel: 4, pipeline_stage: 1}
"""


class TestB34BatchSizesOfOldVersions:
    """1.3.2 counts every device as a data-parallel one: 8 samples are recorded where 2 were seen."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        return TreeBuilder(tmp_path).legacy().save(epoch=20, step=2, global_batch_size=8)

    def test_a_recorded_size_that_fits_only_the_old_arithmetic_is_suspected(
        self, tree: TreeBuilder, tmp_path: Path
    ) -> None:
        config = tmp_path / "base.yaml"
        config.write_text(WRITTEN_BY_1_3_2)
        read = read_train_config(str(config))
        assert (read.global_batch_size, read.global_batch_size_1_3) == (2, 8)
        answer = plan(tree.checkpoint, tree=api.TreeQuestion(path=str(tree.checkpoint), config=read))
        said = [one for one in check(read, answer) if "1.3.2" in one.message]
        assert len(said) == 1
        assert "--segment 40:2" in (said[0].remedy or "")

    def test_a_size_that_both_compute_is_not_suspected(self, tree: TreeBuilder, tmp_path: Path) -> None:
        config = tmp_path / "base.yaml"
        config.write_text(WRITTEN_BY_1_3_2.replace("full_batch: False", "full_batch: True"))
        read = read_train_config(str(config))
        assert read.global_batch_size_1_3 is None
        assert [one for one in check(read, plan(tree.checkpoint)) if "1.3.2" in one.message] == []

    def test_a_segment_overrules_what_the_shards_recorded(self, tree: TreeBuilder) -> None:
        data = document("resolve", str(tree.checkpoint), "--gbs", "2", "--segment", "40:2")["data"]
        assert (data["data_skip_steps"], data["samples"]) == (40, 80)
        assert document("resolve", str(tree.checkpoint), "--gbs", "2")["data"]["data_skip_steps"] == 160

    def test_an_old_size_that_contradicts_the_shards_is_refused_and_not_ignored(self) -> None:
        question = api.DataQuestion(new_global_batch=2, old_global_batch=2)
        with pytest.raises(UsageError, match="--segment 40:2"):
            plan_data(Step(40), 8, question)
        assert plan_data(Step(40), 2, question).batches == 40
        assert plan_data(Step(40), None, question).batches == 40
