"""Where logs go back they tell of several starts of a training; what several ranks show is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.metrics import StepMetrics, TrainingLog
from ckpttool.core.domain.units import Step
from ckpttool.core.logs import merge as merging
from ckpttool.core.logs.merge import merge

if TYPE_CHECKING:
    import pytest

Rows = list[StepMetrics]


def rows(
    steps: Iterable[int], norm: float | None = 1.0, day: int | None = None, embedding: float | None = None
) -> Rows:
    return [
        StepMetrics(
            step=Step(step),
            global_norm=norm,
            embedding_local_norm=embedding,
            time=None if day is None else f"2025-01-{day:02d} 00:00:00",
        )
        for step in steps
    ]


def starts(log: TrainingLog) -> list[tuple[int, int, float | None, bool, bool]]:
    """First and last step, the last norm, and whether it is known that it began and ended there."""
    assert log.attempts is not None
    return [(one.first, one.last, one.rows[-1].global_norm, one.begun, one.ended) for one in log.attempts]


OLD, NEW = rows(range(1, 46), 1.0, 1), rows(range(21, 61), 2.0, 2)


def test_a_log_that_goes_back_holds_two() -> None:
    log = merge([("a", [*OLD, *NEW])])
    assert starts(log) == [(1, 45, 1.0, False, True), (21, 60, 2.0, True, False)]
    assert [(row.step, row.global_norm) for row in log.metrics] == [
        (step, 1.0 if step < 21 else 2.0) for step in range(1, 61)
    ]


def test_two_logs_hold_two_in_the_order_of_the_clock() -> None:
    for logs in ([("old", OLD), ("new", NEW)], [("new", NEW), ("old", OLD)]):
        assert starts(merge(logs)) == [(1, 45, 1.0, False, False), (21, 60, 2.0, False, False)]


def test_without_a_clock_they_come_in_the_order_of_the_logs() -> None:
    logs = [("b", rows((3, 4), 2.0)), ("a", rows((1, 2, 3), 1.0))]
    assert [first for first, *_ in starts(merge(logs))] == [3, 1]


def test_ranks_that_show_the_same_norms_are_one_and_the_worst_embedding_norm_counts() -> None:
    one = [*rows((1, 2, 3), 1.0, 1, 5.0), *rows((2, 3), 2.0, 2, 6.0)]
    other = [*rows((1, 2, 3), 1.0, 1, 7.0), *rows((2, 3, 4), 2.0, 2)]
    log = merge([("r0", one), ("r1", other)])
    assert starts(log) == [(1, 3, 1.0, False, True), (2, 4, 2.0, True, False)]
    assert log.attempts is not None
    assert [[row.embedding_local_norm for row in one.rows] for one in log.attempts] == [[7, 7, 7], [6, 6, None]]


def test_a_log_that_was_rotated_is_put_together_again() -> None:
    parts = [[*OLD, *NEW[:10]], NEW[10:]]
    whole = [(1, 45, 1.0, False, True), (21, 60, 2.0, True, False)]
    assert starts(merge([("info.log.1", parts[0]), ("info.log", parts[1])])) == whole
    elsewhere = [[*OLD, *NEW[:12]], NEW[12:]]
    logs = [*zip(("r0.1", "r0"), parts, strict=True), *zip(("r1.1", "r1"), elsewhere, strict=True)]
    assert starts(merge(logs)) == whole
    assert starts(merge([("r0", NEW[10:]), *zip(("r1.1", "r1"), elsewhere, strict=True)])) == whole


def test_a_log_that_goes_back_without_end_tells_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_MOST_ATTEMPTS", 2)
    back = [row for _ in range(3) for row in rows((1, 2))]
    log = merge([("a", back)])
    assert log.attempts is None
    assert [row.step for row in log.metrics] == [1, 2]


def test_a_log_without_a_step_tells_of_no_start() -> None:
    assert merge([("a", [])]).attempts == ()
    assert merge([]).attempts == ()
