"""Which values belong together, and which runs cannot be compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import CurveMetric, PairedBy
from ckpttool.fp8.rules.align import align, batch_size, curve_of, interval, other_rates, pairing, running_median
from tests.fp8.rules.curves import Runs, curve


def row(
    step: int, loss: float | None = None, *, samples: int | None = None, checked: float | None = None
) -> StepMetrics:
    return StepMetrics(step=Step(step), loss=loss, consumed_samples=samples, validation_loss=checked)


def test_what_a_log_shows_last_of_a_step_counts_and_a_step_without_a_loss_does_not() -> None:
    rows = [row(2, 2.0), row(1, 3.0), row(2, 2.5), row(3), row(4, checked=1.5)]
    found = curve_of(rows, by=PairedBy.STEP)
    assert (found.places, found.losses) == ((1, 2), (3.0, 2.5))
    checked = curve_of(rows, metric=CurveMetric.VALIDATION, by=PairedBy.STEP)
    assert (checked.places, checked.losses) == ((4,), (1.5,))


def test_by_samples_a_step_of_a_larger_batch_belongs_to_a_later_one_of_a_smaller() -> None:
    small = curve_of([row(step, 1.0 / step, samples=4 * step) for step in range(1, 9)], by=PairedBy.SAMPLES)
    large = curve_of([row(step, 2.0 / step, samples=8 * step) for step in range(1, 5)], by=PairedBy.SAMPLES)
    pairs = align(small, large)
    assert (pairs.places, pairs.steps) == ((8, 16, 24, 32), (2, 4, 6, 8))
    assert curve_of([row(1, 2.0)], by=PairedBy.SAMPLES).places == ()


def test_only_finite_losses_of_both_make_a_pair() -> None:
    pairs = align(curve([1.0, math.nan, 3.0, 4.0]), curve([1.0, 2.0, math.inf, 5.0]))
    assert (pairs.steps, pairs.baseline, pairs.candidate) == ((1, 4), (1.0, 4.0), (1.0, 5.0))


def test_the_batch_size_is_that_of_most_of_a_log() -> None:
    assert batch_size([row(1), row(2, samples=32), row(4, samples=64)]) == 16
    assert batch_size([row(1, samples=16)]) is None
    assert batch_size([row(1)]) is None


def test_learning_rates_differ_where_they_do_so_at_over_a_hundredth_of_the_pairs() -> None:
    losses = [1.0] * 200
    own = curve(losses, rate=1e-3)
    assert other_rates(own, curve(losses, rate=1.0099e-3)) is None
    assert other_rates(own, curve(losses, rate=1.02e-3)) == (200, 200)
    assert other_rates(own, curve(losses)) is None
    assert other_rates(curve(losses, rate=0.0), curve(losses, rate=0.0)) is None


def test_the_interval_is_that_between_most_lines() -> None:
    assert interval([1, 11, 21, 22, 32]) == 10
    assert interval([7]) is None


def test_the_same_data_moves_both_runs_alike_and_other_data_do_not() -> None:
    runs = Runs(1)
    one = runs.run()
    same, other = pairing(one, runs.run()), pairing(one, runs.run(other_data=True))
    assert same is not None
    assert other is not None
    assert same > 0.9
    assert other < 0.3
    assert pairing([1.0] * 10, [2.0] * 10) is None


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.sampled_from([1, 3, 51]))
def test_the_running_median_is_the_median_of_what_is_around(values: list[float], width: int) -> None:
    from statistics import median

    reach = width // 2
    expected = [median(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]
    assert list(running_median(values, width)) == pytest.approx(expected)
