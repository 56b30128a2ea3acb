"""OLMo's skip-step with its traps, and where it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.olmo import OlmoPolicy
from tests.support.log_rows import NAN, rows

WAVE = [1.0 + 0.1 * math.sin(step) for step in range(400)]


def skipped(norms: Sequence[float | None]) -> list[int]:
    return [event.step or 0 for event in judge(OlmoPolicy(), rows(norms))]


def test_a_spike_is_skipped_and_its_neighbours_are_not() -> None:
    assert skipped([*WAVE[:200], 5.0, *WAVE[200:]]) == [201]


def test_nothing_is_skipped_before_half_a_window_is_full() -> None:
    assert skipped([*WAVE[:62], 50.0, 1.0]) == []
    assert skipped([*WAVE[:63], 50.0, 1.0]) == [64]


def test_one_nan_loss_costs_129_updates() -> None:
    losses = [*WAVE[:200], NAN, *WAVE[200:]]
    metrics = [StepMetrics(step=Step(step), loss=loss, global_norm=1.0) for step, loss in enumerate(losses, 1)]
    events = list(judge(OlmoPolicy(), metrics))
    assert [event.step for event in events] == list(range(201, 330))
    assert all("loss" in event.message and "norm" not in event.message.split(" not ")[0] for event in events)
    assert math.isnan(events[0].value or 0)


def test_a_skipped_spike_hides_a_spike_of_forty_sigmas_ten_steps_later() -> None:
    sigma = 0.1 / math.sqrt(2)
    assert skipped([*WAVE[:200], 10.0, *WAVE[200:210], 1.0 + 40 * sigma, *WAVE[210:]]) == [201]
    assert skipped([*WAVE[:211], 1.0 + 40 * sigma, *WAVE[211:]]) == [212]


def test_after_a_constant_stretch_any_rise_is_skipped() -> None:
    assert skipped([1.0] * 100 + [1.0001]) == [101]
    assert skipped([1.0] * 100 + [0.9999]) == []


def test_a_window_of_one_does_not_fail() -> None:
    assert [event.step for event in judge(OlmoPolicy(window=1), rows([1.0, 2.0, 1.0]))] == [2]
    assert OlmoPolicy().name == "olmo"
