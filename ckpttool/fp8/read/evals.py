"""Scores of two models with matching losses in downstream tasks, and whether export or recipe changed them.

Source:
    Scores are read in the form in which lm-evaluation-harness writes them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json, ParseError, get_object, parse_object
from ckpttool.core.logs.reading import open_log
from ckpttool.fp8.model.curves import CurveClass, Downstream, Evals, TaskChange, TaskScore

_LIMIT = ByteCount(64 << 20)
_METRICS = ("acc_norm", "acc", "exact_match", "em", "f1", "mc2")
"""Metrics from 0 to 1, higher is better. If a task has several, the first counts."""

_POINT = 0.01
_ERRORS = 2
_NEARLY_ALL = 0.8
_LEAST_TASKS = 3
"""Minimum number of tasks, because with one or two "all tasks changed" is not evidence."""
_DROP = 0.03


def compare_tasks(baseline: Sequence[TaskScore], candidate: Sequence[TaskScore], kind: CurveClass) -> Evals:
    """Compare the scores of two models, task by task.

    Args:
        baseline: Scores of the trusted model.
        candidate: Scores of the judged model.
        kind: Result of comparing the losses. Tasks add information only if the losses match.
    """
    by_task = {(score.task, score.metric): score for score in candidate}
    tasks = tuple(
        TaskChange(
            task=score.task,
            metric=score.metric,
            baseline=score.value,
            candidate=counterpart.value,
            error=_error_of(score, counterpart),
        )
        for score in sorted(baseline, key=lambda score: score.task)
        if (counterpart := by_task.get((score.task, score.metric))) is not None
    )
    changed = tuple(task.task for task in tasks if abs(task.change) > max(_POINT, _ERRORS * (task.error or 0.0)))
    dropped = tuple(task.task for task in tasks if task.change <= -_DROP and task.z is not None and task.z <= -_ERRORS)
    verdict = None
    if kind in {CurveClass.MATCH, CurveClass.SPIKES}:
        verdict = Downstream.SOME if dropped else Downstream.NONE
        if len(tasks) >= _LEAST_TASKS and len(changed) >= _NEARLY_ALL * len(tasks):
            verdict = Downstream.ALL
    return Evals(tasks=tasks, changed=changed, dropped=dropped, verdict=verdict)


def _error_of(score: TaskScore, counterpart: TaskScore) -> float | None:
    """Return the standard error of the difference, or None if either error is unknown."""
    if score.error is None or counterpart.error is None:
        return None
    return math.hypot(score.error, counterpart.error)


def read_evals(path: str) -> tuple[TaskScore, ...]:
    """Return the score of each task in a results file, by name. A group of tasks has only the score of the group.

    Raises:
        UsageError: The file cannot be read, is not a results file, or has no task with a score.
    """
    try:
        with open_log(path) as stream:
            parts: list[bytes] = []
            while sum(map(len, parts)) <= _LIMIT and (part := stream.read(_LIMIT)):
                parts.append(part)
        document = parse_object(b"".join(parts), where=path, limit=_LIMIT, nonfinite=True)
        results = get_object(document, "results", where=path)
    except ParseError as error:
        raise UsageError(f"--evals: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--evals: {path} cannot be read: {why}") from None
    inside = {*_members(document.get("group_subtasks"))}
    scored = (_score(task, scores) for task, scores in sorted(results.items()) if task not in inside)
    scores = [score for score in scored if score is not None]
    if not scores:
        raise UsageError(f"--evals: {path} has no task with a known score ({', '.join(_METRICS)})")
    return tuple(scores)


def _members(groups: Json) -> Iterator[str]:
    for members in groups.values() if isinstance(groups, dict) else ():
        yield from (member for member in members if isinstance(member, str)) if isinstance(members, list) else ()


def _score(task: str, raw: Json) -> TaskScore | None:
    """Return a task's score by its first metric, with any filter."""
    if not isinstance(raw, dict):
        return None
    for metric in _METRICS:
        for key, value in sorted(raw.items()):
            name, comma, filtered = key.partition(",")
            score = _number(value)
            if name == metric and comma and score is not None:
                error = _number(raw.get(f"{metric}_stderr,{filtered}"))
                return TaskScore(task=task, metric=key, value=score, error=error)
    return None


def _number(value: Json) -> float | None:
    """Return a finite number, or None for `N/A` and other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
