"""ZClip's published numbers, and the hole it has."""

from __future__ import annotations

import pytest

from ckpttool.health.model.events import EventKind
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.zclip import Average, ZClipPolicy
from tests.support.log_rows import INF, NAN, rows

WARM_UP = [1.0] * 24 + [1.5]  # mean 1.02, population standard deviation 0.09798


def test_a_spike_is_clipped_to_the_published_value_and_moves_the_average_by_it() -> None:
    policy = ZClipPolicy()
    (event,) = judge(policy, rows([*WARM_UP, 3.0]))
    assert event.kind is EventKind.CLIP
    assert event.step == 26
    assert event.limit == pytest.approx(1.050303, abs=1e-6)
    average = Average.of(WARM_UP)
    assert average.mean == pytest.approx(1.02)
    assert average.z(3.0) == pytest.approx(20.208, abs=1e-3)
    assert average.after(event.limit or 0, policy.alpha).mean == pytest.approx(1.020909, abs=1e-6)


def test_a_norm_near_the_average_is_left_alone() -> None:
    assert list(judge(ZClipPolicy(), rows([*WARM_UP, 1.2]))) == []


def test_nothing_is_noticed_during_the_warm_up() -> None:
    assert list(judge(ZClipPolicy(), rows([1.0] * 20 + [1000.0]))) == []


def test_after_one_nan_nothing_is_noticed_ever_again() -> None:
    events = list(judge(ZClipPolicy(), rows([*WARM_UP, NAN, NAN, 1e9])))
    assert [(event.kind, event.step) for event in events] == [(EventKind.NONFINITE, 26)]


def test_infinity_is_clipped_to_the_mean() -> None:
    (event,) = judge(ZClipPolicy(), rows([*WARM_UP, INF]))
    assert event.limit == pytest.approx(1.02)


def test_steps_without_a_norm_are_passed_over() -> None:
    (event,) = judge(ZClipPolicy(), rows([None, *WARM_UP, None, 3.0]))
    assert event.step == 28
    assert ZClipPolicy().name == "zclip"
