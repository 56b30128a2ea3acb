"""Numbers that no training goes on from, or that it cannot have come to since the checkpoint before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.verdict import Level, ShardReport, TensorStat, VerdictWord
from ckpttool.core.verify.check import check
from ckpttool.core.verify.checks.numerics import JUMP, compare_numbers, judge_numbers
from ckpttool.core.verify.checks.structure import MOST
from ckpttool.core.verify.report import judge
from tests.support.trees import Tensor, floats, safetensors_bytes, training_scalars, weights
from tests.support.verifying import codes, task_for

STATE = training_scalars(epoch=10, true_step=20)


def looked(path: Path, tensors: Iterable[Tensor]) -> ShardReport:
    path.write_bytes(safetensors_bytes([*tensors, *STATE]))
    return judge([check(task_for(path, Level.NUMERICS))])


def stat(name: str = "w", *, norm: float = 1.0, elements: int = 100, nans: int = 0, infinities: int = 0) -> TensorStat:
    return TensorStat(
        name=name,
        dtype="F32",
        elements=elements,
        nans=nans,
        infinities=infinities,
        absmax=norm,
        norm=norm,
        denormal_only=False,
    )


class TestOneFile:
    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ([1.0, math.nan, 2.0], "1 NaN and 0 infinite values of 3"),
            ([math.inf, -math.inf, 2.0], "0 NaN and 2 infinite values of 3"),
            ([math.nan, math.nan, math.inf], "2 NaN and 1 infinite values of 3"),
        ],
    )
    def test_nan_and_infinity_are_suspect_and_counted(self, tmp_path: Path, values: list[float], told: str) -> None:
        report = looked(tmp_path / "a.safetensors", [*weights(), floats("sick", [3], values=values)])
        (finding,) = [one for one in report.findings if one.severity > Severity.NOTE]
        assert (finding.code, finding.tensor, report.word) == (Code.NONFINITE_VALUES, "sick", VerdictWord.SUSPECT)
        assert told in finding.message

    def test_values_that_a_number_can_have_are_left_alone(self, tmp_path: Path) -> None:
        """Zeros, the smallest and the largest ones; what they mean only the checkpoint before can tell."""
        extremes = [0.0, -0.0, 1e-45, 3.4e38, -3.4e38]
        tensors = [floats("wild", [5], values=extremes), floats("zero", [4], values=[0.0] * 4)]
        report = looked(tmp_path / "a.safetensors", [*weights(), *tensors])
        assert codes(report.findings) == []

    def test_tensors_of_denormals_alone_are_told_in_the_statistics(self, tmp_path: Path) -> None:
        tensors = [floats("tiny", [3], values=[1e-45, 0.0, 2e-40]), floats("mixed", [2], values=[1e-45, 1.0])]
        stats = {one.name: one for one in looked(tmp_path / "a.safetensors", tensors).stats}
        assert stats["tiny"].denormal_only
        assert not stats["mixed"].denormal_only

    def test_statistics_are_of_the_values(self, tmp_path: Path) -> None:
        tensors = [floats("w", [2, 2], values=[3.0, -4.0, 0.0, 12.0])]
        one = next(one for one in looked(tmp_path / "a.safetensors", tensors).stats if one.name == "w")
        assert (one.elements, one.absmax, one.norm, one.dtype) == (4, 12.0, 13.0, "F32")

    def test_whole_numbers_have_no_statistics(self, tmp_path: Path) -> None:
        assert {one.name for one in looked(tmp_path / "a.safetensors", []).stats} == {"loss_scale"}

    def test_a_model_that_is_sick_all_over_does_not_drown_the_others(self) -> None:
        found = judge_numbers("a", [stat(f"w{number}", nans=1) for number in range(1000)])
        assert len(found) == MOST + 1
        assert f"{1000 - MOST} more findings of this kind" in found[-1].message


class TestBesideTheCheckpointBefore:
    def compared(self, now: TensorStat, then: TensorStat, *, jump: float = JUMP) -> list[Row]:
        return [one.code for one in compare_numbers("a", [now], [then], jump=jump)]

    @pytest.mark.parametrize(
        ("now", "then"),
        [
            (stat(norm=1.1), stat(norm=1.0)),
            (stat(norm=0.0), stat(norm=0.0)),
            (stat(norm=9.0), stat(norm=0.0)),  # what was zero before may begin to move
            (stat(norm=1 / 30**2), stat(norm=1.0)),  # squares of gradients that settle thirtyfold
            (stat(norm=0.0, elements=1), stat(norm=0.9, elements=1)),  # beta1_power of Adam sinks to zero
            (stat(norm=1.0, elements=1), stat(norm=65536.0, elements=1)),  # loss_scale jumps by powers of two
            (stat(norm=1e9, elements=200), stat(norm=1.0)),  # another size: another tensor
            (stat("new", norm=1e9), stat("old")),
        ],
    )
    def test_what_is_no_jump_is_left_alone(self, now: TensorStat, then: TensorStat) -> None:
        assert self.compared(now, then) == []

    def test_what_became_all_zero_is_suspect(self) -> None:
        assert self.compared(stat(norm=0.0), stat(norm=1.0)) == [Code.ALL_ZERO_TENSOR]

    @pytest.mark.parametrize(("now", "suspect"), [(9.9, False), (10.1, True), (0.11, False), (0.099, True)])
    def test_the_factor_of_a_jump_holds_up_and_down(self, now: float, suspect: bool) -> None:
        expected = [Code.NORM_JUMP] if suspect else []
        assert self.compared(stat(norm=now), stat(norm=1.0), jump=10) == expected

    def test_a_norm_beyond_all_numbers_is_a_jump(self) -> None:
        assert self.compared(stat(norm=math.inf), stat(norm=1.0)) == [Code.NORM_JUMP]

    def test_the_highest_bit_of_an_exponent_is_noticed_in_a_tensor_of_a_billion(self) -> None:
        weight = 0.02
        healthy = weight * math.sqrt(1e9)
        assert self.compared(stat(norm=math.hypot(healthy, weight * 2.0**120)), stat(norm=healthy)) == [Code.NORM_JUMP]


class TestWhatIsNoWeight:
    CALLBACK = "callbacks.ModelCheckpoint{'monitor': None, 'mode': 'min'}.kth_value"
    BUCKET = "optimizer.dp_group_idx_1.gbuf_idx_0.dtype_(torch.float32).bucket_idx_0.exp_avg (part 5 of 28)"

    def test_a_best_score_of_nothing_yet_is_infinite(self) -> None:
        assert list(judge_numbers("a", [stat(self.CALLBACK, infinities=1, elements=1)])) == []

    def test_a_weight_of_a_part_that_is_called_callbacks_is_a_weight(self) -> None:
        (finding,) = judge_numbers("a", [stat("callbacks.0.weight", infinities=1)])
        assert finding.severity is Severity.SUSPECT

    def test_padding_of_a_bucket_is_told_and_no_sign_of_sickness(self) -> None:
        (finding,) = judge_numbers("a", [stat(self.BUCKET, nans=1)])
        assert (finding.severity, finding.tensor) == (Severity.NOTE, self.BUCKET)
        assert list(compare_numbers("a", [stat(self.BUCKET, norm=1e30)], [stat(self.BUCKET)], jump=JUMP)) == []

    def test_the_same_moments_outside_of_a_bucket_are_judged(self) -> None:
        name = "optimizer.state.exp_avg.decoder.weight (part 5 of 28)"
        (finding,) = judge_numbers("a", [stat(name, nans=1)])
        assert finding.severity is Severity.SUSPECT
        assert len(compare_numbers("a", [stat(name, norm=1e30)], [stat(name)], jump=JUMP)) == 1
