"""Thresholds fit the run they were taken from, or there are none."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.advice import Refusal, Threshold
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.rules.calibrate import calibrate
from tests.support.log_rows import INF, NAN, rows


def calm(length: int, *, scale: float = 1.0, seed: int = 3) -> list[float | None]:
    chance = random.Random(seed)  # noqa: S311 (a curve, no secret)
    return [scale * chance.lognormvariate(0.0, 0.2) for _ in range(length)]


def norm_threshold(norms: list[float | None], warm_up: int | None = 0) -> Threshold:
    found = calibrate(rows(norms), warm_up=warm_up).global_norm
    assert isinstance(found, Threshold)
    return found


def test_a_calm_run_gets_a_threshold_above_all_of_it_and_near_it() -> None:
    threshold = norm_threshold(calm(2000))
    assert threshold.highest_normal < threshold.value < 10
    assert threshold.false_alarms == 0
    assert 0 < threshold.false_alarms_at_most <= 15
    assert threshold.median == pytest.approx(1.0, rel=0.05)
    assert threshold.spread == pytest.approx(0.2, rel=0.15)
    assert sum(bar.count for bar in threshold.bins) == 2000


def test_spikes_do_not_move_the_threshold() -> None:
    norms = calm(2000)
    spiky: list[float | None] = [1000.0 if step % 200 == 100 else norm for step, norm in enumerate(norms, 1)]
    calm_one, spiky_one = norm_threshold(norms), norm_threshold(spiky)
    assert spiky_one.value == pytest.approx(calm_one.value, rel=0.1)
    assert spiky_one.excluded == 10
    assert spiky_one.false_alarms == pytest.approx(50)


def test_the_warm_up_is_left_out_by_default_and_as_many_steps_as_one_says() -> None:
    norms = [norm * 50 if norm else None for norm in calm(200)] + calm(1800)
    assert norm_threshold(norms, None).value < 10
    assert calibrate(rows(norms)).warm_up == 200
    assert calibrate(rows(norms), warm_up=7).warm_up == 7


def test_under_two_hundred_values_there_is_no_recommendation() -> None:
    result = calibrate(rows(calm(199)), warm_up=0)
    assert isinstance(result.global_norm, Refusal)
    assert (result.global_norm.points, result.count_threshold, result.notes) == (199, None, ())
    assert isinstance(calibrate(rows(calm(200)), warm_up=0).global_norm, Threshold)


def test_values_that_are_not_finite_do_not_count_as_points_but_as_alarms() -> None:
    threshold = norm_threshold([*calm(500), NAN, INF, *calm(10)])
    assert (threshold.points, threshold.excluded) == (510, 2)
    assert threshold.alarm_share == pytest.approx(2 / 512)
    assert isinstance(calibrate(rows([NAN] * 500), warm_up=0).global_norm, Refusal)


def test_the_count_threshold_is_twice_the_longest_row_that_ended_by_itself() -> None:
    result = calibrate(rows([*calm(300), *[50.0] * 12, *calm(300), *[50.0] * 30]), warm_up=0)
    assert (result.longest_run, result.count_threshold) == (12, 24)
    assert calibrate(rows(calm(300)), warm_up=0).count_threshold == 10


def test_a_row_across_steps_that_are_not_shown_is_no_row() -> None:
    before, after = rows([*calm(300), 50.0, 50.0]), rows([50.0, *calm(300)], first=900)
    result = calibrate([*before, *after], warm_up=0)
    assert result.longest_run == 1


def test_more_than_one_alarm_in_a_hundred_steps_is_said() -> None:
    many: list[float | None] = [50.0 if step % 50 == 0 else norm for step, norm in enumerate(calm(1000), 1)]
    assert any("not normal" in note for note in calibrate(rows(many), warm_up=0).notes)
    assert not any("not normal" in note for note in calibrate(rows(calm(1000)), warm_up=0).notes)


def test_the_embedding_threshold_comes_from_measured_norms_only() -> None:
    metrics = [
        StepMetrics(step=Step(step), embedding_local_norm=0.0 if step % 2 else 250.0 + step % 7)
        for step in range(1, 601)
    ]
    found = calibrate(metrics, warm_up=0).embedding_local_norm
    assert isinstance(found, Threshold)
    assert found.points == 300
    assert 256 < found.value < 400
    assert found.quantity == "embedding_local_norm_threshold"


def test_a_constant_norm_has_one_bar() -> None:
    assert len(norm_threshold([1.0] * 300).bins) == 1


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=200, max_size=400))
def test_a_threshold_is_always_above_what_counts_as_normal(norms: list[float]) -> None:
    threshold = norm_threshold(list(norms))
    assert threshold.value >= threshold.highest_normal
    assert threshold.points + threshold.excluded == len(norms)
    assert math.isfinite(threshold.value)
    assert sum(bar.count for bar in threshold.bins) == len(norms)


def test_steps_that_no_training_reaches_change_no_threshold() -> None:
    near, far = rows(calm(400)), rows(calm(400), first=2**63 - 200)
    assert calibrate(far, warm_up=0) == calibrate(near, warm_up=0)
