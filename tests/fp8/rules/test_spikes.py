"""Spikes: where they begin and end, what is none, and what stands in their place."""

from __future__ import annotations

import math
from random import Random

import pytest

from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Spike
from ckpttool.fp8.rules.align import align
from ckpttool.fp8.rules.compare import apart
from ckpttool.fp8.rules.spikes import Span, are_ordinary, calmed, find_spikes, spiked
from tests.fp8.rules.curves import Runs, curve


def calm(count: int, seed: int = 1) -> list[float]:
    chance = Random(seed)  # noqa: S311 (a curve, no secret)
    return [2.0 + chance.gauss(0, 0.02) for _ in range(count)]


def spans(values: list[float]) -> list[tuple[int, int]]:
    return [(span.first, span.last) for span in find_spikes(values)]


@pytest.mark.parametrize("seed", range(5))
def test_a_calm_curve_and_a_steep_one_have_none(seed: int) -> None:
    assert spans(calm(3000, seed)) == []
    assert spans(Runs(seed).run()) == []


def test_a_spike_begins_and_ends_and_has_a_height() -> None:
    values = [*calm(200), 4.0, 5.0, 3.0, *calm(100, 2)]
    (span,) = find_spikes(values)
    assert (span.first, span.last, span.values) == (200, 202, 3)
    assert span.height == pytest.approx(3.0, abs=0.02)


def test_what_is_no_number_is_a_spike_without_a_height_and_none_before_there_is_a_normal() -> None:
    values = calm(200)
    values[10] = values[100] = math.nan
    values[101] = math.inf
    assert find_spikes(values) == [Span(first=100, last=101, height=None)]


def test_a_value_far_below_is_no_spike() -> None:
    assert spans([*calm(200), 0.5, *calm(50)]) == []


def test_a_curve_that_hardly_moves_has_no_spike_at_its_last_digit() -> None:
    assert spans([*[2.0] * 200, 2.001, *[2.0] * 50]) == []
    assert spans([*[2.0] * 200, 2.1, *[2.0] * 50]) == [(200, 200)]


def test_a_new_level_is_no_spike() -> None:
    risen = [value + 1 for value in calm(2000, 2)]
    assert spans(calm(200) + risen) == []
    assert spans(calm(200) + risen[:1275] + calm(50)) == [(200, 1474)]
    # ... and what comes after it is held against the new level.
    ((first, _),) = spans([*calm(200), *risen, 9.0, *risen[:50]])
    assert first == 2200


def test_what_has_not_come_back_at_the_end_is_a_spike_only_while_it_is_short() -> None:
    assert spans(calm(200) + [5.0] * 50) == [(200, 249)]
    assert spans(calm(200) + [5.0] * 51) == []


def test_a_spike_of_both_runs_is_shared_and_one_eleven_steps_off_is_not() -> None:
    for distance, shared in ((10, True), (11, False)):
        losses, other = calm(400), calm(400)
        losses[200] = 9.0
        other[200 + distance] = 9.0
        found = apart(curve(losses), curve(other)).spikes
        assert [(spike.candidate, spike.first, spike.shared) for spike in found] == [
            (False, 201, shared),
            (True, 201 + distance, shared),
        ]


def spike(values: int, *, candidate: bool = True) -> Spike:
    return Spike(candidate=candidate, first=Step(1), last=Step(values), values=values, height=1.0, shared=False)


def test_fifty_values_are_ordinary_and_more_if_the_baseline_takes_a_third_of_them() -> None:
    assert are_ordinary([])
    assert are_ordinary([spike(50)])
    assert not are_ordinary([spike(51)])
    assert are_ordinary([spike(60), spike(20, candidate=False)])
    assert not are_ordinary([spike(61), spike(20, candidate=False)])
    assert are_ordinary([spike(500, candidate=False)])


def test_a_spike_is_replaced_by_what_was_before_it() -> None:
    assert calmed([1.0, 2.0, 3.0, 9.0, 9.0, 4.0], {3, 4}) == [1.0, 2.0, 3.0, 2.0, 2.0, 4.0]
    assert calmed([9.0, 1.0], {0}) == [9.0, 1.0]


def test_nothing_is_replaced_where_spikes_are_over_half_of_all() -> None:
    run = curve(calm(300))
    pairs = align(run, run)
    assert len(spiked(pairs, [(run, [Span(first=100, last=249, height=1.0)])])) == 150
    assert spiked(pairs, [(run, [Span(first=100, last=250, height=1.0)])]) == set()
