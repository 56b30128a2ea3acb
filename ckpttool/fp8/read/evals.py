"""Scores of downstream tasks, as lm-evaluation-harness writes them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json, ParseError, get_object, parse_object
from ckpttool.core.logs.reading import open_log
from ckpttool.fp8.model.curves import TaskScore

_LIMIT = ByteCount(64 << 20)
_METRICS = ("acc_norm", "acc", "exact_match", "em", "f1", "mc2")
"""From 0 to 1, more is better; the first that a task has counts."""


def read_evals(path: str) -> tuple[TaskScore, ...]:
    """Return the score of each task in a results file, by name; of groups of tasks only the group's own.

    Raises:
        UsageError: It cannot be read, is no such file, or has no task with a score.
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
    scores = [
        score for task, scores in sorted(results.items()) if task not in inside and (score := _score(task, scores))
    ]
    if not scores:
        raise UsageError(f"--evals: {path} has no task with a score that ckpttool knows ({', '.join(_METRICS)})")
    return tuple(scores)


def _members(groups: Json) -> Iterator[str]:
    """Yield the tasks that are parts of another."""
    for members in groups.values() if isinstance(groups, dict) else ():
        yield from (member for member in members if isinstance(member, str)) if isinstance(members, list) else ()


def _score(task: str, raw: Json) -> TaskScore | None:
    """Return a task's score by the first metric that it has, of whatever filter."""
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
    """Return a finite number; None for `N/A` and whatever else stands there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
