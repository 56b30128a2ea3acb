"""The training that a choice loses, according to a log: the steps after the chosen save, and how long they took."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogAttempt, StepMetrics, local_time_of
from ckpttool.core.domain.plan import LostTime, LostTimeSource, ResumePoint


def with_log(point: ResumePoint, attempts: Sequence[LogAttempt], home: int) -> ResumePoint:
    """Add the logged steps after the chosen save, and their duration by the times in the log.

    Args:
        point: The resume point according to the saves.
        attempts: Each start of the training run, in the order of time.
        home: The start that saved the chosen checkpoint.
    """
    step, size = point.step, point.checkpoint.scalars.global_batch_size
    attempt = attempts[home]
    if home == len(attempts) - 1 and attempt.last - step > point.lost_steps:
        steps = attempt.last - step
        point = replace(point, lost_steps=steps, lost_samples=None if size is None else steps * size)
    since = [row for row in attempt.rows if row.step >= step]
    pace = pace_of(since) or pace_of(attempt.rows)
    if pace is None or not point.lost_steps:
        return point
    return replace(point, lost_time=LostTime(seconds=pace * point.lost_steps, source=LostTimeSource.LOG))


def pace_of(rows: Sequence[StepMetrics]) -> float | None:
    """Return the seconds per step, from the first line with a time to the last, or None if unknown."""
    timed = [(row.step, time) for row in rows if (time := local_time_of(row.time)) is not None]
    if len(timed) < 2 or timed[-1][1] <= timed[0][1]:  # noqa: PLR2004  a stretch has two ends
        return None
    return (timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0])
