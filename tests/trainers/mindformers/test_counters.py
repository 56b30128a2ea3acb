"""Proves that MindFormers' counters are foretold to the digit, and that each that is wrong is named with its cure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Row, Severity
from ckpttool.trainers.mindformers.counters import MindFormersCounters, mindformers_counters
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.scalars import TrainState

steps = st.integers(0, 1 << 25)
batches = st.integers(1, 8192)


def counters(
    step: int | None,
    old: int | None,
    new: int | None,
    *,
    epoch: int | None = None,
    **more: Any,  # noqa: ANN401  # the other keywords of the function under test
) -> MindFormersCounters:
    scalars = TrainState(
        step_num=step, epoch_num=epoch, global_step=more.pop("updates", step), global_batch_size=old
    ).scalars
    options: dict[str, Any] = {"new_sink_size": None, "legacy": True} | more
    return mindformers_counters(scalars=scalars, new_global_batch_size=new, **options)


def codes(result: MindFormersCounters) -> list[Row]:
    return [finding.code for finding in result.findings]


class TestInitialStep:
    @pytest.mark.parametrize(
        ("step", "old", "new", "legacy", "real", "exact"),
        [
            (27, 56, 12, True, 125, 126),
            (49, 1, 49, True, 1, 1),
            (49, 1, 49, False, 0, 1),
            (45, 56, 40, False, 62, 63),
            (16_777_217, 8, 8, True, 16_777_216, 16_777_217),
            (50, 16, 24, True, 33, 33),
            (30, 8, 16, True, 15, 15),
        ],
    )
    def test_cases_of_real_runs(self, step: int, old: int, new: int, real: int, exact: int, *, legacy: bool) -> None:
        result = counters(step, old, new, legacy=legacy, updates=None)
        assert result.initial_step == real
        told = [(finding.code, finding.expected, finding.actual) for finding in result.findings]
        assert told == ([(MindFormersCode.COUNTER_ROUNDED, str(exact), str(real))] if real != exact else [])

    @given(steps, batches, batches)
    def test_the_legacy_layout_counts_in_float32(self, step: int, old: int, new: int) -> None:
        emulated = int(np.float32(step) * np.float32(old / new))
        assert counters(step, old, new).initial_step == emulated

    @given(steps, batches, batches)
    def test_the_newer_layout_counts_in_float64(self, step: int, old: int, new: int) -> None:
        assert counters(step, old, new, legacy=False).initial_step == int(step * (old / new))

    @given(steps, batches, batches, st.booleans())
    def test_a_rounded_counter_is_found_where_it_is_wrong(self, step: int, old: int, new: int, legacy: bool) -> None:
        result = counters(step, old, new, legacy=legacy)
        exact = Fraction(step * old, new).__floor__()
        found = [one.expected for one in result.findings if one.message.startswith("MindFormers scales")]
        assert found == ([str(exact)] if result.initial_step != exact else [])

    def test_the_cure_is_a_batch_size_at_which_the_counter_is_exact(self) -> None:
        (finding,) = counters(27, 56, 12).findings
        assert finding.severity is Severity.NOTE
        assert "a global batch size of 14 keeps" in str(finding.remedy)
        cured = counters(27, 56, 14)
        assert cured.initial_step == 108
        assert cured.findings == ()

    def test_a_batch_size_that_nobody_knows_scales_nothing(self) -> None:
        assert counters(30, None, None).initial_step == 30
        assert counters(30, None, 16).initial_step == 30
        assert counters(30, 16, None).initial_step == 30

    def test_a_checkpoint_without_a_step_starts_at_0_as_it_does_there(self) -> None:
        assert counters(None, 8, 8, epoch=20).initial_step == 0


class TestOptimizerStep:
    def test_the_legacy_layout_scales_it_and_the_newer_one_does_not(self) -> None:
        assert counters(40, 16, 32, updates=38).findings == ()
        (finding,) = counters(40, 16, 32, updates=40, legacy=False).findings
        assert (finding.severity, finding.expected, finding.actual) == (Severity.SUSPECT, "20", "40")
        assert "shift the learning rate schedule by 20 steps" in str(finding.remedy)


class TestSinks:
    def test_a_sink_size_that_stays_is_no_finding(self) -> None:
        result = counters(30, 8, 8, epoch=15, new_sink_size=2)
        assert (result.initial_epoch, result.findings) == (15, ())

    def test_a_sink_size_that_changes_is_found_with_its_effect(self) -> None:
        result = counters(40, 8, 8, epoch=20, new_sink_size=4)
        (finding,) = result.findings
        assert (finding.code, finding.severity) == (MindFormersCode.SINK_SIZE_CHANGED, Severity.SUSPECT)
        assert result.initial_epoch == 20
        assert "trains 40 batches too few" in finding.message
        assert finding.remedy == "set runner_config.sink_size: 2"
        assert "plans 20 batches too many" in counters(40, 8, 8, epoch=20, new_sink_size=1).findings[0].message

    def test_steps_and_sinks_that_scale_differently_are_found(self) -> None:
        result = counters(50, 16, 24, epoch=25, new_sink_size=2)
        assert (result.initial_step, result.initial_epoch) == (33, 16)
        (finding,) = result.findings
        assert (finding.code, finding.severity) == (MindFormersCode.EPOCH_COUNTER_SHIFTS, Severity.NOTE)
        assert "a global batch size of 25, with which both agree" in str(finding.remedy)
        assert counters(50, 16, 25, epoch=25, new_sink_size=2).findings == ()


class TestEpochs:
    def test_a_step_that_scales_to_0_skips_an_epoch_and_is_found(self) -> None:
        result = counters(1, 16, 64, epoch=1)
        assert (result.initial_step, result.initial_epoch) == (0, 1)
        (finding,) = result.findings
        assert (finding.code, finding.severity) == (MindFormersCode.EPOCH_COUNTER_SHIFTS, Severity.SUSPECT)

    @pytest.mark.parametrize(("step", "epoch", "done"), [(8, 2, 1), (10, 2, 2), (11, 3, 2)])
    def test_inside_an_epoch_the_ones_before_it_are_done(self, step: int, epoch: int, done: int) -> None:
        result = counters(step, 8, 8, epoch=epoch, dataset_size=5)
        assert (result.initial_epoch, result.findings) == (done, ())

    def test_a_step_rounded_down_to_the_end_of_an_epoch_skips_the_next_one(self) -> None:
        result = counters(21, 8, 16, epoch=3, dataset_size=5)  # 10.5 batches of the new size: epoch 3 has begun
        assert (result.initial_step, result.initial_epoch) == (10, 3)
        assert codes(result) == [MindFormersCode.EPOCH_COUNTER_SHIFTS]
        assert codes(counters(20, 8, 16, epoch=2, dataset_size=5)) == []
