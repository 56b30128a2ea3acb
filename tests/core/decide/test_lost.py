"""How long lost steps took: only where times can be meant. And whether a choice loses more than it may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.lost import Written, beyond_limits, perhaps_lost, with_saves
from ckpttool.core.decide.resume import choose
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import LostTime, LostTimeSource, Rejection, ResumePoint
from ckpttool.core.domain.question import ResumeQuestion
from ckpttool.core.domain.units import Step
from tests.support.inventories import checkpoint, finding, tree, verdicts

MINUTE_NS = 60 * 10**9


def found(inventory: Inventory, *damaged: str) -> ResumePoint:
    point = choose(inventory, ResumeQuestion(), verdicts(damaged))
    assert isinstance(point, ResumePoint)
    return point


def at(**minutes: float | tuple[float, float] | None) -> Written:
    """Saves by name, each with the minute in which its shards were written, or the first and the last of them."""

    def written(one: Checkpoint) -> tuple[int, int] | None:
        when = minutes[f"at{one.name.replace('-', '_')}"]
        first, last = when if isinstance(when, tuple) else (when, when)
        return None if first is None or last is None else (int(first * MINUTE_NS), int(last * MINUTE_NS))

    return written


def by_saves(inventory: Inventory, written: Written, *damaged: str) -> LostTime | None:
    return with_saves(found(inventory, *damaged), Lineage(inventory), written).lost_time


def taking(minutes: float, pace: tuple[int, int] | None = None) -> LostTime:
    steps = None if pace is None else (Step(pace[0]), Step(pace[1]))
    return LostTime(seconds=minutes * 60, source=LostTimeSource.SAVES, pace=steps)


ONE_RUN = tree(checkpoint("10_2"), checkpoint("15_2"), checkpoint("20_2"))
TWO_RUNS = tree(checkpoint("10_2"), checkpoint("15_2"), checkpoint("20_2", run=1), checkpoint("25_2", run=1))


def test_what_lies_between_two_saves_of_one_run_took_the_time_between_them() -> None:
    assert by_saves(ONE_RUN, at(at15_2=10, at20_2=52), "20_2") == taking(42)
    assert by_saves(ONE_RUN, at(at15_2=(8, 10), at20_2=(51, 52)), "20_2") == taking(42)


@pytest.mark.parametrize(
    "times",
    [
        {"at15_2": None, "at20_2": 52},
        {"at15_2": 52, "at20_2": 10},
        {"at15_2": 10, "at20_2": 10},
        {"at15_2": (10, 30), "at20_2": (20, 40)},  # a copy wrote one rank's files after the other's
        {"at15_2": 10, "at20_2": 10.01},
        {"at15_2": (10, 14), "at20_2": (15, 19)},  # a copy, one save after the other: no pause between them
    ],
)
def test_times_that_no_training_can_have_tell_nothing(times: dict[str, float | tuple[float, float] | None]) -> None:
    assert by_saves(ONE_RUN, at(**times, at10_2=None), "20_2") is None


def test_saves_of_one_file_tell_no_time_for_nothing_tells_a_pause_from_a_copy() -> None:
    saves = [replace(save, shards=save.shards[:1]) for save in ONE_RUN.checkpoints]
    assert by_saves(tree(*saves), at(at10_2=None, at15_2=10, at20_2=52), "20_2") is None


def test_where_no_step_is_lost_no_file_is_asked_for_its_time() -> None:
    assert by_saves(ONE_RUN, at()) is None


def test_a_pause_between_two_runs_is_no_training() -> None:
    a_week = 7 * 24 * 60
    times = at(at10_2=0, at15_2=10, at_1_20_2=a_week, at_1_25_2=a_week + 20)
    assert by_saves(TWO_RUNS, times, "_1-25_2", "_1-20_2") == taking(40, (40, 50))  # 2 minutes each in run 1
    alone = tree(*TWO_RUNS.checkpoints[:3])
    assert by_saves(alone, times, "_1-20_2") == taking(10, (20, 30))  # run 1 has but one save: at run 0's pace
    first = tree(*TWO_RUNS.checkpoints[1:3])
    assert by_saves(first, times, "_1-20_2") is None


def test_what_a_log_told_no_file_tells_again() -> None:
    by_log = replace(found(ONE_RUN, "20_2"), lost_time=LostTime(seconds=300.0, source=LostTimeSource.LOG))
    assert with_saves(by_log, Lineage(ONE_RUN), at()) == by_log


def lossy(steps: int = 10, seconds: float | None = None, *, unknown: bool = False) -> ResumePoint:
    point = replace(found(ONE_RUN), lost_steps=steps)
    if seconds is not None:
        point = replace(point, lost_time=LostTime(seconds=seconds, source=LostTimeSource.SAVES))
    newer = Rejection(checkpoint=checkpoint("25_2", step=None), reasons=(finding(),))
    return replace(point, rejected=(newer,)) if unknown else point


@pytest.mark.parametrize(
    ("point", "limits", "severity"),
    [
        (lossy(10), ResumeQuestion(max_lost_steps=10), None),
        (lossy(11), ResumeQuestion(max_lost_steps=10), Severity.SUSPECT),
        (lossy(0), ResumeQuestion(max_lost_steps=0), None),
        (lossy(0, unknown=True), ResumeQuestion(max_lost_steps=10), Severity.UNKNOWN),
        (lossy(11, unknown=True), ResumeQuestion(max_lost_steps=10), Severity.SUSPECT),
        (lossy(11, unknown=True), ResumeQuestion(), None),
        (lossy(10, 7200.0), ResumeQuestion(max_lost_seconds=7200.0), None),
        (lossy(10, 7201.0), ResumeQuestion(max_lost_seconds=7200.0), Severity.SUSPECT),
        (lossy(10), ResumeQuestion(max_lost_seconds=7200.0), Severity.UNKNOWN),
        (lossy(0), ResumeQuestion(max_lost_seconds=0.0), None),
        (lossy(0, unknown=True), ResumeQuestion(max_lost_seconds=7200.0), Severity.UNKNOWN),
        (lossy(10), ResumeQuestion(max_lost_steps=3, max_lost_seconds=7200.0), Severity.SUSPECT),
        (lossy(10, 7201.0), ResumeQuestion(max_lost_steps=3, max_lost_seconds=7200.0), Severity.SUSPECT),
        (lossy(10, 60.0, unknown=True), ResumeQuestion(max_lost_seconds=7200.0), Severity.UNKNOWN),
        (replace(lossy(0), unlisted=("step_30",)), ResumeQuestion(max_lost_steps=10), Severity.UNKNOWN),
        (replace(lossy(11), unlisted=("step_30",)), ResumeQuestion(max_lost_steps=10), Severity.SUSPECT),
    ],
)
def test_more_than_may_be_lost_is_suspect_and_what_nobody_knows_is_unknown(
    point: ResumePoint, limits: ResumeQuestion, severity: Severity | None
) -> None:
    told = beyond_limits(point, limits)
    assert [each.severity for each in told] == ([] if severity is None else [severity])
    assert {each.code for each in told} <= {Code.TOO_MUCH_LOST}


def test_all_limits_that_do_not_hold_are_in_one_sentence() -> None:
    (told,) = beyond_limits(lossy(10, 7320.0), ResumeQuestion(max_lost_steps=3, max_lost_seconds=7200.0))
    assert told.message == (
        "resuming from 20_2 repeats 10 steps, about 2 h (by file times), but --max-lost-steps allows 3 and "
        "--max-lost-time allows 2 h"
    )


def test_a_newer_save_of_which_no_shard_can_be_listed_is_told_by_its_name() -> None:
    listed, bare = checkpoint("20_2"), replace(checkpoint("25_2"), shards=(), step=None)
    told = perhaps_lost([Rejection(checkpoint=save, reasons=()) for save in (listed, bare)])
    assert [(each.code, each.path) for each in told] == [(Code.STEP_UNKNOWN, bare.name)]
