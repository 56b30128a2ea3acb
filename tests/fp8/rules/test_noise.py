"""Chance from a seed, blocks of neighbours, and how large a gap must be to count."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.fp8.model.curves import FloorFrom, Gap
from ckpttool.fp8.rules.noise import (
    block_of,
    draws,
    floor_and_limit,
    floor_of,
    gap_of,
    percentiles,
    resampled_means,
)

NUMBERS = st.lists(st.floats(-100, 100), min_size=5, max_size=60)


def correlated(seed: int, count: int, keep: float) -> list[float]:
    chance = Random(seed)  # noqa: S311 (a curve, no secret)
    values = [chance.gauss(0, 1)]
    for _ in range(count - 1):
        values.append(keep * values[-1] + (1 - keep * keep) ** 0.5 * chance.gauss(0, 1))
    return values


def test_the_draws_are_those_of_splitmix64() -> None:
    # The first outputs for this seed, as its authors' own program prints them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert list(islice(draws(1234567, 1 << 64), 3)) == published
    assert list(islice(draws(1234567, 10), 3)) == [number * 10 >> 64 for number in published]


@given(NUMBERS, st.integers(1, 5), st.integers(0, 1 << 64))
def test_same_input_same_bytes_and_every_mean_lies_among_the_values(values: list[float], block: int, seed: int) -> None:
    once = resampled_means(values, block=block, seed=seed, resamples=20)
    assert once == resampled_means(values, block=block, seed=seed, resamples=20)
    assert min(values) - 1e-9 <= min(once) <= max(once) <= max(values) + 1e-9


def test_two_stretches_of_one_length_are_drawn_in_the_same_blocks() -> None:
    one = correlated(1, 50, 0.5)
    two = [2 * value + 3 for value in one]
    means = resampled_means(one, block=7, resamples=30)
    assert resampled_means(two, block=7, resamples=30) == pytest.approx([2 * mean + 3 for mean in means])


def test_a_block_grows_with_the_memory_and_stays_within_a_quarter() -> None:
    assert block_of(correlated(1, 400, 0.0)) == 8
    assert 8 < block_of(correlated(1, 400, 0.9)) <= 100
    assert block_of(list(map(float, range(400)))) == 100
    assert block_of([1.0] * 5) == 1


def test_the_interval_of_a_calm_stretch_holds_its_true_mean_in_most_cases() -> None:
    for keep, least in ((0.0, 10), (0.8, 8)):
        gaps = [gap_of(correlated(seed, 200, keep)) for seed in range(12)]
        assert sum(gap.low <= 0 <= gap.high for gap in gaps) >= least
        assert all(gap.low < gap.mean < gap.high for gap in gaps)


def test_growth_is_no_noise() -> None:
    flat, steep = ([slope * place for place in range(200)] for slope in (0.0, 1.0))
    noise = correlated(3, 200, 0.0)
    calm = gap_of([value + one for value, one in zip(noise, flat, strict=True)])
    growing = gap_of([value + one for value, one in zip(noise, steep, strict=True)])
    assert growing.half == pytest.approx(calm.half)
    assert growing.high - growing.low > 20 * (calm.high - calm.low)


def test_one_value_has_an_interval_of_no_width() -> None:
    assert gap_of([0.5]) == Gap(mean=0.5, low=0.5, high=0.5, half=0.0)
    assert percentiles([3.0]) == (3.0, 3.0)
    assert percentiles(list(map(float, range(1000)))) == (24.0, 975.0)


def test_a_repeat_that_lies_off_by_as_much_everywhere_is_a_floor_of_three_times_that() -> None:
    for repeats, times in ((1, 3.0), (2, 2.5), (3, 2.0), (5, 2.0)):
        assert floor_of([([0.01] * 100, True)] * repeats, 20) == pytest.approx(0.01 * times)
    assert floor_of([], 20) is None
    assert floor_of([([0.01] * 11, True)], 20) is None  # without its first fifth it is under half of the length
    assert floor_of([([9.0] * 20 + [0.0] * 80, True)], 20) == 0.0  # the beginning tells nothing of the end


def test_the_limit_is_the_largest_of_floor_tolerance_and_noise() -> None:
    gap = Gap(mean=1.0, low=0.9, high=1.1, half=0.1)
    for distance, tolerance, limit in ((0.1, 0.2, 0.3), (0.01, 0.2, 0.2), (0.01, 0.05, 0.1)):
        floor, found = floor_and_limit(gap, [([distance] * 100, True)], length=20, tolerance=tolerance)
        assert floor.source is FloorFrom.REPEAT
        assert found == pytest.approx(limit)
        assert floor.paired == floor.value


def test_one_baseline_takes_a_wider_limit_and_other_data_no_floor_of_an_effect() -> None:
    gap = Gap(mean=1.0, low=0.9, high=1.1, half=0.1)
    floor, limit = floor_and_limit(gap, [], length=20, tolerance=0.05)
    assert (floor.source, floor.paired) == (FloorFrom.SAMPLING, None)
    assert limit == pytest.approx(0.3)
    assert floor_and_limit(gap, [], length=20, tolerance=0.5)[1] == 2.0
    assert floor_and_limit(gap, [([0.01] * 100, False)], length=20, tolerance=0.05)[0].paired is None
