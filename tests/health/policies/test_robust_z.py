"""The recommended policy finds what the others miss, and keeps quiet where nothing is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.health.model.events import EventKind
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.robust_z import LEAST_SPREAD, MAD_TO_SIGMA, RobustZPolicy, robust
from tests.support.log_rows import INF, NAN, rows


def calm(length: int, seed: int = 1) -> list[float | None]:
    chance = random.Random(seed)  # noqa: S311 (a curve, no secret)
    return [chance.lognormvariate(0.0, 0.2) for _ in range(length)]


def noticed(norms: Sequence[float | None]) -> list[tuple[EventKind, int]]:
    return [(event.kind, event.step or 0) for event in judge(RobustZPolicy(), rows(norms))]


@pytest.mark.parametrize("seed", range(5))
def test_five_thousand_calm_steps_are_quiet(seed: int) -> None:
    assert noticed(calm(5000, seed)) == []


def test_a_slow_decay_over_three_decades_is_quiet() -> None:
    assert noticed([1000.0 * 0.997**step for step in range(2300)]) == []


def test_a_spike_does_not_hide_the_next_one() -> None:
    norms = [*calm(200), 50.0, *calm(10, 2), 30.0, *calm(50, 3)]
    assert noticed(norms) == [(EventKind.SPIKE, 201), (EventKind.SPIKE, 212)]


def test_the_limit_told_is_the_norm_at_which_it_would_have_been_noticed() -> None:
    (event,) = judge(RobustZPolicy(), rows([*calm(200), 50.0]))
    assert event.limit is not None
    assert 1.5 < event.limit < 50.0


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_is_always_noticed_and_blinds_nothing(bad: float) -> None:
    assert noticed([bad, *calm(200), bad, 50.0]) == [
        (EventKind.NONFINITE, 1),
        (EventKind.NONFINITE, 202),
        (EventKind.SPIKE, 203),
    ]


def test_a_new_level_is_accepted_after_fifty_steps_and_then_quiet() -> None:
    norms = calm(200) + [norm * 100 if norm else None for norm in calm(300, 2)]
    found = noticed(norms)
    assert found[:50] == [(EventKind.SPIKE, step) for step in range(201, 251)]
    assert found[50:] == [(EventKind.LEVEL_SHIFT, 250)]


def test_a_constant_norm_may_rise_by_a_percent_without_a_word() -> None:
    assert noticed([1.0] * 300 + [1.01]) == []
    assert noticed([1.0] * 300 + [1.2]) == [(EventKind.SPIKE, 301)]


def test_no_norm_and_a_norm_of_zero_are_passed_over() -> None:
    assert noticed([*calm(100), None, 0.0, *calm(100, 2)]) == []
    assert RobustZPolicy().name == "zscore"


@given(st.lists(st.floats(min_value=-50, max_value=50), min_size=3), st.floats(min_value=-1e6, max_value=1e6))
def test_one_wild_value_among_three_or_more_moves_the_median_no_further_than_a_neighbour(
    values: list[float], wild: float
) -> None:
    median, spread = robust([*values, wild])
    assert min(values) <= median <= max(values)
    assert spread >= LEAST_SPREAD


def test_the_robust_spread_of_known_values_is_the_scaled_median_deviation() -> None:
    assert robust([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, MAD_TO_SIGMA)
    assert math.isclose(MAD_TO_SIGMA, 1.4826)
    with pytest.raises(ValueError, match="nothing"):
        robust([])
