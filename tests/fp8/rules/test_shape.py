"""Steps, ramps and what is between them, and where they begin."""

from __future__ import annotations

from random import Random

import pytest

from ckpttool.fp8.rules.shape import STRONG, fit


def noisy(means: list[float], seed: int = 1, noise: float = 0.05) -> list[float]:
    chance = Random(seed)  # noqa: S311 (a curve, no secret)
    return [mean + chance.gauss(0, noise) for mean in means]


STEP = [0.0] * 24 + [1.0] * 16
RAMP = [max(0.0, (place - 23.5) / 8) for place in range(40)]
LEVEL = [min(1.0, max(0.0, (place - 23.5) / 6)) for place in range(40)]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_and_a_ramp_are_told_apart_and_begin_where_they_do(seed: int) -> None:
    step, ramp = fit(noisy(STEP, seed)), fit(noisy(RAMP, seed))
    assert step.ramp_over_step > STRONG
    assert ramp.ramp_over_step < -STRONG
    assert (step.onset, step.earliest, step.latest) == (24, 24, 24)
    assert abs(ramp.onset - 24) <= 1
    assert ramp.earliest <= ramp.onset <= ramp.latest


@pytest.mark.parametrize("seed", range(5))
def test_what_grows_and_then_stays_began_where_it_began_to_grow(seed: int) -> None:
    shape = fit(noisy(LEVEL, seed))
    assert shape.earliest <= 24 <= shape.latest
    assert shape.latest - shape.earliest <= 3


def test_a_gap_from_the_start_begins_at_the_start() -> None:
    assert fit(noisy([1.0] * 40)).onset == 0


def test_nothing_and_what_has_no_noise_are_no_trouble() -> None:
    assert fit([0.0] * 12).ramp_over_step == 0
    assert fit([0.0] * 6 + [1.0] * 6).onset == 6
    assert fit([0.0] * 11 + [1.0]).ramp_over_step == 0  # one window is as much a step as a ramp


def test_the_sign_changes_no_shape() -> None:
    means = noisy(RAMP)
    assert fit([-mean for mean in means]) == fit(means)


def test_a_slow_growth_that_levels_off_may_have_begun_where_a_line_would_not_have() -> None:
    # Of a real small training whose FP8 goes wrong in window 12: the means of its gaps from the sixth window on.
    gaps = [-0.0036, -0.0027, -0.0035, -0.0033, 0.0015, 0.0005, 0.0084, 0.0181, 0.0489, 0.0459, 0.0451, 0.055, 0.0885]
    gaps += [0.0796, 0.0977, 0.1232, 0.0788, 0.1253, 0.1241, 0.1033, 0.12, 0.1276, 0.1605, 0.1438, 0.1454]
    shape = fit([0.0367, 0.0025, -0.0051, -0.0085, -0.0033, *gaps])
    assert shape.earliest <= 12 <= shape.latest
