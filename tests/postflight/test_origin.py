"""Which of two runs wrote a save that both passed."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LocalTime, StepMetrics, show_local_time
from ckpttool.core.domain.units import Step
from ckpttool.postflight.rules.origin import is_of_second_run


def logged(first: int, last: int, *, begin: float) -> list[StepMetrics]:
    """Rows of a run that does a step per second."""
    return [
        StepMetrics(step=Step(step), time=show_local_time(LocalTime(begin + step - first)))
        for step in range(first, last + 1)
    ]


BEFORE = logged(1, 430, begin=7200.0)
AFTER = logged(301, 450, begin=11_000.0)  # step 400 is an hour after step 300 of the first run


@pytest.mark.parametrize(("seconds", "second"), [(100.0, False), (130.0, False), (3600.0, True), (4000.0, True)])
def test_the_time_since_an_earlier_save_decides(seconds: float, *, second: bool) -> None:
    assert is_of_second_run(BEFORE, AFTER, Step(400), Step(300), seconds) is second


def test_without_times_it_is_unknown() -> None:
    untimed = [replace(row, time=None) for row in AFTER]
    assert not is_of_second_run(BEFORE, untimed, Step(400), Step(300), 3600.0)
    assert not is_of_second_run([], AFTER, Step(400), Step(300), 3600.0)
