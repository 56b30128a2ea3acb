"""How many steps are lost by what a log shows, and how long they took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.plan import LostTime, LostTimeSource
from ckpttool.core.domain.units import Step
from ckpttool.health.rules.lost import with_log
from tests.core.decide.test_lost import ONE_RUN, found
from tests.support.inventories import checkpoint


def attempt(*steps: int, seconds: float = 30.0, begin: int = 0) -> LogAttempt:
    rows = [
        StepMetrics(step=Step(step), time=f"2026-11-20 {begin + int(step * seconds) // 3600:02}:"
                    f"{int(step * seconds) // 60 % 60:02}:{int(step * seconds) % 60:02}")
        for step in steps
    ]  # fmt: skip
    return LogAttempt(rows=rows, begun=True, ended=False)


def by_log(minutes: float) -> LostTime:
    return LostTime(seconds=minutes * 60, source=LostTimeSource.LOG)


def test_a_log_tells_the_time_of_lost_steps_and_those_after_the_last_save() -> None:
    point = found(ONE_RUN, "20_2")
    short = with_log(point, [attempt(*range(1, 41))], 0)
    assert (short.lost_steps, short.lost_samples, short.lost_time) == (10, 80, by_log(5))
    long = with_log(point, [attempt(*range(1, 48))], 0)
    assert (long.lost_steps, long.lost_samples, long.lost_time) == (17, 136, by_log(8.5))
    unsized = replace(point, checkpoint=replace(point.checkpoint, scalars=checkpoint("15_2", batch=None).scalars))
    assert with_log(unsized, [attempt(*range(1, 48))], 0).lost_samples is None


def test_a_log_that_ends_before_the_lost_steps_tells_its_pace() -> None:
    point = found(ONE_RUN, "20_2")
    assert with_log(point, [attempt(*range(1, 31))], 0).lost_time == by_log(5)


def test_a_later_start_says_nothing_of_how_far_an_earlier_one_came() -> None:
    point = found(ONE_RUN, "20_2")
    told = with_log(point, [attempt(*range(1, 48)), attempt(*range(10, 12), begin=2)], 0)
    assert (told.lost_steps, told.lost_time) == (10, by_log(5))


@pytest.mark.parametrize("rows", [[(30, None)], [(29, None), (30, None)], [(30, "2026-11-20 10:00:00")]])
def test_a_log_without_times_tells_none(rows: list[tuple[int, str | None]]) -> None:
    log = LogAttempt(rows=[StepMetrics(step=Step(step), time=time) for step, time in rows], begun=True, ended=False)
    assert with_log(found(ONE_RUN, "20_2"), [log], 0).lost_time is None


def test_a_log_says_no_time_where_no_step_is_lost() -> None:
    whole = found(ONE_RUN)
    assert with_log(whole, [attempt(*range(1, 41))], 0) == whole
