"""A detour and thresholds in the settings of each trainer."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.advice import Spike, SpikeAdvice, StopAdvice
from ckpttool.core.domain.units import Step
from ckpttool.core.verbs.resolving import with_detours
from ckpttool.health.rules.calibrate import calibrate
from ckpttool.health.rules.detour import advise_after_stop, advise_spike
from ckpttool.health.verbs.replay import threshold_settings
from ckpttool.trainers.registry import trainers
from tests.support.log_rows import rows

SPIKE = advise_spike(Spike(onset=Step(300), end=Step(900)), [Step(100)], newest=Step(1000))
STOP = advise_after_stop(Step(40), [Step(20)], count=5)


def told(advice: SpikeAdvice | StopAdvice) -> dict[str, tuple[object, ...]]:
    detour = with_detours(advice, None).detour
    return {} if detour is None else {each.trainer: (dict(each.config), each.argument) for each in detour.detours}


def test_a_spike_is_passed_by_one_number_or_by_every_single_iteration() -> None:
    assert told(SPIKE) == {
        "mindformers": ({"data_skip_steps": 900, "ignore_data_skip": False}, None),
        "megatron": ({}, "--iterations-to-skip $(seq 101 900)"),
    }


def test_after_a_stop_only_iterations_can_leave_the_good_batches_in() -> None:
    assert (STOP.good_batches_lost, told(STOP)["megatron"]) == (15, ({}, "--iterations-to-skip $(seq 36 40)"))
    assert told(STOP)["mindformers"] == ({"data_skip_steps": 40, "ignore_data_skip": False}, None)


def test_where_nothing_is_to_be_skipped_the_data_still_go_on_behind_the_checkpoint() -> None:
    here = told(advise_after_stop(Step(40), [Step(40)], count=5))
    assert here["mindformers"] == ({"data_skip_steps": 40, "ignore_data_skip": False}, None)
    assert here["megatron"] == ({}, None)


def test_an_advice_without_a_detour_is_told_to_nobody() -> None:
    nowhere = advise_after_stop(Step(40), [], count=5)
    assert with_detours(nowhere, None) is nowhere
    assert [trainer.words.detour(nowhere) for trainer in trainers() if trainer.words is not None] == [None, None]


@pytest.mark.parametrize(("length", "notes"), [(1000, 2), (10, 0)])
def test_that_thresholds_are_floats_is_said_where_there_is_one(length: int, notes: int) -> None:
    settings = threshold_settings(calibrate(rows([1.0] * length)))
    assert (len(settings.notes), bool(settings.text)) == (notes, bool(notes))
