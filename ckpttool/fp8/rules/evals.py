"""Downstream tasks of two models whose losses match: the export, the recipe, or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ckpttool.fp8.model.curves import CurveClass, Downstream, Evals, TaskChange, TaskScore

_POINT = 0.01
_ERRORS = 2
_NEARLY_ALL = 0.8
_LEAST_TASKS = 3
"""Of one or two nobody can say that they are all."""
_DROP = 0.03


def compare_tasks(baseline: Sequence[TaskScore], candidate: Sequence[TaskScore], kind: CurveClass) -> Evals:
    """Hold the scores of two models against each other, task by task.

    Args:
        baseline: Of the model that is trusted.
        candidate: Of the one that is judged.
        kind: What their losses say; only where they match do tasks tell more.
    """
    by_task = {(score.task, score.metric): score for score in candidate}
    tasks = tuple(
        TaskChange(
            task=score.task,
            metric=score.metric,
            baseline=score.value,
            candidate=counterpart.value,
            error=None
            if score.error is None or counterpart.error is None
            else math.hypot(score.error, counterpart.error),
        )
        for score in sorted(baseline, key=lambda score: score.task)
        if (counterpart := by_task.get((score.task, score.metric))) is not None
    )
    changed = tuple(task.task for task in tasks if abs(task.change) > max(_POINT, _ERRORS * (task.error or 0.0)))
    dropped = tuple(task.task for task in tasks if task.change <= -_DROP and task.z is not None and task.z <= -_ERRORS)
    matches = kind in {CurveClass.MATCH, CurveClass.SPIKES}
    return Evals(
        tasks=tasks, changed=changed, dropped=dropped, verdict=_verdict(tasks, changed, dropped) if matches else None
    )


def _verdict(tasks: Sequence[TaskChange], changed: Sequence[str], dropped: Sequence[str]) -> Downstream:
    if len(tasks) >= _LEAST_TASKS and len(changed) >= _NEARLY_ALL * len(tasks):
        return Downstream.ALL
    return Downstream.SOME if dropped else Downstream.NONE
